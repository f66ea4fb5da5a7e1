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

from exporter.model.incident import LOWEST_ADDRESS, AddressClue, AddressMatch, FailedAccess, Place
from exporter.model.node import Node
from exporter.model.observation import AddressRange, AddressRanges, AddressWant
from exporter.model.values import replace
from exporter.state.gpus import used_bytes

INSIDE, NEAR = 0, 1
GPU_PARTS, HOST_PARTS = (0.5, 0.3), (0.08, 0.02)
"""How often the address of a failed access is inside a range of the cause for its GPU, or near one; and inside other
large memory of it, or near that. The rest is anywhere."""

NEAREST, FARTHEST = 1 << 21, 1 << 34
"""Between these distances, an address near a range is equally likely at each order of magnitude."""

SPACE = 1 << 40
"""The layouts of processes differ by so many bytes (28 bits of pages, the default on x86-64)."""

CHOSEN_BELOW = 1 << 44
"""Lower addresses are CUDA's own choice (of VMM, asynchronous pools) and similar in all processes, so neither the size
of a range there nor the distance to it distinguishes clients. The kernel chooses higher ones at random."""

CHOSEN_DENSITY, CHOSEN_FARTHEST = GPU_PARTS[INSIDE] / (1 << 36), 1 << 30
"""The likelihood of such an address for a client with a range there, at most so far from it."""

LARGE_PAGE, ARENA_OFFSET = 1 << 21, 0x21000
"""Ranges of a GPU, and arenas of the C library, begin at few places. Elsewhere, ends are hardly equal by chance."""
COMMON_ENDS = 2

MOST_MATCHES = 8


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
    clue = AddressClue(
        address=access.address,
        kind=access.kind,
        fault=access.fault,
        engine=access.engine,
        candidates=pids,
        unread=tuple(pid for pid in pids if not _is_read(readings.get(pid, ()), at)),
    )
    same = known is not None and known.address == access.address and set(known.candidates) == set(pids)
    if known is not None and same and len(clue.unread) >= len(known.unread):
        return known
    ignored = _common_ranges(readings[pid] for pid in pids if pid in readings)
    if access.address < LOWEST_ADDRESS or any(start <= access.address < end for start, end in ignored):
        return clue
    fits: dict[int, _Fit] = {}
    for pid in pids:
        fit = _best_fit(access.address, readings.get(pid, ()), ignored)
        if fit is not None:
            fits[pid] = fit
    fits = _with_equal_layouts(fits, readings)
    total = sum(fit.likelihood for fit in fits.values()) + sum(pid not in fits for pid in pids) / SPACE
    order = sorted(fits, key=lambda pid: (-fits[pid].likelihood, pid))
    best = max((fit.likelihood for fit in fits.values() if fit.distance <= FARTHEST), default=inf)
    matches = [
        AddressMatch(
            pid=pid,
            share=round(fits[pid].likelihood / total, 4),
            place=fits[pid].place,
            distance=fits[pid].distance,
            range_bytes=fits[pid].range[1] - fits[pid].range[0],
            is_host=fits[pid].is_host,
            freed_seconds=_freed_seconds(access.address, at, readings[pid]),
            alike=tuple(other for other in fits if other != pid and fits[other].likelihood == fits[pid].likelihood),
        )
        for number, pid in enumerate(order)
        if fits[pid].likelihood == best or (fits[pid].distance <= FARTHEST and number < MOST_MATCHES)
    ]
    return replace(clue, matches=tuple(matches))


def _is_read(readings: Sequence[AddressRanges], at: float) -> bool:
    """Return whether all ranges of a client are known, and were read after this time too."""
    return bool(readings) and readings[-1].at >= at and all(each.complete for each in readings)


def _common_ranges(readings: Iterable[Sequence[AddressRanges]]) -> frozenset[AddressRange]:
    """Return the ranges at addresses of CUDA's choice that all clients have, if there are several."""
    ranges = [{each for reading in known for each in reading.gpu if each[1] <= CHOSEN_BELOW} for known in readings]
    return frozenset(set.intersection(*ranges)) if len(ranges) > 1 else frozenset()


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


def _best_fit(address: int, readings: Sequence[AddressRanges], ignored: Collection[AddressRange]) -> _Fit | None:
    """Return the best fit in all readings: a range may have been freed shortly before the access, or just added."""
    return max((fit for each in readings for fit in _fits(address, each, ignored)), default=None)


def _fits(address: int, reading: AddressRanges, ignored: Collection[AddressRange]) -> Iterable[_Fit]:
    anywhere = (1 - sum(GPU_PARTS) - sum(HOST_PARTS)) / SPACE
    of_gpu = tuple(each for each in reading.gpu if each not in ignored)
    for ranges, parts, is_host in ((of_gpu, GPU_PARTS, False), (reading.host, HOST_PARTS, True)):
        nearest = _nearest(address, ranges)
        if nearest is None:
            continue
        place, distance = _place(address, nearest)
        if address < CHOSEN_BELOW:
            density = CHOSEN_DENSITY if distance <= CHOSEN_FARTHEST and not is_host else 0.0
        elif place is Place.INSIDE:
            density = parts[INSIDE] / sum(end - start for start, end in ranges)
        elif distance <= FARTHEST:
            density = parts[NEAR] / (2 * max(distance, NEAREST) * log(FARTHEST / NEAREST))
        else:
            density = 0.0
        yield _Fit(density + anywhere, place, distance, nearest, is_host)


def _nearest(address: int, ranges: Sequence[AddressRange]) -> AddressRange | None:
    """Return the range that contains the address, or else the nearest one, of ranges in order."""
    index = bisect_right(ranges, (address, inf))
    around = ranges[max(0, index - 1) : index + 1]
    return min(around, key=lambda each: _place(address, each)[1], default=None)


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


# -- which ranges are read and stored ----------------------------------------------------------------------------------


MOST_READINGS = 3
"""Readings of one process that are stored: before a fault, after it, and one more."""

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
        fault_at = max((at for at, gpu in faults if gpu not in node.gpus or _uses(node, gpu, pid)), default=0.0)
        found[pid] = AddressWant(start_ticks=process.start_ticks, memory=tuple(memory.get(pid, ())), fault_at=fault_at)
    return found


def _uses(node: Node, gpu: str | None, pid: int) -> bool:
    """Return whether a client uses the GPU, or did so until now, or may use it because the list has no client."""
    shown = node.gpus[gpu] if gpu is not None else None
    return shown is None or not shown.mps_since or pid in shown.mps_since or pid in shown.mps_left


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
    kept = {
        pid: readings for pid, readings in node.address_ranges.items() if pid in node.processes or pid in node.deaths
    }
    return node if len(kept) == len(node.address_ranges) else replace(node, address_ranges=kept)
