"""The use of a GPU's memory bandwidth, divided among its clients."""

import math
from collections.abc import Mapping

from exporter.model.contention import Bandwidth, GpuContention
from exporter.model.estimates import ClientEstimates, Estimate
from exporter.model.usage import LaunchRate, Split
from exporter.model.values import replace
from exporter.usage.kernel_times import SHORT_COPY_BYTES

# The constants, as in usage/contention.py.
# fmt: off
MOST_HIDDEN = 0.1           # of the SMs   | F |  0 | If unknown processes used more, the parts are unknown.
TRAFFIC_ERROR = 0.02        # of the use   | F |  2 | Standard error of the measured use of the bandwidth,
LEAST_TRAFFIC_ERROR = 0.006 # of all       | F | 31 | in addition to this.
TRAFFIC_CONTRADICTION = 2.0 # errors       | F | 20 | A use that differs by more shows that the kernels have changed.
TRAFFIC_CHANGE = 0.3        # of itself    | F |  7 | What each moves has at least this standard error then. What it
                            #              |   |    | moved while it was alone has it in addition to that of the use.
PART_ERROR = 0.05           # of the part  | F | 15 | Least standard error of the part of a client.
BYTES_ERROR = 0.02          # of the bytes | F |  0 | Standard error of what copies move.
CACHED_BYTES = 1 << 26      # bytes        | M |  0 | Of a smaller copy, any part may stay in the L2 cache: an H200 has
CACHED_ERROR = 0.5          # of the copy  | F |  0 | 50 MiB. At first, this part does, with this standard error.
# fmt: on


def bandwidths(state: GpuContention) -> dict[int, Bandwidth]:
    """Return what each client used of the memory's bandwidth in the last minute, as far as that is known."""
    seconds = sum(window.seconds for window in state.windows if window.traffic)
    found: dict[int, Bandwidth] = {}
    for window in state.windows:
        for pid, used in window.traffic.items():
            part, error = (window.seconds / seconds * each for each in used)
            known = found.get(pid, Bandwidth(0.0, 0.0))
            found[pid] = Bandwidth(known.part + part, known.error + error)
    return found


def divided(
    estimates: ClientEstimates, rate: LaunchRate, split: Split, present: frozenset[int], usual: Mapping[int, float]
) -> tuple[ClientEstimates, dict[int, Bandwidth]]:
    """Return the estimates of what each client's kernels move, and its part of the used bandwidth.

    A client's use of the memory's bandwidth has two terms. One is the widths that it launched, times what it moves for
    each. The other is what it copied, of which a part may stay in the cache. What a kernel moves is the same at any
    speed. The parts add up to what GPM measured. If others than these clients may have used the memory, nothing is
    known. `usual` is what the same work of a client uses while it is alone. The others, such as a new process, use the
    rest. The estimates by PID are nanoseconds of the whole bandwidth for each SM of width. Those by negative PID are
    the fraction of what a client copies that reaches the memory.
    """
    estimates = estimates.without(estimates.pids - present - {-pid for pid in present})
    weights = {pid: delta.widths / 1e9 / rate.seconds for pid, delta in rate.deltas.items() if delta.widths}
    moved = {pid: delta.copied + delta.transferred for pid, delta in rate.deltas.items()} if rate.bandwidth else {}
    weights |= {-pid: count / rate.bandwidth / rate.seconds for pid, count in moved.items() if count}
    hidden = split.unattributed + sum(share.sm for pid, share in split.shares.items() if pid not in rate.deltas)
    unseen = not rate.bandwidth and any(each.copied > SHORT_COPY_BYTES * each.copies for each in rate.deltas.values())
    if split.dram is None or not weights or split.unknown or hidden > MOST_HIDDEN or unseen:
        return estimates, {}
    certain = {-pid for pid, delta in rate.deltas.items() if delta.copied >= CACHED_BYTES * delta.copies}
    # A client that copies other sizes now may use the cache, or not any more.
    copied = {key: each.error > BYTES_ERROR for key, each in estimates.observed.items() if key < 0}
    estimates = estimates.without({key for key, cached in copied.items() if cached == (key in certain)})
    known = sum(weights[each] * (estimates.mean(each) or 0.0) for each in weights)
    rest = max(split.dram - known, LEAST_TRAFFIC_ERROR * split.dram)
    for key in sorted(weights.keys() - estimates.pids):
        first = error = rest / 2 / weights[key]
        if key < 0:
            first, error = (1.0, BYTES_ERROR) if key in certain else (CACHED_ERROR, CACHED_ERROR)
        estimates = estimates.with_observed(key, first, error)
    observed = {
        pid: Estimate(usual[pid] / weights[pid], (TRAFFIC_CHANGE * usual[pid] + LEAST_TRAFFIC_ERROR) / weights[pid])
        for pid in usual.keys() & weights.keys()
    }
    estimates = replace(estimates, observed={**estimates.observed, **observed})
    error = LEAST_TRAFFIC_ERROR + TRAFFIC_ERROR * split.dram
    expected = sum(weight * (estimates.mean(pid) or 0.0) for pid, weight in weights.items())
    covariances = estimates.covariance_with_sum(weights)
    variance = sum(weight * covariances[pid] for pid, weight in weights.items())
    if abs(split.dram - expected) > TRAFFIC_CONTRADICTION * math.sqrt(max(0.0, variance) + error**2):
        # Each client of which no usual use is known may have changed so much.
        most = {key: usual.get(key, abs(split.dram - expected)) / weights[key] for key in weights.keys() - certain}
        least = {key: max(TRAFFIC_CHANGE * (estimates.mean(key) or 0.0), most[key]) for key in sorted(most)}
        estimates = estimates.renewed(least)
    largest = {key: 1.0 for key in weights if key < 0}
    estimates = estimates.measured(weights, split.dram, error, rate.seconds).solved(largest)
    used = {key: weight * (estimates.mean(key) or 0.0) for key, weight in weights.items()}
    scale = split.dram / total if (total := sum(used.values())) else 0.0
    parts: dict[int, Bandwidth] = {}
    for key, part in used.items():
        own = math.hypot(weights[key] * estimates.standard_deviation(key), PART_ERROR * scale * part)
        known_part, error = parts.get(abs(key), Bandwidth(0.0, 0.0))
        parts[abs(key)] = Bandwidth(known_part + scale * part, math.hypot(error, own))
    return estimates, parts
