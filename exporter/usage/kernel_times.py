"""Kernel time estimates: how much SM time each client used in a window.

A client's SM time is the sum of the widths of its launched kernels, times their mean duration. The first window of a
client gives the first estimate of that duration. If the GPU was behind at the end of its bursts, the duration is
observed: the length of the bursts, less the cost of launches and synchronisation. Otherwise it is only known that the
kernels lasted no longer than work was in flight. Every later window corrects the estimates of all clients, so that
together they explain the SM time that the GPU measured: the larger an estimate's variance, the larger its correction.

Measured on an H200 (driver 580.159.04). docs/accounting.md has the accuracy.
"""

import math
from collections.abc import Mapping

from exporter.model.usage import KernelTimeEstimates, WorkDelta

SYNC_NS, EVENT_NS, GAP_NS = 14_000, 90_000, 1_250
"""Time that a burst takes in addition to its kernels: until the first starts and the caller learns that the last has
ended, by a synchronisation or by an event with blocking synchronisation; and between kernels, in units of the gap
within a graph."""

SYNC_ERROR_NS, EVENT_ERROR_NS, KERNEL_ERROR_NS = 6_000, 45_000, 1_500
"""Standard errors of SYNC_NS and EVENT_NS, for each burst, and of GAP_NS, for each kernel."""

RELATIVE_ERROR, SHARED_ERROR, FULL_ERROR = 0.05, 0.25, 1.0
"""Standard errors of an observed kernel time, as fractions of it: always; because other clients slowed it down, if they
had work in flight on all SMs; and the same on a full GPU."""

OBSERVED_FRACTION = 0.2
"""The kernel time of at least this fraction of a client's launches must have been observed."""

FIRST_MEAN, FIRST_ERROR = 0.25, 0.5
"""Estimate of a kernel time that was not observed, and its standard error, as fractions of the longest possible."""

OBSERVATION_RATIO = 3.0
"""An observation is used if its standard error is less than so many times that of the estimate."""

FINISHED_ERRORS = 2.0
"""A kernel has finished if it has run so many standard errors longer than its estimate."""

IMPOSSIBLE = 1.5
"""An estimate, or its standard error, is impossible if it is so many times the longest possible kernel time."""

CONTRADICTION_ERRORS = 3.0
"""An observation that differs by so many standard errors shows that a client changed, or had hardly begun before."""

DEVICE_ERROR, LEAST_DEVICE_ERROR = 0.02, 0.001
"""Standard error of the measured SM time, as a fraction of it, and as a fraction of all SMs; both are added."""

FULL, CROWDED = 0.8, 1.15
"""A GPU is full from this fraction of its SMs on. A full GPU is crowded if its clients' estimates exceed the measured
SM time by this factor: then they wait for each other, and no kernel takes as long as it would alone."""

CROWDED_ERROR = 0.1
"""Additional standard error of the SM time of a crowded GPU, as a fraction of it."""


def updated(
    estimates: KernelTimeEstimates, deltas: Mapping[int, WorkDelta], capacity: float, busy: float
) -> KernelTimeEstimates:
    """Update the estimates after a window. `deltas` must include all clients that contributed to `busy`.

    `capacity` is the SM time of the window and `busy` the used part of it, in nanoseconds of one SM.
    """
    launched = {pid: delta for pid, delta in deltas.items() if delta.widths}
    continuing = sum(delta.area for pid, delta in deltas.items() if _continues(estimates, pid, delta))
    area = continuing + sum(delta.area for delta in launched.values())
    slowdowns = {pid: _slowdown_error(area - delta.area, capacity, busy) for pid, delta in launched.items()}
    estimates = _with_possible(estimates, launched, slowdowns)
    expected = sum(_expected(estimates, pid, delta) for pid, delta in launched.items())
    crowded = busy > FULL * capacity and expected > CROWDED * busy
    if not crowded:
        estimates = _with_observations(estimates, launched, slowdowns)
    if continuing and expected < busy:
        return estimates
    error = DEVICE_ERROR * busy + LEAST_DEVICE_ERROR * capacity + (CROWDED_ERROR * busy if crowded else 0.0)
    weights = {pid: float(delta.widths) for pid, delta in launched.items()}
    measurement = weights, busy, math.hypot(error, min(busy, float(continuing)) / 2)
    return (estimates if crowded else estimates.inflated(*measurement)).updated(*measurement)


def used_sm_time(estimates: KernelTimeEstimates, deltas: Mapping[int, WorkDelta], busy: float) -> dict[int, float]:
    """Return the expected SM time of each client, in nanoseconds of one SM; at most its `area`.

    A client that launched nothing may have work in flight from before. Such clients share what the others leave of
    `busy`.
    """
    used = {pid: _expected(estimates, pid, delta) for pid, delta in deltas.items()}
    continuing = {pid: float(delta.area) for pid, delta in deltas.items() if _continues(estimates, pid, delta)}
    if continuing:
        fraction = min(1.0, max(0.0, busy - sum(used.values())) / sum(continuing.values()))
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


def _expected(estimates: KernelTimeEstimates, pid: int, delta: WorkDelta) -> float:
    """Return the SM time of the launched kernels, at most what was in flight."""
    if not delta.widths:
        return 0.0
    mean = estimates.mean(pid)
    return float(delta.area) if mean is None else min(delta.widths * mean, float(delta.area))


def _with_possible(
    estimates: KernelTimeEstimates, deltas: Mapping[int, WorkDelta], slowdowns: Mapping[int, float]
) -> KernelTimeEstimates:
    """Add the estimates of new clients, and replace impossible ones: no kernel lasts longer than work was in flight."""
    for pid, delta in deltas.items():
        longest = delta.area / delta.widths
        mean = estimates.mean(pid)
        if mean is None or mean > IMPOSSIBLE * longest or estimates.standard_deviation(pid) > IMPOSSIBLE * longest:
            guess = FIRST_MEAN * longest, max(FIRST_ERROR * longest, KERNEL_ERROR_NS)
            first = _observed(delta, slowdowns[pid]) or guess
            estimates = estimates.without((pid,)).with_client(pid, *first)
    return estimates


def _with_observations(
    estimates: KernelTimeEstimates, deltas: Mapping[int, WorkDelta], slowdowns: Mapping[int, float]
) -> KernelTimeEstimates:
    """Update the estimates by each observed kernel time. A contradicting one first raises the estimate's variance."""
    for pid, delta in deltas.items():
        observed = _observed(delta, slowdowns[pid])
        if observed is None:
            continue
        mean, error = observed
        innovation = abs(mean - (estimates.mean(pid) or 0.0))
        if innovation > CONTRADICTION_ERRORS * math.hypot(error, estimates.standard_deviation(pid)):
            estimates = estimates.with_least_deviation(pid, innovation)
        if estimates.standard_deviation(pid) * OBSERVATION_RATIO > error:
            estimates = estimates.updated({pid: 1.0}, mean, error)
    return estimates


def _slowdown_error(others_area: int, capacity: float, busy: float) -> float:
    """Return the relative error of an observed kernel time that is due to the other clients' work in flight."""
    others = min(1.0, others_area / capacity)
    return SHARED_ERROR * others if busy < FULL * capacity else FULL_ERROR * min(1.0, 4 * others)


def _observed(delta: WorkDelta, slowdown: float) -> tuple[float, float] | None:
    """Return the mean kernel time while the GPU was behind, and its standard error; None if too little was observed."""
    if not delta.widths or delta.sure_widths < OBSERVED_FRACTION * delta.widths:
        return None
    syncs, events = delta.sure_heights / delta.sure_widths, delta.sure_event_heights / delta.sure_widths
    gaps = GAP_NS * delta.sure_gaps / delta.sure_widths
    gross = delta.sure_area / delta.sure_widths
    mean = max(gross - SYNC_NS * syncs - EVENT_NS * events - gaps, gross / 10)
    mean = min(mean, delta.area / delta.widths) if delta.area else mean
    error = math.hypot(SYNC_ERROR_NS * syncs, EVENT_ERROR_NS * events, KERNEL_ERROR_NS, RELATIVE_ERROR * mean)
    return mean, math.hypot(error, slowdown * mean)
