"""Contention: how much each client of a GPU is slowed down by the others, and which resource they share.

A client's slowdown is the time that its work took, divided by the time that the same work takes on a quiet GPU. Its
work is counted in launches. Its time is that with work in flight, and the time on the CPU between, which is the same on
a quiet GPU. So a client that waits for requests is judged by the time that they take. A busy CPU slows clients too, and
counts only as far as it delays launches. `contended` takes each window through five stages:

1. Observe: what each client did (its pace), and for which clients the GPU was quiet: others could hardly slow it down.
2. Find the resource that was used up, and the doubted clients: their own work may have changed.
3. Learn: on a quiet GPU, a pace updates the client's baseline, or contradicts it. Beside others, the fastest windows
   give a lower bound of the slowdown.
4. Charge: post the time that clients lost, and who caused it.
5. Examine: since when clients are starved.

`slowdowns` and `sharing_gain` compare the last minute with the baselines. Example: for four seconds, a client alone
launches 1,000 kernels a second, with 300 ms in flight and 600 ms on the CPU between. Minutes later, beside a client
that uses 80 % of the memory's bandwidth, it launches 500 a second for five seconds, with 700 ms in flight:

    time of its work   700 ms + 500 * 600 ms / 1,000 = 1,000 ms
    lost time          700 ms - 500 * 300 ms / 1,000 = 550 ms a second, by memory bandwidth, caused by the other client
    slowdown           1,000 ms / (1,000 ms - 550 ms) = 2.22, with a standard error of 0.09
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from exporter.model import values
from exporter.model.contention import Baseline, ContentionWindow, GpuContention, Pace, Resource, Slowdown
from exporter.model.node import Node
from exporter.model.observation import GpuUuid
from exporter.model.usage import LaunchRate, Method, Split, Usage, UsageKey, UsageTotals, WorkDelta
from exporter.model.values import replace
from exporter.usage import accounting
from exporter.usage.bandwidth import divided
from exporter.usage.kernel_times import COPY_BANDWIDTH
from exporter.usage.last_minute import MINUTE_SECONDS

# The constants: name, value, unit, source, effect, meaning. Source: M is measured on an H100 or H200 (driver
# 580.159.04), F is fitted to recordings on them, C is chosen. Effect: if it is 20 % larger or smaller, at most so many
# percent of the results in tests/contention and tests/attribution/copies change: by 5 %, or in kind, cause or error.
# fmt: off
QUIET_SMS = 0.2            # of the SMs   | F |  3 | On a quiet GPU, others use at most this.
QUIET_BUSY = 0.1           # of the time  | F |  0 | On a quiet GPU, others work for less of the time, or there is room.
ROOM_SMS = 0.6             # of the SMs   | F |  0 | If there is room, less than this of the SMs is used.
ROOM_BANDWIDTH = 0.35      # of all       | F |  0 | If there is room, less than this of the memory's bandwidth is used.
ALONE_SMS = 0.05           # of the SMs   | F | 10 | Beside a client that is alone, others use at most this.
SAME_WIDTH = 0.15          # logarithm    | F |  0 | The same work has a mean width that differs by less.
SAME_SPAN = 0.35           # logarithm    | F |  0 | The same work has launches for each span that differ by less.
COPY_WIDTH_BYTES = 1 << 15 # bytes        | C |  0 | Each adds an SM of width: copies of other sizes are other work.
LEAST_SPANS = 3            # spans        | C |  6 | A window with fewer ended spans is too short to learn from.
CONTRADICTION = 0.5        # logarithm    | F |  3 | A latency that differs by more contradicts a baseline.
FEW_WINDOWS = 2            # windows      | C | 19 | One contradiction replaces a baseline of so few, else two in a row.
MOST_WINDOWS = 50          # windows      | C |  0 | All windows of a baseline count as at most so many.
BOUND_WINDOWS = 10         # windows      | C |  4 | So many make a bound, or show that a doubted client has changed.
WINDOW_ERROR = 0.06        # of latency   | F | 47 | This is the standard error of one window.
MODEL_ERROR = 0.04         # of latency   | F | 12 | This is the standard error of the model.
OTHERS_ERROR = 0.1         # of latency   | F |  0 | This is that of a baseline during which others used all SMs.
FULL_SMS = 0.85            # of the SMs   | F | 25 | The SMs are used up if at least this is used.
FULL_BANDWIDTH = 0.6       # of all       | F | 10 | The memory's bandwidth is used up if at least this is used.
LEAST_COPYING = 0.1        # of the time  | F |  1 | Copies for at least this use it up in bursts.
COLLIDING_SMS = 0.45       # of the SMs   | F |  8 | From here on, work that is wider than the GPU also waits.
ALMOST = 0.9               # of the use   | M | 37 | A client is doubted if less would be used without its increase.
BANDWIDTH_OF_SMS = 5.0     # quotient     | M |  0 | A client uses at most so much by its SMs (64 bytes a cycle).
DOUBTED = 0.08             # of the time  | F |  2 | A slowdown that doubted windows raise by more is a bound.
LEAST_COMPARABLE = 0.5     # of the time  | C |  2 | If less had the work of the baseline, the result is unknown.
MOST_AHEAD_NS = 5e9        # ns           | C |  0 | At most so much time that a client gained reduces its losses.
REMEMBERED_WINDOWS = 10    # windows      | C |  0 | A baseline of so many is remembered for later processes.
REMEMBERED_AGAIN = 100     # windows      | C |  0 | It is remembered again after so many more.
REMEMBERED_ERROR = 0.25    # of latency   | C |  0 | It has this standard error: the same command may do other work.
CLEAR_ERRORS = 2.0         # errors       | C |  4 | A slowdown clearly exceeds a factor if it does by so many.
STARVED_RATIO = 2.0        # slowdown     | C |  0 | A client that is clearly slowed down by more can be starved.
STARVED_SECONDS = 600.0    # s            | C |  0 | It is starved if it is slowed down for so long.
EXAMINED_SECONDS = 10.0    # s            | C |  0 | After so long, the starved clients are examined again.
# fmt: on


def contended(
    node: Node, uuid: GpuUuid, rate: LaunchRate | None, present: frozenset[int], outdated: Collection[int]
) -> Node:
    """Take the last window of a GPU through all stages. `rate` is what the probes counted in it, if they did.

    `present` are the clients, and `outdated` PIDs of other processes now.
    """
    state, split = without(node.contention.get(uuid, GpuContention()), outdated), node.attribution[uuid].windows[-1]
    if rate is not None:
        unknown = present - {pid for pid, known in state.baselines.items() if not known.is_bound}
        remembered = accounting.remembered_paces(node, uuid, unknown)
        earlier = {pid: Pace(*pace) for pid, pace in remembered.items()}
        state = with_window(state, rate, split, present, earlier)
        state, losses = _losses(state)
        totals = _charged(node, uuid, state.windows[-1], split, losses)
        for pid, baseline in state.baselines.items():
            process = node.processes.get(pid)
            is_due = baseline.windows % REMEMBERED_AGAIN == REMEMBERED_WINDOWS and not baseline.is_bound
            if process is not None and process.command and is_due and pid in rate.deltas:
                pace, account = baseline.pace.scaled(1 / baseline.windows), accounting.account_of(node, pid)
                totals = accounting.remember_pace(totals, uuid, account, process.command, pace)
        node, state = replace(node, usage_totals=totals), _examined(state, split.at)
    return replace(node, contention={**node.contention, uuid: state})


def with_window(
    state: GpuContention, rate: LaunchRate, split: Split, present: frozenset[int], remembered: Mapping[int, Pace]
) -> GpuContention:
    """Take a window through stages 1 to 3. `remembered` has the paces of earlier such processes on a quiet GPU."""
    window = _observed(rate, split, state.windows[-1].quiet if state.windows else frozenset())
    estimates, traffic = divided(state.traffic, rate, split, present, _usual_traffic(window, state.baselines))
    moved = {pid: 1e9 * rate.seconds * traffic[pid].part for pid in window.paces.keys() & traffic.keys()}
    paces = {pid: pace._replace(dram_ns=moved.get(pid, 0.0)) for pid, pace in window.paces.items()}
    window = replace(window, paces=paces, traffic=traffic)
    baselines = {pid: baseline for pid, baseline in state.baselines.items() if pid in present}
    for pid, earlier in remembered.items():
        known = baselines.get(pid)
        is_better = known is None or earlier.latency < known.pace.latency
        if is_better and pid in window.paces and _is_same_work(earlier, window.paces[pid]):
            baselines[pid] = Baseline(pace=earlier, variance=REMEMBERED_ERROR**2, others=QUIET_SMS)
    window = _with_resource(window, split, baselines)
    recent = (each for each in state.windows if 0 < window.at - each.at < MINUTE_SECONDS)
    return _with_learned(replace(state, windows=(*recent, window), baselines=baselines, traffic=estimates))


def _usual_traffic(window: ContentionWindow, baselines: Mapping[int, Baseline]) -> dict[int, float]:
    """Return the fraction of the memory's bandwidth that the same launches used while their client was alone."""
    used = {
        pid: pace.launches / each.pace.launches * each.pace.dram_ns
        for pid, pace, each in _comparable(window, baselines)
        if each.windows > FEW_WINDOWS and each.others <= ALONE_SMS and not each.is_bound and each.longer == 1.0
    }
    return {pid: time_ns / 1e9 / window.seconds for pid, time_ns in used.items() if time_ns}


def without(state: GpuContention, pids: Collection[int]) -> GpuContention:
    """Forget processes that are no longer clients, and PIDs that other processes have now."""
    if not pids:
        return state

    def left(known: ContentionWindow | GpuContention, *names: str) -> dict[str, Any]:
        return {name: values.without(getattr(known, name), *pids) for name in names}

    windows = tuple(replace(each, **left(each, "paces", "traffic", "parts")) for each in state.windows)
    traffic = state.traffic.without({*pids, *(-pid for pid in pids)})
    return replace(state, windows=windows, traffic=traffic, **left(state, "baselines", "starved_since", "ahead_ns"))


def _observed(rate: LaunchRate, split: Split, quiet_before: frozenset[int]) -> ContentionWindow:
    """Stage 1: what the clients did. For those in `quiet_before` the GPU was quiet in the window before."""
    sm = {pid: share.sm for pid, share in split.estimates.items()}
    done = {pid: _pace(delta, rate.seconds, sm.get(pid, 0.0)) for pid, delta in rate.deltas.items()}
    # With GPM, a client that launched nothing may wait for a stream of its own.
    busy = {pid: pace.busy_ns for pid, pace in done.items() if pace.launches or not split.measured}
    paces = {pid: pace for pid, pace in done.items() if pace.busy_ns and not rate.deltas[pid].scattered}
    total, rest = sum(busy.values()), {pid: split.sm - sm.get(pid, 0.0) for pid in paces}
    busy_others = {pid: (total - busy.get(pid, 0.0)) / 1e9 / rate.seconds for pid in paces}
    quiet = frozenset(pid for pid in paces if _is_quiet(pid, split, rest[pid], busy_others[pid]))
    # In its first quiet window, a client's work may have begun while the GPU was busy.
    others = {pid: max(0.0, rest[pid]) for pid in quiet & quiet_before}
    movable = COPY_BANDWIDTH * rate.bandwidth * rate.seconds
    copying = {pid: delta.copied / movable for pid, delta in rate.deltas.items() if movable and delta.copied}
    return ContentionWindow(at=split.at, seconds=rate.seconds, paces=paces, quiet=quiet, others=others, copying=copying)


def _pace(delta: WorkDelta, seconds: float, sm: float) -> Pace:
    """Return what a client did. Recordings of earlier versions do not show gaps, nor which streams overlap."""
    launches = delta.kernels + (delta.graph_kernels or delta.graphs) + delta.copies
    busy_ns = min(float(delta.busy_ns), seconds * 1e9)
    return Pace(
        launches=launches,
        spans=delta.spans,
        widths=delta.widths + delta.copied / COPY_WIDTH_BYTES,
        busy_ns=busy_ns,
        gap_ns=float(delta.gap_ns) if delta.gap_ns >= 0 else (seconds * 1e9 - busy_ns) * bool(launches),
        sm_ns=sm * seconds * 1e9,
    )


def _is_quiet(pid: int, split: Split, others: float, busy_others: float) -> bool:
    """Return whether others could hardly slow a client down: they used `others` of the SMs.

    `busy_others` is how many others had work in flight, on average. Only GPM shows unwatched use, and free room.
    """
    are_idle = busy_others < QUIET_BUSY and not split.unknown - {pid}
    if not split.measured:
        return are_idle
    has_room = split.sm < ROOM_SMS and (split.dram or 0.0) < ROOM_BANDWIDTH
    return pid in split.estimates and others <= QUIET_SMS and (are_idle or has_room)


def _is_same_work(known: Pace, pace: Pace) -> bool:
    """Return whether a pace is of the known work, if it is of any. Long spans are cut by the windows."""
    if not pace.spans or not pace.launches:
        return True
    if not pace.widths or not known.widths:
        return False
    width = math.log((pace.widths / pace.launches) / (known.widths / known.launches))
    span = math.log((pace.launches / pace.spans) / (known.launches / known.spans))
    return abs(width) < SAME_WIDTH and abs(span) < SAME_SPAN


def _is_alone(pid: int, window: ContentionWindow) -> bool:
    return pid in window.others and window.others[pid] <= ALONE_SMS


class _Use(NamedTuple):
    """How much of the scarcest resource was used, at most `full` if it was used up, and the part of each client.

    `of_sms` is the most of it that a client can use, for its part of the SMs. `in_bursts`: only while copies run.
    """

    resource: Resource
    used: float
    full: float
    parts: Mapping[int, float]
    of_sms: float = 1.0
    in_bursts: bool = False


def _scarcest(window: ContentionWindow, split: Split) -> _Use | None:
    """Return the use of the scarcest resource, None if it is unknown."""
    dram, copying = split.dram or 0.0, sum(window.copying.values())
    in_bursts = split.dram is not None and dram < FULL_BANDWIDTH and split.sm < FULL_SMS and copying >= LEAST_COPYING
    if dram >= FULL_BANDWIDTH or in_bursts:
        parts = {pid: part for pid, (part, _) in window.traffic.items()}
        return _Use(Resource.MEMORY, dram, min(dram, FULL_BANDWIDTH), parts, BANDWIDTH_OF_SMS, in_bursts)
    if not split.measured or (split.dram is None and split.sm < FULL_SMS):
        return None
    return _Use(Resource.SMS, split.sm, FULL_SMS, {pid: share.sm for pid, share in split.estimates.items()})


def _with_resource(window: ContentionWindow, split: Split, baselines: Mapping[int, Baseline]) -> ContentionWindow:
    """Stage 2: add the resource that was used up, each client's part in it, and the doubted clients.

    A doubted client may have changed its own work: its increase, compared with the same launches on a quiet GPU, may
    have used up the resource; or it lost more time than others copied; or nothing was used up. Without GPM, none is
    doubted, so all lost time counts.
    """
    use = _scarcest(window, split)
    if use is None:
        return window
    usual, areas, doubted = _usual_use(window, use, split.areas, baselines)
    is_full = use.used >= use.full
    if not is_full and (use.used < COLLIDING_SMS or sum(areas.values()) < 1):
        return replace(window, doubted=window.paces.keys())
    increase = sum(use.parts.get(pid, 0.0) - part for pid, part in usual.items())
    for pid in window.paces:
        share = split.estimates.get(pid)
        most = math.inf if share is None else use.of_sms * (share.sm + CLEAR_ERRORS * share.error)
        own = min(increase, most - usual.get(pid, 0.0))
        if use.used - own < ALMOST * min(use.used, use.full):
            doubted.add(pid)
    if not is_full:
        return replace(window, doubted=doubted)
    parts = {pid: COPY_BANDWIDTH * part for pid, part in window.copying.items()} if use.in_bursts else use.parts
    return replace(window, resource=use.resource, parts=parts, doubted=doubted)


def _usual_use(
    window: ContentionWindow, use: _Use, areas: Mapping[int, float], baselines: Mapping[int, Baseline]
) -> tuple[dict[int, float], dict[int, float], set[int]]:
    """Return what the same launches use on a quiet GPU, their `areas`, and who lost more time than others copied."""
    is_memory, copying = use.resource is Resource.MEMORY, sum(window.copying.values())
    usual, areas, doubted = dict[int, float](), dict(areas), set[int]()
    for pid, pace, baseline in _comparable(window, baselines):
        own_copying = window.copying.get(pid, 0.0)
        if not pace.launches:
            continue
        if use.in_bursts and baseline.lost(pace) > (copying - own_copying) * window.seconds * 1e9:
            doubted.add(pid)
        # If a client copies more, its pace is another one.
        if baseline.pace.sm_ns and not (is_memory and own_copying > LEAST_COPYING):
            scale = pace.launches / baseline.pace.launches
            usual[pid] = scale * (baseline.pace.dram_ns if is_memory else baseline.pace.sm_ns) / 1e9 / window.seconds
            areas[pid] = areas.get(pid, 0.0) * min(1.0, scale * baseline.pace.busy_ns / pace.busy_ns)
    return usual, areas, doubted


def _comparable(window: ContentionWindow, baselines: Mapping[int, Baseline]) -> Iterator[tuple[int, Pace, Baseline]]:
    """Yield the clients that did no other work than that of their baseline."""
    for pid, pace in window.paces.items():
        if pid in baselines and _is_same_work(baselines[pid].pace, pace):
            yield pid, pace, baselines[pid]


def _with_learned(state: GpuContention) -> GpuContention:
    """Stage 3: update the baselines by the last window."""
    window, baselines, contradictions = state.windows[-1], dict(state.baselines), dict[int, int]()
    for pid, pace in window.paces.items():
        if pace.widths and pace.launches and pace.spans >= LEAST_SPANS:
            known, count = baselines.get(pid), state.contradictions.get(pid, 0)
            if pid not in window.others:
                recent = [each.paces[pid] for each in state.windows[-BOUND_WINDOWS:] if pid in each.paces]
                known, count = _beside_others(known, recent, count, is_doubted=pid in window.doubted)
            else:
                known, count = _learned(known, pace, window, pid, count)
            baselines |= {} if known is None else {pid: known}
            contradictions[pid] = count
    return replace(state, baselines=baselines, contradictions=contradictions)


def _learned(
    known: Baseline | None, pace: Pace, window: ContentionWindow, pid: int, contradictions: int
) -> tuple[Baseline, int]:
    """Return the baseline after a quiet window, and how many windows in a row have contradicted it."""
    others = window.others[pid]
    first = Baseline(pace=pace, others=others)
    if known is None:
        return first, 0
    is_same, change = _is_same_work(known.pace, pace), math.log(pace.latency / known.pace.latency)
    # Others made the same work no faster, and in a quiet window they did not make it slower.
    has_changed = is_same and (change if known.is_bound else abs(change)) > CONTRADICTION
    first = replace(first, since=window.at - window.seconds if has_changed else known.since)
    if known.is_bound or others <= ALONE_SMS < known.others:
        return first, 0
    if not is_same or has_changed:
        return (first, 0) if contradictions or known.windows <= FEW_WINDOWS else (known, 1)
    if known.others <= ALONE_SMS < others:
        return known, 0
    weight = 1 / min(known.windows + 1, MOST_WINDOWS)
    learned = Baseline(
        pace=Pace.total((known.pace.scaled(1 - 1 / MOST_WINDOWS), pace)),
        windows=known.windows + 1,
        variance=(1 - weight) * (known.variance + weight * change**2),
        others=(1 - weight) * known.others + weight * others,
        since=known.since,
    )
    return learned, 0


def _beside_others(
    known: Baseline | None, recent: Sequence[Pace], contradictions: int, *, is_doubted: bool
) -> tuple[Baseline | None, int]:
    """Return the baseline after a window that was not quiet, and how many in a row a doubted client was slower.

    If many were, that is its own work from now on. A baseline of which it is faster is replaced by a bound.
    """
    pace, total, slower_windows, log_slower = recent[-1], Pace.total(recent), 0, 0.0
    if known is not None and _is_same_work(known.pace, pace):
        log_slower = math.log(pace.latency / known.pace.latency)
        slower_windows = contradictions + 1 if is_doubted and log_slower > CONTRADICTION else 0
        # From now on, compare with its new work.
        if is_doubted and (not slower_windows or slower_windows >= BOUND_WINDOWS):
            known = replace(known, longer=math.exp(log_slower) if slower_windows else 1.0)
    most = math.inf if known is None else known.pace.latency * (1.0 if known.is_bound else math.exp(-CONTRADICTION))
    is_needed = known is None or known.is_bound or log_slower < -CONTRADICTION
    if is_needed and len(recent) == BOUND_WINDOWS and total.latency < most:
        return Baseline(pace=total, windows=BOUND_WINDOWS, is_bound=True), slower_windows
    return known, slower_windows


def _losses(state: GpuContention) -> tuple[GpuContention, Mapping[int, int]]:
    """Stage 4: return the microseconds that each client lost since the last window; at least these if by a bound."""
    window = state.windows[-1]
    # The time while the probes were detached is taken to be like that while they were attached.
    since = state.windows[-2].at if len(state.windows) > 1 else window.at
    scale = max(1.0, (window.at - since) / window.seconds)
    ahead_ns = {pid: time for pid, time in state.ahead_ns.items() if pid in state.baselines}
    losses: dict[int, int] = {}
    for pid, pace, baseline in _comparable(window, state.baselines):
        if not _is_alone(pid, window):
            lost_ns = baseline.lost(pace)
            excess = scale * (min(0.0, lost_ns) if pid in window.doubted else lost_ns) - ahead_ns.get(pid, 0.0)
            ahead_ns[pid] = min(max(0.0, -excess), MOST_AHEAD_NS)
            losses[pid] = int(max(0.0, excess) / 1000)
    return replace(state, ahead_ns=ahead_ns), losses


def _charged(
    node: Node, uuid: GpuUuid, window: ContentionWindow, split: Split, losses: Mapping[int, int]
) -> UsageTotals:
    """Post the microseconds that clients lost, and who caused them: those who use the resource, in proportion.

    What no client is known to have used is unattributed, as in `_parts` of usage/attribution.py.
    """
    if not any(losses.values()):
        return node.usage_totals
    method, pids = Method.FLIGHT if split.measured else Method.LAUNCHES, losses.keys() | window.parts.keys()
    keys = {pid: accounting.key_of(node, pid, method, at=split.at) for pid in pids}
    hidden = max(0.0, split.sm - sum(share.sm for share in split.estimates.values()))
    total = sum(window.parts.values()) + hidden
    # What a client lost for each part of the resource that others used.
    rates = {pid: lost / others for pid, lost in losses.items() if (others := total - window.parts.get(pid, 0.0)) > 0}
    lost, caused = Counter[UsageKey](), defaultdict[UsageKey, float](float)
    caused[accounting.UNATTRIBUTED] = sum(rates.values()) * hidden + sum(values.without(losses, *rates).values())
    for pid, microseconds in losses.items():
        lost[keys[pid]] += microseconds
    for pid, part in window.parts.items():
        caused[keys[pid]] += (sum(rates.values()) - rates.get(pid, 0.0)) * part
    weights = {key: round(accounting.PRECISION * each) for key, each in caused.items()}
    of_accounts = accounting.apportioned(lost.total(), weights)
    posted = {key: Usage(lost_us=lost[key], caused_us=of_accounts.get(key, 0)) for key in {**+lost, **of_accounts}}
    return accounting.post_use(node.usage_totals, uuid, posted, at=split.at)


def _examined(state: GpuContention, at: float) -> GpuContention:
    """Stage 5: now and then, update since when clients are slowed down so much that they are starved."""
    if 0 <= at - state.examined_at < EXAMINED_SECONDS:
        return state
    # After a longer gap it is unknown whether clients were slowed down all the time.
    earlier = state.starved_since if abs(at - state.examined_at) < MINUTE_SECONDS else {}
    by_pid = slowdowns(state, causes=False)
    slowed = [pid for pid, slowdown in by_pid.items() if is_clearly_slowed(slowdown, STARVED_RATIO)]
    return replace(state, starved_since={pid: min(earlier.get(pid, at), at) for pid in slowed}, examined_at=at)


def starved(state: GpuContention, at: float) -> Mapping[int, float]:
    """Return since when each starved client is slowed down, if that is current."""
    if not state.windows or not 0 <= at - state.windows[-1].at < MINUTE_SECONDS:
        return {}
    return {pid: since for pid, since in state.starved_since.items() if at - since >= STARVED_SECONDS}


def is_clearly_slowed(slowdown: Slowdown | None, factor: float) -> bool:
    """Return whether a client is clearly slowed down by more than a factor."""
    return slowdown is not None and slowdown.ratio - CLEAR_ERRORS * slowdown.error_ratio > factor


def slowdowns(state: GpuContention, *, causes: bool = True) -> dict[int, Slowdown]:
    """Return the slowdown of each client in the last minute, if it is known. Causes take most of the time."""
    by_pid = {}
    for pid, baseline in state.baselines.items():
        every = [each for each in state.windows if pid in each.paces]
        windows = [each for each in every if baseline.since < each.at and _is_same_work(baseline.pace, each.paces[pid])]
        work = Pace.total(each.paces[pid] for each in windows)
        comparable = work.busy_ns >= LEAST_COMPARABLE * sum(each.paces[pid].busy_ns for each in every)
        if not work.spans or not work.launches or not comparable or not _is_same_work(baseline.pace, work):
            continue
        disturbed = [each for each in windows if not _is_alone(pid, each)]
        certain = [each for each in disturbed if pid not in each.doubted]
        wanted, before = baseline.wanted(work), replace(baseline, longer=1.0)
        # What the work would have taken on a quiet GPU, if all its increase is a slowdown, and without what is doubted.
        quiet = wanted - sum(before.lost(each.paces[pid]) for each in disturbed)
        least = wanted - sum(baseline.lost(each.paces[pid]) for each in certain)
        if quiet <= 0:
            continue
        is_doubted = least > (1 + DOUBTED) * quiet
        ratio = wanted / (least if is_doubted else quiet)
        variance, counted = baseline.variance + WINDOW_ERROR**2, min(baseline.windows, MOST_WINDOWS)
        of_windows = math.sqrt(variance / len(windows) + variance / counted)
        error = math.hypot(MODEL_ERROR, OTHERS_ERROR * baseline.others, of_windows)
        resource, neighbours = _cause(pid, baseline, certain if causes else ())
        if is_doubted and ratio < 1 + DOUBTED:
            resource, neighbours = Resource.OTHER, ()
        by_pid[pid] = Slowdown(
            ratio=ratio,
            error_ratio=error * ratio * work.busy_ns / wanted,
            at_least=baseline.is_bound or is_doubted,
            resource=resource,
            neighbours=neighbours,
            apparent=wanted / quiet,
        )
    return by_pid


def _cause(
    pid: int, baseline: Baseline, windows: Sequence[ContentionWindow]
) -> tuple[Resource | None, tuple[tuple[int, float], ...]]:
    """Return the resource that a client waited for most, and the others with their mean fractions of it then."""
    lost = dict.fromkeys(Resource, 0.0)
    waits = [(window, wait) for window in windows if (wait := baseline.lost(window.paces[pid])) > 0]
    for window, wait in waits:
        lost[window.resource] += wait
    if not waits:
        return None, ()
    resource = max(lost, key=lost.__getitem__)
    used = defaultdict[int, float](float)
    for window, wait in waits:
        for each, part in window.parts.items() if window.resource is resource else ():
            used[each] += wait * part / lost[resource]
    return resource, tuple(sorted(values.without(used, pid).items(), key=itemgetter(1), reverse=True))


def sharing_gain(state: GpuContention) -> float | None:
    """Return how many clients' worth of work a GPU did in the last minute; None if that is unknown for half of it.

    It is the time that all work would have taken on a quiet GPU, divided by the time in which any client wanted to
    work. Within a window, clients are taken to want to work independently of each other.
    """
    quiet = together = known = 0.0
    for window in state.windows:
        works = [each for each in _comparable(window, state.baselines) if not each[2].is_bound]
        if len(works) == len(window.paces):
            wanted = [baseline.wanted(pace) / 1e9 for _, pace, baseline in works]
            idle = math.prod(1 - min(1.0, each / window.seconds) for each in wanted)
            known += window.seconds
            together += window.seconds * (1 - idle)
            lost = sum(baseline.lost(pace) for pid, pace, baseline in works if not _is_alone(pid, window))
            quiet += sum(wanted) - lost / 1e9
    is_known = known >= LEAST_COMPARABLE * sum(window.seconds for window in state.windows)
    return quiet / together if together and is_known else None
