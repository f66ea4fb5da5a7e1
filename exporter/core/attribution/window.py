"""One window of a GPU's SM time, split among those who were there."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from exporter.core.attribution import estimate
from exporter.model.beliefs import Beliefs
from exporter.model.effort import Effort
from exporter.model.split import Method, Share, Split

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What each process used, as the fields of the same names in Split."""

    shares: Mapping[int, Share]
    withheld: Mapping[int, Share] = field(default_factory=dict)
    unknown: frozenset[int] = frozenset()


def split(present: Present, beliefs: Beliefs, sm: float, watched: Sequence[Split] = ()) -> Parts:
    """Split the part `sm` of all SMs among the processes; together they have no more than that.

    If no client was watched, each is assumed to go on as in the windows `watched`, the latest of which is the last.
    """
    beside = {pid: Share(method=Method.MEASURED, sm=sm * part) for pid, part in present.beside.items() if part > 0}
    pool = sm * present.mps
    if not present.mps:
        return Parts(shares=beside, unknown=present.clients | (present.beside.keys() - beside.keys()))
    if present.alone is not None:
        return Parts(shares={**beside, present.alone: Share(method=Method.MEASURED, sm=pool)})
    if present.efforts is None:
        found, unknown = _as_before(present, pool, watched)
        unsure = {pid for pid, share in found.items() if share.error > MOST_ERROR * pool}
    else:
        found, unsure = _in_flight(present, present.efforts, beliefs, pool)
        unknown = _without_estimate(present, found)
    shares = {pid: share for pid, share in found.items() if pid not in unsure}
    withheld = {pid: share for pid, share in found.items() if pid in unsure}
    if present.equal and unknown:
        left = max(0.0, pool - sum(share.sm for share in found.values()))
        shares.update(dict.fromkeys(unknown, Share(method=Method.EQUAL, sm=left / len(unknown))))
        unknown = frozenset[int]()
    return Parts(shares={**beside, **shares}, withheld=withheld, unknown=unknown)


def _as_before(present: Present, pool: float, watched: Sequence[Split]) -> tuple[dict[int, Share], frozenset[int]]:
    """Assume that each client goes on as in the last watched window, unless the device refutes that.

    The error covers how much the client differed between the last two such windows, and what the device measured more
    or less than all did then.
    """
    if not watched:
        return {}, present.clients
    earlier, last = (watched[-2] if len(watched) > 1 else None), watched[-1]
    shares = {pid: share for pid, share in last.estimates.items() if pid in present.clients and _is_found(share)}
    whole = sum(share.sm for share in shares.values())
    unknown = (present.clients - last.clients) | (present.clients & last.unknown)
    scale = min(1.0, pool / whole) if unknown and whole else pool / whole if whole else 0.0
    if not 1 / MOST_SCALED <= scale <= MOST_SCALED:
        return {}, present.clients
    found = {}
    for pid, share in shares.items():
        before = None if earlier is None else earlier.estimates.get(pid)
        change = share.sm if before is None else abs(share.sm - before.sm)
        error = math.hypot(scale * share.error, change / 2, (scale - 1) * whole / 2)
        found[pid] = Share(method=Method.FLIGHT, sm=scale * share.sm, error=error)
    return found, unknown


def _is_found(share: Share) -> bool:
    """Whether a share is no convention."""
    return share.method is not Method.EQUAL


def _without_estimate(present: Present, found: Mapping[int, Share]) -> frozenset[int]:
    """Return the clients that were not watched; all of them, if no work of any client explains the busy SMs."""
    unwatched = present.clients.difference(present.efforts or ())
    return unwatched if found or unwatched else present.clients


def _in_flight(
    present: Present, efforts: Mapping[int, Effort], beliefs: Beliefs, pool: float
) -> tuple[dict[int, Share], set[int]]:
    """Estimate the shares from what the clients launched; return also whose estimate is too uncertain.

    Only if all clients were watched, all of the time is known to be theirs. Any of them may have used what their work
    does not explain then, so each error covers it.
    """
    used = estimate.used(beliefs, efforts, pool * present.room)
    whole = sum(used.values())
    if whole <= 0 or present.room <= 0:
        return {}, set()
    complete = present.clients <= efforts.keys()
    scale = min(pool / (whole / present.room), MOST_SCALED if complete else 1.0) / present.room
    unexplained = max(0.0, pool - scale * whole) if complete else 0.0
    errors = estimate.errors(beliefs, efforts, used, complete=complete)
    found = {
        pid: Share(
            method=Method.FLIGHT, sm=scale * each, error=math.hypot(scale * whole * errors[pid], unexplained / 2)
        )
        for pid, each in used.items()
        if each
    }
    return found, {pid for pid in found if errors[pid] > MOST_ERROR}
