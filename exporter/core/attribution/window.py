"""One window of a GPU's SM time, split among those who were there."""

from collections.abc import Mapping
from dataclasses import dataclass

from exporter.core.attribution import estimate
from exporter.model.beliefs import Beliefs
from exporter.model.effort import Effort
from exporter.model.split import Method, Share

MOST_ERROR = 0.1
"""Whose part of the clients' SM time has a greater standard error has none: it is not known."""

MOST_SCALED = 1.25
"""What clients seem to have used is scaled up to what the device measured by no more than this; the rest is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """Who was on a GPU in a window. `alone` is the one client who was there all the time with nobody else.

    `efforts` are those of the clients whose doors were watched, None where nothing is known of anybody's. `beside` has
    the parts of processes beside MPS, `mps` that of MPS. `room` is how much SM time there was, in nanoseconds of one
    SM.
    """

    clients: frozenset[int]
    alone: int | None
    efforts: Mapping[int, Effort] | None
    beside: Mapping[int, float]
    mps: float
    room: float
    equal: bool


def split(present: Present, beliefs: Beliefs, sm: float) -> dict[int, Share]:
    """What each used of all SMs, where `sm` of them were busy. It is together no more than that."""
    shares = {pid: Share(method=Method.MEASURED, sm=sm * part) for pid, part in present.beside.items() if part > 0}
    pool = sm * present.mps
    if not present.mps:
        return shares
    if present.alone is not None:
        return {**shares, present.alone: Share(method=Method.MEASURED, sm=pool)}
    found = {} if present.efforts is None else _in_flight(present, present.efforts, beliefs, pool)
    others = present.clients - (present.efforts or {}).keys()
    if present.equal and others:
        left = max(0.0, pool - sum(share.sm for share in found.values()))
        found.update(dict.fromkeys(others, Share(method=Method.EQUAL, sm=left / len(others))))
    return {**shares, **found}


def _in_flight(present: Present, efforts: Mapping[int, Effort], beliefs: Beliefs, pool: float) -> dict[int, Share]:
    """By what was seen at the doors. Only where all clients were watched is it known that all of the time is theirs."""
    used = estimate.used(beliefs, efforts, pool * present.room)
    whole = sum(used.values())
    if whole <= 0 or present.room <= 0:
        return {}
    complete = present.clients <= efforts.keys()
    scale = min(pool / (whole / present.room), MOST_SCALED if complete else 1.0) / present.room
    errors = estimate.errors(beliefs, efforts, used)
    return {
        pid: Share(method=Method.FLIGHT, sm=scale * each, error=errors[pid] * scale * whole)
        for pid, each in used.items()
        if each and errors[pid] <= MOST_ERROR
    }
