"""Whose address was it? Compares the address of a failed access with the address ranges of all clients.

Each client has an address space of its own on the GPU, and CUDA reserves the range of every allocation in the process
too. So an address in or near a range of one client was probably used by that client (measured, docs/faults.md).
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from math import inf, log
from typing import NamedTuple

from exporter.model.daemon import Daemon
from exporter.model.incident import (
    CHOSEN_BELOW,
    CLOSE,
    INSTRUCTIONS,
    LOWEST_ADDRESS,
    AddressClue,
    AddressMatch,
    FailedAccess,
    Incident,
    Place,
)
from exporter.model.node import Node
from exporter.model.observation import AddressRange, AddressRanges, AddressWant, GpuUuid
from exporter.model.values import made_of, replace, updated, without
from exporter.state.devices import is_same_or_parent, listed_without_context, logged_gpus
from exporter.state.gpus import used_bytes

INSIDE, NEAR = 0, 1
GPU_PARTS, HOST_PARTS = (0.5, 0.3), (0.08, 0.02)
"""How often the address of a failed access is inside a range of the cause for its GPU, or near one; and inside other
large memory of it, or near that. The rest is anywhere."""

NEAREST, FARTHEST = 1 << 21, 1 << 34
"""Between these distances, an address near a range is equally likely at each order of magnitude."""

SPACE = 1 << 40  # The layouts of processes differ by so many bytes (28 bits of pages, the default on x86-64).

CHOSEN_DENSITY = GPU_PARTS[INSIDE] / (1 << 36)  # The likelihood of an address of CUDA's choice, close to a range.

LARGE_PAGE, ARENA_OFFSET = 1 << 21, 0x21000
"""Ranges of a GPU, and arenas of the C library, begin at few places. Elsewhere, ends are hardly equal by chance."""
COMMON_ENDS = 2

MOST_MATCHES = 8

MOST_ACCESSES = 4  # Failed accesses of one fault that are compared with the address ranges.


class _Fit(NamedTuple):
    """The place of an address in the ranges of a client, and how likely that client would use this address."""

    likelihood: float
    place: Place
    distance: int
    range: AddressRange
    is_host: bool


def find_owner(
    access: FailedAccess,
    at: float,
    candidates: Collection[int],
    readings: Mapping[int, Sequence[AddressRanges]],
    known: AddressClue | None = None,
) -> AddressClue:
    """Compare the address of an access that failed at a time with the ranges of each candidate.

    Return what is `known` if no more was read since. A candidate is unread unless all its ranges were read after the
    fault too: it may have used a new one.
    """
    pids = tuple(candidates)

    def is_read(of_client: Sequence[AddressRanges]) -> bool:
        return bool(of_client) and of_client[-1].at >= at and all(each.complete for each in of_client)

    unread = tuple(pid for pid in pids if not is_read(readings.get(pid, ())))
    clue = made_of(AddressClue, access, candidates=pids, unread=unread)
    same = known is not None and known.address == access.address and set(known.candidates) == set(pids)
    if known is not None and same and len(clue.unread) >= len(known.unread):
        return known
    # Ranges at addresses of CUDA's choice that all clients have, if there are several, distinguish none.
    read = [readings[pid] for pid in pids if pid in readings]
    ranges = [{each for reading in of_one for each in reading.gpu if each[1] <= CHOSEN_BELOW} for of_one in read]
    ignored = set.intersection(*ranges) if len(ranges) > 1 else set()
    if access.address < LOWEST_ADDRESS or any(start <= access.address < end for start, end in ignored):
        return clue
    # Of all readings: a range may have been freed shortly before the access, or just added.
    of_clients = (
        (pid, [fit for each in readings.get(pid, ()) for fit in _fits(access.address, each, ignored)]) for pid in pids
    )
    fits = _with_equal_layouts({pid: _best(found) for pid, found in of_clients if found}, readings)
    total = sum(fit.likelihood for fit in fits.values()) + sum(pid not in fits for pid in pids) / SPACE
    order = sorted(fits, key=lambda pid: (-fits[pid].likelihood, fits[pid].distance, pid))
    best = max((fit.likelihood for fit in fits.values() if fit.distance <= FARTHEST), default=inf)
    matches = [
        made_of(
            AddressMatch,
            fits[pid],
            pid=pid,
            share=round(fits[pid].likelihood / total, 4),
            range_bytes=fits[pid].range[1] - fits[pid].range[0],
            freed_seconds=_freed_seconds(access.address, at, readings[pid]),
            alike=tuple(other for other in fits if other != pid and fits[other].likelihood == fits[pid].likelihood),
        )
        for number, pid in enumerate(order)
        if fits[pid].likelihood == best or (fits[pid].distance <= FARTHEST and number < MOST_MATCHES)
    ]
    return replace(clue, matches=tuple(matches))


def _best(fits: Sequence[_Fit]) -> _Fit:
    """Return the likeliest fit; if it is far, with the place of a closer one, such as in large memory of the host."""
    likeliest, closest = max(fits), min(fits, key=lambda fit: fit.distance)
    return likeliest if likeliest.distance <= CLOSE else closest._replace(likelihood=likeliest.likelihood)


def _with_equal_layouts(fits: Mapping[int, _Fit], readings: Mapping[int, Sequence[AddressRanges]]) -> dict[int, _Fit]:
    """Return the fits, with the same likelihood for all clients of one layout: ranges of theirs have equal ends.

    They were forked from one process, or the kernel does not choose at random (randomize_va_space, setarch -R).
    """
    owners: dict[int, tuple[int, ...]] = {}
    for pid in fits:
        ranges = (each for known in readings[pid] for each in (*known.gpu, *known.host))
        for address in {end for each in ranges for end in each}:
            if address >= CHOSEN_BELOW and address % LARGE_PAGE not in (0, ARENA_OFFSET):
                owners[address] = (*owners.get(address, ()), pid)
    common = Counter(pids for pids in owners.values() if len(pids) > 1)
    found = dict(fits)
    # A group contains the smaller ones that have more in common.
    for pids in sorted((pids for pids, count in common.items() if count >= COMMON_ENDS), key=len):
        likelihood = max(found[pid].likelihood for pid in pids)
        found.update((pid, found[pid]._replace(likelihood=likelihood)) for pid in pids)
    return found


def _fits(address: int, reading: AddressRanges, ignored: Collection[AddressRange]) -> Iterable[_Fit]:
    anywhere = (1 - sum(GPU_PARTS) - sum(HOST_PARTS)) / SPACE
    of_gpu = tuple(each for each in reading.gpu if each not in ignored)
    for ranges, parts, is_host in ((of_gpu, GPU_PARTS, False), (reading.host, HOST_PARTS, True)):
        # The range that contains the address is one of the two around its place in the order.
        index = bisect_right(ranges, (address, inf))
        around = ranges[max(0, index - 1) : index + 1]
        if not around:
            continue
        nearest = min(around, key=lambda each: _place(address, each)[1])
        place, distance = _place(address, nearest)
        if address < CHOSEN_BELOW:
            density = CHOSEN_DENSITY if distance <= CLOSE and not is_host else 0.0
        elif place is Place.INSIDE:
            density = parts[INSIDE] / sum(end - start for start, end in ranges)
        elif distance <= FARTHEST:
            density = parts[NEAR] / (2 * max(distance, NEAREST) * log(FARTHEST / NEAREST))
        else:
            density = 0.0
        yield _Fit(density + anywhere, place, distance, nearest, is_host)


def _place(address: int, within: AddressRange) -> tuple[Place, int]:
    start, end = within
    if start <= address < end:
        return Place.INSIDE, 0
    return (Place.BEFORE, start - address) if address < start else (Place.BEYOND, address - end + 1)


def _freed_seconds(address: int, at: float, readings: Sequence[AddressRanges]) -> float | None:
    """Return how long before the fault at most a range with this address was freed; None if readings do not show it.

    A reading before the fault has the range, and the first one after it has not.
    """
    having = [reading.at for reading in readings if any(start <= address < end for start, end in reading.gpu)]
    if not having or having[-1] >= at or readings[-1].at < at:
        return None
    return round(at - having[-1], 1)


# -- what the addresses of a fault show ------------------------------------------------------------------------------


def address_clue(node: Node, daemon: Daemon, incident: Incident, early: Collection[int]) -> AddressClue | None:
    """Return what the address of the first failed access of data shows, if the kernel log reports one.

    If the addresses of several accesses do not show the same client, they show none.
    """
    found: list[AddressClue] = []
    candidates = dict.fromkeys((*incident.affected, *early))
    own = (daemon.servers, daemon.clients, daemon.connections.disconnects, daemon.connections.server_exited_at)
    for xid in incident.xids:
        access = xid.access
        if access is None or access.unit == INSTRUCTIONS:
            continue
        # MPS names a client or the server. An Xid that names another process is not of this daemon.
        known_here = daemon.runtime.in_foreign_namespace or any(xid.pid in each for each in own)
        if xid.pid is not None and xid.pid not in candidates and not known_here:
            continue
        on_gpu = [pid for pid in candidates if not is_elsewhere(node, xid.gpu, pid)]
        readings = {pid: each for pid in on_gpu if (each := _readings_of(node, pid))}
        known = incident.clues.address if not found else None
        found.append(find_owner(access, xid.at, on_gpu, readings, known))
        if len(found) == MOST_ACCESSES:
            break
    best = {clue.matches[0].pid if clue.matches else None for clue in found}
    alike = {other for clue in found for match in clue.matches[:1] for other in match.alike}
    if len(best - alike) > 1:
        return replace(found[0], matches=())
    return found[0] if found else None


def is_elsewhere(node: Node, gpu: GpuUuid | None, pid: int) -> bool:
    """Return whether NVML has shown a client on other GPUs only, and the log has not shown it on this one."""
    on = {
        uuid
        for uuid, each in node.gpus.items()
        if pid in each.mps_left or (pid in each.mps_since and pid not in listed_without_context(node, uuid))
    }
    if gpu is None or not on:
        return False
    on.update(*(logged_gpus(daemon, pid) for daemon in node.daemons.values()))
    return not any(is_same_or_parent(node, gpu, (uuid,)) or is_same_or_parent(node, uuid, (gpu,)) for uuid in on)


def _readings_of(node: Node, pid: int) -> tuple[AddressRanges, ...]:
    """Return the readings of the process that has the PID, or had it until it exited."""
    death = node.deaths.get(pid)
    process = node.processes.get(pid) or (None if death is None else death.process)
    readings = node.address_ranges.get(pid, ())
    return tuple(each for each in readings if process is None or each.start_ticks == process.start_ticks)


# -- which ranges are read and stored ----------------------------------------------------------------------------------


MOST_READINGS = 3  # Readings of one process that are stored: before a fault, after it, and one more.

MOST_CLIENTS_READ = 512


def last_fault_at(node: Node) -> float:
    """Return when a failed access was last reported."""
    return max((xid.at for xid in node.xids.recent if xid.access is not None), default=0.0)


def wanted(node: Node) -> Mapping[int, AddressWant]:
    """Return the clients whose ranges are wanted, by PID. After a failed access on their GPU, they are due at once.

    A client that has just disconnected, as after a fault, is still wanted while its process runs.
    """
    faults = [(xid.at, xid.gpu) for xid in node.xids.recent if xid.access is not None]
    memory: dict[int, list[int]] = {}
    for gpu in node.gpus.values():
        for pid, used in used_bytes(gpu.reading).items():
            memory.setdefault(pid, []).append(used)
    found: dict[int, AddressWant] = {}
    for pid in chain(*(daemon.clients for daemon in node.daemons.values()), node.address_ranges):
        process = node.processes.get(pid)
        if process is None or pid in found or len(found) >= MOST_CLIENTS_READ:
            continue
        fault_at = max([at for at, gpu in faults if not is_elsewhere(node, gpu, pid)], default=0.0) if faults else 0.0
        found[pid] = AddressWant(start_ticks=process.start_ticks, memory=tuple(memory.get(pid, ())), fault_at=fault_at)
    return found


def ranges_read(node: Node, reading: AddressRanges) -> Node:
    """Add a reading. An equal one only has a later time."""
    before = tuple(each for each in node.address_ranges.get(reading.pid, ()) if each.start_ticks == reading.start_ticks)
    if before and replace(before[-1], at=reading.at) == reading:
        before = before[:-1]
    # Equal ranges of several readings are stored once.
    stored = {each: each for known in before for each in (*known.gpu, *known.host)}
    gpu, host = (tuple(stored.get(each, each) for each in ranges) for ranges in (reading.gpu, reading.host))
    reading = replace(reading, gpu=gpu, host=host)
    readings = (*before, reading)[-MOST_READINGS:]
    return replace(node, address_ranges={**node.address_ranges, reading.pid: readings})


def prune(node: Node) -> Node:
    """Remove the ranges of processes that nothing refers to."""
    gone = node.address_ranges.keys() - node.processes.keys() - node.deaths.keys()
    return updated(node, address_ranges=without(node.address_ranges, *gone))
