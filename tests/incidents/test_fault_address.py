"""Whose address was it? The address of a failed access, and the address ranges of the clients."""

import io
import json
import random
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from exporter.incidents.fault_address import find_owner
from exporter.incidents.root_cause import rank_suspects
from exporter.model.identity import Workload, WorkloadKind
from exporter.model.incident import (
    LOWEST_ADDRESS,
    AccessKind,
    AddressClue,
    AddressMatch,
    ClientDetails,
    Clues,
    FailedAccess,
    Incident,
    IncidentXid,
    InFlightWork,
    Place,
)
from exporter.model.node import Node
from exporter.model.observation import AddressRange, AddressRanges, KernelRecord, Observation
from exporter.model.reason import ReasonCode
from exporter.model.values import replace
from exporter.recording import Mask, Recording, open_recording
from exporter.reducer import reduce_all
from exporter.report.incident_status import address_texts, verdict
from exporter.report.reasons import reason_text
from tests.builders import (
    AT,
    GPU,
    OTHER_GPU,
    active,
    at_work,
    connecting,
    daemon_process,
    gpu_reading,
    process,
    reduced,
    server_log,
    status,
)
from tests.incidents.test_incidents import UP, A, B, C, claimed
from tests.incidents.values import confidences

MIB, GIB = 1 << 20, 1 << 30
FIXED = ((0x2_0000_0000, 0x3_0020_0000), (0x100_0000_0000, 0x100_0400_0000))
"""What CUDA maps in every process at the same addresses."""
LAYOUT = {pid: 0x7F00_0000_0000 + number * 100 * GIB for number, pid in enumerate((A, B, C))}
"""Where each client has a range."""
SIZE = 8 * GIB
PAGE = 0x3000
"""The kernel places memory of the host at any page."""
ADDRESSES = Path(__file__).parents[1] / "recordings" / "addresses"
TRUTH: Mapping[str, Any] = json.loads((ADDRESSES / "truth.json").read_text())


def ranges(pid: int, *more: AddressRange, at: float = AT, start: int | None = None, size: int = SIZE) -> AddressRanges:
    first = LAYOUT[pid] if start is None else start
    place = first + 20 * GIB + PAGE
    host = ((place, place + 64 * MIB), (place + GIB, place + GIB + 9 * MIB))
    return AddressRanges(at=at, pid=pid, start_ticks=pid * 100, gpu=(*FIXED, *more, (first, first + size)), host=host)


EACH = {pid: (ranges(pid),) for pid in (A, B, C)}


def clue_of(address: int, readings: Mapping[int, tuple[AddressRanges, ...]] = EACH, at: float = AT) -> AddressClue:
    access = FailedAccess(unit="T1", address=address, kind=AccessKind.WRITE)
    return find_owner(access, at, (A, B, C), readings)


def named(address: int, readings: Mapping[int, tuple[AddressRanges, ...]] = EACH) -> int | None:
    """Return the client that an address names at 0.8 or more."""
    return next((match.pid for match in clue_of(address, readings).matches if match.share >= 0.8), None)


# -- the rule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "place", "distance"),
    [
        (SIZE // 2, Place.INSIDE, 0),
        (-64 * MIB, Place.BEFORE, 64 * MIB),
        (SIZE + 32 * MIB, Place.BEYOND, 32 * MIB + 1),
        (20 * GIB + MIB, Place.INSIDE, 0),
    ],
)
def test_an_address_names_the_client_with_the_only_range_there(offset: int, place: Place, distance: int) -> None:
    match = clue_of(LAYOUT[B] + offset).matches[0]
    assert (match.pid, match.place, match.distance) == (B, place, distance)
    assert match.share > 0.9
    assert match.is_host == (offset > SIZE + GIB)


@pytest.mark.parametrize("address", [0x40, LAYOUT[C] + 400 * GIB, FIXED[0][0] + GIB, FIXED[0][1] + 16 * MIB])
def test_an_address_near_nobody_or_in_what_all_have_names_nobody(address: int) -> None:
    assert named(address) is None


@pytest.mark.parametrize("address", [0x10000, MIB, 4 * GIB, 0xDEADBEEF, 0x2_5000_0000, 0x3_0100_0000, 0x9_0000_0000])
def test_a_null_pointer_with_an_offset_names_nobody(address: int) -> None:
    """One client alone has ranges at addresses of CUDA's choice. Another one does not even have those of all."""
    own = {**EACH, B: (ranges(B, (0x3_2000_0000, 0x3_6000_0000)),), C: (replace(ranges(C), gpu=()),)}
    assert named(address, own) is None


def test_an_address_that_cuda_chose_names_the_only_client_with_a_range_there() -> None:
    own, pool = (0x3_2000_0000, 0x3_6000_0000), (0x3_2000_0000, 0x20_0000_0000)
    assert named(0x3_3000_0000, {**EACH, B: (ranges(B, own),)}) == B
    assert named(0x3_3000_0000, {**EACH, B: (ranges(B, own),), C: (ranges(C, own),)}) is None
    # Near a range there is as good as in one: other processes have theirs at the same places.
    assert named(0x3_7000_0000, {**EACH, B: (ranges(B, own),), C: (ranges(C, pool),)}) is None


def test_clients_of_one_layout_are_not_distinguished() -> None:
    """Forked workers, or processes without a random layout: one faults where only the other one has a range."""
    alike = {
        A: (ranges(A),),
        B: (ranges(B, start=LAYOUT[A], size=SIZE),),
        C: (ranges(C, start=LAYOUT[A], size=2 * SIZE),),
    }
    clue = clue_of(LAYOUT[A] + SIZE + GIB, alike)
    assert [match.share for match in clue.matches] == pytest.approx([1 / 3] * 3, abs=0.001)
    assert set(clue.matches[0].alike) == {A, B, C} - {clue.matches[0].pid}


def test_workers_that_allocated_after_their_fork_are_not_distinguished() -> None:
    """Of what they inherited, only the first addresses are still equal."""
    first, second = (LAYOUT[A] + 30 * GIB + PAGE, LAYOUT[A] + 31 * GIB + PAGE)
    host = {pid: ((first, first + pid * MIB), (second, second + pid * MIB)) for pid in (A, B)}
    forked = {A: (replace(ranges(A), host=host[A]),), B: (replace(ranges(B), host=host[B]),), C: EACH[C]}
    clue = clue_of(LAYOUT[B] + GIB, forked)
    assert {match.pid: round(match.share, 1) for match in clue.matches if match.pid != C} == {B: 0.5, A: 0.5}


def test_all_clients_of_a_large_group_are_matches() -> None:
    pids = range(600, 624)
    alike = {pid: (replace(ranges(A), pid=pid),) for pid in pids[:12]} | {
        pid: (ranges(A, start=LAYOUT[C] + pid * 30 * GIB),) for pid in pids[12:]
    }
    clue = find_owner(FailedAccess(unit="T1", address=LAYOUT[A] + GIB), AT, pids, alike)
    assert {match.pid for match in clue.matches} >= set(pids[:12])
    assert sum(match.share for match in clue.matches[:12]) > 0.9


def test_a_tenant_that_reserves_everything_is_no_suspect() -> None:
    everything = {**EACH, C: (ranges(C, (0x7E00_0000_0000, 0x7F00_0000_0000), start=0x7F00_0000_0000, size=900 * GIB),)}
    assert named(LAYOUT[B] + GIB, everything) == B
    assert named(LAYOUT[B] - 64 * MIB, everything) == B


def test_thousands_of_ranges_of_one_tenant_change_nothing() -> None:
    many = tuple((start, start + MIB) for start in range(0x7E00_0000_0000, 0x7E00_0000_0000 + 200 * GIB, GIB))
    assert named(LAYOUT[B] + GIB, {**EACH, C: (ranges(C, *many),)}) == B


def test_a_range_that_was_freed_before_the_reading_after_the_fault_is_a_use_after_free() -> None:
    freed = AddressRanges(at=AT + 5.1, pid=B, start_ticks=1, gpu=FIXED, host=())
    match = clue_of(LAYOUT[B] + GIB, {**EACH, B: (ranges(B, at=AT + 2), freed)}, at=AT + 5).matches[0]
    assert (match.pid, match.place, match.freed_seconds) == (B, Place.INSIDE, 3.0)
    assert clue_of(LAYOUT[B] + GIB, at=AT + 5).matches[0].freed_seconds is None
    late = (ranges(B, at=AT + 5), replace(freed, at=AT + 6))
    assert clue_of(LAYOUT[B] + GIB, {**EACH, B: late}, at=AT + 5).matches[0].freed_seconds is None
    early = (ranges(B, at=AT + 2), replace(freed, at=AT + 3))
    assert clue_of(LAYOUT[B] + GIB, {**EACH, B: early}, at=AT + 5).matches[0].freed_seconds is None


def test_the_ranges_are_compared_again_only_if_more_are_read_after_the_fault() -> None:
    access = FailedAccess(unit="T1", address=LAYOUT[B])
    known = find_owner(access, AT + 1, (A, B), EACH)
    assert find_owner(access, AT + 1, (A, B), {}, known) is known
    assert known.unread == (A, B)
    later = {**EACH, A: (ranges(A, at=AT + 2),)}
    assert find_owner(access, AT + 1, (A, B), later, known).unread == (B,)
    assert find_owner(access, AT + 1, (A, C), later, known).candidates == (A, C)
    # After a restart of the exporter, only those that still run are read.
    read = find_owner(access, AT, (A, B), EACH)
    assert find_owner(access, AT, (A, B), {A: EACH[A]}, read) is read


# -- incidents -------------------------------------------------------------------------------------------------------


def kernel_line(
    address: int, unit: str = "GPCCLIENT_T1_8", at: float = AT + 5, pid: int = A
) -> tuple[Observation, ...]:
    text = (
        f"NVRM: Xid (PCI:0000:18:00): 31, pid={pid}, name=python, channel 0x2, intr 00000000. MMU Fault: ENGINE"
        f" GRAPHICS GPC1 {unit} faulted @ 0x{address >> 32:x}_{address & 0xFFFFFFFF:08x}. Fault is of type FAULT_PDE"
        " ACCESS_TYPE_VIRT_WRITE"
    )
    located = KernelRecord(at=at, record=f"4,1,1,-;NVRM: GPU at PCI:0000:18:00: {GPU}")
    return located, KernelRecord(at=at, record=f"4,2,2,-;{text}")


def incident_of(address: int, *readings: AddressRanges, unit: str = "GPCCLIENT_T1_8") -> Incident:
    """Return the incident of an illegal access, with these readings before it."""
    block = (*claimed(A, B, C), status("FAULT", at=AT + 5))
    again = (replace(each, at=AT + 5.1) for each in readings)
    node = reduced(*readings, *kernel_line(address, unit), *block, *again, start=UP).node
    (incident,) = node.incidents.values()
    return incident


ALL_READ = tuple(ranges(pid, at=AT + 1) for pid in (A, B, C))


def test_the_suspect_is_the_client_that_the_address_names() -> None:
    incident = incident_of(LAYOUT[B] - 64 * MIB, *ALL_READ)
    assert incident.suspect is not None
    assert (incident.suspect.client.pid, incident.suspect.confidence) == (B, 0.91)
    assert incident.suspect.indications[0].code is ReasonCode.ADDRESS_NEAR_RANGE
    assert verdict(incident).startswith(f"very likely PID {B} ")
    assert list(address_texts(incident)) == [
        "write at 0x7f18fc000000",
        f"64 MiB before a 8 GiB range of PID {B}, as with an index that is too small",
        "another client could use this address by chance, or on purpose if it knows the layout",
    ]
    others = [each.confidence for each in incident.suspects if each.client.pid != B]
    assert sum(others) + incident.suspect.confidence <= 0.98


def test_an_unread_candidate_makes_the_suspect_less_than_very_likely() -> None:
    incident = incident_of(LAYOUT[B] + GIB, *ALL_READ[:2])
    assert incident.suspect is not None
    assert (incident.suspect.client.pid, incident.suspect.confidence) == (B, 0.75)
    assert ReasonCode.ADDRESS_RANGES_UNREAD in {each.code for each in incident.suspect.indications}
    incomplete = replace(ALL_READ[2], gpu=(), host=(), complete=False)
    assert incident_of(LAYOUT[B] + GIB, *ALL_READ[:2], incomplete).suspects[0].confidence == 0.75
    own = replace(ALL_READ[1], complete=False)
    assert incident_of(LAYOUT[B] + GIB, ALL_READ[0], own, ALL_READ[2]).suspects[0].confidence > 0.9


def test_a_client_that_exits_at_once_is_named_by_its_reading_before_the_fault() -> None:
    """The others were read after the fault."""
    incident = incident_of(LAYOUT[B] + GIB, ALL_READ[0], replace(ALL_READ[1], at=AT - 5), ALL_READ[2])
    assert incident.suspect is not None
    assert incident.suspect.client.pid == B
    assert incident.suspect.confidence > 0.9
    assert ReasonCode.ADDRESS_RANGES_UNREAD not in {each.code for each in incident.suspect.indications}


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (0, "write at 0x0: a null pointer"),
        (1 << 30, "write at 0x40000000: a null pointer with an offset"),
        (LAYOUT[C] + 400 * GIB, "it is near the ranges of no client, or fits those of several"),
    ],
)
def test_an_address_that_names_nobody_leaves_all_equal(address: int, text: str) -> None:
    incident = incident_of(address, *ALL_READ)
    assert incident.suspect is None
    assert len({each.confidence for each in incident.suspects}) == 1
    assert list(address_texts(incident))[-1] == text


def test_without_any_ranges_the_address_shows_nothing() -> None:
    incident = incident_of(LAYOUT[B] + GIB)
    assert incident.suspect is None
    assert list(address_texts(incident))[-1] == "the address ranges of the clients are not known"


def test_a_failed_fetch_of_instructions_names_nobody_by_its_address() -> None:
    assert incident_of(LAYOUT[B] + GIB, *ALL_READ, unit="GPCCLIENT_GCC").clues.address is None


def test_an_access_of_a_process_that_is_no_client_shows_nothing() -> None:
    """A process beside MPS can cause as many failed accesses as it likes, at any address."""
    foreign = kernel_line(LAYOUT[C] + GIB, at=AT + 4.5, pid=9999)
    block = (*claimed(A, B, C), status("FAULT", at=AT + 5))
    again = (replace(each, at=AT + 5.1) for each in ALL_READ)
    node = reduced(*ALL_READ, *foreign, *kernel_line(LAYOUT[B] + GIB), *block, *again, start=UP).node
    (incident,) = node.incidents.values()
    assert incident.suspect is not None
    assert incident.suspect.client.pid == B


def test_accesses_that_show_different_clients_show_none() -> None:
    other = kernel_line(LAYOUT[C] + GIB, at=AT + 4.9)
    block = (*claimed(A, B, C), status("FAULT", at=AT + 5))
    node = reduced(*ALL_READ, *other, *kernel_line(LAYOUT[B] + GIB), *block, start=UP).node
    (incident,) = node.incidents.values()
    assert incident.suspect is None


def test_a_client_of_another_gpu_is_no_candidate() -> None:
    lists = (gpu_reading((A, B)), gpu_reading((C,), gpu=OTHER_GPU, index=1))
    logged = (line for pid in (A, B, C) for line in server_log(active(pid)))
    up = reduced(*at_work(), daemon_process(), *lists, *logged, *(process(pid) for pid in (A, B, C))).node
    block = (*claimed(A, B, C, devices=(0, 1)), status("FAULT", at=AT + 5))
    node = reduced(*ALL_READ, *kernel_line(LAYOUT[C] + GIB), *block, start=up).node
    (incident,) = node.incidents.values()
    assert incident.clues.address is not None
    assert incident.clues.address.candidates == (A, B)
    assert incident.suspect is None or incident.suspect.client.pid != C


def test_a_client_that_only_sees_the_gpu_is_no_candidate() -> None:
    """NVML lists it there without memory (measured, R580). The log may show a new context there."""
    here, other = gpu_reading({A: 1000, B: 1000, C: 0}), gpu_reading((C,), gpu=OTHER_GPU, index=1)
    here = replace(here, compute_processes=tuple(each for each in here.compute_processes or () if each.used_bytes))
    logged = (line for pid in (A, B, C) for line in server_log(active(pid)))
    up = reduced(*at_work(), daemon_process(), here, other, *logged, *(process(pid) for pid in (A, B, C))).node
    new = server_log(connecting(C, 2), f"Device NVIDIA H200 (uuid {GPU}) is associated", active(C, 2), at=AT + 1)
    block = (*claimed(A, B, C, devices=(0, 1)), status("FAULT", at=AT + 5))
    for context, candidates in [((), (A, B)), (new, (A, B, C))]:
        fault = (*ALL_READ, *kernel_line(LAYOUT[C] + GIB), *block)
        (incident,) = reduced(*context, *fault, start=up).node.incidents.values()
        assert incident.clues.address is not None
        assert incident.clues.address.candidates == candidates


@pytest.mark.parametrize(("distance", "confidence"), [(GIB, 0.91), (GIB + 0x1000, 0.45), (3 * GIB, 0.45)])
def test_an_address_in_what_a_tenant_reserves_is_of_the_next_range_only_if_that_is_close(
    distance: int, confidence: float
) -> None:
    everything = ranges(C, (0x7E00_0000_0000, LAYOUT[A] - MIB), at=AT + 1)
    assert confidences(incident_of(LAYOUT[A] - distance, *ALL_READ[:2], everything))[A] == confidence


# -- an address that any client may have used --------------------------------------------------------------------------


POOL = (0x3_2000_0000, 0x6_2000_0000)
"""An address range of CUDA's choice, which one client has."""
POOLED = (ALL_READ[0], ranges(B, POOL, at=AT + 1), ALL_READ[2])


def with_work(incident: Incident, *busy: int, unknown: Collection[int] = ()) -> Incident:
    """Return the incident with the work in flight of its clients, of which only these had some."""
    known = [pid for pid in incident.affected if pid not in unknown]
    work = tuple(InFlightWork(pid=pid, in_flight=pid in busy) for pid in known)
    return rank_suspects(replace(incident, clues=replace(incident.clues, in_flight_work=work)))


def test_a_client_is_named_only_within_1_gib_of_its_range() -> None:
    end = LAYOUT[B] + SIZE
    near = (LAYOUT[B] - GIB, LAYOUT[B] - GIB + 1, LAYOUT[B] - 1, end, end + GIB - 1)
    far = (
        *(LAYOUT[B] - each for each in (GIB + 1, 2 * GIB, 15 * GIB)),
        *(end + each for each in (GIB, 2 * GIB, 5 * GIB)),
    )
    for address in (*near, *far):
        incident = incident_of(address, *ALL_READ)
        assert incident.suspect is not None
        assert (incident.suspect.client.pid, incident.suspect.confidence) == (B, 0.91 if address in near else 0.45)
        assert (ReasonCode.ADDRESS_WEAK in codes(incident)) is (address in far)


@pytest.mark.parametrize(("distance", "named"), [(64 * MIB, True), (64 * MIB + 1, False), (900 * MIB, False)])
def test_a_client_is_named_only_within_64_mib_of_its_range_of_the_host(distance: int, named: bool) -> None:
    host = LAYOUT[B] + 20 * GIB
    own = {**EACH, B: (replace(ranges(B), host=((host, host + 64 * MIB),)),)}
    incident = incident_of(host - distance, *(reading for of_one in own.values() for reading in of_one))
    assert (confidences(incident)[B] >= 0.5) is named


def codes(incident: Incident) -> Collection[ReasonCode]:
    """Return the indications of the main suspect."""
    return [] if incident.suspect is None else [each.code for each in incident.suspect.indications]


WEAK = {"far": (LAYOUT[B] - 2 * GIB, ALL_READ), "inside": (POOL[0] + GIB, POOLED), "close": (POOL[1] + MIB, POOLED)}


@pytest.mark.parametrize("name", WEAK)
def test_a_weak_address_names_a_client_only_if_the_work_in_flight_does(name: str) -> None:
    address, readings = WEAK[name]
    incident = incident_of(address, *readings)
    assert confidences(incident)[B] == 0.45
    agreed = with_work(incident, B)
    assert agreed.suspect is not None
    assert (agreed.suspect.client.pid, agreed.suspect.confidence) == (B, 0.87)
    # Another client had work too, or may have had some.
    assert max(confidences(with_work(incident, A, B, C)).values()) < 0.5
    assert max(confidences(with_work(incident, A, B)).values()) < 0.5
    assert max(confidences(with_work(incident, B, unknown=(A,))).values()) < 0.5
    # The named client was idle: the one that had work is named.
    contradicted = with_work(incident, A)
    assert contradicted.suspect is not None
    assert contradicted.suspect.client.pid == A
    assert confidences(contradicted)[B] < 0.5
    assert confidences(with_work(incident))[B] <= 0.45


def test_an_address_in_memory_of_the_host_is_close_even_if_a_range_of_the_gpu_is_likelier() -> None:
    place = LAYOUT[B] + SIZE + 2 * GIB
    hosted = replace(ranges(B, at=AT + 1), host=((place, place + 8 * GIB),))
    incident = incident_of(place + GIB, ALL_READ[0], hosted, ALL_READ[2])
    assert confidences(incident)[B] > 0.8
    assert [*address_texts(incident)][1] == f"in a 8 GiB range of PID {B}; memory of the host"


def test_a_close_address_of_an_idle_client_does_not_name_it() -> None:
    incident = incident_of(LAYOUT[B] + GIB, *ALL_READ)
    assert confidences(incident)[B] == 0.97
    assert confidences(with_work(incident, A, C))[B] == 0.45
    assert confidences(with_work(incident, A, B, C))[B] == 0.97


@pytest.mark.parametrize(("offset", "confidence"), [(-0x1000, 0.45), (-1, 0.45), (0, 0.97), (1, 0.97)])
def test_below_2_to_the_44_addresses_are_of_cudas_choice(offset: int, confidence: float) -> None:
    around = ranges(B, ((1 << 44) - GIB, (1 << 44) + GIB), at=AT + 1)
    incident = incident_of((1 << 44) + offset, ALL_READ[0], around, ALL_READ[2])
    assert confidences(incident)[B] == confidence


def test_clients_of_one_layout_are_named_together_only_if_one_of_them_has_a_range_close_to_the_address() -> None:
    """The client with that range is the first of them."""
    smaller = ranges(A, at=AT + 1, size=SIZE // 4)
    alike = replace(ranges(A, at=AT + 1), pid=B, start_ticks=B * 100)
    for address, together in ((LAYOUT[A] + SIZE - GIB, 0.97), (LAYOUT[A] + SIZE + GIB - 1, 0.91)):
        incident = incident_of(address, smaller, alike, ALL_READ[2])
        assert confidences(incident)[A] == confidences(incident)[B] == pytest.approx(together / 2, abs=0.01)
        assert incident.clues.address is not None
        assert incident.clues.address.matches[0].pid == B
    far = incident_of(LAYOUT[A] + SIZE + 2 * GIB, smaller, alike, ALL_READ[2])
    assert len(set(confidences(far).values())) == 1, "as without the address"


def test_a_neighbour_that_another_client_frames_at_an_address_of_cudas_choice_is_not_named() -> None:
    """The other client writes where only the neighbour has memory; it needs to know nothing about the neighbour."""
    chance = random.Random(20)
    for _ in range(20):
        size = chance.randrange(2 * MIB, 128 * GIB, 2 * MIB)
        start = chance.randrange(LOWEST_ADDRESS // MIB // 2 + 1, (1 << 44) // MIB // 2) * 2 * MIB
        pool = (start, min(start + size, 1 << 44))
        readings = (ALL_READ[0], ranges(B, pool, at=AT + 1), ALL_READ[2])
        # The client that does it may have memory elsewhere, and may prevent that its ranges are read.
        for each in (readings, readings[:2], readings[1:], readings[1:2]):
            incident = incident_of(chance.randrange(*pool), *each)
            assert max(confidences(incident).values()) < 0.5, (pool, len(each))
            assert confidences(with_work(incident, A))[B] < 0.5
            assert max(confidences(with_work(incident, A, B)).values()) < 0.5


def test_a_neighbour_that_another_client_frames_at_an_address_that_it_knows_is_named_unless_it_was_idle() -> None:
    """The address cannot exclude this, and the text says so."""
    incident = incident_of(LAYOUT[B] + GIB, *ALL_READ)
    assert confidences(incident)[B] == 0.97
    assert [*address_texts(incident)][-1].endswith("or on purpose if it knows the layout")
    assert confidences(with_work(incident, A))[B] < 0.5


def test_several_accesses_show_what_the_first_one_shows() -> None:
    """A later one can be of another client, which the fault ends."""

    def of(*addresses: int) -> Mapping[int, float]:
        lines = (
            line for number, address in enumerate(addresses) for line in kernel_line(address, at=AT + 5 + number / 10)
        )
        again = (replace(each, at=AT + 5.4) for each in POOLED)
        node = reduced(*POOLED, *lines, *claimed(A, B, C), status("FAULT", at=AT + 5.3), *again, start=UP).node
        (incident,) = node.incidents.values()
        return confidences(incident)

    low, high = POOL[0] + GIB, LAYOUT[B] + GIB
    assert of(low, low + MIB)[B] == of(low, high)[B] == of(LAYOUT[B] - 2 * GIB, high)[B] == 0.45
    assert of(high, low)[B] == of(high, high + MIB)[B] == 0.97
    assert len(set(of(low, LAYOUT[C] + GIB).values())) == 1


def test_the_texts_explain_why_a_weak_address_names_no_client() -> None:
    chosen, far = incident_of(POOL[0] + GIB, *POOLED), incident_of(LAYOUT[B] - 2 * GIB, *ALL_READ)
    assert [*address_texts(chosen)][1:] == [
        f"in a 12 GiB range of PID {B}; no memory of the GPU is mapped there",
        "another client could use this address by chance, or on purpose",
    ]
    for incident, reason in ((chosen, "CUDA chooses it"), (far, "2 GiB is far")):
        assert verdict(incident).startswith(f"possibly PID {B} ")
        assert incident.suspect is not None
        texts = [reason_text(each) for each in incident.suspect.indications]
        assert texts[1].startswith(f"this alone names no client: {reason}")
        assert "trials" not in texts[0]


def test_ranges_of_an_earlier_process_with_the_pid_are_not_used() -> None:
    others = (replace(each, start_ticks=2) for each in ALL_READ)
    assert incident_of(LAYOUT[B] + GIB, *others).suspect is None


# -- recordings ------------------------------------------------------------------------------------------------------


def replayed(name: str, key: bytes | None = None) -> Node:
    """Return the end of a recording; with a key, of its masked copy."""
    with open_recording(str(ADDRESSES / f"{name}.jsonl.gz"), "r") as file:
        lines = file.readlines()
    if key is not None:
        mask = Mask(key)
        lines = [json.dumps(mask.values(json.loads(line))) + "\n" for line in lines]
    recording = Recording(io.StringIO("".join(lines)))
    *_, (node, _) = reduce_all(recording.header.node(), recording.observations())
    return node


WEAKLY_NAMED = {"before-8g", "torch-async-past-1g", "torch-expandable-past-1g", "vmm-freed"}
"""Addresses below 2^44, or more than 1 GiB from the range."""


@pytest.mark.parametrize("key", [None, b"secret"], ids=["as recorded", "masked"])
@pytest.mark.parametrize("name", sorted(TRUTH))
def test_recorded_faults_name_their_culprit(name: str, key: bytes | None) -> None:
    """On an H100, one client of several wrote, read or changed memory that it did not have."""
    (incident,) = replayed(name, key).incidents.values()
    truth, suspect = TRUTH[name], incident.suspect
    clue = incident.clues.address
    assert clue is not None
    if name == "random":
        assert suspect is None
    else:
        assert suspect is not None
        assert suspect.client.pid == truth["culprit"]
        assert suspect.confidence <= 0.45 if name in WEAKLY_NAMED else suspect.confidence >= 0.8
        assert confidences(with_work(incident, truth["culprit"]))[truth["culprit"]] >= 0.8
    assert (clue.address, clue.kind) == (truth["address"] & ~0xFFF, truth["access"])
    assert len(incident.affected) == truth["clients"]


def test_many_workers_of_one_job_that_the_address_fits_are_named_by_their_job() -> None:
    """Forked workers have one layout. They share the suspicion, and only together they are very likely the cause."""
    job, pids = Workload(kind=WorkloadKind.JOB, name="42"), range(600, 606)
    details = {pid: ClientDetails(pid=pid, client=str(pid), workload=job if pid < 604 else None) for pid in pids}
    match = AddressMatch(pid=600, share=0.24, place=Place.INSIDE, distance=0, range_bytes=GIB, alike=(601, 602, 603))
    matches = tuple(replace(match, pid=pid, alike=tuple({*range(600, 604)} - {pid})) for pid in range(600, 604))
    incident = Incident(
        id="x",
        daemon="d",
        server=5,
        started_at=AT,
        detected_at=AT,
        xids=(IncidentXid(at=AT, number=31),),
        affected=tuple(pids),
        client_details=details,
        clues=Clues(address=AddressClue(address=LAYOUT[A], matches=matches, candidates=tuple(pids))),
    )
    incident = rank_suspects(incident)
    assert verdict(incident) == "very likely one of 4 clients of job 42"
    assert [each.confidence for each in incident.suspects] == [0.24] * 4
    assert ReasonCode.ONE_OF_ALIKE in {each.code for each in incident.suspects[0].indications}
    idle = InFlightWork(pid=600, in_flight=False)
    alone = AddressClue(address=LAYOUT[A], matches=(replace(match, share=0.97, alike=()),), candidates=(600,))
    contradicted = rank_suspects(replace(incident, clues=Clues(address=alone, in_flight_work=(idle,))))
    assert {each.client.pid: each.confidence for each in contradicted.suspects}[600] == 0.45
    others = tuple(InFlightWork(pid=pid, in_flight=False) for pid in range(601, 605))
    busy = InFlightWork(pid=605, in_flight=True)
    shared = rank_suspects(replace(incident, clues=Clues(address=alone, in_flight_work=(idle, *others, busy))))
    assert (shared.suspects[0].client.pid, shared.suspects[1].client.pid) == (605, 600)
    agreeing = (replace(busy, pid=600), *(replace(each, pid=each.pid + 1) for each in others))
    agreed = rank_suspects(replace(incident, clues=Clues(address=alone, in_flight_work=agreeing)))
    assert agreed.suspects[0].client.pid == 600
    assert agreed.suspects[0].confidence >= 0.95
