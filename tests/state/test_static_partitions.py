"""Static SM partitions of both protocols: what does not apply to them is not claimed."""

import pytest

from exporter.metrics.catalogue import NodeCollector
from exporter.model.daemon import Daemon, Declaration
from exporter.model.node import Node
from exporter.model.observation import ControlReply, DaemonProcess, GpuProcess, GpuReading, Observation, ProcessReading
from exporter.model.settings import Limits
from exporter.page.page import Page
from exporter.parse.protocol3 import LIST_PARTITIONS
from exporter.state.failure_domains import failure_domains
from exporter.state.reducer import reduce
from exporter.usage.capacity import Bound, gpu_sharing, thread_ratio
from exporter.view import View
from exporter.watchdog.limit_enforcement import check_limits
from tests.builders import GPU
from tests.page.scenes import status_input
from tests.parse.test_protocol3 import SAMPLES

NAME = "/run/nvidia-mps"
SERVER, FIRST, SECOND = 90, 100, 101


def reply(at: float, command: str, stdout: str) -> ControlReply:
    return ControlReply(at=at, daemon=NAME, command=command, exit_code=0, stdout=stdout, seconds=0.001)


def after(*seen: Observation, options: tuple[str, ...] = ()) -> Node:
    daemon = Daemon(name=NAME, pipe_directory=NAME, log_directory="/log", declared=Declaration(expected=True))
    node = Node(daemons={NAME: daemon})
    processes = tuple(GpuProcess(pid=pid, used_bytes=1 << 30) for pid in (FIRST, SECOND))
    start: tuple[Observation, ...] = (
        DaemonProcess(at=1.0, daemon=NAME, pid=77, start_ticks=5, protocol=2, options=options, uid=0),
        reply(2.0, "get_server_list", f"{SERVER}\n"),
        reply(2.1, f"get_client_list {SERVER}", f"{FIRST}\n{SECOND}\n"),
        reply(2.2, f"get_active_thread_percentage {SERVER}", "50.0\n"),
        GpuReading(
            at=3.0,
            gpu=GPU,
            index=0,
            compute_processes=(GpuProcess(pid=SERVER, used_bytes=1 << 20), *processes),
            mps_processes=processes,
            compute_capability="9.0",
            memory_used_bytes=2 << 30,
            memory_total_bytes=80 << 30,
        ),
        ProcessReading(at=3.1, pid=FIRST, start_ticks=FIRST, started=1.0, environment={}),
    )
    for each in (*start, *seen):
        node, _ = reduce(node, each)
    return node


def page(node: Node) -> str:
    return Page({}).node(status_input(node)).decode()


def families(node: Node) -> set[str]:
    return {sample.name for metric in NodeCollector(View(node)).collect() for sample in metric.samples}


CREATED = SAMPLES[LIST_PARTITIONS]
"""A list of a daemon with protocol 3: one partition is created."""


@pytest.mark.parametrize(
    ("node", "partitioned"),
    [
        (after(), False),
        (after(options=("-S",)), True),
        (after(reply(4.0, LIST_PARTITIONS, CREATED)), True),
        (after(reply(4.0, LIST_PARTITIONS, CREATED.replace("created", "configured"))), False),
        (after(reply(4.0, LIST_PARTITIONS, CREATED), reply(5.0, LIST_PARTITIONS, CREATED.splitlines()[0])), False),
    ],
    ids=["no", "by its option", "listed", "only configured", "no longer listed"],
)
def test_what_static_partitions_change(node: Node, partitioned: bool) -> None:
    daemon = node.daemons[NAME]
    assert daemon.has_static_partitions is partitioned
    assert thread_ratio(node, daemon, daemon.clients[FIRST]) == (None if partitioned else 0.5)
    assert ("cuda_mps_server_active_thread_ratio" in families(node)) is not partitioned
    assert bool(check_limits(daemon, Limits(active_thread_percentage=10.0), 9.0)) is not partitioned
    [domain] = failure_domains(node, daemon)[SERVER]
    assert (domain.clients, domain.upper_bound) == ({FIRST, SECOND}, partitioned)
    bounds = gpu_sharing(node)[GPU].headroom.by_bound.keys()
    assert not partitioned or not bounds & {Bound.SM, Bound.SLOTS}, bounds
    assert ("static SM partitions" in page(node)) is partitioned
    assert ("of threads" in page(node)) is not partitioned
