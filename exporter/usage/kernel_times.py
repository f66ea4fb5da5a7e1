"""Kernel time estimates: how much SM time each client used in a window.

A client's SM time is the sum of the widths of its launched kernels, times their mean duration. `updated` estimates that
duration in four stages:

1. Observe: if a client still waited for the GPU at the end of its bursts, the duration is the length of the bursts,
   less the cost of launches and synchronisation.
2. Estimate new clients: the observed duration, or else a typical one. It is at most the time with work in flight.
3. Correct by observations: each later observation corrects the client's own estimate.
4. Correct by the GPU: together, the estimates explain what the GPU measured. The larger an estimate's variance, the
   larger its correction.

The width of a kernel is the number of SMs that it can use. A burst is what a client launches until it waits for the
GPU. Work is in flight from its launch until the client has waited for it. Its area is that time, times its width.
docs/accounting.md has an example with numbers, and docs/hardware.md the accuracy, also on an H100.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from exporter.model.usage import SLOWDOWN, GpuBusy, KernelTimeEstimates, WorkDelta

# The fitted constants: name, value, unit, source, effect. Source: M is measured on an H200 (driver 580.159.04). F is
# fitted to mixes of clients on it (tests/attribution); so counts each value without a record of a measurement. Effect:
# how much the mean error of the shares changes over all mixes there, the fitted ones included, in percentage points of
# all SMs, if the constant is 20 % smaller, or 20 % larger: first with GPM, where the mean error is 1.42, then without
# GPM, where it is 3.93. The fraction of shares within two standard errors of the truth changes by at most 0.7 points
# over all mixes, and by 3.2 in a group of them. A negative effect is an improvement of these mixes only. 0.00 may also
# mean that few of them depend on the constant.
# fmt: off

# A burst that ends with a synchronisation takes this time in addition to its kernels. Standard error.
SYNC_NS = 14_000                # ns              | M | +0.01,  0.00 | +0.06,  0.00
SYNC_ERROR_NS = 6_000           # ns              | F |  0.00,  0.00 |  0.00,  0.00

# The same for a burst with an event and blocking synchronisation. The wake-up by an event depends on the machine: it
# took 90 us on the node of the H200, and 340 us on that of an H100.
EVENT_NS = 90_000               # ns              | M |  0.00,  0.00 |  0.00,  0.00
EVENT_ERROR_NS = 90_000         # ns              | F |  0.00,  0.00 |  0.00,  0.00

# Time between kernels, in units of the gap within a graph. Standard error for each kernel.
GAP_NS = 1_250                  # ns              | M |  0.00,  0.00 | -0.01, -0.02
KERNEL_ERROR_NS = 1_500         # ns              | F |  0.00,  0.00 |  0.00,  0.00

# Standard error of an observed kernel time.
RELATIVE_ERROR = 0.05           # of the time     | F |  0.00, +0.01 | -0.03, +0.01

# On a contended GPU a kernel waits for this fraction of the shortest time in flight of any client's kernels. Standard
# errors of that wait and of the kernel time then.
WAIT = 0.9                      # of the shortest | F | +0.06, +0.22 | -0.13, +0.41
WAIT_ERROR = 0.45               # of the wait     | F | +0.12, +0.22 | -0.04, +0.08
SHARED_ERROR = 0.8              # of the time     | F | +0.12, +0.20 | -0.01, +0.15

# The kernel time of at least this fraction of a client's launches must have been observed.
OBSERVED_FRACTION = 0.2         # of the launches | F | -0.01,  0.00 |  0.00,  0.00

# Kernel time of a client that launches as fast as it can: 2.4 to 11 us in six frameworks. Standard error. Such a client
# takes up to LAUNCH_NS for a launch.
TYPICAL_NS = 6_000              # ns              | M | -0.02, +0.04 | -0.02, +0.07
TYPICAL_ERROR_NS = 5_000        # ns              | F |  0.00,  0.00 | +0.02, +0.01
LAUNCH_NS = 40_000              # ns              | F | +0.07, +0.10 | +0.16, +0.03

# A client that waits after at most so many launches probably waits for the GPU.
FEW_LAUNCHES = 16               # launches        | F |  0.00,  0.00 |  0.00,  0.00

# Kernel time of such a client, as a fraction of the time beyond LAUNCH_NS that it takes for a launch. Standard error.
WAITING = 0.85                  # of that time    | F |  0.00,  0.00 | +0.02, -0.02
WAITING_ERROR = 0.4             # of that time    | F |  0.00,  0.00 | -0.01, +0.01

# The same for other clients.
SLOW = 0.4                      # of that time    | F | +0.02, +0.15 | -0.11, +0.11
SLOW_ERROR = 0.5                # of that time    | F | +0.28, -0.02 | +0.06, +0.15

# The same for clients that also wait for copies to the GPU.
COPYING = 0.05                  # of that time    | F |  0.00,  0.00 |  0.00,  0.00
COPYING_ERROR = 0.3             # of that time    | F |  0.00,  0.00 |  0.00,  0.00

# Largest quotient of SM time and `area`, if `bound` is unknown: kernels of different widths differ in duration.
AREA_ERROR = 1.5                # quotient        | F | +0.01,  0.00 | -0.07, +0.02

# A kernel has finished if it has run so much longer than its estimate.
FINISHED_ERRORS = 2.0           # standard errors | F |  0.00,  0.00 |  0.00,  0.00

# An estimate is impossible if it is so many times the longest possible kernel time. A first estimate by another window
# is better if its standard error is less than this fraction: in its first window, a client may work for a moment only.
IMPOSSIBLE = 1.5                # quotient        | F |  0.00,  0.00 | -0.02,  0.00
BETTER = 0.5                    # quotient        | F | +0.02, +0.16 |  0.00, +0.11

# An observation that differs by so much shows that a client changed, or had hardly begun before.
CONTRADICTION_ERRORS = 3.0      # standard errors | F | -0.01,  0.00 | -0.02,  0.00

# Standard error of the measured SM time; both are added.
DEVICE_ERROR = 0.02             # of the SM time  | F |  0.00, +0.03 |  0.00,  0.00
LEAST_DEVICE_ERROR = 0.001      # of all SMs      | F |  0.00,  0.00 |  0.00,  0.00

# If the other clients had work in flight on more SMs, an observed kernel time is only an upper bound.
ALONE_FRACTION = 0.6            # of all SMs      | F |  0.00,  0.00 |  0.00,  0.00

# First estimate of the slowdown, by how much longer kernels take on a contended GPU. A kernel that filled an H200 took
# 4 % longer. Standard error. If the estimate exceeds LARGEST_SLOWDOWN, a client has changed.
FIRST_SLOWDOWN = 0.03           # of the time     | F | -0.02,  0.00 |  0.00,  0.00
SLOWDOWN_ERROR = 0.03           # of the time     | F |  0.00, -0.02 |  0.00,  0.00
LARGEST_SLOWDOWN = 0.25         # of the time     | F |  0.00,  0.00 |  0.00,  0.00

# NVML counts this time for each kernel in addition to its SM time. Standard error.
KERNEL_ACTIVE_NS = 6_500        # ns              | F |  0.00,  0.00 | +0.03, +0.05
KERNEL_ACTIVE_ERROR_NS = 2_000  # ns              | F |  0.00,  0.00 | +0.01,  0.00

# Standard error of the mean number of running kernels: with probes, and without.
ACTIVE_ERROR = 0.2              # of the number   | F |  0.00,  0.00 | +0.05, +0.04
UNWATCHED_ERROR = 0.5           # of the number   | F |  0.00,  0.00 |  0.00, +0.03

# Standard error of the time with any kernel running. If that time is larger than LARGEST_ACTIVE (which must be below
# 1), all SMs may be busy.
LEAST_ACTIVE_ERROR = 0.02       # of the window   | F |  0.00,  0.00 |  0.00,  0.00
LARGEST_ACTIVE = 0.95           # of the window   | F |  0.00,     - | +0.21,     -

# SM time of a GPU on which all SMs may be busy. Standard error.
FULL_BUSY = 0.95                # of all SMs      | F |  0.00,  0.00 | +0.07, +0.07
FULL_BUSY_ERROR = 0.15          # of all SMs      | F |  0.00,  0.00 |  0.00,  0.00
# fmt: on

Deltas = Mapping[int, WorkDelta]  # What each client did in a window, by PID.


class _Time(NamedTuple):
    """Mean time of a client's kernels in nanoseconds, and its standard error."""

    mean: float
    error: float


class _TimeInFlight(NamedTuple):
    """Mean time in flight of a client's kernels in nanoseconds, and its standard error.

    The error is None if the bursts do not show when the kernels ended: then the time is only an upper bound.
    """

    mean: float
    error: float | None


def updated(estimates: KernelTimeEstimates, deltas: Deltas, gpu: GpuBusy, *, complete: bool) -> KernelTimeEstimates:
    """Update the estimates after a window. What `gpu` reports counts only if `deltas` has all clients (`complete`)."""
    launched = {pid: delta for pid, delta in deltas.items() if delta.widths}
    continuing = sum(delta.area for pid, delta in deltas.items() if _continues(estimates, pid, delta))
    area = continuing + sum(delta.area for delta in launched.values())
    contention = _contention(area, gpu.busy, gpu.capacity)
    if not contention or (estimates.mean(SLOWDOWN) or 0.0) > LARGEST_SLOWDOWN:
        estimates = estimates.without((SLOWDOWN,))
    in_flight = {pid: _time_in_flight(delta, gpu.capacity) for pid, delta in launched.items()}
    observed = _observed(estimates, launched, in_flight, gpu, area)
    estimates = _with_first_estimates(estimates, launched, observed, gpu.capacity)
    shared = {pid for pid, delta in launched.items() if area - delta.area > ALONE_FRACTION * gpu.capacity}
    estimates = _with_observations(estimates, observed, {pid: in_flight[pid].mean for pid in shared})
    expected = sum(_expected(estimates, pid, delta, gpu.capacity) for pid, delta in launched.items())
    if not complete or (continuing and expected < gpu.busy):
        return estimates
    if gpu.measured:
        return _with_sm_time(estimates, launched, gpu, continuing, contention)
    return _with_active_time(estimates, launched, gpu)


def used_sm_time(estimates: KernelTimeEstimates, deltas: Deltas, gpu: GpuBusy) -> dict[int, float]:
    """Return the expected SM time of each client, in nanoseconds of one SM; at most what was in flight.

    A client that launched nothing may have work in flight from before. Such clients share what the others leave of
    the busy time.
    """
    used = {pid: _expected(estimates, pid, delta, gpu.capacity) for pid, delta in deltas.items()}
    continuing = {pid: float(delta.area) for pid, delta in deltas.items() if _continues(estimates, pid, delta)}
    if continuing:
        fraction = min(1.0, max(0.0, gpu.busy - sum(used.values())) / sum(continuing.values()))
        used.update({pid: fraction * area for pid, area in continuing.items()})
    return used


def relative_errors(
    estimates: KernelTimeEstimates, deltas: Deltas, used: Mapping[int, float], *, complete: bool
) -> dict[int, float]:
    """Return the standard error of each client's `used` time, as a fraction of the sum.

    If `deltas` is not `complete`, the GPU's measurement does not constrain the sum: each client has its own error.
    """
    total = sum(used.values())
    weights = {pid: float(delta.widths) for pid, delta in deltas.items() if estimates.mean(pid) is not None}
    covariances = estimates.covariance_with_sum(weights)
    with_sum = {pid: weight * covariances[pid] for pid, weight in weights.items()}
    variance_of_sum = sum(with_sum.values())
    errors = {}
    for pid, sm_time in used.items():
        part = sm_time / total
        own = (weights[pid] * estimates.standard_deviation(pid)) ** 2 if pid in weights else (sm_time / 2) ** 2
        variance = own - 2 * part * with_sum.get(pid, 0.0) + part**2 * variance_of_sum if complete else own
        errors[pid] = math.sqrt(max(0.0, variance)) / total
    return errors


def _contention(area: float, busy: float, capacity: float) -> float:
    """Return how much the clients want more SMs than there are, up to 1. `capacity` is the time of all SMs."""
    return min(1.0, busy / capacity) * min(1.0, max(0.0, area / capacity - 1))


def _continues(estimates: KernelTimeEstimates, pid: int, delta: WorkDelta) -> bool:
    """Return whether work that was launched before the window may still run, unless its end was never awaited."""
    if delta.widths or not delta.area:
        return False
    mean = estimates.mean(pid)
    return mean is None or delta.idle_ns <= mean + FINISHED_ERRORS * estimates.standard_deviation(pid)


def _expected(estimates: KernelTimeEstimates, pid: int, delta: WorkDelta, capacity: float) -> float:
    """Return the SM time of the launched kernels, at most what was in flight."""
    if not delta.widths:
        return 0.0
    mean = estimates.mean(pid)
    longest = _longest(delta, capacity)
    return float(delta.area) if mean is None else delta.widths * min(mean, longest)


def _longest(delta: WorkDelta, capacity: float) -> float:
    """Return the longest possible kernel time: the client used no more than all SMs while it had work in flight."""
    return min(float(delta.bound or AREA_ERROR * delta.area), capacity) / delta.widths


def _is_copying(delta: WorkDelta) -> bool:
    return 2 * delta.uploads > delta.spans


def _is_mixed(delta: WorkDelta) -> bool:
    """Return whether much time in flight is no kernel's: of copies, or in graphs with an unknown number of kernels."""
    return _is_copying(delta) or 0 < delta.graphs == delta.graph_kernels


# -- Stage 1: observe the kernel times of the clients that waited for the GPU -----------------------------------------


def _time_in_flight(delta: WorkDelta, capacity: float) -> _TimeInFlight:
    """Return the time in flight of a client's kernels, less the time that bursts take in addition to them."""
    streams = max(1.0, delta.area / capacity)
    if delta.sure_widths < OBSERVED_FRACTION * delta.widths or _is_mixed(delta):
        return _TimeInFlight(delta.area / delta.widths / streams, None)
    syncs, events = delta.sure_heights / delta.sure_widths, delta.sure_event_heights / delta.sure_widths
    gaps = GAP_NS * delta.sure_gaps / delta.sure_widths
    gross = delta.sure_area / delta.sure_widths
    mean = max(gross - SYNC_NS * syncs - EVENT_NS * events - gaps, gross / 10)
    mean = min(mean, delta.area / delta.widths) if delta.area else mean
    error = math.hypot(SYNC_ERROR_NS * syncs, EVENT_ERROR_NS * events, KERNEL_ERROR_NS, RELATIVE_ERROR * mean)
    return _TimeInFlight(mean / streams, error)


def _observed(
    estimates: KernelTimeEstimates, launched: Deltas, in_flight: Mapping[int, _TimeInFlight], gpu: GpuBusy, area: float
) -> Mapping[int, _Time]:
    """Return the kernel times that the bursts show. On a contended GPU, a kernel waits about as long as all others."""
    contention = _contention(area, gpu.busy, gpu.capacity)
    # A client that began within the window has contended only since then.
    active = max((delta.flight_ns for delta in launched.values()), default=0) / (gpu.seconds * 1e9)
    contention_at_first = _contention(area, gpu.busy, gpu.capacity * min(1.0, active or 1.0))
    shortest = min((latency.mean for latency in in_flight.values()), default=0.0)
    observed = {}
    for pid, (latency, error) in in_flight.items():
        if error is not None:
            of_client = contention_at_first if estimates.mean(pid) is None else contention
            waited = of_client * WAIT * shortest
            mean = latency - waited
            error = math.hypot(error, of_client * SHARED_ERROR * mean, WAIT_ERROR * waited)
            observed[pid] = _Time(mean, error)
    return observed


# -- Stage 2: estimate the kernel times of new clients -----------------------------------------------------------------


def _with_first_estimates(
    estimates: KernelTimeEstimates, launched: Deltas, observed: Mapping[int, _Time], capacity: float
) -> KernelTimeEstimates:
    for pid, delta in launched.items():
        longest = _longest(delta, capacity)
        known = estimates.mean(pid)
        mean, error = observed.get(pid) or _typical(delta, longest)
        if known is None or known > IMPOSSIBLE * longest or error < BETTER * estimates.standard_deviation(pid):
            estimates = estimates.without((pid,)).with_client(pid, mean, error)
    return estimates


def _typical(delta: WorkDelta, longest: float) -> _Time:
    """Return the kernel time to expect if none was observed."""
    few = 0 < delta.kernels + delta.graphs <= FEW_LAUNCHES * delta.spans
    if _is_copying(delta):
        fraction, error = COPYING, COPYING_ERROR
    elif few and not _is_mixed(delta):
        fraction, error = WAITING, WAITING_ERROR
    else:
        fraction, error = SLOW, SLOW_ERROR
    waited = max(0.0, longest - LAUNCH_NS)
    # Of a short time in flight, at most half is expected to be the kernel's.
    mean = min(TYPICAL_NS + fraction * waited, max(0.5, fraction) * longest)
    return _Time(mean, max(min(TYPICAL_ERROR_NS, longest / 2), error * waited))


# -- Stage 3: correct each estimate by what was observed ---------------------------------------------------------------


def _with_observations(
    estimates: KernelTimeEstimates, observed: Mapping[int, _Time], shared: Mapping[int, float]
) -> KernelTimeEstimates:
    """Update the estimates by each observed kernel time. A contradicting one first raises the estimate's variance.

    `shared` has the times in flight of the kernels of clients that share the GPU. A kernel may wait for most of that
    time, so an estimate of at most as much is no contradiction.
    """
    for pid, (mean, error) in observed.items():
        known = estimates.mean(pid) or 0.0
        if mean > known and pid in shared:
            continue
        innovation = abs(mean - known)
        contradicts = innovation > CONTRADICTION_ERRORS * math.hypot(error, estimates.standard_deviation(pid))
        if contradicts and known > shared.get(pid, 0.0):
            estimates = estimates.with_least_deviation(pid, innovation)
        if error < estimates.standard_deviation(pid):
            estimates = estimates.updated({pid: 1.0}, mean, error)
    return estimates


# -- Stage 4: correct all estimates by what the GPU measured -----------------------------------------------------------


def _with_sm_time(
    estimates: KernelTimeEstimates, launched: Deltas, gpu: GpuBusy, continuing: float, contention: float
) -> KernelTimeEstimates:
    """Correct the estimates by GPM's SM time. Work that is `continuing` may have used a part of it."""
    weights = {pid: float(delta.widths) for pid, delta in launched.items()}
    if contention:
        if estimates.mean(SLOWDOWN) is None:
            estimates = estimates.with_client(SLOWDOWN, FIRST_SLOWDOWN, SLOWDOWN_ERROR)
        weights[SLOWDOWN] = contention * sum(weights[pid] * (estimates.mean(pid) or 0.0) for pid in launched)
    error = DEVICE_ERROR * gpu.busy + LEAST_DEVICE_ERROR * gpu.capacity
    error = math.hypot(error, min(gpu.busy, float(continuing)) / 2)
    return estimates.inflated(weights, gpu.busy, error).updated(weights, gpu.busy, error)


def _with_active_time(estimates: KernelTimeEstimates, launched: Deltas, gpu: GpuBusy) -> KernelTimeEstimates:
    """Correct the estimates by the time with any kernel running, as if the clients' kernels overlapped by chance."""
    fraction = gpu.busy / gpu.capacity
    if fraction > LARGEST_ACTIVE:
        if sum(_longest(delta, gpu.capacity) * delta.widths for delta in launched.values()) < gpu.capacity:
            return estimates
        weights = {pid: float(delta.widths) for pid, delta in launched.items()}
        return estimates.updated(weights, FULL_BUSY * gpu.capacity, FULL_BUSY_ERROR * gpu.capacity)
    sms = gpu.capacity / gpu.seconds / 1e9
    # Recordings of earlier versions do not have the kernels of graphs.
    kernels = {
        pid: max(float(delta.kernels + delta.graph_kernels), delta.widths / sms) for pid, delta in launched.items()
    }
    active, count = -math.log1p(-fraction) * gpu.seconds * 1e9, sum(kernels.values())
    least = LEAST_ACTIVE_ERROR / (1 - fraction) * gpu.seconds * 1e9
    error = math.hypot(ACTIVE_ERROR * active, least, KERNEL_ACTIVE_ERROR_NS * count)
    error = math.hypot(error, UNWATCHED_ERROR * (1 - gpu.watched) * active)
    return estimates.updated(kernels, max(0.0, active - KERNEL_ACTIVE_NS * count), error)
