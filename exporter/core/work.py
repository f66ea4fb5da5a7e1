"""Clients' work, seen at the doors of libcuda: the last readings, and counts that never fall while a client lives."""

from collections.abc import Mapping

from exporter.model.node import Node
from exporter.model.observation import ProcessReading
from exporter.model.replace import replace
from exporter.model.work import Counts, ProcessWork, Worked, WorkHistory, WorkReading, began_ns

KEPT_NS = 8_000_000_000
MOST_KEPT = 16
"""How long readings are kept, and how many: for faults, of which is told late."""

STALE_SECONDS = 10.0
"""What was read longer ago tells nothing of now."""

DOORS = "doors"
"""The source that watches libcuda has this name."""

WATCHED_NS = 60_000_000_000
"""Over how long it is told how much of the time the doors were watched."""


def work_read(node: Node, seen: WorkReading) -> Node:
    """The doors were read. A reading that comes twice, or late, tells nothing new."""
    if node.work is not None and seen.boot_ns <= node.work.boot_ns:
        return node
    kept = (each for each in node.work_history.readings if seen.boot_ns - each.boot_ns <= KEPT_NS)
    present = {each.pid: _counted(node, each) for each in seen.processes}
    history = WorkHistory(
        readings=(*kept, seen)[-MOST_KEPT:],
        worked={**_living(node), **present},
        lost=node.work_history.lost + _newly_lost(node.work, seen),
        watched=_lately_watched(node.work_history, seen),
    )
    return replace(node, work=seen, work_history=history)


def work_now(node: Node) -> WorkReading | None:
    """The last reading, while it tells of now; None where nobody watches the doors, or no more."""
    return None if node.work is None or node.at - node.work.at > STALE_SECONDS else node.work


def counts_of(node: Node, pid: int) -> Counts | None:
    """What a client has done since it was first seen; None where its doors are not watched now, or it is another's."""
    process, work = node.processes.get(pid), work_now(node)
    if process is None or work is None or pid not in work.watched:
        return None
    worked = node.work_history.worked.get(pid)
    if worked is None:
        return Counts()
    return worked.total if is_of(worked.began_ns, process) else None


def watched_part(node: Node) -> float | None:
    """How much of the last minute the doors were watched, 0 to 1; None where nobody watches, or only begins to."""
    watched = node.work_history.watched
    if work_now(node) is None or len(watched) < 2:
        return None
    lasted = watched[-1][0] - watched[0][0]
    return min(1.0, 1e9 * sum(seconds for _, seconds in watched[1:]) / lasted)


def is_of(first_ns: int, process: ProcessReading) -> bool:
    """Whether what was first seen then may be of this process: it was not there before it began."""
    return first_ns >= began_ns(process.start_ticks)


def _living(node: Node) -> Mapping[int, Worked]:
    """Those of whom a reading may yet tell again: no other has their PID."""
    return {
        pid: worked
        for pid, worked in node.work_history.worked.items()
        if pid in node.processes and is_of(worked.began_ns, node.processes[pid])
    }


def _counted(node: Node, seen: ProcessWork) -> Worked:
    """With what was counted before; where the doors were left and watched again, counting has begun anew."""
    known, now = node.work_history.worked.get(seen.pid), _counts(seen)
    if known is not None and known.first_ns == seen.first_ns:
        return replace(known, last=_grown(known.last, now))
    process = node.processes.get(seen.pid)
    if known is not None and process is not None and is_of(known.began_ns, process):
        again = Worked(began_ns=known.began_ns, first_ns=seen.first_ns, last=now, past=known.total)
        return again if is_of(seen.first_ns, process) else known
    return Worked(began_ns=seen.first_ns, first_ns=seen.first_ns, last=now)


def _counts(seen: ProcessWork) -> Counts:
    return Counts(kernels=seen.kernels, graphs=seen.graphs, flight_ns=seen.flight_ns + seen.open_ns)


def _grown(known: Counts, now: Counts) -> Counts:
    """A span that ended while it was read may have been read half: what has been told is not taken back."""
    return Counts(
        kernels=max(known.kernels, now.kernels),
        graphs=max(known.graphs, now.graphs),
        flight_ns=max(known.flight_ns, now.flight_ns),
    )


def _lately_watched(history: WorkHistory, seen: WorkReading) -> tuple[tuple[int, float], ...]:
    kept = (each for each in history.watched if seen.boot_ns - each[0] <= WATCHED_NS)
    return (*kept, (seen.boot_ns, seen.seconds))


def _newly_lost(before: WorkReading | None, now: WorkReading) -> int:
    """Since the reading before; where there are fewer than then, the doors are watched anew."""
    known = 0 if before is None or now.lost < before.lost else before.lost
    return now.lost - known
