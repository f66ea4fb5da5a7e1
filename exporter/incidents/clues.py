"""Clues to the root cause: who left before the fault, and whose work was in flight."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from exporter.model.daemon import ClaimKind, Daemon
from exporter.model.incident import Clues, EarlyDisconnect, Incident, InFlightWork
from exporter.model.launches import ProcessWork, WorkReading, began_ns
from exporter.model.node import Node
from exporter.model.observation import ProcessReading
from exporter.model.server import Disconnect, FaultLogBlock
from exporter.model.values import replace
from exporter.parse.log_line import seconds_between
from exporter.state.clients import MOST_CLIENTS
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


def in_flight_work(node: Node, incident: Incident) -> tuple[InFlightWork, ...]:
    """Of each affected client what can be told by now; what could be told before stays."""
    readings, affected = node.launch_history.readings, set(incident.affected)
    before = {each.pid: each for each in incident.clues.in_flight_work if each.pid in affected}
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


def _flight(seen: _Seen, process: ProcessReading, alive: bool) -> InFlightWork | None:
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
        return InFlightWork(pid=pid, in_flight=False)
    return _in_flight(before, seen.told_ns) if before is not None and before.open_ns and seen.recent else None


def _failed_early(work: ProcessWork, told_ns: int) -> bool:
    return 0 < work.failed_ns < told_ns - FAILED_NS


def _seen_after(well: ProcessWork | None, after: ProcessWork, told_ns: int) -> InFlightWork | None:
    """By the first reading after the fault. Without an open span, one that failed may have given up its context.

    The fault may have struck before the last reading that was before it was told of: `well` is from before it struck.
    """
    if after.open_ns and after.open_since_ns <= told_ns:
        return _in_flight(after, told_ns)
    if not after.open_ns and after.failed_ns and after.launched_ns and not (well and _slept(well, after)):
        return None
    if not after.open_ns and after.launched_ns > told_ns:
        return None
    return InFlightWork(pid=after.pid, in_flight=False, seconds_since_launch=_launched_before(after, told_ns))


def _slept(well: ProcessWork, after: ProcessWork) -> bool:
    """Whether it had nothing in flight, and has launched nothing since."""
    launched = (after.kernels, after.graphs) != (well.kernels, well.graphs)
    return not (well.open_ns or launched)


def _in_flight(work: ProcessWork, told_ns: int) -> InFlightWork:
    return InFlightWork(pid=work.pid, in_flight=True, seconds_since_launch=_launched_before(work, told_ns))


def _launched_before(work: ProcessWork, told_ns: int) -> float | None:
    """How long before the fault was told of; None where its last launch came only after, or there was none."""
    if not 0 < work.launched_ns <= told_ns:
        return None
    return (told_ns - work.launched_ns) / SECOND_NS


VANISHED_SECONDS = 0.5
"""Whoever left earlier than this before a fault has nothing to do with it."""

DOUBTED_SECONDS = 600.0
"""For how long after another source contradicted the log its lines are not enough to suspect a client."""


def gathered_clues(node: Node, daemon: Daemon, incident: Incident, block: FaultLogBlock | None) -> Clues:
    """Who left just before, and who had work, is looked for while that can be; who leaves in reset, until the end."""
    clues = incident.clues
    left = [
        each
        for each in daemon.connections.disconnects.values()
        if each.server == incident.server and not each.logged_twice and _was_there(node, daemon, each.pid)
    ]
    in_reset = [each.pid for each in left if each.in_reset and each.at >= incident.detected_at]
    clues = replace(
        clues,
        named=clues.named if block is None or block.named is None else block.named,
        in_reset=tuple(dict.fromkeys((*clues.in_reset, *in_reset)))[:MOST_CLIENTS],
    )
    if incident.settled:
        return clues
    early_disconnects = {each.pid: each for each in clues.early_disconnects}
    for leaving in left:
        before = _lead(leaving, incident)
        if leaving.pid not in incident.affected and 0 <= before <= VANISHED_SECONDS:
            early_disconnects[leaving.pid] = _vanished(node, leaving, before)
    return replace(
        clues,
        early_disconnects=tuple(each for pid, each in early_disconnects.items() if pid not in daemon.clients),
        in_flight_work=in_flight_work(node, incident),
        log_unreliable=_log_unreliable(node, daemon, incident)
        or (clues.log_unreliable and _is_restored(node, incident)),
    )


def _is_restored(node: Node, incident: Incident) -> bool:
    """Return whether an earlier run of the exporter found the incident: why it doubted the log is not known here."""
    return node.began_at is not None and incident.detected_at < node.began_at


def _was_there(node: Node, daemon: Daemon, pid: int) -> bool:
    """Return whether a client was ever shown by NVML or the daemon, or its end was observed.

    Its log alone may have been forged.
    """
    client = daemon.clients.get(pid) or daemon.connections.recently_disconnected.get(pid)
    listed = client is not None and client.listed_at is not None
    return (
        listed or pid in node.deaths or any(pid in gpu.mps_since or pid in gpu.mps_left for gpu in node.gpus.values())
    )


def _log_unreliable(node: Node, daemon: Daemon, incident: Incident) -> bool:
    """Return whether the log may be forged: other sources contradict it, or lines of those who have left are missing.

    Any user can write lines into it, and take lines away from it (measured, R580).
    """
    if _are_spared(node, daemon, incident) or daemon.claimed(ClaimKind.FAULT, incident.server):
        # Another block, for which no evidence is left: one of the two may be forged.
        return True
    last = daemon.log.contradicted_at
    if last is not None and incident.detected_at - last <= DOUBTED_SECONDS:
        return True
    gone = [pid for pid in incident.affected if pid not in daemon.clients]
    told = [pid for pid in gone if pid in daemon.connections.disconnects]
    doubtful = any(
        each.logged_twice and each.server == incident.server for each in daemon.connections.disconnects.values()
    )
    return doubtful or (bool(told) and len(told) < len(gone))


def _are_spared(node: Node, daemon: Daemon, incident: Incident) -> bool:
    """Return whether clients of the server live on, on the fault's GPUs, that the log does not name.

    A fault hits all clients on its GPU (measured, R580). NVML shows which clients those are.
    """
    here = (node.gpus[uuid].mps_since for uuid in incident.gpus if uuid in node.gpus)
    before = {pid for shown in here for pid, since in shown.items() if since < incident.detected_at}
    left = (daemon.clients.get(pid) for pid in before.difference(incident.affected))
    return any(client is not None and client.server == incident.server for client in left)


def pids(clues: Clues) -> frozenset[int]:
    """All of whom they tell."""
    named = () if clues.named is None else (clues.named,)
    return frozenset((*named, *clues.in_reset, *(each.pid for each in clues.early_disconnects)))


def without(clues: Clues, others: Collection[int]) -> Clues:
    """What they tell of everybody else."""
    return Clues(
        named=None if clues.named in others else clues.named,
        in_reset=tuple(pid for pid in clues.in_reset if pid not in others),
        early_disconnects=tuple(each for each in clues.early_disconnects if each.pid not in others),
        in_flight_work=tuple(each for each in clues.in_flight_work if each.pid not in others),
        log_unreliable=clues.log_unreliable,
    )


def _lead(leaving: Disconnect, incident: Incident) -> float:
    """How many seconds before the fault a client left: by the log's own time, else by ours."""
    if incident.block_timestamp is None or not leaving.stamp:
        return incident.detected_at - leaving.at
    return seconds_between(leaving.stamp, incident.block_timestamp)


def _vanished(node: Node, leaving: Disconnect, before: float) -> EarlyDisconnect:
    death = node.deaths.get(leaving.pid)
    return EarlyDisconnect(
        pid=leaving.pid,
        seconds_before=before,
        terminated=leaving.terminated,
        wait_status=None if death is None else death.wait_status,
        out_of_memory=death is not None and death.out_of_memory,
    )
