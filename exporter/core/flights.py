"""Who had work in flight when a fault struck, and who had not: a fault is a kernel's, and that was in flight.

Once a fault has struck, every synchronisation fails, and no span ends any more: a client that has none open afterwards
had none open then.

The probes count every launch of a watched client. The counts of a dead client are read once more. So a watched client
without any counts has launched nothing, whether it is still alive or not.

If a client was not watched all the time, its work is unknown.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from exporter.model.clues import Flight
from exporter.model.incident import Incident
from exporter.model.launches import ProcessWork, WorkReading, began_ns
from exporter.model.node import Node
from exporter.model.observation import ProcessReading
from exporter.usage.launch_history import may_belong_to

SECOND_NS = 1_000_000_000

WATCHED_NS = 3 * SECOND_NS
"""So long the doors must have been watched before: a kernel that was launched earlier would not have been seen."""

FAILED_NS = 1 * SECOND_NS
"""A synchronisation that failed longer ago did so for another reason; of its client no span is told of any more."""

GAPLESS = 0.9
"""How much of the time between two readings they must have been."""

RECENT_NS = 2 * SECOND_NS
"""An older reading tells nothing of the moment."""


class _Seen(NamedTuple):
    """Who was watched for long before a fault, at last before it, and after it; what each had done then, and then.

    If launches were `lost`, a process without counts may have been the one that launched them. `well` has what each had
    done in the last reading in which none of its synchronisations had failed, `counted` the processes of which anything
    was counted, and `complete` is set if there is a reading after the fault.
    """

    told_ns: int
    lost: bool
    watched: frozenset[int]
    watched_before: frozenset[int]
    before: Mapping[int, ProcessWork]
    recent: bool
    watched_after: frozenset[int]
    after: Mapping[int, ProcessWork]
    well: Mapping[int, ProcessWork]
    counted: frozenset[int]
    complete: bool


def known(node: Node, incident: Incident) -> tuple[Flight, ...]:
    """Of each affected client what can be told by now; what could be told before stays."""
    readings, affected = node.launch_history.readings, set(incident.affected)
    before = {each.pid: each for each in incident.clues.flights if each.pid in affected}
    if not readings:
        return tuple(before.values())
    told_ns = readings[-1].boot_ns - round((readings[-1].at - incident.detected_at) * SECOND_NS)
    seen = _seen(readings, told_ns)
    now = [] if seen is None else [_flight(seen, *each) for each in _processes(node, incident, told_ns)]
    return tuple({**before, **{each.pid: each for each in now if each is not None}}.values())


def _processes(node: Node, incident: Incident, told_ns: int) -> Iterable[tuple[ProcessReading, bool]]:
    """Those affected, and whether each lives still; a process that began later has but the PID of one."""
    for pid in incident.affected:
        death, process = node.deaths.get(pid), node.processes.get(pid)
        if process is not None and began_ns(process.start_ticks) < told_ns:
            yield process, True
        elif death is not None and death.process is not None and began_ns(death.process.start_ticks) < told_ns:
            yield death.process, False


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
        lost=about[-1].lost > 0,
        watched=frozenset(earlier[long].watched).intersection(*(each.watched for each in earlier[long:-1])),
        watched_before=frozenset(earlier[-1].watched),
        before={each.pid: each for each in earlier[-1].processes},
        recent=told_ns - earlier[-1].boot_ns <= RECENT_NS,
        watched_after=frozenset(pid for each in later for pid in each.watched),
        after={each.pid: each for reading in later for each in reading.processes},
        well={each.pid: each for reading in earlier[long:] for each in reading.processes if not each.failed_ns},
        counted=frozenset(each.pid for reading in about for each in reading.processes),
        complete=bool(later),
    )


def _flight(seen: _Seen, process: ProcessReading, alive: bool) -> Flight | None:
    """If a client has gone and its last counts were not read, it may have launched since it was read before."""
    pid = process.pid
    before, after = seen.before.get(pid), seen.after.get(pid)
    known = [each for each in (before, after) if each is not None]
    if pid not in seen.watched or (alive and pid not in seen.watched_before):
        return None
    if not all(may_belong_to(each.first_ns, process) and not _failed_early(each, seen.told_ns) for each in known):
        return None
    if after is not None and after.first_ns < seen.told_ns:
        return _seen_after(seen.well.get(pid), after, seen.told_ns)
    if pid not in seen.counted and not seen.lost and seen.complete and alive is (pid in seen.watched_after):
        return Flight(pid=pid, in_flight=False)
    return _in_flight(before, seen.told_ns) if before is not None and before.open_ns and seen.recent else None


def _failed_early(work: ProcessWork, told_ns: int) -> bool:
    return 0 < work.failed_ns < told_ns - FAILED_NS


def _seen_after(well: ProcessWork | None, after: ProcessWork, told_ns: int) -> Flight | None:
    """By the first reading after the fault. Without an open span, one that failed may have given up its context.

    The fault may have struck before the last reading that was before it was told of: `well` is from before it struck.
    """
    if after.open_ns and after.open_since_ns <= told_ns:
        return _in_flight(after, told_ns)
    if not after.open_ns and after.failed_ns and after.launched_ns and not (well and _slept(well, after)):
        return None
    if not after.open_ns and after.launched_ns > told_ns:
        return None
    return Flight(pid=after.pid, in_flight=False, launched_before=_launched_before(after, told_ns))


def _slept(well: ProcessWork, after: ProcessWork) -> bool:
    """Whether it had nothing in flight, and has launched nothing since."""
    launched = (after.kernels, after.graphs) != (well.kernels, well.graphs)
    return not (well.open_ns or launched)


def _in_flight(work: ProcessWork, told_ns: int) -> Flight:
    return Flight(pid=work.pid, in_flight=True, launched_before=_launched_before(work, told_ns))


def _launched_before(work: ProcessWork, told_ns: int) -> float | None:
    """How long before the fault was told of; None where its last launch came only after, or there was none."""
    if not 0 < work.launched_ns <= told_ns:
        return None
    return (told_ns - work.launched_ns) / SECOND_NS
