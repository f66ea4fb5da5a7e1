"""Attribution: the SM time of a GPU, divided among the clients in each window, and posted to their accounts.

With GPM the SM time of a GPU is measured: with the libcuda probes each second, else with each reading of the GPU.
Without GPM, launches are the only measure of it. NVML's utilization is the time with any kernel running: up to several
times more. It never counts as SM time, but limits it.
"""

import math
from collections.abc import Collection, Mapping
from functools import cache

from exporter.model.estimates import ClientEstimates
from exporter.model.launches import ProcessWork, WorkReading
from exporter.model.node import Gpu, Node
from exporter.model.observation import GpuReading, GpuUuid, Observation
from exporter.model.settings import ACTIVE_THREAD_PERCENTAGE
from exporter.model.sharing import GpuUse
from exporter.model.usage import (
    GpuAttribution,
    GpuBusy,
    LaunchRate,
    Method,
    Share,
    Split,
    UsageKey,
    WorkDelta,
    carried_on,
    work_delta,
)
from exporter.model.values import frozen, replace, without
from exporter.parse.mps_variables import parse_percentage
from exporter.state.devices import (
    ELSEWHERE,
    devices_of,
    gpus_of_clients,
    has_unlisted_gpu,
    lists_processes,
    logged_gpus,
    serves_gpu,
)
from exporter.usage import kernel_times
from exporter.usage.accounting import key_of, post_time
from exporter.usage.contention import contended
from exporter.usage.kernel_times import Deltas, Used
from exporter.usage.last_minute import MAX_SCALE, MODEL_ERROR, Splits, may_belong_to, watched_fraction, with_window

Pids = frozenset[int]

LATE_SECONDS = 15.0  # A reading that is older than the last window, but less than this, is late or a repetition.
MAX_WINDOW_SECONDS = 120.0  # Longer windows are ignored: the clients in them are unknown.
GPM_SECONDS = 15.0  # For so long after GPM was read, a reading of the GPU without GPM has no new SM time.
FRESH_SECONDS = 2.0  # Launches explain a GPU's use if both were read within this time.

WATCHED_FRACTION, LEAST_WATCHED_SECONDS = 0.8, 0.2
"""Estimates are updated by GPM if the probes were attached for this fraction of a window, as if the rest had been like
it. If they were attached for less than these seconds, each client counts as in the last window with probes."""

UNWATCHED_ERROR = 0.1  # Standard error of what a client did while the probes were detached, as a fraction of it.
MAX_ERROR = 0.25  # A share is withheld if its standard error exceeds this fraction of the clients' SM time.

LATE_SCALE = 1.05
"""The same if there are clients whose first launches were not seen: they may have used the rest."""

IDLE_SM = 0.001  # A GPU on which less of the SMs is busy is idle, and so are its clients.

LARGEST_ERROR = 0.6
"""Standard error of a share of which only its limits are known, 0 and the busy SMs, as a fraction of the geometric mean
of its distances from them."""

LAUNCHES_ERROR = 0.25  # MODEL_ERROR without GPM.

SETTLED_ERROR, SETTLED_CHANGE, SETTLED_DIFFERENCE = 0.5, 0.2, 0.1
"""The clients of a GPU are settled up to this standard error of a client's SM time, this change of its launches, and
this difference from what GPM measured, each as a fraction. In replays of recordings with pauses of 14 s or more
(tests/usage/test_settled.py), without the first limit the mean error was 2 points larger for clients that begin
together. Without the second one, or with 0.2 as the third, two standard errors covered less than 90 %."""

SETTLED_SHARE, SETTLED_SM = 0.05, 0.003
"""The fractions are of at least so much of all SMs: those of a client's SM time, and that of GPM's. With 0.003 as the
first one, half as many clients are settled, and the errors are the same."""

PROBE_SECONDS = 1.1e-6
"""A client whose GPU waits for each launch launches faster without probes, because each launch takes less time."""


def attribute(node: Node, seen: Observation) -> Node:
    """Attribute the SM time that an observation has, if any."""
    match seen:
        case WorkReading():
            for uuid in node.gpus:
                node = _with_kernel_times(node, uuid)
        case GpuUse(gpu=gpu, at=at):
            node = _with_state(node, gpu, replace(_state(node, gpu), gpm_read_at=at))
            return _with_window(node, gpu, at, seen.seconds, seen.sm_utilization, seen.dram_bandwidth)
        case GpuReading(gpu=gpu, at=at, problem=None):
            state = _state(node, gpu)
            if state.gpm_read_at is not None and abs(at - state.gpm_read_at) < GPM_SECONDS:
                return node
            if seen.sm_utilization is not None and seen.gpm_seconds is not None:
                return _with_window(node, gpu, at, seen.gpm_seconds, seen.sm_utilization, seen.dram_bandwidth)
            node = _with_state(node, gpu, replace(state, read_at=at))
            # The fraction of the time with any kernel running, by NVML's samples since the last reading.
            active = None if seen.gpu_percent is None else seen.gpu_percent / 100
            if seen.process_utilization is not None:
                active = sum(_utilization(seen).values()) / 100
            if state.read_at is not None and active is not None and node.work is not None:
                return _with_window(node, gpu, at, at - state.read_at, active, None, measured=False)
    return node


def _with_kernel_times(node: Node, uuid: GpuUuid) -> Node:
    """Update the estimates of a GPU without GPM by the last two readings of the probes.

    NVML is read more rarely, and a client may work alone for some seconds only.
    """
    state, readings = _state(node, uuid), node.launch_history.readings[-2:]
    if state.gpm_read_at is not None or state.read_at is None or len(readings) < 2 or readings[1] is not node.work:
        return node
    before, work = readings
    seconds = (work.boot_ns - before.boot_ns) / 1e9
    gpu = node.gpus[uuid]
    clients = _clients_on(node, gpu)
    if gpu.reading.mig is not None or not clients or not work.sms:
        return node
    if watched_fraction(node, before.boot_ns, work.boot_ns) < WATCHED_FRACTION:
        return node
    deltas = _deltas(node, uuid, before, work, clients, frozenset(), measured=False)
    capacity = seconds * work.sms * 1e9
    use = GpuBusy(seconds=seconds, capacity=capacity, busy=capacity, measured=False)
    estimates = state.estimates.without(_outdated(node, state, clients))
    estimates = kernel_times.updated(estimates, deltas, use, complete=False)
    return _with_state(node, uuid, replace(state, estimates=estimates))


def processes_to_watch(node: Node) -> tuple[dict[int, float], Pids, bool]:
    """Return the clients with their active thread percentages, the other processes on GPUs, and if all are settled.

    The percentage is the lesser of the server's and of the one in the process's environment. A new client is not
    settled, because a pause of the probes must end for it.
    """
    clients = {}
    for daemon in node.daemons.values():
        for pid, client in daemon.clients.items():
            server = daemon.servers.get(client.server)
            percentage = None if server is None else server.limits_of(client).active_thread_percentage
            process = node.processes.get(pid)
            variables = {} if process is None or process.environment is None else process.environment
            own = parse_percentage(variables.get(ACTIVE_THREAD_PERCENTAGE, "100"))
            clients[pid] = min(100.0 if percentage is None else percentage, own or 100.0)
    others = {process.pid for gpu in node.gpus.values() for process in gpu.reading.compute_processes or ()}
    in_use = [gpu for gpu in node.attribution.values() if not gpu.clients.isdisjoint(clients)]
    settled = clients.keys() <= {pid for gpu in in_use for pid in gpu.clients} and all(gpu.settled for gpu in in_use)
    return clients, frozenset(others - clients.keys()), settled


def _with_window(
    node: Node, uuid: GpuUuid, at: float, seconds: float, busy: float, dram: float | None, *, measured: bool = True
) -> Node:
    """Update the estimates by a window, divide its SM time, and post it.

    `busy` is the fraction of the SMs that were busy; if it is not `measured`, of the time with any kernel running.
    """
    gpu, state = node.gpus.get(uuid), _state(node, uuid)
    if gpu is None or math.isnan(busy) or not 0 < seconds <= MAX_WINDOW_SECONDS:
        return node
    # If it seems to be much older, the clock was set.
    if state.windows and 0 <= state.windows[-1].at - at <= LATE_SECONDS:
        return node
    if gpu.reading.mig_mode:
        # Its instances have the SM time.
        return node
    busy = min(max(busy, 0.0), 1.0)
    bypassing, mps = _bypassing_parts(gpu)
    present = _clients_on(node, gpu)
    # Clients that were on the GPU at some time since the last window, and may have left it.
    clients = present | state.clients
    for daemon in node.daemons.values() if state.windows else ():
        connections, since = daemon.connections, state.windows[-1].at
        left = frozenset(pid for pid, left_at in connections.disconnected_at.items() if left_at > since)
        clients |= {pid for pid, gpus in gpus_of_clients(node, daemon, left, in_use=True).items() if uuid in gpus}
    # The probes count for the whole GPU, so they divide nothing on a MIG instance.
    recent = node.work is not None and abs(at - node.work.at) <= FRESH_SECONDS
    work = node.work if recent and gpu.reading.mig is None else None
    # The first window without GPM takes long. It has the readings that are remembered.
    before = state.work or (None if measured else next(iter(node.launch_history.readings), None))
    if before is not None and work is not None:
        work = carried_on(before, work)
    launches = _launches(node, uuid, before, work, present, clients - present, measured=measured)
    sms, bandwidth = (0, 0) if node.work is None else (node.work.sms, node.work.bandwidth)
    capacity = seconds * sms * 1e9
    used = busy * mps * capacity
    use = GpuBusy(seconds=seconds, capacity=capacity, busy=used, measured=measured, bandwidth=bandwidth)
    deltas: Deltas = {}
    if launches.known:
        rate = launches.rates[-1]
        deltas = {pid: delta.scaled(seconds / rate.seconds) for pid, delta in rate.deltas.items() if pid in clients}
    complete = clients <= deltas.keys()
    outdated = _outdated(node, state, clients)
    estimates = state.estimates.without(outdated)
    if capacity and mps and (launches.watched >= WATCHED_FRACTION or (launches.watched and not measured)):
        use = replace(use, watched=launches.watched)
        estimates = kernel_times.updated(estimates, deltas, use, complete=complete)
    sm_time = kernel_times.used_sm_time(estimates, deltas, use, complete=complete)
    shares: dict[int, Share] = {}
    withheld: Mapping[int, Share] = {}
    unknown = clients
    elsewhere = launches.known and clients & node.launch_history.begun.keys() - deltas.keys()
    if mps and measured and len(clients) == 1 and clients == state.clients and not elsewhere:
        shares, unknown = dict.fromkeys(clients, Share(method=Method.MEASURED, sm=busy * mps)), frozenset()
    elif mps and launches.known and capacity:
        changes = {} if launches.watched else launches.changes
        shares, withheld, unknown = _estimated(clients, deltas, sm_time, use, changes)
    if measured:
        others = {pid: Share(method=Method.MEASURED, sm=busy * part) for pid, part in bypassing.items() if part > 0}
        shares = {**shares, **others}
    used = sum(share.sm for share in shares.values())
    sm = busy if measured else used
    # Copies have no width.
    explained = capacity and measured and launches.watched and complete and not kernel_times.copies(deltas, use)
    split = Split(
        at=at,
        seconds=seconds,
        sm=sm,
        shares=shares,
        unattributed=max(0.0, sm - used),
        dram=dram,
        withheld=withheld,
        unknown=unknown if measured and mps else unknown | (bypassing.keys() - shares.keys()),
        measured=measured,
        widths={pid: delta.widths / capacity for pid, delta in deltas.items() if delta.widths} if explained else {},
        areas={pid: delta.area / capacity for pid, delta in deltas.items() if capacity},
    )
    used_now = {pid for pid, share in split.estimates.items() if share.sm or share.error}
    have_begun = clients & ((state.began.keys() - outdated) | used_now)
    state = replace(
        state,
        began={pid: min(at - seconds, state.began.get(pid, at)) for pid in have_begun},
        windows=with_window(state.windows, split),
        estimates=estimates,
        clients=present,
        work=work or state.work,
        rates=launches.rates,
        settled=_are_settled(present, launches, deltas, estimates, sm_time, use),
    )
    node = _with_state(node, uuid, state)
    states = {key: gpu for key, gpu in node.attribution.items() if gpu.windows}
    totals = post_time(node.usage_totals, uuid, round(sm * seconds * 1e6), _parts(node, split), at=at)
    node = replace(node, splits=Splits(states), usage_totals=totals)
    return contended(node, uuid, launches.rates[-1] if launches.watched else None, present, outdated)


@frozen
class _Launches:
    """How much the clients launched: the last two known rates.

    The last one is of this window if the probes were attached, for the fraction `watched` of it. It is `known` if the
    launches were read at the end of the window.
    """

    rates: tuple[LaunchRate, ...]
    watched: float = 0.0
    known: bool = False

    @property
    def changes(self) -> Mapping[int, float]:
        """How much each client's launches changed between the two rates, as a fraction of the last one; at most 1."""
        *earlier, last = self.rates
        before = {
            pid: delta.widths * last.seconds / rate.seconds for rate in earlier for pid, delta in rate.deltas.items()
        }
        return {
            pid: min(1.0, abs(delta.widths - before[pid]) / max(1, delta.widths)) if pid in before else 1.0
            for pid, delta in last.deltas.items()
        }


def _launches(
    node: Node,
    uuid: GpuUuid,
    before: WorkReading | None,
    work: WorkReading | None,
    present: Pids,
    left: Pids,
    *,
    measured: bool,
) -> _Launches:
    state = _state(node, uuid)
    if work is None or before is None or work.boot_ns <= before.boot_ns:
        return _Launches(rates=state.rates)
    fraction = watched_fraction(node, before.boot_ns, work.boot_ns)
    seconds = (work.boot_ns - before.boot_ns) / 1e9 * fraction
    if seconds < LEAST_WATCHED_SECONDS:
        return _Launches(rates=state.rates, known=bool(state.rates))
    deltas = _deltas(node, uuid, before, work, present, left, measured=measured)
    # What is in flight all the time also grows while the probes are detached.
    deltas = {pid: delta if delta.widths else delta.scaled(fraction) for pid, delta in deltas.items()}
    rate = LaunchRate(seconds=seconds, deltas=deltas, bandwidth=work.bandwidth)
    return _Launches(rates=(*state.rates, rate)[-2:], watched=fraction, known=True)


def _are_settled(
    clients: Pids, launches: _Launches, deltas: Deltas, estimates: ClientEstimates, used: Used, gpu: GpuBusy
) -> bool:
    """Return whether it is enough to watch these clients of a GPU for a small part of the time.

    Their SM time is known well enough, their launches did not change, and together they explain what GPM measured, also
    while the probes are detached. Without launches there is nothing to compare.
    """
    if not clients or not clients <= deltas.keys():
        return False
    changes = launches.changes
    for pid, (sm_time, _) in used.items():
        unknown = 0.0 if deltas[pid].copies else sm_time  # The error of copies is that of the kernels.
        error = unknown if estimates.mean(pid) is None else deltas[pid].widths * estimates.standard_deviation(pid)
        change = changes[pid] * sm_time
        if max(error / SETTLED_ERROR, change / SETTLED_CHANGE) > max(sm_time, SETTLED_SHARE * gpu.capacity):
            return False
    total, margin = sum(each.mean for each in used.values()), SETTLED_DIFFERENCE * gpu.busy + SETTLED_SM * gpu.capacity
    faster = PROBE_SECONDS / gpu.seconds * sum(each.mean * deltas[pid].kernels for pid, each in used.items())
    return total > 0 and (not gpu.measured or total - margin <= gpu.busy <= total + faster + margin)


def _utilization(gpu: GpuReading) -> Mapping[int, float]:
    """Return the mean SM utilization of each process in percent. NVML may have several samples of one process."""
    percentages: dict[int, list[int]] = {}
    for sample in gpu.process_utilization or ():
        percentages.setdefault(sample.pid, []).append(sample.sm_percent)
    return {pid: sum(values) / len(values) for pid, values in percentages.items()}


def _clients_on(node: Node, gpu: Gpu) -> Pids:
    """Return the clients of a GPU, and those that launch on an unknown GPU, which may be this one."""
    uuid = gpu.reading.gpu
    found, servers = set[int](), set[int]()
    for daemon in node.daemons.values():
        servers.update(daemon.servers, daemon.connections.server_exited_at)
        on = gpus_of_clients(node, daemon, daemon.clients, in_use=True)
        found.update(pid for pid, gpus in on.items() if uuid in gpus)
        served = () if serves_gpu(node, daemon, gpu.reading) is False else (uuid,)
        known = {pid for pid, gpus in on.items() if ELSEWHERE not in gpus or lists_processes(gpu.reading)}
        unknown = daemon.clients.keys() & node.launch_history.begun.keys() - known
        found.update(pid for pid in unknown if uuid in (devices_of(node, daemon, pid, frozenset()) or served))
    return frozenset(found - servers)


def _bypassing_parts(gpu: Gpu) -> tuple[dict[int, float], float]:
    """Return the parts of the processes outside MPS, by PID, and the part of MPS, of the time with any kernel.

    They are those of NVML's last samples, which list a process with a context of its own (measured, R580). If there
    are no samples, MPS has no part, unless no process bypasses it.
    """
    if not gpu.outside:
        return {}, 1.0
    means = _utilization(gpu.reading)
    total = sum(means.values())
    if not total:
        return dict.fromkeys(gpu.outside, 0.0), 0.0
    parts = {pid: means.get(pid, 0.0) / total for pid in gpu.outside}
    return parts, max(0.0, 1 - sum(parts.values()))


def _outdated(node: Node, state: GpuAttribution, clients: Pids) -> set[int]:
    """Return the PIDs with an estimate that are no clients any more, or belong to other processes now."""
    pids = state.estimates.pids
    works = () if state.work is None else state.work.processes
    return {work.pid for work in works if work.pid in pids and not _is_of_pid(node, work)} | (pids - clients)


def _is_of_pid(node: Node, work: ProcessWork) -> bool:
    """Return whether counts are of the process that has their PID, or of the last one that had it."""
    process, death = node.processes.get(work.pid), node.deaths.get(work.pid)
    if process is None and death is not None:
        process = death.process
    return process is None or may_belong_to(work.first_ns, process)


def _deltas(
    node: Node, uuid: GpuUuid, before: WorkReading, work: WorkReading, present: Pids, left: Pids, *, measured: bool
) -> Deltas:
    """Return what each watched client did on a GPU between two readings.

    If a client has several GPUs, or may have unlisted ones, and the GPU of its launches is unknown, each GPU gets all
    of them, as scattered. Then GPM shows its part, and without GPM it has none. If all its GPUs are unknown, so is
    its work. A client that has left is not watched any more, but the last reading may still have its launches.
    """
    pids = present | left
    earlier = {process.pid: process for process in before.processes if process.pid in pids}
    now = {process.pid: process for process in work.processes if process.pid in pids}
    earlier_parts, parts = _by_device(before, pids), _by_device(work, pids)
    on = {
        pid: (daemon, gpus)
        for daemon in node.daemons.values()
        for known in (daemon.connections.recently_disconnected, daemon.clients)
        for pid, gpus in gpus_of_clients(node, daemon, pids & known.keys(), in_use=True).items()
    }
    # NVML no longer shows a client that has left, but there are estimates for its last GPUs.
    for daemon in node.daemons.values():
        for pid in left & daemon.connections.recently_disconnected.keys() - on.keys():
            on[pid] = daemon, frozenset(gpu for gpu, each in node.attribution.items() if pid in each.estimates.pids)
    is_unlisted = cache(lambda name: has_unlisted_gpu(node, node.daemons[name], uuid))
    deltas = {}
    for pid in (present & {*work.watched}) | (left & {*before.watched, *now}):
        if pid not in now:
            deltas[pid] = WorkDelta(late=True)
            continue
        if pid not in on or uuid not in on[pid][1] or not _is_of_pid(node, now[pid]):
            continue
        (daemon, gpus), delta = on[pid], work_delta(earlier.get(pid), now[pid], work.boot_ns)
        devices, numbers = devices_of(node, daemon, pid, gpus), node.launch_history.begun.get(pid, {})
        keys = [(pid, number) for number in numbers if (pid, number) in parts]
        # Of other launches, the device is unknown.
        launched = sum(_launched(earlier_parts.get(key), parts[key]) for key in keys)
        are_known = launched >= _launched(earlier.get(pid), now[pid])
        is_certain = are_known or logged_gpus(daemon, pid) == gpus
        if len(gpus) == 1 and (is_certain or not is_unlisted(daemon.name)):
            deltas[pid] = delta
        elif keys and devices is not None and are_known:
            key = pid, devices.index(uuid)
            deltas[pid] = work_delta(earlier_parts.get(key), parts[key], work.boot_ns) if key in keys else WorkDelta()
        elif measured:
            deltas[pid] = replace(delta, scattered=len(gpus))
    return deltas


def _launched(before: ProcessWork | None, now: ProcessWork) -> int:
    earlier = 0 if before is None or before.first_ns != now.first_ns else _launched(None, before)
    return now.kernels + now.graphs + now.copies - earlier


def _by_device(work: WorkReading, pids: Collection[int]) -> Mapping[tuple[int, int], ProcessWork]:
    return {(part.pid, part.device): part for part in work.on_devices if part.pid in pids}


def _estimated(
    clients: Pids, deltas: Deltas, used: Used, gpu: GpuBusy, changes: Mapping[int, float]
) -> tuple[dict[int, Share], dict[int, Share], Pids]:
    """Return the shares by what the clients launched, those to withhold, and the clients with unknown use.

    If all clients were watched, they used all of the measured SM time. Any of them may have used what the launches do
    not explain, so each error covers it. If no launches explain the busy SMs, the use of every client is unknown.
    `changes` has the changes of the clients' launches before the probes were detached, if they were. If GPM measured
    another SM time since, any of them may have changed it.
    """
    total, unwatched = sum(each.mean for each in used.values()), clients.difference(deltas)
    if total <= 0 and gpu.measured and not unwatched and gpu.busy <= IDLE_SM * gpu.capacity:
        return {pid: Share(method=Method.FLIGHT, sm=0.0) for pid in clients}, {}, unwatched
    if total <= 0:
        return {}, {}, unwatched or clients if gpu.measured else unwatched
    complete = gpu.measured and not unwatched
    late = [pid for pid, each in used.items() if deltas[pid].late and not each.mean]
    scale = min(gpu.busy / total, (LATE_SCALE if late else MAX_SCALE) if complete else 1.0)
    unexplained = max(0.0, gpu.busy - scale * total) / gpu.capacity if complete and scale < gpu.busy / total else 0.0
    model = MODEL_ERROR if gpu.measured else LAUNCHES_ERROR
    method = Method.FLIGHT if gpu.measured else Method.LAUNCHES
    busy = gpu.busy / gpu.capacity
    least = busy / 2 / len(used)
    found: dict[int, Share] = {}
    for pid, (sm_time, sm_error) in used.items():
        sm = scale * sm_time / gpu.capacity
        changed = math.hypot(UNWATCHED_ERROR, changes[pid] / 2, 1 - scale) if pid in changes else 0.0
        most = max(sm, busy) - sm
        own = min(scale * sm_error / gpu.capacity, LARGEST_ERROR * math.sqrt(max(sm, least) * most + least**2))
        error = math.hypot(own, sm * model, sm * changed, 0.0 if late else unexplained / 2)
        if not sm_time and not deltas[pid].widths:
            # It may have begun since the probes were detached.
            error = UNWATCHED_ERROR * busy if changes else 0.0 if late else unexplained / 2
        found[pid] = Share(method=method, sm=sm, error=error)
    # What the launches do not explain, clients may use whose first launches were not seen.
    others = math.hypot(*(share.error for share in found.values()))
    part = unexplained / max(1, len(late))
    found |= {pid: Share(method=method, sm=part, error=math.hypot((unexplained - part) / 2, others)) for pid in late}
    uncertain = {pid for pid, share in found.items() if gpu.measured and share.error > MAX_ERROR * busy}
    return dict(without(found, *uncertain)), {pid: found[pid] for pid in uncertain}, unwatched


def _parts(node: Node, split: Split) -> Mapping[UsageKey, float]:
    """Return the part of each account in the SM time of a window.

    Without GPM the part of a client is unknown if another's use is unknown: then all is unattributed.
    """
    parts: dict[UsageKey, float] = {}
    if split.sm > 0 and (split.measured or not split.unknown):
        for pid, share in split.shares.items():
            key = key_of(node, pid, share.method, at=split.at)
            parts[key] = parts.get(key, 0.0) + share.sm / split.sm
    return parts


def _state(node: Node, uuid: GpuUuid) -> GpuAttribution:
    return node.attribution.get(uuid, GpuAttribution())


def _with_state(node: Node, uuid: GpuUuid, state: GpuAttribution) -> Node:
    return replace(node, attribution={**node.attribution, uuid: state})
