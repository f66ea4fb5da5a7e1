"""Who had work in flight when a fault struck, and who had not: a fault is a kernel's, and that was in flight.

Once a fault has struck, every synchronisation fails, and no span ends any more: whoever has none open afterwards had
none open then. Of a client whose doors were not watched all the time, nothing is said.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from exporter.core.work import TICK_NS, is_of
from exporter.model.clues import Flight
from exporter.model.incident import Incident
from exporter.model.node import Node
from exporter.model.observation import ProcessReading
from exporter.model.work import ProcessWork, WorkReading

SECOND_NS = 1_000_000_000

WATCHED_NS = 3 * SECOND_NS
"""So long the doors must have been watched before: a kernel that was launched earlier would not have been seen."""

GAPLESS = 0.9
"""How much of the time between two readings they must have been."""

RECENT_NS = 2 * SECOND_NS
"""An older reading tells nothing of the moment."""


class _Seen(NamedTuple):
    """Who was watched for long before a fault, and after it; and what each had done when read before, and after."""

    told_ns: int
    watched: frozenset[int]
    before: Mapping[int, ProcessWork]
    recent: bool
    watched_after: frozenset[int]
    after: Mapping[int, ProcessWork]


def known(node: Node, incident: Incident) -> tuple[Flight, ...]:
    """Of each affected client what can be told by now; what could be told before stays."""
    readings, affected = node.doors.readings, set(incident.affected)
    before = {each.pid: each for each in incident.clues.flights if each.pid in affected}
    if not readings:
        return tuple(before.values())
    told_ns = readings[-1].boot_ns - round((readings[-1].at - incident.detected_at) * SECOND_NS)
    seen = _seen(readings, told_ns)
    now = () if seen is None else (_flight(seen, process) for process in _processes(node, incident, told_ns))
    return tuple({**before, **{each.pid: each for each in now if each is not None}}.values())


def _processes(node: Node, incident: Incident, told_ns: int) -> Sequence[ProcessReading]:
    """Those affected, as they were then: a process that began later has but the PID of one."""
    gone = {pid: node.deaths[pid].process for pid in incident.affected if pid in node.deaths}
    either = (each for pid in incident.affected for each in (node.processes.get(pid), gone.get(pid)))
    return [each for each in either if each is not None and each.start_ticks * TICK_NS < told_ns]


def _seen(readings: Sequence[WorkReading], told_ns: int) -> _Seen | None:
    """What was seen before a fault was told of, and after; None where the doors were not watched all the time."""
    earlier = [each for each in readings if each.boot_ns < told_ns]
    long = max((place for place, each in enumerate(earlier) if each.boot_ns <= told_ns - WATCHED_NS), default=None)
    if long is None:
        return None
    later = readings[len(earlier) : len(earlier) + 1]
    about = (*earlier[long:], *later)
    if any(now.seconds * SECOND_NS < GAPLESS * (now.boot_ns - last.boot_ns) for last, now in pairwise(about)):
        return None
    return _Seen(
        told_ns=told_ns,
        watched=frozenset(earlier[long].watched).intersection(*(each.watched for each in earlier[long:])),
        before={each.pid: each for each in earlier[-1].processes},
        recent=told_ns - earlier[-1].boot_ns <= RECENT_NS,
        watched_after=frozenset(pid for each in later for pid in each.watched),
        after={each.pid: each for reading in later for each in reading.processes},
    )


def _flight(seen: _Seen, process: ProcessReading) -> Flight | None:
    """Whether a client that has gone had nothing in flight is not known: it may have launched since it was seen."""
    pid = process.pid
    if pid not in seen.watched:
        return None
    before, after = _of(seen.before, process), _of(seen.after, process)
    if after is not None:
        return _seen_after(before, after, seen.told_ns)
    if pid in seen.watched_after:
        return Flight(pid=pid, in_flight=False) if before is None else None
    return _in_flight(before, seen.told_ns) if seen.recent else None


def _of(works: Mapping[int, ProcessWork], process: ProcessReading) -> ProcessWork | None:
    work = works.get(process.pid)
    return work if work is not None and is_of(work.first_ns, process) else None


def _seen_after(before: ProcessWork | None, after: ProcessWork, told_ns: int) -> Flight | None:
    """By the first reading after the fault; nothing is said where a launch was not seen, or came after it."""
    if after.lost > (0 if before is None else before.lost):
        return None
    if after.launched_ns > told_ns:
        return _in_flight(before, told_ns) if after.open_ns else None
    if after.open_ns:
        return _in_flight(after, told_ns)
    return Flight(pid=after.pid, in_flight=False, launched_before=_launched_before(after, told_ns))


def _in_flight(work: ProcessWork | None, told_ns: int) -> Flight | None:
    """It had, if that is what was seen; else nothing is known."""
    if work is None or not work.open_ns:
        return None
    return Flight(pid=work.pid, in_flight=True, launched_before=_launched_before(work, told_ns))


def _launched_before(work: ProcessWork, told_ns: int) -> float | None:
    return max(0, told_ns - work.launched_ns) / SECOND_NS if work.launched_ns else None
