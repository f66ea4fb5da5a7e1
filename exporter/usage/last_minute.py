"""The last minute: readings of the libcuda probes, and the windows of a GPU, added up, with the errors."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from exporter.model.launches import LaunchCounts, LaunchHistory, ProcessLaunches, ProcessWork, WorkReading, began_ns
from exporter.model.node import Node
from exporter.model.observation import GpuUuid, ProcessReading
from exporter.model.usage import Method, Share, Split
from exporter.model.values import replace

MINUTE_SECONDS = 60.0
MAX_WINDOWS = 120
"""The age and number of windows that are remembered."""

MAX_UNKNOWN = 0.5  # A client has no share of the minute if its use is unknown for more than this fraction of it.

MAX_ERROR, MAX_RELATIVE_ERROR = 0.3, 0.5
"""A client has no share either if its standard error exceeds both these fractions, of all SMs and of the share."""


class Splits(Mapping[GpuUuid, Split]):
    """How each GPU's SM time was divided in the last minute; computed on first access, as windows come more often."""

    def __init__(self, windows: Mapping[GpuUuid, tuple[Split, ...]]) -> None:
        self._windows = windows
        self._combined: dict[GpuUuid, Split] = {}

    def __getitem__(self, gpu: GpuUuid) -> Split:
        if gpu not in self._combined:
            self._combined[gpu] = combined(self._windows[gpu])
        return self._combined[gpu]

    def __iter__(self) -> Iterator[GpuUuid]:
        return iter(self._windows)

    def __len__(self) -> int:
        return len(self._windows)


def fresh_splits(node: Node) -> Mapping[GpuUuid, Split]:
    """Return how each GPU's SM time was divided, without splits that are older than they are long."""
    return {gpu: split for gpu, split in node.splits.items() if 0 <= node.at - split.at <= split.seconds}


def with_window(windows: tuple[Split, ...], window: Split) -> tuple[Split, ...]:
    """Add a window; drop those that are too old, or later because the clock was set back."""
    recent = (earlier for earlier in windows if 0 < window.at - earlier.at < MINUTE_SECONDS)
    return (*recent, window)[-MAX_WINDOWS:]


def combined(windows: tuple[Split, ...]) -> Split:
    """Add up the windows, the oldest first; a client's error covers the time in which its use is unknown.

    A client without a share in a window used nothing in it, unless it is `unknown` there. Then it used between nothing
    and all of what is unattributed. A share with too large an error is omitted.
    """
    seconds = sum(window.seconds for window in windows)
    measured = all(window.measured for window in windows)
    dram = [(window.dram, window.seconds) for window in windows if window.dram is not None]
    dram_seconds = sum(lasted for _, lasted in dram)
    shares = _shares(windows[::-1], seconds)
    total = sum(share.sm for share in shares.values())
    sm = sum(window.sm * window.seconds for window in windows) / seconds if measured else total
    return Split(
        at=windows[-1].at,
        seconds=seconds,
        sm=sm,
        shares=shares,
        unattributed=max(0.0, sm - total),
        dram=sum(used * lasted for used, lasted in dram) / dram_seconds if dram_seconds else None,
        unknown=windows[-1].unknown,
        measured=measured,
    )


@dataclass(slots=True)
class _Sum:
    """SM time of one client and its error, in seconds of all SMs, and the seconds in which its use is unknown."""

    method: Method
    used: float = 0.0
    error: float = 0.0
    unknown: float = 0.0


def _shares(windows: Sequence[Split], seconds: float) -> Mapping[int, Share]:
    """Return the shares over all windows, the latest of which is the first."""
    sums: dict[int, _Sum] = {}
    for window in windows:
        for pid, share in (*window.shares.items(), *window.withheld.items()):
            client = sums.setdefault(pid, _Sum(share.method))
            if share.method is not client.method:
                # A sum of measured and estimated shares is an estimate.
                client.method = Method.FLIGHT
            client.used += window.seconds * share.sm
            client.error += window.seconds * share.error
    for window in windows:
        for pid in window.unknown & sums.keys():
            sums[pid].unknown += window.seconds
    means = {pid: client.used / (seconds - client.unknown) for pid, client in sums.items() if client.unknown < seconds}
    for window in windows:
        if window.unknown:
            _add_unknown(sums, window, means)
    return {
        pid: Share(method=client.method, sm=client.used / seconds, error=client.error / seconds)
        for pid, client in sums.items()
        if client.unknown <= MAX_UNKNOWN * seconds
        and client.error <= max(MAX_ERROR * seconds, MAX_RELATIVE_ERROR * client.used)
    }


def _add_unknown(sums: Mapping[int, _Sum], window: Split, means: Mapping[int, float]) -> None:
    """Add the mean use of the clients with unknown use in a window, scaled down to what is left in it.

    Two standard errors cover both extremes: that a client used nothing, and that it used all that is left. Without GPM,
    what is left is only limited by all SMs, and one standard error is the mean use.
    """
    pids = window.unknown & sums.keys()
    expected = sum(means.get(pid, 0.0) for pid in pids)
    others = sum(share.sm for share in window.estimates.values())
    left = max(0.0, window.sm - others) if window.measured else min(expected, max(0.0, 1 - others))
    scale = min(1.0, left / expected) if expected else 0.0
    for pid in pids:
        likely = scale * means.get(pid, 0.0)
        sums[pid].used += window.seconds * likely
        error = max(likely, left - likely) / 2 if window.measured else means.get(pid, 0.0)
        sums[pid].error += window.seconds * error


# -- readings of the probes --------------------------------------------------------------------------------------------


HISTORY_NS = 8_000_000_000
MAX_READINGS = 16
"""The age and number of readings that are remembered: MPS reports a fault late."""

STALE_SECONDS = 10.0  # An older reading is not current.
WATCHED_NS = 60_000_000_000  # The time over which the watched fraction is computed.


def with_reading(node: Node, seen: WorkReading) -> Node:
    """Add a reading of the probes. A reading that comes twice, or late, changes nothing."""
    if node.work is not None and seen.boot_ns <= node.work.boot_ns:
        return node
    history = node.launch_history
    running = ((pid, counts) for pid, counts in history.counts.items() if pid in node.processes)
    living = {pid: counts for pid, counts in running if may_belong_to(counts.started_ns, node.processes[pid])}
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
