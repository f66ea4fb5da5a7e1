"""The last minute: readings of the libcuda probes, and the windows of a GPU, added up, with the errors."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import hypot, inf
from typing import NamedTuple

from exporter.model.estimates import NONE, ClientEstimates
from exporter.model.kernels import ClientKernels
from exporter.model.launches import LaunchCounts, LaunchHistory, ProcessLaunches, ProcessWork, WorkReading, began_ns
from exporter.model.node import Node
from exporter.model.observation import GpuUuid, ProcessReading
from exporter.model.usage import GpuAttribution, Method, Share, Split
from exporter.model.values import replace

MINUTE_SECONDS = 60.0
MAX_WINDOWS = 120
"""The age and number of windows that are remembered."""

NEARLY_ALL, LEAST_BUSY = 0.9, 0.25
"""With GPM, a client has no share if by two standard errors it may have used nearly nothing, and also nearly all that
the GPU used, or this part of all SMs if that is more."""

MAX_SCALE = 1.25  # Estimates are scaled to the measured SM time by at most this factor; the rest is unattributed.
MODEL_ERROR = 0.05  # Standard error of the model of kernel times with GPM, as a fraction of a client's share.


class Splits(Mapping[GpuUuid, Split]):
    """How each GPU's SM time was divided in the last minute; computed on first access, as windows come more often."""

    def __init__(self, states: Mapping[GpuUuid, GpuAttribution]) -> None:
        self._states = states
        self._combined: dict[GpuUuid, Split] = {}

    def __getitem__(self, gpu: GpuUuid) -> Split:
        if gpu not in self._combined:
            state = self._states[gpu]
            self._combined[gpu] = combined(state.windows, state.began, state.estimates)
        return self._combined[gpu]

    def __iter__(self) -> Iterator[GpuUuid]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)


def fresh_splits(node: Node) -> Mapping[GpuUuid, Split]:
    """Return how each GPU's SM time was divided, without splits that are older than they are long."""
    return {gpu: split for gpu, split in node.splits.items() if 0 <= node.at - split.at <= split.seconds}


def with_window(windows: tuple[Split, ...], window: Split) -> tuple[Split, ...]:
    """Add a window; drop those that are too old, or later because the clock was set back."""
    recent = (earlier for earlier in windows if 0 < window.at - earlier.at < MINUTE_SECONDS)
    return (*recent, window)[-MAX_WINDOWS:]


def combined(
    windows: tuple[Split, ...], began: Mapping[int, float] = NONE, estimates: ClientEstimates | None = None
) -> Split:
    """Add up the windows, the oldest first; a client's error covers the time in which its use is unknown.

    A client without a share in a window used nothing in it, unless it is `unknown` there. Then it used between nothing
    and all of what is unattributed, or nothing before its first use, which `began` has. The windows are divided again
    by the present `estimates`, where these are better than those of that time. A share with too large an error is
    omitted.
    """
    at, seconds = windows[-1].at, sum(window.seconds for window in windows)
    windows = tuple(
        replace(each, unknown=frozenset(pid for pid in each.unknown if began.get(pid, -inf) < each.at))
        if each.unknown
        else each
        for each in windows
    )
    measured = all(window.measured for window in windows)
    dram = [(window.dram, window.seconds) for window in windows if window.dram is not None]
    dram_seconds = sum(lasted for _, lasted in dram)
    parts = _Parts.of(windows, estimates or ClientEstimates())
    shares = _shares(windows[::-1], seconds, parts)
    total = sum(share.sm for share in shares.values())
    sm = sum(window.sm * window.seconds for window in windows) / seconds if measured else total
    return Split(
        at=at,
        seconds=seconds,
        sm=sm,
        shares=shares,
        unattributed=max(0.0, sm - total),
        dram=sum(used * lasted for used, lasted in dram) / dram_seconds if dram_seconds else None,
        unknown=windows[-1].unknown,
        measured=measured,
        lasted={pid: at - since for pid, since in began.items() if 0 < at - since < seconds},
    )


class _Part(NamedTuple):
    """What a client used in a window, and its standard error."""

    pid: int
    method: Method
    sm: float
    error: float


class _Parts(NamedTuple):
    """The present kernel times by PID, and the errors by which a sum is divided by them."""

    means: Mapping[int, float]
    errors: Mapping[int, float]

    @classmethod
    def of(cls, windows: Iterable[Split], estimates: ClientEstimates) -> "_Parts":
        """Return those for windows of which all clients have an estimate."""
        means, sums = dict(zip(estimates.pids, estimates.means, strict=True)), dict[int, float]()
        for window in windows:
            if window.widths.keys() <= means.keys():
                for pid, width in window.widths.items():
                    sums[pid] = sums.get(pid, 0.0) + width
        errors = estimates.errors_of_known_sum(sums)
        return cls(means, {pid: error / sums[pid] for pid, error in errors.items() if sums[pid]})

    def in_window(self, window: Split) -> list[_Part]:
        """Return the parts of a window. The present estimates do not explain one from before a client changed."""
        known = (*window.shares.items(), *window.withheld.items())
        before = [_Part(pid, share.method, share.sm, share.error) for pid, share in known]
        if not window.widths or not window.widths.keys() <= self.errors.keys():
            return before
        others = [part for part in before if part.pid not in window.widths]
        used = {pid: width * self.means[pid] for pid, width in window.widths.items()}
        rest, total = window.sm - sum(part.sm for part in others), sum(used.values())
        if not total / MAX_SCALE < rest < total * MAX_SCALE:
            return before
        scale = rest / total
        again = [
            _Part(
                pid, Method.FLIGHT, scale * sm, scale * hypot(window.widths[pid] * self.errors[pid], MODEL_ERROR * sm)
            )
            for pid, sm in used.items()
        ]
        worse = sum(part.error for part in again) >= sum(part.error for part in before if part.pid in used)
        return before if worse else [*others, *again]


@dataclass(slots=True)
class _Sum:
    """SM time of one client and its error, in seconds of all SMs, and the seconds in which its use is unknown."""

    method: Method
    used: float = 0.0
    error: float = 0.0
    unknown: float = 0.0


def _shares(windows: Sequence[Split], seconds: float, parts: _Parts) -> Mapping[int, Share]:
    """Return the shares over all windows, the latest of which is the first."""
    sums: dict[int, _Sum] = {}
    for window in windows:
        for pid, method, sm, error in parts.in_window(window):
            client = sums.setdefault(pid, _Sum(method))
            if method is not client.method:
                # A sum of measured and estimated shares is an estimate.
                client.method = Method.FLIGHT
            client.used += window.seconds * sm
            client.error += window.seconds * error
    for window in windows:
        for pid in window.unknown & sums.keys():
            sums[pid].unknown += window.seconds
    measured = all(window.measured for window in windows)
    busy = sum(window.seconds * window.sm for window in windows)
    means = {pid: client.used / (seconds - client.unknown) for pid, client in sums.items() if client.unknown < seconds}
    for window in windows:
        if window.unknown:
            _add_unknown(sums, window, means)
    return {
        pid: Share(method=client.method, sm=client.used / seconds, error=client.error / seconds)
        for pid, client in sums.items()
        if not measured
        or 2 * client.error < NEARLY_ALL * client.used
        or client.used + 2 * client.error < NEARLY_ALL * max(busy, LEAST_BUSY * seconds)
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
KERNELS_STALE_SECONDS = 30.0  # Kernels are read every 10 s.
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
    begun: dict[int, dict[int, float]] = {}
    for work in (*seen.processes, *seen.on_devices):
        if work.kernels or work.graphs or work.copies:
            # The first call is earlier than the first context.
            began = seen.at - (seen.boot_ns - work.first_ns) / 1e9 if node.work is None else seen.at
            known = history.begun.get(work.pid, {}).get(work.device, began)
            begun.setdefault(work.pid, {})[work.device] = known
    history = LaunchHistory(
        readings=(*readings, seen)[-MAX_READINGS:],
        counts={**living, **{work.pid: _counted(node, work) for work in seen.processes}},
        lost=history.lost + seen.lost - lost_before,
        watched=(*watched, (seen.boot_ns, seen.seconds, seen.watched)),
        begun=begun,
    )
    return replace(node, work=seen, launch_history=history)


def current_reading(node: Node) -> WorkReading | None:
    """Return the last reading; None if it is stale or there is none."""
    return None if node.work is None or node.at - node.work.at > STALE_SECONDS else node.work


def current_kernels(node: Node) -> Mapping[int, ClientKernels]:
    """Return the kernels of each process by its PID. Without those of an earlier process, or of a stale reading."""
    reading, processes = node.kernels, node.processes
    if reading is None or not 0 <= node.at - reading.at <= KERNELS_STALE_SECONDS:
        return {}
    known = ((each, processes.get(each.pid)) for each in reading.clients)
    return {each.pid: each for each, process in known if process and may_belong_to(each.first_ns, process)}


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
