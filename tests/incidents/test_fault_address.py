"""Whose address was it? The address of a failed access, and the address ranges of the clients."""

import pytest

from exporter.incidents.fault_address import find_owner
from exporter.model.gpu import AccessKind, FailedAccess
from exporter.model.incident import Incident, Place
from exporter.model.observation import AddressRange, AddressRanges, KernelRecord
from tests.builders import AT, GPU, at_work, reduced, status
from tests.incidents.test_incidents import UP, A, B, C, claimed

GIB = 1 << 30
FIXED = ((0x2_0000_0000, 0x3_0020_0000), (0x100_0000_0000, 0x100_0400_0000))
"""What CUDA maps in every process at the same addresses."""
LAYOUT = {pid: 0x7F00_0000_0000 + number * 100 * GIB for number, pid in enumerate((A, B, C))}
"""Where each client has its ranges."""


def ranges(pid: int, at: float = AT, *more: AddressRange, size: int = 8 * GIB, **values: object) -> AddressRanges:
    start = LAYOUT[pid]
    gpu = (*FIXED, *more, (start, start + size))
    return AddressRanges(at=at, pid=pid, start_ticks=1, gpu=gpu, host=((start + 20 * GIB, start + 20 * GIB + 8),))


ALL = {pid: (ranges(pid),) for pid in (A, B, C)}


def owner(address: int, readings: dict[int, tuple[AddressRanges, ...]] = ALL, at: float = AT + 1) -> tuple[int | None, float]:
    """Return the likeliest client and its share."""
    clue = find_owner(FailedAccess(unit="T1", address=address), at, (A, B, C), readings)
    return (clue.matches[0].pid, clue.matches[0].share) if clue.matches else (None, 0.0)


def test_a_fault_in_the_range_of_one_client_has_that_client_as_its_suspect() -> None:
    address = LAYOUT[B] + 3 * GIB
    line = (
        f"NVRM: Xid (PCI:0000:18:00): 31, pid={A}, name=python, channel 0x2, intr 00000000. MMU Fault: ENGINE GRAPHICS"
        f" GPC1 GPCCLIENT_T1_8 faulted @ 0x{address >> 32:x}_{address & 0xFFFFFFFF:08x}. Fault is of type FAULT_PDE"
        " ACCESS_TYPE_VIRT_WRITE"
    )
    node = reduced(
        *(ranges(pid, AT + 1) for pid in (A, B, C)),
        KernelRecord(at=AT + 5, record=f"4,1,1,-;NVRM: GPU at PCI:0000:18:00: {GPU}"),
        KernelRecord(at=AT + 5, record=f"4,2,2,-;{line}"),
        *claimed(A, B, C),
        status("FAULT", at=AT + 5),
        *(ranges(pid, AT + 5.1) for pid in (A, B, C)),
        start=UP,
    ).node
    (incident,) = node.incidents.values()
    assert incident.suspect is not None
    assert incident.suspect.client.pid == B
    print(incident.suspect, incident.clues.address)
