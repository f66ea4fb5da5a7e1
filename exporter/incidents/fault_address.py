"""Whose address was it? Compares the address of a failed access with the address ranges of all clients.

Each client has an address space of its own on the GPU, and CUDA reserves the range of every allocation in the process
too. So an address in or near a range of one client was used by that client (measured, docs/faults.md).
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from math import log
from typing import NamedTuple

from exporter.model.gpu import FailedAccess
from exporter.model.incident import NULL_BYTES, AddressClue, AddressMatch, Place
from exporter.model.observation import AddressRange, AddressRanges
from exporter.model.values import replace

INSIDE, NEAR = 0, 1
GPU_PARTS, HOST_PARTS = (0.5, 0.3), (0.08, 0.02)
"""How often the address of a failed access is inside a range of the culprit for its GPU, or near one; and inside other
large memory of it, or near that. The rest is anywhere."""

NEAREST, FARTHEST = 1 << 21, 1 << 34
"""Between these distances, an address near a range is equally likely at each order of magnitude."""

CHOSEN_BELOW = 1 << 44
"""Lower addresses are CUDA's own choice (of VMM, asynchronous pools) and similar in all processes, so neither the size
of a range there nor the distance to it distinguishes clients. The kernel chooses higher ones at random."""

CHOSEN_DENSITY = GPU_PARTS[INSIDE] / (1 << 36)
"""The likelihood of such an address for a client with a range there."""

SPACE = 1 << 40
"""The layouts of processes differ by so many bytes (28 bits of pages, the default on x86-64)."""

MOST_MATCHES = 8
COMMON_RANGES = 2
"""So many equal ranges at random addresses are no chance."""


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
    candidates: Iterable[int],
    readings: Mapping[int, Sequence[AddressRanges]],
    known: AddressClue | None = None,
) -> AddressClue:
    """Compare the address of an access that failed at a time with the ranges of each candidate.

    Return what is `known` if nothing was read since.
    """
    pids = tuple(candidates)
    after = sum(readings[pid][-1].at >= at for pid in pids if pid in readings)
    clue = AddressClue(address=access.address, kind=access.kind, candidates=len(pids), read_after=after)
    if known is not None and (known.address, known.candidates, known.read_after) == (access.address, len(pids), after):
        return known
    if access.address < NULL_BYTES:
        return clue
    fits: dict[int, _Fit] = {}
    unread, ignored = 0, _common_ranges(readings[pid] for pid in pids if pid in readings)
    for pid in pids:
        own = readings.get(pid, ())
        fit = _best_fit(access.address, own, ignored)
        if fit is not None:
            fits[pid] = fit
        unread += fit is None or not all(each.complete for each in own)
    fits = _without_difference(fits, {pid: _random_ranges(readings[pid]) for pid in fits})
    total = sum(fit.likelihood for fit in fits.values()) + unread / SPACE
    order = sorted(fits, key=lambda pid: (-fits[pid].likelihood, pid))
    matches = [
        AddressMatch(
            pid=pid,
            share=round(fits[pid].likelihood / total, 4),
            place=fits[pid].place,
            distance=fits[pid].distance,
            range_bytes=fits[pid].range[1] - fits[pid].range[0],
            is_host=fits[pid].is_host,
            freed_seconds=_freed_seconds(access.address, at, readings[pid]),
            alike=_alike(fits, pid),
        )
        for pid in order[:MOST_MATCHES]
        if fits[pid].distance <= FARTHEST
    ]
    return replace(clue, matches=tuple(matches), unread=unread)


def _common_ranges(readings: Iterable[Sequence[AddressRanges]]) -> frozenset[AddressRange]:
    """Return the ranges at addresses of CUDA's choice that all clients have."""
    ranges = [{each for reading in known for each in reading.gpu if each[1] <= CHOSEN_BELOW} for known in readings]
    return frozenset(set.intersection(*ranges)) if ranges else frozenset()


def _random_ranges(readings: Sequence[AddressRanges]) -> frozenset[AddressRange]:
    """Return the ranges at addresses that the kernel chose, if it chooses at random."""
    return frozenset(each for known in readings for each in (*known.gpu, *known.host) if each[0] >= CHOSEN_BELOW)


def _without_difference(fits: Mapping[int, _Fit], ranges: Mapping[int, frozenset[AddressRange]]) -> dict[int, _Fit]:
    """Return the fits with the same likelihood for all clients of one layout: they have several ranges in common.

    They were forked from one process, or the kernel does not choose at random (randomize_va_space, setarch -R). One
    common range can be chance, because those of the C library begin at multiples of 64 MiB.
    """
    found = dict(fits)
    for pid, other in combinations(fits, 2):
        if len(ranges[pid] & ranges[other]) >= COMMON_RANGES:
            likelihood = max(found[pid].likelihood, found[other].likelihood)
            found.update((each, found[each]._replace(likelihood=likelihood)) for each in (pid, other))
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
            density = CHOSEN_DENSITY if distance <= FARTHEST and not is_host else 0.0
        elif place is Place.INSIDE:
            density = parts[INSIDE] / sum(end - start for start, end in ranges)
        elif distance <= FARTHEST:
            density = parts[NEAR] / (2 * max(distance, NEAREST) * log(FARTHEST / NEAREST))
        else:
            density = 0.0
        yield _Fit(density + anywhere, place, distance, nearest, is_host)


def _nearest(address: int, ranges: Sequence[AddressRange]) -> AddressRange | None:
    """Return the range that contains the address, or else the nearest one, of ranges in order."""
    index = bisect_right(ranges, (address, SPACE << 24))
    around = ranges[max(0, index - 1) : index + 1]
    return min(around, key=lambda each: _place(address, each)[1], default=None)


def _place(address: int, within: AddressRange) -> tuple[Place, int]:
    start, end = within
    if start <= address < end:
        return Place.INSIDE, 0
    return (Place.BEFORE, start - address) if address < start else (Place.BEYOND, address - end + 1)


def _freed_seconds(address: int, at: float, readings: Sequence[AddressRanges]) -> float | None:
    """Return how long before the fault at most a range with this address was freed; None if readings do not show it."""
    having = [any(start <= address < end for start, end in each.gpu) for each in readings]
    if not any(having) or having[-1]:
        return None
    last = max(each.at for each, has in zip(readings, having, strict=True) if has)
    return round(max(0.0, at - last), 1)


def _alike(fits: Mapping[int, _Fit], pid: int) -> tuple[int, ...]:
    """Return the other clients that the address fits equally: of the same layout, or at an address of CUDA's choice."""
    equal = (other for other, each in fits.items() if other != pid and each.likelihood == fits[pid].likelihood)
    return tuple(equal)[:MOST_MATCHES]
