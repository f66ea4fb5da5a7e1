"""Kernel time estimates: how much SM time each client used in a window.

A client's SM time is the sum of the widths of its launched kernels, times their mean duration. The first window of a
client gives the first estimate of that duration. If the client still waited for the GPU at the end of its bursts, the
duration is observed: the length of the bursts, less the cost of launches and synchronisation. Otherwise kernels have a
typical duration. It is at most the time for which work was in flight. Every later window corrects the estimates of all
clients, so that together they explain what the GPU measured: the larger an estimate's variance, the larger its
correction.

The width of a kernel is the number of SMs that it can use. A burst is what a client launches until it waits for the
GPU. Work is in flight from its launch until the client has waited for it. Its area is that time, times its width.

Constants were measured on an H200 (driver 580.159.04), or fitted to mixes on it in tests/attribution. docs/hardware.md
has the accuracy, also on an H100.
"""

import math
from collections.abc import Mapping

from exporter.model.usage import GpuBusy, KernelTimeEstimates, WorkDelta

SYNC_NS, SYNC_ERROR_NS = 14_000, 6_000
"""Time that a burst with a synchronisation takes in addition to its kernels, and its standard error."""

EVENT_NS, EVENT_ERROR_NS = 90_000, 90_000
"""The same for a burst with an event and blocking synchronisation. The wake-up by an event depends on the machine: it
took 90 us on the node of the H200, and 340 us on that of an H100."""

GAP_NS, KERNEL_ERROR_NS = 1_250, 1_500
"""Time between kernels, in units of the gap within a graph, and its standard error for each kernel."""

RELATIVE_ERROR = 0.05
"""Standard error of an observed kernel time, as a fraction of it."""

WAIT, WAIT_ERROR, SHARED_ERROR = 0.9, 0.45, 0.8
"""On a contended GPU a kernel waits for this fraction of the shortest time in flight of any client's kernels. Standard
errors of that time and of the kernel time then, as fractions of them."""

OBSERVED_FRACTION = 0.2
"""The kernel time of at least this fraction of a client's launches must have been observed."""

TYPICAL_NS, TYPICAL_ERROR_NS, LAUNCH_NS = 6_000, 5_000, 40_000
"""Kernel time of a client that launches as fast as it can, and its standard error: 2.4 to 11 us in six frameworks. Such
a client takes up to LAUNCH_NS for a launch."""

FEW_LAUNCHES = 16
"""A client that waits after at most so many launches probably waits for the GPU."""

WAITING, WAITING_ERROR = 0.85, 0.4
"""Kernel time of such a client, and its standard error, as fractions of the time beyond LAUNCH_NS that it takes for a
launch."""

SLOW, SLOW_ERROR = 0.4, 0.5
"""The same for other clients."""

COPYING, COPYING_ERROR = 0.05, 0.3
"""The same for clients that also wait for copies to the GPU."""

AREA_ERROR = 1.5
"""Largest quotient of SM time and `area`, if `bound` is unknown: kernels of different widths differ in duration."""

FINISHED_ERRORS = 2.0
"""A kernel has finished if it has run so many standard errors longer than its estimate."""

IMPOSSIBLE, BETTER = 1.5, 0.5
"""An estimate is impossible if it is so many times the longest possible kernel time. A first estimate by another window
is better if its standard error is less than this fraction: in its first window, a client may work for a moment only."""

CONTRADICTION_ERRORS = 3.0
"""An observation that differs by so many standard errors shows that a client changed, or had hardly begun before."""

DEVICE_ERROR, LEAST_DEVICE_ERROR = 0.02, 0.001
"""Standard error of the measured SM time, as a fraction of it, and as a fraction of all SMs; both are added."""

ALONE_FRACTION = 0.6
"""If the other clients had work in flight on more than this fraction of the SMs, an observed kernel time is only an
upper bound."""

LONGER, LONGER_MEAN, LONGER_ERROR, LONGEST = 0, 0.03, 0.03, 0.25
"""LONGER is used as a PID, for the estimate of how much longer kernels take on a contended GPU. Its first mean and
standard error are fractions. A kernel that filled an H200 took 4 % longer. If the mean exceeds LONGEST, a client has
changed."""

KERNEL_ACTIVE_NS, KERNEL_ACTIVE_ERROR_NS = 6_500, 2_000
"""NVML counts this time for each kernel in addition to its SM time; and its standard error."""

ACTIVE_ERROR, UNWATCHED_ERROR = 0.2, 0.5
"""Standard error of the mean number of running kernels, as a fraction of it: with probes, and without."""

LEAST_ACTIVE_ERROR, LARGEST_ACTIVE = 0.02, 0.95
"""Standard error of the time with any kernel running, as a fraction of the window. If that fraction is larger than
LARGEST_ACTIVE, all SMs may be busy."""

FULL_BUSY, FULL_BUSY_ERROR = 0.95, 0.15
"""SM time of a GPU on which all SMs may be busy, as a fraction of all SMs, and its standard error."""


def updated(
    estimates: KernelTimeEstimates, deltas: Mapping[int, WorkDelta], gpu: GpuBusy, *, complete: bool
) -> KernelTimeEstimates:
    """Update the estimates after a window. What `gpu` reports counts only if `deltas` has all clients (`complete`)."""
    launched = {pid: delta for pid, delta in deltas.items() if delta.widths}
    continuing = sum(delta.area for pid, delta in deltas.items() if _continues(estimates, pid, delta))
    area = continuing + sum(delta.area for delta in launched.values())
    latencies = {pid: _latency(delta, gpu) for pid, delta in launched.items()}
    wait = min((latency for latency, _, _ in latencies.values()), default=0.0)
    contention = _contention(area, gpu.busy, gpu.capacity)
    # A client that began within the window has contended only since then.
    active = max((delta.flight_ns for delta in launched.values()), default=0) / (gpu.seconds * 1e9)
    at_first = _contention(area, gpu.busy, gpu.capacity * min(1.0, active or 1.0))
    observed = {
        pid: _observed(latency, error, at_first if estimates.mean(pid) is None else contention, wait) if sure else None
        for pid, (latency, error, sure) in latencies.items()
    }
    shared = {
        pid: latencies[pid][0] for pid, delta in launched.items() if area - delta.area > ALONE_FRACTION * gpu.capacity
    }
    if not contention or (estimates.mean(LONGER) or 0.0) > LONGEST:
        estimates = estimates.without((LONGER,))
    estimates = _with_possible(estimates, launched, observed, gpu.capacity)
    estimates = _with_observations(estimates, observed, shared)
    expected = sum(_expected(estimates, pid, delta, gpu.capacity) for pid, delta in launched.items())
    if not complete or (continuing and expected < gpu.busy):
        return estimates
    if not gpu.measured:
        return _with_active_time(estimates, launched, gpu)
    weights = {pid: float(delta.widths) for pid, delta in launched.items()}
    if contention:
        if estimates.mean(LONGER) is None:
            estimates = estimates.with_client(LONGER, LONGER_MEAN, LONGER_ERROR)
        weights[LONGER] = contention * sum(weights[pid] * (estimates.mean(pid) or 0.0) for pid in launched)
    error = DEVICE_ERROR * gpu.busy + LEAST_DEVICE_ERROR * gpu.capacity
    measurement = weights, gpu.busy, math.hypot(error, min(gpu.busy, float(continuing)) / 2)
    return estimates.inflated(*measurement).updated(*measurement)


def _contention(area: float, busy: float, capacity: float) -> float:
    """Return how much the clients want more SMs than there are, up to 1. `capacity` is the time of all SMs."""
    return min(1.0, busy / capacity) * min(1.0, max(0.0, area / capacity - 1))


def _with_active_time(
    estimates: KernelTimeEstimates, launched: Mapping[int, WorkDelta], gpu: GpuBusy
) -> KernelTimeEstimates:
    """Correct the estimates by the time with any kernel running, as if the clients' kernels overlapped by chance."""
    fraction = gpu.busy / gpu.capacity
    if fraction > LARGEST_ACTIVE:
        if sum(_longest(delta, gpu.capacity) * delta.widths for delta in launched.values()) < gpu.capacity:
            return estimates
        weights = {pid: float(delta.widths) for pid, delta in launched.items()}
        return estimates.updated(weights, FULL_BUSY * gpu.capacity, FULL_BUSY_ERROR * gpu.capacity)
    sms = gpu.capacity / gpu.seconds / 1e9
    kernels = {pid: delta.kernel_count(sms) for pid, delta in launched.items()}
    active, count = -math.log1p(-fraction) * gpu.seconds * 1e9, sum(kernels.values())
    least = LEAST_ACTIVE_ERROR / (1 - fraction) * gpu.seconds * 1e9
    error = math.hypot(ACTIVE_ERROR * active, least, KERNEL_ACTIVE_ERROR_NS * count)
    error = math.hypot(error, UNWATCHED_ERROR * (1 - gpu.watched) * active)
    return estimates.updated(kernels, max(0.0, active - KERNEL_ACTIVE_NS * count), error)


def used_sm_time(estimates: KernelTimeEstimates, deltas: Mapping[int, WorkDelta], gpu: GpuBusy) -> dict[int, float]:
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
    estimates: KernelTimeEstimates, deltas: Mapping[int, WorkDelta], used: Mapping[int, float], *, complete: bool
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
    for pid, each in used.items():
        part = each / total
        own = (weights[pid] * estimates.standard_deviation(pid)) ** 2 if pid in weights else (each / 2) ** 2
        variance = own - 2 * part * with_sum.get(pid, 0.0) + part**2 * variance_of_sum if complete else own
        errors[pid] = math.sqrt(max(0.0, variance)) / total
    return errors


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


def _with_possible(
    estimates: KernelTimeEstimates,
    deltas: Mapping[int, WorkDelta],
    observed: Mapping[int, tuple[float, float] | None],
    capacity: float,
) -> KernelTimeEstimates:
    """Add the estimates of new clients, replace impossible ones, and those for which this window has better ones."""
    for pid, delta in deltas.items():
        longest = _longest(delta, capacity)
        mean = estimates.mean(pid)
        found, error = observed[pid] or _typical(delta, longest)
        if mean is None or mean > IMPOSSIBLE * longest or error < BETTER * estimates.standard_deviation(pid):
            estimates = estimates.without((pid,)).with_client(pid, found, error)
    return estimates


def _typical(delta: WorkDelta, longest: float) -> tuple[float, float]:
    """Return the kernel time to expect if none was observed, and its standard error."""
    few = 0 < delta.kernels + delta.graphs <= FEW_LAUNCHES * delta.spans
    if _copies(delta):
        fraction, error = COPYING, COPYING_ERROR
    elif few and not _is_mixed(delta):
        fraction, error = WAITING, WAITING_ERROR
    else:
        fraction, error = SLOW, SLOW_ERROR
    waited = max(0.0, longest - LAUNCH_NS)
    # Of a short time in flight, at most half is expected to be the kernel's.
    mean = min(TYPICAL_NS + fraction * waited, max(0.5, fraction) * longest)
    return mean, max(min(TYPICAL_ERROR_NS, longest / 2), error * waited)


def _with_observations(
    estimates: KernelTimeEstimates, observed: Mapping[int, tuple[float, float] | None], shared: Mapping[int, float]
) -> KernelTimeEstimates:
    """Update the estimates by each observed kernel time. A contradicting one first raises the estimate's variance.

    `shared` has the times in flight of the kernels of clients that share the GPU. A kernel may wait for most of that
    time, so an estimate of at most as much is no contradiction.
    """
    for pid, each in observed.items():
        if each is None:
            continue
        mean, error = each
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


def _copies(delta: WorkDelta) -> bool:
    """Return whether most bursts also copy to the GPU."""
    return 2 * delta.uploads > delta.spans


def _is_mixed(delta: WorkDelta) -> bool:
    """Return whether much time in flight is no kernel's: of copies, or in graphs with an unknown number of kernels."""
    return _copies(delta) or 0 < delta.graphs == delta.graph_kernels


def _latency(delta: WorkDelta, gpu: GpuBusy) -> tuple[float, float, bool]:
    """Return the time in flight of a kernel, its standard error, and whether the GPU was behind."""
    streams = max(1.0, delta.area / gpu.capacity)
    if delta.sure_widths < OBSERVED_FRACTION * delta.widths or _is_mixed(delta):
        return delta.area / delta.widths / streams, 0.0, False
    syncs, events = delta.sure_heights / delta.sure_widths, delta.sure_event_heights / delta.sure_widths
    gaps = GAP_NS * delta.sure_gaps / delta.sure_widths
    gross = delta.sure_area / delta.sure_widths
    mean = max(gross - SYNC_NS * syncs - EVENT_NS * events - gaps, gross / 10)
    mean = min(mean, delta.area / delta.widths) if delta.area else mean
    error = math.hypot(SYNC_ERROR_NS * syncs, EVENT_ERROR_NS * events, KERNEL_ERROR_NS, RELATIVE_ERROR * mean)
    return mean / streams, error, True


def _observed(latency: float, error: float, contention: float, wait: float) -> tuple[float, float]:
    """Return a kernel time by the time in flight, and its standard error.

    If the clients want more SMs than there are (`contention`, up to 1), a kernel waits about as long as all others do.
    """
    waited = contention * WAIT * wait
    mean = latency - waited
    return mean, math.hypot(error, contention * SHARED_ERROR * mean, WAIT_ERROR * waited)
