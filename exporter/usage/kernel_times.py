"""Kernel time estimates: how much SM time each client used in a window.

A client's SM time is the sum of the widths of its launched kernels, times their mean duration. `updated` estimates that
duration in four stages:

1. Observe: if a client still waited for the GPU at the end of its bursts, the duration is the length of the bursts,
   less the cost of launches and synchronisation.
2. Estimate new clients: the observed duration, or else a typical one. It is at most the time with work in flight.
3. Correct by observations: each later observation corrects the client's own estimate.
4. Correct by the GPU: over the last minutes, the estimates together explain what the GPU measured (least squares).
   The larger an estimate's variance, the larger its correction. What they do not explain widens all errors.

Copies within the GPU use what the kernels leave of the measured time.

The width of a kernel is the number of SMs that it can use. A burst is what a client launches until it waits for the
GPU. Work is in flight from its launch until the client has waited for it. Its area is that time, times its width.
docs/accounting.md has an example with numbers, and docs/hardware.md the accuracy, also on an H100.
"""

import math
from collections.abc import Collection, Mapping

from exporter.model.estimates import ClientEstimates, Estimate
from exporter.model.usage import GpuBusy, WorkDelta
from exporter.model.values import replace

# The fitted constants: name, value, unit, source. Source: M is measured on an H200 (driver 580.159.04). F is fitted to
# mixes of clients on it (tests/attribution); so counts each value without a record of a measurement.
# fmt: off

# A burst that ends with a synchronisation takes this time in addition to its kernels. Standard error.
SYNC_NS = 14_000                # ns              | M
SYNC_ERROR_NS = 6_000           # ns              | F

# The same for a burst with an event and blocking synchronisation. The wake-up by an event depends on the machine: it
# took 90 us on the node of the H200, and 340 us on that of an H100.
EVENT_NS = 90_000               # ns              | M
EVENT_ERROR_NS = 90_000         # ns              | F

# Time between kernels, in units of the gap within a graph. Standard error for each kernel.
GAP_NS = 1_250                  # ns              | M
KERNEL_ERROR_NS = 1_500         # ns              | F

# Standard error of an observed kernel time.
RELATIVE_ERROR = 0.05           # of the time     | F

# The same for the part of the launches that was not observed.
UNSURE_ERROR = 0.5              # of the time     | F

# On a contended GPU a kernel waits for this fraction of the shortest time in flight of any client's kernels. Standard
# errors of that wait and of the kernel time then.
WAIT = 0.9                      # of the shortest | F
WAIT_ERROR = 0.45               # of the wait     | F
SHARED_ERROR = 0.8              # of the time     | F

# The kernel time of at least this fraction of a client's launches must have been observed.
OBSERVED_FRACTION = 0.2         # of the launches | F

# The same for a client that asks: queries are probed for a small part of the time.
ASKED_FRACTION = 0.03           # of the launches | F

# Kernel time of a client that launches as fast as it can: 2.4 to 11 us in six frameworks. Standard error. Such a client
# takes up to LAUNCH_NS for a launch.
TYPICAL_NS = 6_000              # ns              | M
TYPICAL_ERROR_NS = 5_000        # ns              | F
LAUNCH_NS = 40_000              # ns              | F

# A client that waits after at most so many launches probably waits for the GPU.
FEW_LAUNCHES = 16               # launches        | F

# Kernel time of such a client, as a fraction of the time beyond LAUNCH_NS that it takes for a launch. Standard error.
WAITING = 0.85                  # of that time    | F
WAITING_ERROR = 0.4             # of that time    | F

# The same for other clients.
SLOW = 0.4                      # of that time    | F
SLOW_ERROR = 0.5                # of that time    | F

# The same for clients that also wait for copies to the GPU.
UPLOADING = 0.05                # of that time    | F
UPLOADING_ERROR = 0.3           # of that time    | F

# Largest quotient of SM time and `area`, if `bound` is unknown: kernels of different widths differ in duration.
AREA_ERROR = 1.5                # quotient        | F

# Standard error of the use of work in flight from before the window: of kernels of one width, of graphs, and of work
# that the probes do not show. The last one is also that of copies without GPM.
HELD_ERROR = 0.03               # of the area     | F
GRAPH_ERROR = 0.5               # of the area     | F
COPIES_ERROR = 0.5              # of all SMs      | F

# Shorter copies take no longer than small kernels.
SHORT_COPY_BYTES = 1 << 20      # moved           | M

# Copies reach this fraction of the memory's bandwidth. If that is unknown, it counts as the least of any GPU.
COPY_BANDWIDTH = 0.88           # of all          | M
LEAST_BANDWIDTH = 1e11          # bytes a second  | F

# A copy uses at most COPY_NS, and COPY_SMS of all SMs while its bytes move. Copies use the SMs that kernels leave, and
# are hardly slower with a third of them.
COPY_NS = 15_000                # ns of one SM    | M
COPY_SMS = 1.1                  # of all SMs      | F

# A kernel that is launched at any time waits for this fraction of a copy. One that soon follows another waits for the
# rest of the copy that began with that. Standard error.
COPY_WAIT = 0.5                 # of the copy     | M
COPY_WAIT_ERROR = 0.15          # of the copy     | F

# Standard error of a client's part of what all clients copy.
COPY_ERROR = 0.15               # of its part     | F

# Copies that may use more than this leave it open what the kernels used. With less, nothing distinguishes them.
FEW_COPIES = 0.1                # of the SM time  | F
LEAST_COPIES = 0.02             # of the SM time  | F

# Least standard error of what a client's own bursts show: they have the same errors each time.
LEAST_KNOWN_ERROR = 0.03        # of the time     | F

# A kernel has finished if it has run so much longer than its estimate.
FINISHED_ERRORS = 2.0           # standard errors | F

# An estimate by another window is better if its standard error is less than this fraction: in its first window, a
# client may work for a moment only.
BETTER = 0.5                    # quotient        | F

# An observation that differs by so much shows that a client changed, or had hardly begun before.
CONTRADICTION_ERRORS = 3.0      # standard errors | F

# Standard error of the measured SM time; both are added.
DEVICE_ERROR = 0.0015           # of the SM time  | F
LEAST_DEVICE_ERROR = 0.0001     # of all SMs      | F
FIRST_ERRORS = 5.0              # quotient        | F

# If the other clients had work in flight on more SMs, an observed kernel time is only an upper bound.
ALONE_FRACTION = 0.6            # of all SMs      | F

# On a contended GPU, kernels take longer by this. A kernel that filled an H200 took 4 % longer.
SLOWDOWN = 0.03                 # of the time     | F

# NVML counts this time for each kernel in addition to its SM time. Standard error.
KERNEL_ACTIVE_NS = 6_500        # ns              | F
KERNEL_ACTIVE_ERROR_NS = 2_000  # ns              | F

# Standard error of the mean number of running kernels: with probes, and without.
ACTIVE_ERROR = 0.2              # of the number   | F
UNWATCHED_ERROR = 0.5           # of the number   | F

# Standard error of the time with any kernel running. If that time is larger than LARGEST_ACTIVE (which must be below
# 1), all SMs may be busy.
LEAST_ACTIVE_ERROR = 0.02       # of the window   | F
LARGEST_ACTIVE = 0.95           # of the window   | F

# SM time of a GPU on which all SMs may be busy. Standard error.
FULL_BUSY = 0.95                # of all SMs      | F
FULL_BUSY_ERROR = 0.15          # of all SMs      | F
# fmt: on

Deltas = Mapping[int, WorkDelta]  # What each client did in a window, by PID.
Estimates = Mapping[int, Estimate]  # One of each client in a window, in nanoseconds, by PID.
Times = Mapping[int, float]  # The same without standard errors.
Used = Estimates  # The SM time of each client in a window, in nanoseconds of one SM, by PID.


def updated(estimates: ClientEstimates, deltas: Deltas, gpu: GpuBusy, *, complete: bool) -> ClientEstimates:
    """Update the estimates after a window. What `gpu` reports counts only if `deltas` has all clients (`complete`)."""
    launched = {pid: delta for pid, delta in deltas.items() if delta.widths}
    held, copied = _held(estimates, deltas, gpu.capacity), sum(copies(deltas, gpu).values())
    area = sum(each.mean + 2 * each.error for each in held.values()) + sum(delta.area for delta in launched.values())
    in_flight = {pid: _time_in_flight(delta, gpu.capacity) for pid, delta in launched.items()}
    # How much the clients want more SMs than there are, up to 1.
    contention = min(1.0, gpu.busy / gpu.capacity) * min(1.0, max(0.0, area / gpu.capacity - 1))
    known = estimates.pids
    observed = _observed(in_flight, contention, _waits_for_copies(launched, deltas, gpu, known))
    estimates = _with_first_estimates(estimates, launched, observed, gpu.capacity)
    shared = {pid for pid, delta in launched.items() if area + copied - delta.area > ALONE_FRACTION * gpu.capacity}
    estimates = _with_observations(estimates, observed, {pid: in_flight[pid].mean for pid in shared})
    if complete and gpu.measured:
        estimates = _with_sm_time(
            replace(estimates, scaled=True), launched, gpu, held, copied, contention, certain=launched.keys() <= known
        )
    elif complete:
        estimates = _with_active_time(replace(estimates, scaled=False), launched, gpu)
    return estimates.solved({pid: _longest(delta, gpu.capacity) for pid, delta in launched.items()})


def used_sm_time(estimates: ClientEstimates, deltas: Deltas, gpu: GpuBusy, *, complete: bool) -> Used:
    """Return the expected SM time of each client; at most what was in flight.

    Copies use what the kernels leave. A client that launched nothing may have work in flight from before. What the
    others leave of the busy time then, or exceed it by, corrects such clients, the most uncertain ones most. If
    `deltas` is not `complete`, the GPU's measurement does not constrain the sum: each client has its own error.
    """
    held, copied = _held(estimates, deltas, gpu.capacity), copies(deltas, gpu)
    used = {pid: _expected(estimates, pid, delta, gpu.capacity) for pid, delta in deltas.items()}
    used |= {pid: each.mean for pid, each in held.items()}
    left_for_copies = gpu.busy - sum(used.values()) if gpu.measured else math.inf
    copy_fraction = min(1.0, max(0.0, left_for_copies) / sum(copied.values())) if copied else 0.0
    used |= {pid: used[pid] + copy_fraction * most for pid, most in copied.items()}
    held_variance = sum(each.error**2 for each in held.values())
    if held_variance and gpu.measured:
        unexplained = gpu.busy - sum(used.values())
        for pid, (mean, error) in held.items():
            corrected = max(0.0, mean + unexplained * error**2 / held_variance)
            used[pid] = min(float(deltas[pid].bound or gpu.capacity), corrected)
    errors = _errors_of(estimates, deltas, gpu, used, held, copied, complete=complete)
    return {pid: Estimate(mean, errors.get(pid, 0.0)) for pid, mean in used.items()}


def _errors_of(
    estimates: ClientEstimates, deltas: Deltas, gpu: GpuBusy, used: Times, held: Used, copied: Times, *, complete: bool
) -> Times:
    """Return the standard error of each client's SM time."""
    weights = {pid: float(delta.widths) for pid, delta in deltas.items() if pid in estimates.pids}
    if complete and not held and not copied:
        return estimates.errors_of_known_sum(weights)
    errors = {pid: weight * estimates.standard_deviation(pid) for pid, weight in weights.items()}
    errors |= {pid: each.error for pid, each in held.items()}
    variance = sum(error**2 for error in errors.values())
    if complete and variance and not copied:
        errors = {pid: error * math.sqrt(1 - error**2 / variance) for pid, error in errors.items()}
    for pid, most in copied.items():
        # Copies get what the kernels leave, so they share the kernels' error.
        own, of_copies = errors.get(pid, 0.0), most / sum(copied.values())
        of_others = of_copies * math.sqrt(variance - own**2) if complete and gpu.measured else COPIES_ERROR * most
        of_split = COPY_ERROR * (1 - of_copies) * min(most, used[pid])
        errors[pid] = math.hypot((1 - of_copies) * own, of_others, of_split)
    return errors


def copies(deltas: Deltas, gpu: GpuBusy) -> dict[int, float]:
    """Return the largest SM time of what each client copied within the GPU, in nanoseconds of one SM."""
    most = COPY_SMS * gpu.capacity / gpu.seconds / COPY_BANDWIDTH / (gpu.bandwidth or LEAST_BANDWIDTH)
    found = {
        pid: min(gpu.capacity, COPY_NS * delta.copies + most * delta.copied)
        for pid, delta in deltas.items()
        if delta.copied
    }
    return found if sum(found.values()) > LEAST_COPIES * gpu.busy else {}


def _waits_for_copies(launched: Deltas, deltas: Deltas, gpu: GpuBusy, known: Collection[int]) -> dict[int, Estimate]:
    """Return how long the kernels of clients wait for copies, which use all SMs, in nanoseconds.

    In the first window of a client that was not `known`, the copies may have begun later, or before.
    """
    copied = sum(delta.copied for delta in deltas.values())
    if not gpu.bandwidth or not copied:
        return {}
    seconds = copied / gpu.bandwidth / COPY_BANDWIDTH
    of_one = seconds * sum(each.copied**2 / each.copies for each in deltas.values() if each.copies) / copied**2 * 1e9
    running, waits = min(1.0, seconds / gpu.seconds), {}
    for pid, delta in launched.items():
        wait = running * max(COPY_WAIT * of_one, of_one - max(0, delta.gap_ns) / max(1, delta.spans))
        waits[pid] = Estimate(wait, COPY_WAIT_ERROR * running * of_one + (0.0 if pid in known else wait))
    return waits


def _held(estimates: ClientEstimates, deltas: Deltas, capacity: float) -> dict[int, Estimate]:
    """Return the SM time of clients whose work from before the window still runs, and its standard error.

    If all kernels in flight are equally wide, they use exactly that width. Of a graph, it is unknown which run.
    A client that waits without a launch or a known copy does what the probes do not show, such as a copy of several
    pieces. It may use any SMs.
    """
    held = {}
    for pid, delta in deltas.items():
        if _continues(estimates, pid, delta):
            error = HELD_ERROR if delta.area == delta.bound and not delta.unsure else GRAPH_ERROR
            held[pid] = Estimate(float(delta.area), error * delta.area)
        elif not delta.widths + delta.copied + delta.transferred and delta.syncs + delta.uploads:
            held[pid] = Estimate(0.0, COPIES_ERROR * capacity)
    return held


def _continues(estimates: ClientEstimates, pid: int, delta: WorkDelta) -> bool:
    """Return whether earlier work may still run: a thread waits for it, or its kernel time is not over, or unknown."""
    if delta.widths or not delta.area:
        return False
    mean = estimates.mean(pid)
    longest = 0.0 if mean is None else mean + FINISHED_ERRORS * estimates.standard_deviation(pid)
    return mean is None or delta.awaited or delta.idle_ns <= longest


def _expected(estimates: ClientEstimates, pid: int, delta: WorkDelta, capacity: float) -> float:
    """Return the SM time of the launched kernels, at most what was in flight."""
    if not delta.widths:
        return 0.0
    mean = estimates.mean(pid)
    longest = _longest(delta, capacity)
    return float(delta.area) if mean is None else delta.widths * min(mean, longest)


def _longest(delta: WorkDelta, capacity: float) -> float:
    """Return the longest possible kernel time: the client used no more than all SMs while it had work in flight."""
    return min(float(delta.bound or AREA_ERROR * delta.area), capacity) / delta.widths


def _is_uploading(delta: WorkDelta) -> bool:
    return 2 * delta.uploads > delta.spans


def _is_mixed(delta: WorkDelta) -> bool:
    """Return whether much time in flight is no kernel's: of copies, or in graphs with an unknown number of kernels."""
    long_copies = delta.copied > SHORT_COPY_BYTES * delta.copies
    return long_copies or _is_uploading(delta) or 0 < delta.graphs == delta.graph_kernels


# -- Stage 1: observe the kernel times of the clients that waited for the GPU -----------------------------------------


def _time_in_flight(delta: WorkDelta, capacity: float) -> Estimate:
    """Return the mean time in flight of a client's kernels, less the time that bursts take in addition to them.

    The error is infinite if the bursts do not show when the kernels ended: then the time is only an upper bound.
    """
    streams = max(1.0, delta.area / capacity)
    least = ASKED_FRACTION if delta.asks else OBSERVED_FRACTION
    if delta.scattered or delta.sure_widths < least * delta.widths or _is_mixed(delta):
        return Estimate(delta.area / delta.widths / streams, math.inf)
    syncs, events = delta.sure_heights / delta.sure_widths, delta.sure_event_heights / delta.sure_widths
    gaps = GAP_NS * delta.sure_gaps / delta.sure_widths
    gross = delta.sure_area / delta.sure_widths
    mean = max(gross - SYNC_NS * syncs - EVENT_NS * events - gaps, gross / 10)
    mean = min(mean, delta.area / delta.widths) if delta.area else mean
    error = math.hypot(
        SYNC_ERROR_NS * syncs,
        EVENT_ERROR_NS * events,
        KERNEL_ERROR_NS,
        RELATIVE_ERROR * mean,
        UNSURE_ERROR * (1 - delta.sure_widths / delta.widths) * mean,
    )
    return Estimate(mean / streams, error)


def _observed(in_flight: Estimates, contention: float, waits: Estimates) -> Estimates:
    """Return the kernel times that the bursts show. On a contended GPU, a kernel waits about as long as all others."""
    shortest = min((latency.mean for latency in in_flight.values()), default=0.0)
    observed = {}
    for pid, (latency, error) in in_flight.items():
        if error < math.inf:
            waited, for_copies = contention * WAIT * shortest, waits.get(pid, Estimate(0.0, 0.0))
            mean = latency - min(waited + for_copies.mean, WAIT * latency)
            error = math.hypot(error, contention * SHARED_ERROR * mean, WAIT_ERROR * waited, for_copies.error)
            observed[pid] = Estimate(mean, error)
    return observed


# -- Stage 2: estimate the kernel times of new clients -----------------------------------------------------------------


def _with_first_estimates(
    estimates: ClientEstimates, launched: Deltas, observed: Estimates, capacity: float
) -> ClientEstimates:
    for pid, delta in launched.items():
        longest = _longest(delta, capacity)
        known = estimates.observed.get(pid)
        mean, error = observed.get(pid) or _typical(delta, longest)
        if known is None and not delta.spans:
            error = capacity / delta.widths  # It may have begun just now.
        if delta.scattered:
            # The part on this GPU is anything from none to all.
            mean, error = mean / delta.scattered, max(error, longest / 2)
        if known is None or delta.scattered or error < BETTER * known.error:
            estimates = estimates.with_observed(pid, mean, error)
    return estimates


def _typical(delta: WorkDelta, longest: float) -> Estimate:
    """Return the kernel time to expect if none was observed."""
    if _is_uploading(delta):
        fraction, error = UPLOADING, UPLOADING_ERROR
    elif 0 < delta.kernels + delta.graphs <= FEW_LAUNCHES * delta.spans and not _is_mixed(delta):
        fraction, error = WAITING, WAITING_ERROR
    else:
        fraction, error = SLOW, SLOW_ERROR
    waited = max(0.0, longest - LAUNCH_NS)
    # Of a short time in flight, at most half is expected to be the kernel's.
    mean = min(TYPICAL_NS + fraction * waited, max(0.5, fraction) * longest)
    return Estimate(mean, max(min(TYPICAL_ERROR_NS, longest / 2), error * waited))


# -- Stage 3: correct each estimate by what was observed ---------------------------------------------------------------


def _with_observations(estimates: ClientEstimates, observed: Estimates, shared: Times) -> ClientEstimates:
    """Update what is known of each client by its observed kernel time. A contradicting one first raises its error.

    `shared` has the times in flight of the kernels of clients that share the GPU. A kernel may wait for most of that
    time, so an estimate of at most as much is no contradiction.
    """
    for pid, (mean, error) in observed.items():
        known, deviation = estimates.observed[pid]
        innovation = abs(mean - known)
        contradicts = innovation > CONTRADICTION_ERRORS * math.hypot(error, deviation)
        if mean > known and pid in shared and not contradicts:
            continue
        if contradicts and (mean > known or known > shared.get(pid, 0.0)):
            deviation = max(deviation, innovation)
            if mean > known:
                estimates = estimates.renewed({pid: deviation})
        if error < deviation:
            part = deviation**2 / (deviation**2 + error**2)
            updated = known + part * (mean - known)
            deviation = max(deviation * math.sqrt(1 - part), LEAST_KNOWN_ERROR * updated)
            estimates = estimates.with_observed(pid, updated, deviation)
    return estimates


# -- Stage 4: correct all estimates by what the GPU measured -----------------------------------------------------------


def _with_sm_time(
    estimates: ClientEstimates,
    launched: Deltas,
    gpu: GpuBusy,
    held: Used,
    copied: float,
    contention: float,
    *,
    certain: bool,
) -> ClientEstimates:
    """Add GPM's SM time, which includes `held` (work from before the window) and 0 to `copied` of copies.

    The first window of a client is not `certain`: it loads its kernels, and may work for a moment only.
    """
    weights = {pid: float(delta.widths) for pid, delta in launched.items()}
    error = DEVICE_ERROR * gpu.busy + LEAST_DEVICE_ERROR * gpu.capacity
    error = math.hypot(error * (1.0 if certain else FIRST_ERRORS), *(each.error for each in held.values()))
    expected = sum(weight * (estimates.mean(pid) or 0.0) for pid, weight in weights.items())
    busy = max(0.0, gpu.busy - sum(each.mean for each in held.values())) / (1 + SLOWDOWN * contention)
    if copied > FEW_COPIES * busy and busy - copied <= expected <= busy:
        return estimates
    busy, error = max(busy - copied, min(busy, expected)), math.hypot(error, min(copied, FEW_COPIES * busy) / 2)
    largest = {pid: _longest(delta, gpu.capacity) for pid, delta in launched.items()}
    if certain and not contention:
        mixed = {pid for pid, delta in launched.items() if delta.bound > delta.area}
        estimates = _refuted(estimates, weights, mixed, busy, error)
    return estimates.measured(weights, busy, error, gpu.seconds, largest)


def _refuted(
    estimates: ClientEstimates, weights: Times, mixed: Collection[int], busy: float, error: float
) -> ClientEstimates:
    """Raise the errors of what bursts of `mixed` widths show, if the GPU measured another sum.

    The mean width counts kernels, not their time. A narrow one may run far longer, as while it waits for another GPU.
    """
    known = {pid: estimates.observed[pid] for pid in weights}
    difference = abs(busy - sum(weights[pid] * mean for pid, (mean, _) in known.items()))
    errors = difference / math.hypot(error, *(weights[pid] * each for pid, (_, each) in known.items()))
    for pid in mixed if errors > CONTRADICTION_ERRORS else ():
        estimates = estimates.with_observed(pid, known[pid].mean, errors * known[pid].error)
    return estimates


def _with_active_time(estimates: ClientEstimates, launched: Deltas, gpu: GpuBusy) -> ClientEstimates:
    """Correct the estimates by the time with any kernel running, as if the clients' kernels overlapped by chance."""
    fraction = gpu.busy / gpu.capacity
    if fraction > LARGEST_ACTIVE:
        if sum(_longest(delta, gpu.capacity) * delta.widths for delta in launched.values()) < gpu.capacity:
            return estimates
        weights = {pid: float(delta.widths) for pid, delta in launched.items()}
        return estimates.measured(weights, FULL_BUSY * gpu.capacity, FULL_BUSY_ERROR * gpu.capacity, gpu.seconds)
    sms = gpu.capacity / gpu.seconds / 1e9
    # Recordings of earlier versions do not have the kernels of graphs.
    kernels = {
        pid: max(float(delta.kernels + delta.graph_kernels), delta.widths / sms) for pid, delta in launched.items()
    }
    active, count = -math.log1p(-fraction) * gpu.seconds * 1e9, sum(kernels.values())
    least = LEAST_ACTIVE_ERROR / (1 - fraction) * gpu.seconds * 1e9
    error = math.hypot(ACTIVE_ERROR * active, least, KERNEL_ACTIVE_ERROR_NS * count)
    error = math.hypot(error, UNWATCHED_ERROR * (1 - gpu.watched) * active)
    return estimates.measured(kernels, max(0.0, active - KERNEL_ACTIVE_NS * count), error, gpu.seconds)
