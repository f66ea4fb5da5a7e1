"""The use of a GPU's memory bandwidth, divided among its clients."""

import math

from exporter.model.contention import Bandwidth, GpuContention
from exporter.model.estimates import ClientEstimates
from exporter.model.usage import LaunchRate, Split
from exporter.usage.kernel_times import SHORT_COPY_BYTES

MOST_HIDDEN = 0.1
"""If more of the SM time is not that of known clients, their parts of the bandwidth are unknown: what others used would
be divided among them."""

TRAFFIC_CONTRADICTION, TRAFFIC_CHANGE, PART_ERROR = 2.0, 0.3, 0.05
"""A use of the bandwidth that differs by more standard errors shows that kernels changed: what each moves has at least
this standard error then, as a fraction. Least standard error of a client's part, as a fraction."""

BYTES_ERROR, CACHED_BYTES, CACHED_ERROR = 0.02, 1 << 26, 0.5
"""Standard error of what copies move, as a fraction of their bytes. If a copy moves fewer than CACHED_BYTES, any part
of it may stay in the L2 cache: that of an H200 has 50 MiB."""

TRAFFIC_ERROR, LEAST_TRAFFIC_ERROR = 0.02, 0.006
"""Standard error of the measured use of the memory's bandwidth, as a fraction of the use, and of the whole."""


def bandwidths(state: GpuContention) -> dict[int, Bandwidth]:
    """Return what each client used of the memory's bandwidth in the last minute, as far as that is known."""
    windows = [window for window in state.windows if window.traffic]
    seconds = sum(window.seconds for window in windows)
    found: dict[int, Bandwidth] = {}
    for window in windows:
        for pid, (part, error) in window.traffic.items():
            known = found.get(pid, Bandwidth(0.0, 0.0))
            weight = window.seconds / seconds
            found[pid] = Bandwidth(known.part + part * weight, known.error + error * weight)
    return found


def divided(
    estimates: ClientEstimates, rate: LaunchRate, split: Split, present: frozenset[int]
) -> tuple[ClientEstimates, dict[int, Bandwidth]]:
    """Return the estimates of what each client's kernels move, and its part of the used bandwidth.

    The use of the memory's bandwidth is the sum of the widths that each client launched, times what it moves for each,
    and of what it copied, of which a part may stay in the cache. What a kernel moves is the same at any speed. The
    parts add up to what GPM measured. If others than these clients may have used the memory, nothing is known. The
    estimates are nanoseconds of the whole bandwidth for each SM of width by PID, and of what a client copies, by its
    negative PID, the fraction that reaches the memory.
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
    for key in sorted(weights.keys() - estimates.pids):
        known = sum(weights[each] * (estimates.mean(each) or 0.0) for each in weights)
        first = error = max(split.dram - known, LEAST_TRAFFIC_ERROR * split.dram) / 2 / weights[key]
        if key < 0:
            first, error = (1.0, BYTES_ERROR) if key in certain else (CACHED_ERROR, CACHED_ERROR)
        estimates = estimates.with_observed(key, first, error)
    error = LEAST_TRAFFIC_ERROR + TRAFFIC_ERROR * split.dram
    expected = sum(weight * (estimates.mean(pid) or 0.0) for pid, weight in weights.items())
    covariances = estimates.covariance_with_sum(weights)
    variance = sum(weight * covariances[pid] for pid, weight in weights.items())
    if abs(split.dram - expected) > TRAFFIC_CONTRADICTION * math.sqrt(max(0.0, variance) + error**2):
        estimates = estimates.renewed(
            {
                pid: TRAFFIC_CHANGE * max(estimates.mean(pid) or 0.0, split.dram / weight / 20)
                for pid, weight in weights.items()
                if pid not in certain
            }
        )
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
