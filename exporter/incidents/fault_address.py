"""Whose address was it? Compares the address of a failed access with the address ranges of all clients.

Each client has an address space of its own on the GPU, and CUDA reserves the range of every allocation in the process
too. So an address in or near a range of one client was used by that client (measured, docs/faults.md).
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from math import log
from typing import NamedTuple

from exporter.model.gpu import FailedAccess
from exporter.model.incident import AddressClue, AddressMatch, Place
from exporter.model.observation import AddressRange, AddressRanges

INSIDE_PART, HOST_PART, NEAR_PART = 0.55, 0.05, 0.3
"""How often the address of a failed access is inside a range of the culprit for its GPU, inside other large memory of
it, or near a range. The rest is anywhere."""

NEAREST, FARTHEST = 1 << 21, 1 << 36
"""Between these distances, an address near a range is equally likely at each order of magnitude."""

SPACE = 1 << 40
"""The layouts of processes differ by so many bytes (28 bits of pages, the default on x86-64)."""

NULL_BYTES = 1 << 16
"""A smaller address is a null pointer with a small offset. It identifies nobody."""

MOST_MATCHES = 8
ALIKE = 0.5
"""Clients whose likelihoods for an address differ by less than this factor are not distinguished by it."""


class _Fit(NamedTuple):
    """The place of an address in the ranges of a client, and how likely that client would use this address."""

    likelihood: float
    place: Place
    distance: int
    range: AddressRange
    is_host: bool


def find_owner(
    access: FailedAccess, at: float, candidates: Iterable[int], readings: Mapping[int, Sequence[AddressRanges]]
) -> AddressClue:
    """Compare the address of an access that failed at a time with the ranges of each candidate."""
    pids = tuple(candidates)
    clue = AddressClue(address=access.address, kind=access.kind, candidates=len(pids))
    if access.address < NULL_BYTES:
        return clue
    fits: dict[int, _Fit] = {}
    unread = 0
    for pid in pids:
        known = readings.get(pid, ())
        fit = _best_fit(access.address, known)
        if fit is not None:
            fits[pid] = fit
        unread += fit is None or not all(each.complete for each in known)
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
    return AddressClue(
        address=access.address, kind=access.kind, matches=tuple(matches), candidates=len(pids), unread=unread
    )


def _best_fit(address: int, readings: Sequence[AddressRanges]) -> _Fit | None:
    """Return the best fit in all readings: a range may have been freed shortly before the access, or just added."""
    return max((fit for each in readings for fit in _fits(address, each)), default=None)


def _fits(address: int, reading: AddressRanges) -> Iterable[_Fit]:
    anywhere = (1 - INSIDE_PART - HOST_PART - NEAR_PART) / SPACE
    for ranges, part, is_host in ((reading.gpu, INSIDE_PART, False), (reading.host, HOST_PART, True)):
        nearest = _nearest(address, ranges)
        if nearest is None:
            continue
        place, distance = _place(address, nearest)
        if place is Place.INSIDE:
            density = part / sum(end - start for start, end in ranges)
        elif distance <= FARTHEST:
            density = NEAR_PART / (2 * max(distance, NEAREST) * log(FARTHEST / NEAREST))
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
    return (Place.BEFORE, start - address) if address < start else (Place.BEHIND, address - end + 1)


def _freed_seconds(address: int, at: float, readings: Sequence[AddressRanges]) -> float | None:
    """Return how long before the fault at most a range with this address was freed; None if readings do not show it."""
    having = [any(start <= address < end for start, end in each.gpu) for each in readings]
    if not any(having) or having[-1]:
        return None
    last = max(each.at for each, has in zip(readings, having, strict=True) if has)
    return round(max(0.0, at - last), 1)


def _alike(fits: Mapping[int, _Fit], pid: int) -> tuple[int, ...]:
    """Return the other clients that have the same range there: forked from one parent, or at an address CUDA chose."""
    fit = fits[pid]
    return tuple(
        other
        for other, each in fits.items()
        if other != pid and each.place is fit.place and ALIKE < each.likelihood / fit.likelihood < 1 / ALIKE
    )[:MOST_MATCHES]
