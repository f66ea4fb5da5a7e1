"""Contention: how much each client of a GPU is slowed down by the others, and which resource they share.

A client's slowdown is the time that its work took, divided by the time that the same work takes on a quiet GPU. Its
work is counted in launches. Its time is that with work in flight, and the time on the CPU between, which is the same on
a quiet GPU. So a client that waits for requests is judged by the time that they take. A busy CPU slows clients too, and
counts only as far as it delays launches.

The time on a quiet GPU, the baseline, is learned while others use little. It holds as long as the client launches
kernels of the same widths, and as many before it waits.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

from exporter.model import values
from exporter.model.contention import Bandwidth, Baseline, ContentionWindow, GpuContention, Pace, Resource, Slowdown
from exporter.model.node import Node
from exporter.model.observation import GpuUuid
from exporter.model.usage import LaunchRate, Method, SharedAccount, Split, UsageKey, WorkDelta
from exporter.model.values import replace
from exporter.usage import accounting
from exporter.usage.bandwidth import divided
from exporter.usage.kernel_times import COPY_BANDWIDTH
from exporter.usage.last_minute import MINUTE_SECONDS

QUIET, ALMOST_QUIET = 0.05, 0.2
"""A GPU is quiet for a client if the others used at most this fraction of the SMs. A baseline that was learned while
they used more than the first is replaced by a better one."""

BUSY_OTHERS = 0.1
"""Others that had work in flight for more of the time are no quiet neighbours, unless the GPU has room for all: then at
most these fractions of the SMs and of the memory's bandwidth were used."""
ROOM_SMS, ROOM_BANDWIDTH = 0.6, 0.35

LEAST_SPANS = 3  # A window with fewer ended spans is too short to learn from.

CONTRADICTION = 0.5
"""A quiet window contradicts a baseline if the logarithm of the latency differs by more, or if the work is another one.
Two in a row replace it; one does if the baseline has at most FEW_WINDOWS."""
FEW_WINDOWS = 2

REFUTED = math.exp(-CONTRADICTION)
"""Neighbours make no client faster: BOUND_WINDOWS with a latency below this fraction of it refute a baseline."""

EARLIER_WEIGHT = 0.98  # The weight of all earlier windows of a baseline when another one is added.

WINDOW_ERROR, MODEL_ERROR, NEIGHBOUR_ERROR = 0.06, 0.04, 0.1
"""Standard errors of the latency: of one window of a baseline, of the model, and if others used all SMs meanwhile."""

FULL_SMS, FULL_BANDWIDTH = 0.85, 0.6  # Clients compete for a resource of which at least this fraction was used.

LEAST_COPYING = 0.1
"""Copies use the memory's whole bandwidth while they run. If they run for more of the time than this, others wait for
them, at most for so long."""

COLLIDING_SMS = 0.45  # If more SMs are used, and all work in flight is wider than the GPU, clients wait now and then.

ALMOST = 0.9
"""A slowdown counts if this part of the limit would be used without the client's own increase. In recorded mixes,
clients used 0.93 to 1.1 times as much SM time as for the same launches on a quiet GPU."""
BANDWIDTH_OF_SMS = 5.0
"""A client can use at most this many times its part of the SMs as bandwidth. An SM reads 64 bytes a cycle, so a fifth
of an H100's SMs suffice, and 29 % of an H200's."""
DOUBTED = 1.08
"""Only a lower bound is known if counting the doubted windows would raise the slowdown by more than this factor."""

BOUND_WINDOWS = 10
"""A client that never had a quiet GPU is compared with its fastest so many windows: its slowdown is a lower bound."""

LEAST_COMPARABLE = 0.5  # A slowdown is unknown if less of a client's time had the work of its baseline.

REMEMBERED_WINDOWS, REMEMBERED_AGAIN = 10, 100
"""A baseline is remembered for later processes of the workload when it has so many windows, and again after so many."""
REMEMBERED_ERROR = 0.25
"""Standard error of a remembered latency: the same command may do other work. Two quiet windows replace it."""

STARVED_RATIO, STARVED_SECONDS = 2.0, 600.0
"""A client is starved if it has clearly been slowed down by more than this factor for so long."""
CLEAR_ERRORS = 2.0  # A slowdown clearly exceeds a factor if it does so by this many standard errors.
EXAMINED_SECONDS = 10.0  # How often it is examined which clients are slowed down so much.

MOST_AHEAD_NS = 5e9
"""Windows in which a client seems faster than on a quiet GPU balance those in which it seems slower, up to so much."""

COPY_WIDTH_BYTES = 1 << 15  # So much of a copy counts as a kernel of one SM: copies of other sizes are other work.


def contended(
    node: Node, uuid: GpuUuid, rate: LaunchRate | None, present: frozenset[int], outdated: Collection[int]
) -> Node:
    """Update how the clients of a GPU slow each other down, by its last window. `rate` is what the probes counted.

    Post the time that they lost, and remember what they do on a quiet GPU. `outdated` are PIDs of other processes now.
    """
    state, splits = without(node.contention.get(uuid, GpuContention()), outdated), node.attribution[uuid].windows
    if rate is not None:
        unknown = present - {pid for pid, known in state.baselines.items() if not known.is_bound}
        paces = accounting.remembered_paces(node, uuid, unknown)
        state = with_window(state, rate, splits[-1], present, {pid: Pace(*pace) for pid, pace in paces.items()})
        state, lost, caused = _with_lost_time(node, state, splits[-1])
        totals = node.usage_totals
        if lost:
            totals = accounting.post_contention(totals, uuid, lost, caused, at=splits[-1].at)
        for pid, baseline in state.baselines.items():
            process = node.processes.get(pid)
            is_due = baseline.windows % REMEMBERED_AGAIN == REMEMBERED_WINDOWS and not baseline.is_bound
            if process is not None and process.command and is_due and pid in rate.deltas:
                pace = tuple(count / baseline.windows for count in baseline.pace)
                totals = accounting.remember_pace(totals, uuid, accounting.account_of(node, pid), process.command, pace)
        node = replace(node, usage_totals=totals)
        if not 0 <= splits[-1].at - state.examined_at < EXAMINED_SECONDS:
            at = splits[-1].at
            # After a longer gap it is unknown whether clients were slowed down all the time.
            earlier = state.starved_since if abs(at - state.examined_at) < MINUTE_SECONDS else {}
            slowed = [
                pid for pid, each in slowdowns(state, causes=False).items() if is_clearly_slowed(each, STARVED_RATIO)
            ]
            since = {pid: min(earlier.get(pid, at), at) for pid in slowed}
            state = replace(state, starved_since=since, examined_at=at)
    return replace(node, contention={**node.contention, uuid: state})


def starved(state: GpuContention, at: float) -> Mapping[int, float]:
    """Return since when each starved client is slowed down, if that is current."""
    if not state.windows or not 0 <= at - state.windows[-1].at < MINUTE_SECONDS:
        return {}
    return {pid: since for pid, since in state.starved_since.items() if at - since >= STARVED_SECONDS}


def is_clearly_slowed(found: Slowdown | None, factor: float) -> bool:
    """Return whether a client is clearly slowed down by more than a factor."""
    return found is not None and found.ratio - CLEAR_ERRORS * found.error > factor


def _with_lost_time(
    node: Node, state: GpuContention, split: Split
) -> tuple[GpuContention, Mapping[UsageKey, int], Mapping[UsageKey, int]]:
    """Return the state after the last window, and the microseconds that were lost and caused in it, by account.

    Those who use the resource cause the loss in proportion. With a lower bound of the slowdown, the time is one too.
    What no client is known to have used is unattributed, as in `_parts` of usage/attribution.py.
    """
    window = state.windows[-1]
    hidden = max(0.0, split.sm - sum(share.sm for share in split.estimates.values()))
    before = [each.at for each in state.windows[-2:-1] if each.at < window.at]
    # The time while the probes were detached is taken to be like that while they were attached.
    scale = max(1.0, (window.at - before[0]) / window.seconds) if before else 1.0
    ahead_ns = {pid: time for pid, time in state.ahead_ns.items() if pid in state.baselines}
    losses: dict[int, int] = {}
    for pid, pace in window.paces.items():
        baseline = state.baselines.get(pid)
        if baseline is not None and pid not in window.undisturbed and baseline.pace.is_same(pace):
            time_ns = baseline.lost(pace)
            excess = scale * (min(0.0, time_ns) if pid in window.doubted else time_ns) - ahead_ns.get(pid, 0.0)
            ahead_ns[pid] = min(max(0.0, -excess), MOST_AHEAD_NS)
            losses[pid] = int(max(0.0, excess) / 1000)
    keys = {pid: _key(node, pid, split) for pid in losses.keys() | window.parts.keys()}
    lost, weights = Counter[UsageKey](), defaultdict[UsageKey, float](float)
    total, each = sum(window.parts.values()) + hidden, 0.0
    for pid, microseconds in losses.items():
        lost[keys[pid]] += microseconds
        own = window.parts.get(pid, 0.0)
        if total > own:
            each += microseconds / (total - own)
            weights[keys[pid]] -= own * microseconds / (total - own)
        else:
            weights[accounting.UNATTRIBUTED] += microseconds
    weights[accounting.UNATTRIBUTED] += each * hidden
    for pid, part in window.parts.items():
        weights[keys[pid]] += each * part
    parts_of_all = {key: round(accounting.PRECISION * weight) for key, weight in weights.items()}
    caused = accounting.apportioned(lost.total(), parts_of_all)
    return replace(state, ahead_ns=ahead_ns), +lost, caused


def _key(node: Node, pid: int, split: Split) -> UsageKey:
    account = accounting.account_of(node, pid, at=split.at)
    method = Method.FLIGHT if split.measured else Method.LAUNCHES
    return accounting.UNATTRIBUTED if account is SharedAccount.UNATTRIBUTED else (account, method)


def without(state: GpuContention, pids: Collection[int]) -> GpuContention:
    """Forget processes that are no clients any more, or have the PIDs of such."""
    if not pids:
        return state
    windows = tuple(
        replace(
            each,
            paces=values.without(each.paces, *pids),
            traffic=values.without(each.traffic, *pids),
            parts=values.without(each.parts, *pids),
        )
        for each in state.windows
    )
    return replace(
        state,
        windows=windows,
        baselines=values.without(state.baselines, *pids),
        traffic=state.traffic.without({*pids, *(-pid for pid in pids)}),
        starved_since=values.without(state.starved_since, *pids),
        ahead_ns=values.without(state.ahead_ns, *pids),
    )


def with_window(
    state: GpuContention,
    rate: LaunchRate,
    split: Split,
    present: frozenset[int],
    remembered: Mapping[int, Pace] | None = None,
) -> GpuContention:
    """Add what the clients did in a window, and how its SM time was divided.

    `remembered` has the paces on a quiet GPU of earlier processes like these.
    """
    estimates, traffic = divided(state.traffic, rate, split, present)
    done = {pid: _pace(delta, rate.seconds, _used(split, pid), traffic.get(pid)) for pid, delta in rate.deltas.items()}
    paces = {pid: pace for pid, pace in done.items() if pace.busy_ns}
    # With GPM, a client that launched nothing may wait for a stream that nobody else waits for.
    busy = {pid: pace.busy_ns for pid, pace in paces.items() if pace.launches or not split.measured}
    total = sum(busy.values())
    quiet = frozenset(pid for pid in paces if _is_quiet(pid, split, (total - busy.get(pid, 0.0)) / 1e9 / rate.seconds))
    undisturbed = frozenset(pid for pid in quiet & state.quiet if split.sm - _used(split, pid) <= QUIET)
    movable = COPY_BANDWIDTH * rate.bandwidth * rate.seconds
    copying = {pid: delta.copied / movable for pid, delta in rate.deltas.items() if movable and delta.copied}
    window = ContentionWindow(at=split.at, seconds=rate.seconds, paces=paces, traffic=traffic, copying=copying)
    baselines = {pid: baseline for pid, baseline in state.baselines.items() if pid in present}
    for pid, earlier in (remembered or {}).items():
        known = baselines.get(pid)
        is_better = known is None or earlier.latency < known.pace.latency
        if is_better and pid in paces and earlier.is_same(paces[pid]):
            baselines[pid] = Baseline(pace=earlier, variance=REMEMBERED_ERROR**2, neighbours=ALMOST_QUIET)
    resource, parts, doubted = _use(split, window, baselines)
    window = replace(window, undisturbed=undisturbed, resource=resource, parts=parts, doubted=doubted)
    recent = (each for each in state.windows if 0 < window.at - each.at < MINUTE_SECONDS)
    windows = (*recent, window)
    contradictions: dict[int, int] = {}
    for pid, pace in paces.items():
        if not pace.widths or not pace.launches or pace.spans < LEAST_SPANS:
            continue
        known = baselines.get(pid)
        if pid in quiet & state.quiet:
            neighbours = max(0.0, split.sm - _used(split, pid))
            found, count = _learned(known, pace, neighbours, state.contradictions.get(pid, 0))
            baselines[pid], contradictions[pid] = found, count
            continue
        if known is not None and pid in doubted and known.pace.is_same(pace):
            # If it was slower in many windows in a row, that is its own work from now on.
            slower, count = pace.latency / known.pace.latency, state.contradictions.get(pid, 0) + 1
            contradictions[pid] = count if slower > 1 / REFUTED else 0
            if not contradictions[pid] or count >= BOUND_WINDOWS:
                known = baselines[pid] = replace(known, longer=slower if contradictions[pid] else 1.0)
        refuted = known is not None and pace.latency < REFUTED * known.pace.latency and known.pace.is_same(pace)
        if known is None or known.is_bound or refuted:
            own = [each.paces[pid] for each in windows[-BOUND_WINDOWS:] if pid in each.paces]
            some = _sum(own)
            most = math.inf if known is None else known.pace.latency * (1.0 if known.is_bound else REFUTED)
            if len(own) == BOUND_WINDOWS and some.latency < most:
                baselines[pid] = Baseline(pace=some, windows=BOUND_WINDOWS, is_bound=True)
    state = replace(state, windows=windows, baselines=baselines, traffic=estimates)
    return replace(state, quiet=quiet, contradictions=contradictions)


def slowdowns(state: GpuContention, *, causes: bool = True) -> dict[int, Slowdown]:
    """Return the slowdown of each client in the last minute, if it is known. Causes take most of the time."""
    found = {}
    for pid, baseline in state.baselines.items():
        every = [each for each in state.windows if pid in each.paces]
        windows = [each for each in every if baseline.pace.is_same(each.paces[pid])]
        work = _sum([each.paces[pid] for each in windows])
        comparable = work.busy_ns >= LEAST_COMPARABLE * sum(each.paces[pid].busy_ns for each in every)
        if not work.spans or not work.launches or not comparable or not baseline.pace.is_same(work):
            continue
        disturbed = [each for each in windows if pid not in each.undisturbed]
        certain = [each for each in disturbed if pid not in each.doubted]
        wanted = baseline.wanted(work)
        least = wanted - sum(baseline.lost(each.paces[pid]) for each in certain)
        alone = replace(baseline, longer=1.0)
        quiet = wanted - sum(alone.lost(each.paces[pid]) for each in disturbed)
        if quiet <= 0:
            continue
        is_doubted = least > DOUBTED * quiet
        ratio = wanted / (least if is_doubted else quiet)
        noise = math.sqrt((baseline.variance + WINDOW_ERROR**2) / len(windows))
        error = math.hypot(MODEL_ERROR, NEIGHBOUR_ERROR * baseline.neighbours, _deviation(baseline), noise)
        resource, neighbours = _cause(pid, baseline, certain if causes else ())
        if is_doubted and ratio < DOUBTED:
            resource, neighbours = Resource.OTHER, ()
        found[pid] = Slowdown(
            ratio=ratio,
            error=error * ratio * work.busy_ns / wanted,
            is_bound=baseline.is_bound or is_doubted,
            resource=resource,
            neighbours=neighbours,
            apparent=wanted / quiet,
        )
    return found


def sharing_gain(state: GpuContention) -> float | None:
    """Return how many clients' worth of work a GPU did in the last minute; None if that is unknown for half of it.

    It is the time that all work would have taken on a quiet GPU, divided by the time in which any client wanted to
    work. Within a window, clients are taken to want to work independently of each other.
    """
    quiet = together = known = 0.0
    for window in state.windows:
        baselines = {pid: state.baselines[pid] for pid in window.paces if pid in state.baselines}
        idle = 1.0
        for pid, baseline in baselines.items():
            idle *= 1 - min(1.0, baseline.wanted(window.paces[pid]) / 1e9 / window.seconds)
        if any(
            pid not in baselines or baselines[pid].is_bound or not baselines[pid].pace.is_same(pace)
            for pid, pace in window.paces.items()
        ):
            continue
        known += window.seconds
        together += window.seconds * (1 - idle)
        for pid, pace in window.paces.items():
            lost = 0.0 if pid in window.undisturbed else baselines[pid].lost(pace)
            quiet += (baselines[pid].wanted(pace) - lost) / 1e9
    is_known = known >= LEAST_COMPARABLE * sum(window.seconds for window in state.windows)
    return quiet / together if together and is_known else None


def _pace(delta: WorkDelta, seconds: float, sm: float, traffic: Bandwidth | None) -> Pace:
    """Return what a client did. Recordings of earlier versions do not show gaps, nor which streams overlap."""
    launches = delta.kernels + (delta.graph_kernels or delta.graphs) + delta.copies
    widths = delta.widths + delta.copied / COPY_WIDTH_BYTES
    busy = min(float(delta.busy_ns), seconds * 1e9)
    gap = float(delta.gap_ns) if delta.gap_ns >= 0 else (seconds * 1e9 - busy) * bool(launches)
    dram = 0.0 if traffic is None else traffic.part
    return Pace(launches, delta.spans, widths, busy, gap, sm * seconds * 1e9, dram * seconds * 1e9)


def _used(split: Split, pid: int) -> float:
    return split.estimates[pid].sm if pid in split.estimates else 0.0


def _is_quiet(pid: int, split: Split, busy_others: float) -> bool:
    """Return whether others could hardly slow a client down.

    `busy_others` is how many others had work in flight, on average. Only GPM shows what nobody watched, and free room.
    """
    if split.measured and (pid not in split.estimates or split.sm - _used(split, pid) > ALMOST_QUIET):
        return False
    if not split.measured and split.unknown - {pid}:
        return False
    has_room = split.measured and split.sm < ROOM_SMS and (split.dram or 0.0) < ROOM_BANDWIDTH
    return busy_others < BUSY_OTHERS or (has_room and split.sm - _used(split, pid) <= ALMOST_QUIET)


def _learned(known: Baseline | None, pace: Pace, neighbours: float, contradictions: int) -> tuple[Baseline, int]:
    """Return the baseline after a quiet window, and how many windows in a row have contradicted it."""
    first = Baseline(pace=pace, neighbours=neighbours)
    if known is None or known.is_bound or (neighbours <= QUIET < known.neighbours):
        return first, 0
    distance = math.log(pace.latency / known.pace.latency)
    if not known.pace.is_same(pace) or abs(distance) > CONTRADICTION:
        replaced = contradictions or known.windows <= FEW_WINDOWS
        return (first, 0) if replaced else (known, 1)
    if neighbours > QUIET >= known.neighbours:
        return known, 0
    weight = 1 / min(known.windows + 1, 1 / (1 - EARLIER_WEIGHT))
    learned = Baseline(
        pace=Pace(*(EARLIER_WEIGHT * old + new for old, new in zip(known.pace, pace, strict=True))),
        windows=known.windows + 1,
        variance=(1 - weight) * (known.variance + weight * distance**2),
        neighbours=(1 - weight) * known.neighbours + weight * neighbours,
    )
    return learned, 0


def _deviation(baseline: Baseline) -> float:
    """Return the standard error of the logarithm of a baseline's latency."""
    return math.sqrt((baseline.variance + WINDOW_ERROR**2) / min(baseline.windows, 1 / (1 - EARLIER_WEIGHT)))


def _sum(paces: Sequence[Pace]) -> Pace:
    return Pace(*map(sum, zip(*paces, strict=True))) if paces else Pace()


def _use(
    split: Split, window: ContentionWindow, baselines: Mapping[int, Baseline]
) -> tuple[Resource, Mapping[int, float], Collection[int]]:
    """Return the resource that was used up, each client's fraction of it, and the clients that are doubted.

    A doubted client may have changed its own work: its increase, compared with the same launches on a quiet GPU, may
    have used up the resource; or it lost more time than others copied; or nothing was used up. Without GPM, none is
    doubted, so all lost time counts.
    """
    parts, used, full, reach = {pid: share.sm for pid, share in split.estimates.items()}, split.sm, FULL_SMS, 1.0
    dram, copying = split.dram or 0.0, sum(window.copying.values())
    in_bursts = split.dram is not None and dram < FULL_BANDWIDTH and used < FULL_SMS and copying >= LEAST_COPYING
    if is_memory := dram >= FULL_BANDWIDTH or in_bursts:
        parts = {pid: part for pid, (part, _) in window.traffic.items()}
        used, full, reach = dram, min(dram, FULL_BANDWIDTH), BANDWIDTH_OF_SMS
    elif not split.measured or (split.dram is None and used < full):
        return Resource.OTHER, {}, ()
    usual, areas, beyond_copies = {}, dict(split.areas), set()
    for pid, pace in window.paces.items():
        known, others = baselines.get(pid), copying - window.copying.get(pid, 0.0)
        if known is None or not pace.launches or not known.pace.is_same(pace):
            continue
        if in_bursts and known.lost(pace) > others * window.seconds * 1e9:
            beyond_copies.add(pid)
        # If a client copies more, its pace is another one.
        if known.pace.sm_ns and not (is_memory and window.copying.get(pid, 0.0) > LEAST_COPYING):
            scale = pace.launches / known.pace.launches
            usual[pid] = scale * (known.pace.dram_ns if is_memory else known.pace.sm_ns) / 1e9 / window.seconds
            areas[pid] = areas.get(pid, 0.0) * min(1.0, scale * known.pace.busy_ns / pace.busy_ns)
    if used < full and (used < COLLIDING_SMS or sum(areas.values()) < 1):
        return Resource.OTHER, {}, window.paces.keys()
    more = sum(parts.get(pid, 0.0) - part for pid, part in usual.items())
    # The largest part of the resource that each client can have used.
    most = {pid: reach * (share.sm + CLEAR_ERRORS * share.error) for pid, share in split.estimates.items()}
    own = {pid: min(more, most.get(pid, math.inf) - usual.get(pid, 0.0)) for pid in window.paces}
    doubted = beyond_copies | {pid for pid, part in own.items() if used - part < ALMOST * min(used, full)}
    if used < full:
        return Resource.OTHER, {}, doubted
    if in_bursts:
        parts = {pid: COPY_BANDWIDTH * part for pid, part in window.copying.items()}
    return Resource.MEMORY if is_memory else Resource.SMS, parts, doubted


def _cause(
    pid: int, baseline: Baseline, windows: Sequence[ContentionWindow]
) -> tuple[Resource | None, tuple[tuple[int, float], ...]]:
    """Return the resource that a client waited for most, and the others with their mean fractions of it then."""
    lost = dict.fromkeys(Resource, 0.0)
    used: dict[Resource, dict[int, float]] = {resource: {} for resource in Resource}
    for window in windows:
        excess = baseline.lost(window.paces[pid])
        if excess <= 0:
            continue
        lost[window.resource] += excess
        for each, part in window.parts.items():
            used[window.resource][each] = used[window.resource].get(each, 0.0) + excess * part
    resource = max(lost, key=lost.__getitem__)
    if not lost[resource]:
        return None, ()
    others = {each: part / lost[resource] for each, part in used[resource].items() if each != pid}
    return resource, tuple(sorted(others.items(), key=lambda each: -each[1]))
