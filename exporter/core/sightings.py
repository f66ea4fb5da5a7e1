"""Xids as they are seen, each once, until it is known whether they belong to a fault.

One that no fault claims is an event of its own: a process beside MPS has its own faults, which are nobody else's. A
fault claims a sighting by having it in its `xids`, while it is not settled; whoever told of it, and whatever was added
since, it is known again by its time, its number and its GPU.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import islice

from exporter.model.event import Event, EventName
from exporter.model.node import Node
from exporter.model.replace import replace
from exporter.model.xids import XidBurst, Xids, XidSighting, XidTelling

CLAIM_SECONDS = 2.0
"""How far from a fault an Xid of it may be, and so how long a fault may claim one: all that tell of it do so within
0.2 s (measured, R580)."""

RECENT_SECONDS = 4.0
MOST_RECENT = 256
CROWD = 32
"""How long sightings are kept, and how many; of more, so many of those that are most alike are settled sooner."""

BURST_SECONDS = 10.0
MOST_TOLD = 20
MOST_BURSTS = 64
"""So many of one number on one GPU have an event in this time, and so many GPUs and numbers; the rest is counted."""

Told = tuple[Node, tuple[Event, ...]]


def sighted(xids: Xids, telling: XidTelling) -> Xids:
    """Somebody is the first to tell of an Xid."""
    sighting = XidSighting(
        at=telling.at,
        number=telling.number,
        gpu=telling.gpu,
        place=telling.place,
        pid=telling.pid,
        name=telling.name,
        access=telling.access,
    )
    return replace(xids, recent=(*xids.recent, sighting))


def completed(xids: Xids, first: XidTelling, second: XidTelling) -> Xids:
    """The other witness tells of it too, and may know more."""
    known = (first.at, first.number, first.gpu, first.place)
    for number, each in enumerate(xids.recent):
        if (each.at, each.number, each.gpu, each.place) == known:
            more = replace(
                each,
                gpu=each.gpu or second.gpu,
                place=each.place or second.place,
                pid=second.pid if each.pid is None else each.pid,
                name=second.name if each.name is None else each.name,
                access=each.access or second.access,
            )
            return replace(xids, recent=(*xids.recent[:number], more, *xids.recent[number + 1 :]))
    return xids


def settle(node: Node, *, force: bool = False) -> Told:
    """Tell of those that no fault has claimed in time; with `force`, of all that none has claimed so far."""
    recent = node.xids.recent
    crowd = _crowd(recent)
    late = node.at - CLAIM_SECONDS
    if not (force or crowd or any(each.at < late and not _stays(each, node.at) for each in recent)):
        return node, ()
    due = [each for each in recent if not each.settled and (force or each.at < late or id(each) in crowd)]
    kept = (each for each in recent if id(each) not in crowd and node.at - each.at <= RECENT_SECONDS)
    over = {id(each) for each in due}
    left = tuple(replace(each, settled=True) if id(each) in over else each for each in kept)
    xids, events = _told(replace(node.xids, recent=left), node.at, [each for each in due if not claimed(node, each)])
    return replace(node, xids=xids), events


def _stays(sighting: XidSighting, at: float) -> bool:
    """Whether nothing is to be done about a sighting that no fault can claim any more."""
    return sighting.settled and at - sighting.at <= RECENT_SECONDS


def claimed(node: Node, sighting: XidSighting) -> bool:
    """Whether a fault has this Xid. Of two at one time, with one number, on one GPU, it has both."""
    return any(same(each, sighting) for incident in node.incidents.values() for each in incident.xids)


def same(one: XidSighting, other: XidSighting) -> bool:
    """Whether two are of one Xid, of which one may have been told by a single witness so far."""
    if (one.at, one.number) != (other.at, other.number):
        return False
    if one.gpu is not None and other.gpu is not None:
        return one.gpu == other.gpu
    return not (one.place and other.place) or one.place == other.place


def whose(xids: Xids, seen: XidSighting | XidTelling) -> str | None:
    """The GPU's UUID, else where it is; None where neither is known."""
    return seen.gpu or xids.addresses.get(seen.place) or (f"PCI:{seen.place}" if seen.place else None)


def _crowd(recent: tuple[XidSighting, ...]) -> set[int]:
    """Where there are too many: the eldest of the number and GPU that has the most, so that none puts out another."""
    if len(recent) <= MOST_RECENT:
        return set()
    ((most, _),) = Counter((each.gpu, each.number) for each in recent).most_common(1)
    return {id(each) for each in islice((each for each in recent if (each.gpu, each.number) == most), CROWD)}


def _told(xids: Xids, at: float, unclaimed: Iterable[XidSighting]) -> tuple[Xids, tuple[Event, ...]]:
    bursts = {key: burst for key, burst in xids.bursts.items() if at - burst.since < BURST_SECONDS}
    events: list[Event] = []
    for each in unclaimed:
        gpu = whose(xids, each)
        burst = bursts.get((gpu, each.number), XidBurst(since=at, told=0))
        if burst.told >= MOST_TOLD or (not burst.told and len(bursts) >= MOST_BURSTS):
            continue
        bursts[gpu, each.number] = replace(burst, told=burst.told + 1)
        events.append(
            Event(at=each.at, event=EventName.GPU_XID, gpu=gpu, xid=each.number, pid=each.pid, name=each.name)
        )
    return replace(xids, bursts=bursts), tuple(events)
