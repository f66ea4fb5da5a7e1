"""Contention: how much each client of a GPU is slowed down by the others, and which resource they share.

A client's slowdown is the time that its work took, divided by the time that the same work takes on a quiet GPU. Its
work is counted in launches. Its time is that with work in flight, and the time on the CPU between, which is the same on
a quiet GPU. So a client that waits for requests is judged by the time that they take. A busy CPU slows clients too, and
counts only as far as it delays launches.

The time on a quiet GPU, the baseline, is learned while others use little. It holds as long as the client launches
kernels of the same widths, and as many before it waits.
"""

import math
from collections.abc import Mapping, Sequence

from exporter.model.contention import Bandwidth, Baseline, ContentionWindow, GpuContention, Pace, Resource, Slowdown
from exporter.model.usage import KernelTimeEstimates, LaunchRate, Split, WorkDelta
from exporter.usage.last_minute import MINUTE_SECONDS

QUIET, ALMOST_QUIET = 0.05, 0.2
"""A GPU is quiet for a client if the others used at most this fraction of the SMs. A baseline that was learned while
they used more than the first is replaced by a better one."""

BUSY_OTHERS = 0.1
"""Others that had work in flight for more of the time are no quiet neighbours, unless the GPU has room for all: then at
most these fractions of the SMs and of the memory's bandwidth were used."""
ROOM_SMS, ROOM_BANDWIDTH = 0.6, 0.35

LEAST_SPANS = 3
"""A window with fewer ended spans is too short to learn from."""

SAME_WIDTH, SAME_SPAN = 0.15, 0.35
"""Work is the same if the logarithms of the mean width, and of the launches for each span, differ by less."""

CONTRADICTION = 0.5
"""A quiet window contradicts a baseline if the logarithm of the latency differs by more, or if the work is another one.
Two in a row replace it; one does if the baseline has at most FEW_WINDOWS."""
FEW_WINDOWS = 2

MEMORY = 0.98
"""The weight of all earlier windows of a baseline when another one is added."""

WINDOW_ERROR, MODEL_ERROR, NEIGHBOUR_ERROR = 0.06, 0.06, 0.1
"""Standard errors of the latency: of one window of a baseline, of the model, and if others used all SMs meanwhile."""

FULL_SMS, FULL_BANDWIDTH = 0.85, 0.6
"""Clients compete for a resource of which at least this fraction was used."""

LEAST_COMPARABLE = 0.5
"""A slowdown is unknown if less of a client's time had the work of its baseline."""

TRAFFIC_CONTRADICTION, TRAFFIC_CHANGE, PART_ERROR = 2.0, 0.3, 0.05
"""A use of the bandwidth that differs by more standard errors shows that kernels changed: what each moves has at least
this standard error then, as a fraction. Least standard error of a client's part, as a fraction."""

TRAFFIC_ERROR, LEAST_TRAFFIC_ERROR = 0.03, 0.01
"""Standard error of the measured use of the memory's bandwidth, as a fraction of the use, and of the whole."""


def with_window(state: GpuContention, rate: LaunchRate, split: Split, present: frozenset[int]) -> GpuContention:
    """Add what the clients did in a window, and how its SM time was divided."""
    paces = {pid: pace for pid, delta in rate.deltas.items() if (pace := _pace(delta, rate.seconds)).busy_ns}
    busy = {pid: pace.busy_ns / 1e9 / rate.seconds for pid, pace in paces.items() if pace.launches}
    total = sum(busy.values())
    quiet = frozenset(pid for pid in paces if _is_quiet(split, _used(split, pid), total - busy.get(pid, 0.0)))
    baselines = {pid: baseline for pid, baseline in state.baselines.items() if pid in present}
    contradictions: dict[int, int] = {}
    for pid, pace in paces.items():
        if pace.launches and pace.spans >= LEAST_SPANS:
            known, neighbours = baselines.get(pid), max(0.0, split.sm - _used(split, pid))
            if pid in quiet & state.quiet:
                found, count = _learned(known, pace, neighbours, state.contradictions.get(pid, 0))
                contradictions[pid] = count
            else:
                found = _fastest(known, pace)
            baselines[pid] = found
    traffic, parts = _traffic(state.traffic, rate, split, present)
    window = ContentionWindow(at=split.at, seconds=rate.seconds, paces=paces, traffic=parts)
    recent = (each for each in state.windows if 0 < window.at - each.at < MINUTE_SECONDS)
    return GpuContention(
        windows=(*recent, window),
        baselines=baselines,
        traffic=traffic,
        quiet=quiet,
        contradictions=contradictions,
    )


def slowdowns(state: GpuContention, splits: Sequence[Split]) -> dict[int, Slowdown]:
    """Return the slowdown of each client in the last minute, if it is known. `splits` has the same windows."""
    found = {}
    by_time = {split.at: split for split in splits}
    for pid, baseline in state.baselines.items():
        every = [each for each in state.windows if pid in each.paces]
        windows = [each for each in every if _is_same(baseline.pace, each.paces[pid])]
        work = _sum([each.paces[pid] for each in windows])
        comparable = work.busy_ns >= LEAST_COMPARABLE * sum(each.paces[pid].busy_ns for each in every)
        if not work.spans or not comparable or not _is_same(baseline.pace, work):
            continue
        wanted = _wanted(baseline, work)
        quiet = wanted - work.busy_ns + work.launches * baseline.pace.latency
        ratio = wanted / quiet
        error = math.hypot(MODEL_ERROR, NEIGHBOUR_ERROR * baseline.neighbours, _deviation(baseline)) * ratio
        resource, neighbours = _cause(pid, baseline, windows, by_time)
        found[pid] = Slowdown(
            ratio=ratio,
            error=error * work.launches * baseline.pace.latency / quiet,
            is_bound=baseline.is_bound,
            resource=resource,
            neighbours=neighbours,
            wanted_seconds=wanted / 1e9,
            quiet_seconds=quiet / 1e9,
        )
    return found


def bandwidths(state: GpuContention) -> dict[int, Bandwidth]:
    """Return what each client used of the memory's bandwidth in the last minute."""
    seconds = sum(window.seconds for window in state.windows)
    found: dict[int, Bandwidth] = {}
    for window in state.windows:
        for pid, (part, error) in window.traffic.items():
            known = found.get(pid, Bandwidth(0.0, 0.0))
            weight = window.seconds / seconds
            found[pid] = Bandwidth(known.part + part * weight, known.error + error * weight)
    return found


def sharing_gain(state: GpuContention, found: Mapping[int, Slowdown]) -> float | None:
    """Return how many clients' worth of work a GPU did in the last minute; None if a client's slowdown is unknown.

    It is the time that all work would have taken on a quiet GPU, divided by the time in which any client wanted to
    work.
    """
    clients = {pid for window in state.windows for pid in window.paces}
    if not found or any(each.is_bound for each in found.values()) or clients - found.keys():
        return None
    wanted = 0.0
    for window in state.windows:
        idle = 1.0
        for pid, pace in window.paces.items():
            idle *= 1 - min(1.0, _wanted(state.baselines[pid], pace) / 1e9 / window.seconds)
        wanted += window.seconds * (1 - idle)
    return sum(each.quiet_seconds for each in found.values()) / wanted if wanted else None


def _wanted(baseline: Baseline, pace: Pace) -> float:
    """Return the time that a client's work took: in flight, and on the CPU, as on a quiet GPU."""
    return pace.busy_ns + pace.launches * baseline.pace.gap_ns / baseline.pace.launches


def _pace(delta: WorkDelta, seconds: float) -> Pace:
    """Return what a client did. Recordings of earlier versions only have the time in flight, summed over streams."""
    launches = delta.kernels + (delta.graph_kernels or delta.graphs)
    if delta.busy_ns:
        busy, gap = float(delta.busy_ns), float(delta.gap_ns)
    else:
        busy = min(float(delta.flight_ns), seconds * 1e9)
        gap = seconds * 1e9 - busy if launches else 0.0
    return Pace(launches, delta.spans, delta.widths, busy, gap)


def _used(split: Split, pid: int) -> float:
    return split.estimates[pid].sm if pid in split.estimates else 0.0


def _is_quiet(split: Split, own: float, busy_others: float) -> bool:
    """Return whether others could hardly slow a client down, which used `own` of the SMs.

    `busy_others` is the number of others that had work in flight, on average, of those that launched something.
    """
    if busy_others <= 0:
        return True
    has_room = split.sm < ROOM_SMS and (split.dram or 0.0) < ROOM_BANDWIDTH
    return split.sm - own <= ALMOST_QUIET and (busy_others < BUSY_OTHERS or has_room)


def _is_same(known: Pace, pace: Pace) -> bool:
    """Return whether two paces are of the same work. Long spans are cut by the windows."""
    if not pace.spans or not pace.launches:
        return True
    width = math.log((pace.widths / pace.launches) / (known.widths / known.launches))
    span = math.log((pace.launches / pace.spans) / (known.launches / known.spans))
    return abs(width) < SAME_WIDTH and abs(span) < SAME_SPAN


def _learned(known: Baseline | None, pace: Pace, neighbours: float, contradictions: int) -> tuple[Baseline, int]:
    """Return the baseline after a quiet window, and how many windows in a row have contradicted it."""
    first = Baseline(pace=pace, neighbours=neighbours)
    if known is None or known.is_bound or (neighbours <= QUIET < known.neighbours):
        return first, 0
    distance = math.log(pace.latency / known.pace.latency)
    if not _is_same(known.pace, pace) or abs(distance) > CONTRADICTION:
        replaced = contradictions or known.windows <= FEW_WINDOWS
        return (first, 0) if replaced else (known, 1)
    if neighbours > QUIET >= known.neighbours:
        return known, 0
    weight = 1 / min(known.windows + 1, 1 / (1 - MEMORY))
    learned = Baseline(
        pace=Pace(*(MEMORY * old + new for old, new in zip(known.pace, pace, strict=True))),
        windows=known.windows + 1,
        variance=(1 - weight) * (known.variance + weight * distance**2),
        neighbours=(1 - weight) * known.neighbours + weight * neighbours,
    )
    return learned, 0


def _fastest(known: Baseline | None, pace: Pace) -> Baseline:
    """Return the baseline after a window that is not quiet: the fastest one, if there never was a quiet one."""
    if known is not None and not (known.is_bound and pace.latency < known.pace.latency):
        return known
    return Baseline(pace=pace, is_bound=True)


def _deviation(baseline: Baseline) -> float:
    """Return the standard error of the logarithm of a baseline's latency."""
    return math.sqrt((baseline.variance + WINDOW_ERROR**2) / min(baseline.windows, 1 / (1 - MEMORY)))


def _sum(paces: Sequence[Pace]) -> Pace:
    return Pace(*map(sum, zip(*paces, strict=True))) if paces else Pace()


def _cause(
    pid: int, baseline: Baseline, windows: Sequence[ContentionWindow], splits: Mapping[float, Split]
) -> tuple[Resource | None, tuple[tuple[int, float], ...]]:
    """Return the resource that a client waited for most, and the others with their mean fractions of it then."""
    lost = dict.fromkeys(Resource, 0.0)
    used: dict[Resource, dict[int, float]] = {resource: {} for resource in Resource}
    for window in windows:
        split = splits.get(window.at)
        excess = window.paces[pid].busy_ns - window.paces[pid].launches * baseline.pace.latency
        if split is None or excess <= 0:
            continue
        resource = _resource(split)
        lost[resource] += excess
        parts = {each: part for each, (part, _) in window.traffic.items()}
        if resource is not Resource.MEMORY:
            parts = {each: share.sm for each, share in split.estimates.items()}
        for each, part in parts.items():
            used[resource][each] = used[resource].get(each, 0.0) + excess * part
    resource = max(lost, key=lost.__getitem__)
    if not lost[resource]:
        return None, ()
    others = {each: part / lost[resource] for each, part in used[resource].items() if each != pid}
    return resource, tuple(sorted(others.items(), key=lambda each: -each[1]))


def _resource(split: Split) -> Resource:
    if split.dram is not None and split.dram >= FULL_BANDWIDTH:
        return Resource.MEMORY
    return Resource.SMS if split.measured and split.sm >= FULL_SMS else Resource.OTHER


def _traffic(
    estimates: KernelTimeEstimates, rate: LaunchRate, split: Split, present: frozenset[int]
) -> tuple[KernelTimeEstimates, dict[int, Bandwidth]]:
    """Return the estimates of what each client's kernels move, and its part of the used bandwidth.

    The use of the memory's bandwidth is the sum of the widths that each client launched, times what it moves for each.
    What a kernel moves is the same at any speed. The parts add up to what GPM measured.
    """
    estimates = estimates.without(estimates.indices.keys() - present)
    weights = {pid: delta.widths / 1e9 / rate.seconds for pid, delta in rate.deltas.items() if delta.widths}
    if split.dram is None or not weights:
        return estimates, {}
    estimates = estimates.predicted(rate.seconds)
    for pid in weights.keys() - estimates.indices.keys():
        known = sum(weights[each] * (estimates.mean(each) or 0.0) for each in weights)
        first = max(split.dram - known, LEAST_TRAFFIC_ERROR * split.dram) / 2 / weights[pid]
        estimates = estimates.with_client(pid, first, first)
    error = LEAST_TRAFFIC_ERROR + TRAFFIC_ERROR * split.dram
    expected = sum(weight * (estimates.mean(pid) or 0.0) for pid, weight in weights.items())
    covariances = estimates.covariance_with_sum(weights)
    variance = sum(weight * covariances[pid] for pid, weight in weights.items())
    if abs(split.dram - expected) > TRAFFIC_CONTRADICTION * math.sqrt(max(0.0, variance) + error**2):
        for pid, weight in weights.items():
            least = TRAFFIC_CHANGE * max(estimates.mean(pid) or 0.0, split.dram / weight / 20)
            estimates = estimates.with_least_deviation(pid, least)
    estimates = estimates.updated(weights, split.dram, error)
    moved = {pid: weight * (estimates.mean(pid) or 0.0) for pid, weight in weights.items()}
    scale = split.dram / total if (total := sum(moved.values())) else 0.0
    return estimates, {
        pid: Bandwidth(
            scale * part, math.hypot(weights[pid] * estimates.standard_deviation(pid), PART_ERROR * scale * part)
        )
        for pid, part in moved.items()
    }
