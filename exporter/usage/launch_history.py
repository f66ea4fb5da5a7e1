"""Launch history: the last readings of the libcuda probes, and counts that never decrease while a client lives."""

from exporter.model.launches import LaunchCounts, LaunchHistory, ProcessLaunches, ProcessWork, WorkReading, began_ns
from exporter.model.node import Node
from exporter.model.observation import ProcessReading
from exporter.model.values import replace

HISTORY_NS = 8_000_000_000
MAX_READINGS = 16
"""The age and number of readings that are remembered: MPS reports a fault late."""

STALE_SECONDS = 10.0
"""An older reading is not current."""

WATCHED_NS = 60_000_000_000
"""The time over which the watched fraction is computed."""


def with_reading(node: Node, seen: WorkReading) -> Node:
    """Add a reading of the probes. A reading that comes twice, or late, changes nothing."""
    if node.work is not None and seen.boot_ns <= node.work.boot_ns:
        return node
    history = node.launch_history
    living = {
        pid: launches
        for pid, launches in history.counts.items()
        if pid in node.processes and may_belong_to(launches.started_ns, node.processes[pid])
    }
    # A lower count than before means that the probes were attached anew.
    lost_before = 0 if node.work is None or seen.lost < node.work.lost else node.work.lost
    readings = (reading for reading in history.readings if seen.boot_ns - reading.boot_ns <= HISTORY_NS)
    watched = (each for each in history.watched if seen.boot_ns - each[0] <= WATCHED_NS)
    history = LaunchHistory(
        readings=(*readings, seen)[-MAX_READINGS:],
        counts={**living, **{work.pid: _counted(node, work) for work in seen.processes}},
        lost=history.lost + seen.lost - lost_before,
        watched=(*watched, (seen.boot_ns, seen.seconds, seen.watched)),
    )
    return replace(node, work=seen, launch_history=history)


def current_reading(node: Node) -> WorkReading | None:
    """Return the last reading; None if it is stale or there is none."""
    return None if node.work is None or node.at - node.work.at > STALE_SECONDS else node.work


def launch_counts(node: Node, pid: int) -> LaunchCounts | None:
    """Return the counts of a client; None if it is not watched now, or the counts are of another process."""
    process, work = node.processes.get(pid), current_reading(node)
    if process is None or work is None or pid not in work.watched:
        return None
    launches = node.launch_history.counts.get(pid)
    if launches is None:
        return LaunchCounts()
    return launches.total if may_belong_to(launches.started_ns, process) else None


def watched_fraction(node: Node, began_ns: int, ended_ns: int, pid: int | None = None) -> float:
    """Return the fraction of a time in which the probes were attached: to any process, or to this one."""
    watched = node.launch_history.watched
    seconds = sum(each for at_ns, each, pids in watched if began_ns < at_ns <= ended_ns and pid in (None, *pids))
    return min(1.0, seconds * 1e9 / (ended_ns - began_ns))


def watched_ratio(node: Node, pid: int) -> float | None:
    """Return the fraction of the last minute, or of a client's life, in which it was watched; None: unknown."""
    process, watched = node.processes.get(pid), node.launch_history.watched
    if process is None or current_reading(node) is None:
        return None
    began, ended = max(watched[0][0], began_ns(process.start_ticks)), watched[-1][0]
    return watched_fraction(node, began, ended, pid) if began < ended else None


def may_belong_to(first_ns: int, process: ProcessReading) -> bool:
    """Return whether counts that began at `first_ns` may be of this process: they began after it started."""
    return first_ns >= began_ns(process.start_ticks)


def _counted(node: Node, seen: ProcessWork) -> ProcessLaunches:
    """Add a reading to the counts of its process. If the probes were attached anew, counting has begun anew."""
    launches, process = node.launch_history.counts.get(seen.pid), node.processes.get(seen.pid)
    now = LaunchCounts(kernels=seen.kernels, graphs=seen.graphs, flight_ns=seen.flight_ns + seen.open_ns)
    if launches is not None and launches.first_ns == seen.first_ns:
        # A span that ended during the reading may have been read in part: a count never decreases.
        return replace(launches, current=LaunchCounts(*map(max, launches.current, now)))
    if launches is not None and process is not None and may_belong_to(launches.started_ns, process):
        if not may_belong_to(seen.first_ns, process):
            return launches
        return ProcessLaunches(
            started_ns=launches.started_ns, first_ns=seen.first_ns, current=now, earlier=launches.total
        )
    return ProcessLaunches(started_ns=seen.first_ns, first_ns=seen.first_ns, current=now)
