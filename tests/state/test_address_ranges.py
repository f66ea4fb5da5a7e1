"""Which address ranges are wanted, and which readings are remembered."""

from dataclasses import replace

from exporter.incidents import fault_address
from exporter.model.incident import FailedAccess, IncidentXid
from exporter.model.node import Node
from exporter.model.observation import AddressRanges
from tests.builders import AT, GPU, OTHER_GPU, exited, gpu_reading, look, process, reduced
from tests.incidents.test_incidents import UP, A, B, C

ACCESS = FailedAccess(unit="T1", address=1 << 46)


def with_fault(gpu: str | None, at: float = AT + 3) -> Node:
    xid = IncidentXid(at=at, number=31, gpu=gpu, access=ACCESS)
    return replace(UP, xids=replace(UP.xids, recent=(xid,)))


def ranges(at: float, start: int = 1 << 44, ticks: int = 60) -> AddressRanges:
    return AddressRanges(at=at, pid=A, start_ticks=ticks, gpu=((start, start + 1),), host=())


def test_the_clients_with_their_memory_are_wanted() -> None:
    wanted = fault_address.wanted(UP)
    assert set(wanted) == {A, B, C}
    assert all(want.memory and want.fault_at == 0 for want in wanted.values())
    assert {pid: want.start_ticks for pid, want in wanted.items()} == {
        pid: UP.processes[pid].start_ticks for pid in (A, B, C)
    }
    grown = reduced(gpu_reading(dict.fromkeys((A, B, C), 5000), at=AT + 1), start=UP).node
    assert fault_address.wanted(grown)[A].memory != wanted[A].memory


def test_after_a_fault_the_clients_of_its_gpu_are_wanted_again() -> None:
    fault = with_fault(GPU)
    assert fault_address.last_fault_at(fault) == AT + 3
    assert {want.fault_at for want in fault_address.wanted(fault).values()} == {AT + 3}
    elsewhere = reduced(gpu_reading((700,), gpu=OTHER_GPU, index=1), start=with_fault(OTHER_GPU)).node
    assert {want.fault_at for want in fault_address.wanted(elsewhere).values()} == {0}
    assert {want.fault_at for want in fault_address.wanted(with_fault(None)).values()} == {AT + 3}
    assert fault_address.last_fault_at(UP) == 0
    # A client that NVML does not list yet is a candidate too.
    listed = replace(fault.gpus[GPU], mps_since={A: AT, B: AT}, mps_left={})
    unlisted = replace(fault, gpus={**fault.gpus, GPU: listed})
    assert fault_address.wanted(unlisted)[C].fault_at == AT + 3


def test_equal_readings_count_as_one_and_the_last_different_ones_are_remembered() -> None:
    node = reduced(*(ranges(AT + number) for number in range(5)), start=UP).node
    assert node.address_ranges[A] == (ranges(AT + 4),)
    node = reduced(*(ranges(AT + number, start=(1 << 44) + number) for number in range(6)), start=UP).node
    assert [each.at for each in node.address_ranges[A]] == [AT + 3, AT + 4, AT + 5]
    assert [each.start_ticks for each in reduced(ranges(AT + 9, ticks=61), start=node).node.address_ranges[A]] == [61]


def test_the_ranges_of_a_process_that_ended_are_remembered_for_a_minute() -> None:
    node = reduced(process(A), ranges(AT), exited(A, at=AT + 1), gpu_reading((B, C), at=AT + 2), start=UP).node
    assert A in node.address_ranges
    later = reduced(*(gpu_reading((B, C), at=AT + 200 + n) for n in range(2)), look(at=AT + 203), start=node).node
    assert A not in later.address_ranges
