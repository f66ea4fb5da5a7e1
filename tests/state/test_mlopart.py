"""MLOPart devices (locality domains, R590): parts of a GPU with UUIDs of their own. No such GPU was at hand."""

import pytest

from exporter.model.launches import GpuUse
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.settings import PollIntervals
from exporter.parse.control_reply import parse_device_addresses
from exporter.parse.protocol3 import LIST_DEVICES
from exporter.state.devices import device_count, gpus_by_ordinal, serves_gpu
from exporter.state.failure_domains import failure_domains, gpus_of_clients
from exporter.state.poll_schedule import commands
from exporter.usage.capacity import Bound, gpu_sharing, thread_ratio
from tests.builders import (
    AT,
    CLIENT,
    CONTROL,
    DAEMON,
    DEVICE_COLUMNS,
    GPU,
    MLOPART_DEVICES,
    MLOPART_UUIDS,
    ONE_DEVICE,
    OTHER_GPU,
    SERVER,
    active,
    at_work,
    connecting,
    daemon_process,
    exited,
    gpu_reading,
    no_daemon,
    process,
    reduced,
    reply,
    server_log,
    servers,
)
from tests.works import reading, work

QUERY = "device_query --csv"
FIRST, SECOND = MLOPART_UUIDS
# The columns of NVIDIA's guide, release 615.
DIVIDED_3 = (
    "Ordinal,Server,PCI ID,Device UUID,Name,Total SMs,Total Chunks,Attributes\n"
    f"0,training,0000:1b:00.0,{FIRST},NVIDIA B200,70,8,D\n1,training,0000:1b:00.0,{SECOND},NVIDIA B200,70,8,D\n"
)

A, B, SMS = CLIENT, CLIENT + 1, 148
THREADS = server_log("Active Threads Percentage set to 100.0")


def connects(pid: int, device: str) -> tuple[Observation, ...]:
    return server_log(connecting(pid), f"Device NVIDIA B200 MLOPart (uuid {device}) is associated", active(pid))


def after(*seen: Observation, address: str = "00000000:1B:00.0") -> Node:
    """Return a node whose clients have one part of the GPU each, by the log."""
    gpu = gpu_reading([A, B], at=AT + 5, pci_bus_id=address)
    connected = (*connects(A, FIRST), *connects(B, SECOND), process(A), process(B))
    return reduced(*at_work(), *THREADS, *connected, gpu, *seen).node


def listed(text: str = MLOPART_DEVICES) -> Observation:
    return reply(QUERY, text, at=AT + 6)


@pytest.mark.parametrize("text", [MLOPART_DEVICES, DIVIDED_3])
def test_reads_the_addresses_of_both_protocols(text: str) -> None:
    assert {uuid: parse_device_addresses(text)[uuid] for uuid in MLOPART_UUIDS} == dict.fromkeys(
        MLOPART_UUIDS, "0000:1b:00"
    )


def test_ignores_other_rows(subtests: pytest.Subtests) -> None:
    for row in [
        "",
        "0,0000:1B.00.00",
        f"0,{FIRST},{SECOND},0000:1B.00.00",
        f"0,{FIRST},1B.00.00",
        f"0,{FIRST},0000:1B.00.00,0000:1C.00.00",
    ]:
        with subtests.test(row=row):
            assert parse_device_addresses(row) == {}


def test_instances_of_mig_have_one_address_and_are_not_mlopart_devices() -> None:
    rows = "".join(f"{number},0000:1B.00.00,MIG-{FIRST[4:-1]}{number},NVIDIA B200 MIG,N/A\n" for number in range(2))
    assert not after(listed(f"Default\n{DEVICE_COLUMNS}{rows}")).daemons[DAEMON].has_mlopart_devices


def test_asks_for_the_devices_if_the_log_names_an_unknown_one() -> None:
    assert QUERY in commands(after(), DAEMON, PollIntervals())
    assert QUERY not in commands(reduced(*at_work(A), gpu_reading([A])).node, DAEMON, PollIntervals())
    assert QUERY not in commands(after(listed()), DAEMON, PollIntervals())


def test_clients_are_on_the_gpu_and_their_failure_domain_is_an_upper_bound() -> None:
    node = after(listed())
    daemon = node.daemons[DAEMON]
    assert dict(gpus_of_clients(node, daemon, (A, B))) == {A: {GPU}, B: {GPU}}
    (domain,) = failure_domains(node, daemon)[SERVER]
    assert (domain.clients, domain.gpus, domain.upper_bound) == ({A, B}, {GPU}, True)


def test_neither_ordinals_nor_limits_are_those_of_the_gpu() -> None:
    undivided, node = after(listed(ONE_DEVICE)), after(listed())
    daemon = node.daemons[DAEMON]
    assert thread_ratio(undivided, undivided.daemons[DAEMON], undivided.daemons[DAEMON].clients[A]) == 1.0
    assert thread_ratio(node, daemon, daemon.clients[A]) is None
    assert (dict(gpus_by_ordinal(node, daemon)), device_count(node, daemon)) == ({}, 0)
    bounds = gpu_sharing(node)[GPU].headroom.by_bound
    assert Bound.SLOTS in bounds
    assert not {Bound.MEMORY, Bound.SM} & bounds.keys()


def test_asks_again_after_the_devices_were_divided() -> None:
    """A new server of the same daemon may not divide them, and its log then names only known GPUs."""
    later = AT + 7 + PollIntervals().limits
    node = reduced(*at_work(at=later), start=after(listed())).node
    assert QUERY in commands(node, DAEMON, PollIntervals())


def test_a_new_daemon_has_no_divided_devices_yet() -> None:
    ended = (daemon_process(), exited(CONTROL, at=AT + 7), no_daemon(at=AT + 17))
    node = reduced(*ended, daemon_process(CONTROL + 1, at=AT + 20), servers(at=AT + 21), start=after(listed())).node
    assert not node.daemons[DAEMON].has_mlopart_devices


@pytest.mark.parametrize("others", [(), (gpu_reading(gpu=OTHER_GPU, index=1, server=None),)], ids=["one", "two"])
def test_all_work_of_a_client_with_several_parts_of_a_gpu_is_on_that_gpu(others: tuple[Observation, ...]) -> None:
    seen: list[Observation] = []
    for second in range(1, 5):
        busy = second * 4 * 10**8
        counts = {"kernels": second, "spans": second, "widths": second * SMS, "area": busy * SMS, "flight_ns": busy}
        at = AT + 6 + second
        seen += [
            reading(at, work(A, **counts), work(B, **counts), sms=SMS),
            GpuUse(at=at, gpu=GPU, seconds=1.0, sm_utilization=0.5, dram_bandwidth=0.1),
        ]
    node = reduced(*connects(A, SECOND), *others, *seen, start=after(listed())).node
    assert len(node.daemons[DAEMON].clients[A].gpus) == 2
    assert {pid: share.sm for pid, share in node.splits[GPU].shares.items()} == pytest.approx({A: 0.25, B: 0.25})


def test_a_daemon_with_protocol_3_serves_the_divided_gpu() -> None:
    other = gpu_reading(gpu=OTHER_GPU, index=1, pci_bus_id="00000000:2C:00.0", server=None)
    node = after(other, reply(LIST_DEVICES, DIVIDED_3, at=AT + 6))
    daemon = node.daemons[DAEMON]
    assert serves_gpu(node, daemon, node.gpus[GPU].reading)
    assert not serves_gpu(node, daemon, node.gpus[OTHER_GPU].reading)
