"""A daemon with an unsupported protocol is reported as such and not queried."""

from dataclasses import replace

from exporter.metrics.catalogue import NodeCollector
from exporter.model.daemon import Daemon, DaemonState, Declaration
from exporter.model.event import EventName
from exporter.model.node import Node
from exporter.model.observation import DaemonProcess, GpuProcess, GpuReading, LogLine, Observation, ProcessExit
from exporter.model.settings import PollIntervals
from exporter.parse import protocol3
from exporter.reducer import reduce
from exporter.report.status_text import status_table
from exporter.state.poll_schedule import commands
from exporter.view import View
from tests.builders import GPU

NAME = "/run/nvidia-mps"
STARTED = "Starting control daemon using socket /run/nvidia-mps/control"
PROTOCOL_3_LINE = "To connect CUDA applications to this daemon, set CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps"
PROTOCOL_2_LINE = "To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps"


def after(*seen: Observation) -> tuple[Node, list[EventName]]:
    node = Node(
        daemons={
            NAME: Daemon(name=NAME, pipe_directory=NAME, log_directory="/log", declared=Declaration(expected=True))
        }
    )
    names: list[EventName] = []
    for each in seen:
        node, events = reduce(node, each)
        names.extend(event.event for event in events)
    return node, names


def process(at: float = 1.0, protocol: int | None = 4, pid: int = 77) -> DaemonProcess:
    return DaemonProcess(at=at, daemon=NAME, pid=pid, start_ticks=5, protocol=protocol)


def log(text: str, at: float = 2.0) -> LogLine:
    line = f"[2026-11-20 15:08:45.147 Control    77] {text}"
    return LogLine(at=at, daemon=NAME, file="control.log", line=line)


def samples(node: Node, name: str) -> list[float]:
    found = (metric for metric in NodeCollector(View(node)).collect())
    return [sample.value for metric in found for sample in metric.samples if sample.name == name]


def test_sends_no_query_and_has_no_state() -> None:
    node, _ = after(process())

    assert commands(node, NAME, PollIntervals()) == ()
    assert node.daemons[NAME].state is None
    assert samples(node, "cuda_mps_daemon_up") == []
    assert samples(node, "cuda_mps_daemon_supported") == [0]


def test_the_log_shows_protocol_3() -> None:
    for observations in (
        (process(protocol=None), log(PROTOCOL_3_LINE)),
        (log(STARTED), log(PROTOCOL_3_LINE), process(at=3, protocol=2)),
    ):
        node, _ = after(*observations)

        assert protocol3.LIST_SERVERS in commands(node, NAME, PollIntervals())


def test_servers_and_clients_of_an_unsupported_daemon_are_known_from_proc_and_nvml() -> None:
    node, events = after(
        replace(process(), servers=(90,)),
        GpuReading(at=2.0, gpu=GPU, compute_processes=(GpuProcess(pid=90),), mps_processes=(GpuProcess(pid=91),)),
    )

    assert events == [EventName.SERVER_STARTED, EventName.CLIENT_CONNECTED]
    assert samples(node, "cuda_mps_server_clients") == [1]
    assert samples(node, "cuda_mps_bypassing_processes") == [0]

    node, events = after(replace(process(), servers=(90,)), replace(process(at=3.0), servers=()))
    assert events == [EventName.SERVER_STARTED, EventName.SERVER_EXITED]


def test_status_reports_the_reason() -> None:
    node, _ = after(process())

    assert "unsupported" in status_table(node)
    assert "MPS protocol 4 is unknown" in status_table(node)


def test_reports_the_end_of_an_unsupported_daemon() -> None:
    node, events = after(process(), ProcessExit(at=5.0, pid=77, start_ticks=5), log("", at=20.0))

    assert node.daemons[NAME].state is DaemonState.ABSENT
    assert events == [EventName.DAEMON_LOST]


def test_queries_a_new_daemon_with_the_supported_protocol() -> None:
    node, _ = after(process(), ProcessExit(at=5.0, pid=77, start_ticks=5), process(at=20.0, protocol=2, pid=78))

    assert node.daemons[NAME].supported
    assert commands(node, NAME, PollIntervals())


def test_a_log_line_with_the_supported_protocol_changes_nothing() -> None:
    node, _ = after(process(protocol=None), log(PROTOCOL_2_LINE))

    assert samples(node, "cuda_mps_daemon_supported") == [1]
    assert commands(node, NAME, PollIntervals())
