"""Static SM partitions of both protocols: lists, clients, headroom, limits, failure domains."""

import pytest

from exporter.metrics.catalogue import NodeCollector
from exporter.model.daemon import Daemon, Declaration
from exporter.model.node import Node
from exporter.model.observation import (
    ControlReply,
    DaemonProcess,
    GpuProcess,
    GpuReading,
    Observation,
    ProcessReading,
)
from exporter.model.server import SmCapacity, SmPartition
from exporter.model.settings import SM_PARTITION, Limits, PollIntervals
from exporter.page.page import Page
from exporter.parse.protocol3 import LIST_PARTITIONS as LIST_PARTITIONS_3
from exporter.parse.sm_partitions import parse_lspart
from exporter.state.failure_domains import failure_domains
from exporter.state.poll_schedule import commands
from exporter.state.reducer import reduce
from exporter.usage.capacity import Bound, gpu_sharing, thread_ratio
from exporter.view import View
from exporter.watchdog.limit_enforcement import check_limits
from tests.builders import GPU
from tests.page.scenes import status_input
from tests.parse.test_protocol3 import SAMPLES

NAME = "/run/nvidia-mps"
SERVER, FIRST, SECOND = 90, 100, 101
BIG, SMALL = "Dx4AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "Cx4/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"

# NVIDIA's MPS guide, release 615, for other GPUs and partitions; the short rows are those of parsers of others.
GUIDE = f"""GPU           Partition                          free  used  free  used  clients
                                                     chunk chunk SM    SM
{GPU[:12]}  -                                  3     9     24    72    -
{GPU[:12]}  {BIG}  -     7     -     56    Yes
{GPU[:12]}  {SMALL}  -     2     -     16    No
"""
SHORT = f"""GPU Partition free used free used clients
chunks chunks SM SM
{GPU[:6]} 3 9 24 72
{GPU[:6]} {BIG} 7 56 Yes
{GPU[:6]} {SMALL} 2 16 No
"""


def reply(at: float, command: str, stdout: str) -> ControlReply:
    return ControlReply(at=at, daemon=NAME, command=command, exit_code=0, stdout=stdout, seconds=0.001)


def client(pid: int, variable: str | None) -> ProcessReading:
    environment = {} if variable is None else {SM_PARTITION: variable}
    return ProcessReading(at=6.0, pid=pid, start_ticks=pid, started=1.0, environment=environment)


def nvml(at: float, *pids: int, driver: str = "590.48") -> GpuReading:
    processes = tuple(GpuProcess(pid=pid, used_bytes=1 << 30) for pid in pids)
    return GpuReading(
        at=at,
        gpu=GPU,
        index=0,
        compute_processes=(GpuProcess(pid=SERVER, used_bytes=1 << 20), *processes),
        mps_processes=processes,
        driver_version=driver,
        cuda_version="13.1",
        compute_capability="9.0",
        memory_used_bytes=2 << 30,
        memory_total_bytes=80 << 30,
    )


def after(*seen: Observation, driver: str = "590.48", options: tuple[str, ...] = ("-S",)) -> Node:
    daemon = Daemon(name=NAME, pipe_directory=NAME, log_directory="/log", declared=Declaration(expected=True))
    node = Node(daemons={NAME: daemon})
    start: tuple[Observation, ...] = (
        DaemonProcess(at=1.0, daemon=NAME, pid=77, start_ticks=5, protocol=2, options=options, uid=0),
        reply(2.0, "get_server_list", f"{SERVER}\n"),
        reply(2.1, f"get_client_list {SERVER}", f"{FIRST}\n{SECOND}\n"),
        reply(2.2, f"get_active_thread_percentage {SERVER}", "50.0\n"),
        nvml(3.0, FIRST, SECOND, driver=driver),
    )
    for each in (*start, *seen):
        node, _ = reduce(node, each)
    return node


def page(node: Node) -> str:
    return Page({}).node(status_input(node)).decode()


def samples(node: Node, name: str) -> dict[tuple[str, ...], float]:
    found = (metric for metric in NodeCollector(View(node)).collect())
    return {tuple(each.labels.values()): each.value for metric in found for each in metric.samples if each.name == name}


WITH_PARTITIONS = (reply(4.0, "lspart", GUIDE), client(FIRST, f"{GPU}/{BIG}"), client(SECOND, f"{GPU[:12]}/{BIG}"))


@pytest.mark.parametrize("text", [GUIDE, SHORT])
def test_reads_both_forms_of_the_list(text: str) -> None:
    found, unknown = parse_lspart(text)
    assert [(each.id, each.chunks, each.sms, each.has_clients) for each in found.partitions] == [
        (BIG, 7, 56, True),
        (SMALL, 2, 16, False),
    ]
    assert list(found.free.values()) == [SmCapacity(chunks=3, sms=24)]
    assert unknown == 0


def test_counts_unknown_rows_of_the_list() -> None:
    node = after(reply(4.0, "lspart", f"{GUIDE}a new line of a later release\n"))
    assert samples(node, "cuda_mps_exporter_replies_unrecognized_total") == {(NAME, "column"): 0, (NAME, "row"): 1}


def test_asks_only_a_daemon_that_has_partitions() -> None:
    assert "lspart" in commands(after(), NAME, PollIntervals())
    assert "lspart" not in commands(after(options=()), NAME, PollIntervals())


def test_exports_partitions_and_their_clients() -> None:
    node = after(*WITH_PARTITIONS)
    assert samples(node, "cuda_mps_sm_partition_sms") == {(NAME, GPU, BIG): 56, (NAME, GPU, SMALL): 16}
    assert samples(node, "cuda_mps_sm_partition_clients") == {(NAME, GPU, BIG): 2, (NAME, GPU, SMALL): 0}
    assert samples(node, "cuda_mps_sm_partition_free_sms") == {(NAME, GPU): 24}
    assert len(samples(node, "cuda_mps_client_sm_partition_info")) == 2

    hidden = after(*WITH_PARTITIONS[:2])
    assert samples(hidden, "cuda_mps_sm_partition_clients") == {(NAME, GPU, SMALL): 0}


@pytest.mark.parametrize("variable", [None, "", "GPU-", f"GPU-/{BIG}", f"{GPU}/unknown", f"{GPU}", "/", f"/{BIG}"])
def test_a_client_without_a_known_partition_has_none(variable: str | None) -> None:
    node = after(*WITH_PARTITIONS[:1], client(FIRST, variable))
    assert samples(node, "cuda_mps_client_sm_partition_info") == {}


def test_thread_percentages_do_not_apply() -> None:
    node, plain = after(*WITH_PARTITIONS), after(*WITH_PARTITIONS[1:], options=())
    for each, ratio in ((node, None), (plain, 0.5)):
        daemon = each.daemons[NAME]
        assert thread_ratio(each, daemon, daemon.clients[FIRST]) == ratio
        assert bool(samples(each, "cuda_mps_server_active_thread_ratio")) is (ratio is not None)
        assert bool(check_limits(daemon, Limits(active_thread_percentage=10.0), 9.0)) is (ratio is not None)
    assert "of threads" not in page(node)


def test_headroom_counts_partitions() -> None:
    headroom = gpu_sharing(after(*WITH_PARTITIONS))[GPU].headroom
    # One without clients, and none of the mean size of 4.5 chunks in 3 free chunks.
    assert headroom.by_bound[Bound.PARTITIONS] == 1
    assert Bound.SM not in headroom.by_bound
    assert Bound.PARTITIONS not in gpu_sharing(after(options=()))[GPU].headroom.by_bound
    unknown = gpu_sharing(after())[GPU].headroom
    assert (unknown.fits, Bound.PARTITIONS in unknown.by_bound) == (None, False)


@pytest.mark.parametrize(("driver", "upper_bound"), [("590.48", False), ("609.1", False), ("610.0", True), ("?", True)])
def test_failure_domains_are_upper_bounds_from_driver_610_on(driver: str, upper_bound: bool) -> None:
    node = after(*WITH_PARTITIONS, driver=driver)
    [domain] = failure_domains(node, node.daemons[NAME])[SERVER]
    assert (domain.clients, domain.upper_bound) == ({FIRST, SECOND}, upper_bound)
    assert bool(samples(node, "cuda_mps_client_failure_domain_upper_bound")) is upper_bound
    assert ("upper bound" in page(node)) is upper_bound
    assert failure_domains(after(driver="615.0", options=()), node.daemons[NAME])[SERVER][0].upper_bound is not False


def test_the_page_shows_the_partitions_of_protocol_3() -> None:
    text = SAMPLES[LIST_PARTITIONS_3].replace("GPU-74d43ed3-cdf7-e667-3644-bf5b4f46ed65", GPU)
    node = after(reply(4.0, LIST_PARTITIONS_3, text), options=())
    found = node.daemons[NAME].runtime.partitions
    assert found is not None
    assert found.partitions == (
        SmPartition(
            gpu=GPU, id="Kp8AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", chunks=4, sms=34, name="large", server="training"
        ),
    )
    assert "1 static SM partition, 8 SMs in none" in page(node)
