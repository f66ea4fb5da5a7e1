"""Attribution: the GPU's measured SM time, divided among the clients in each window, and posted to their accounts.

SM time is known from GPM alone: with the libcuda probes GPM is read each second, else with each reading of a GPU.
NVML's utilization is the time with any kernel running. That is up to several times more, and never counts as SM time.
"""

import math
from collections.abc import Collection, Mapping, Sequence

from exporter.model.gpu import Gpu
from exporter.model.launches import GpuUse, ProcessWork, WorkReading
from exporter.model.node import Node
from exporter.model.observation import GpuReading, GpuUuid, Observation
from exporter.model.server import Client
from exporter.model.usage import (
    GpuAttribution,
    KernelTimeEstimates,
    Method,
    Share,
    SharedAccount,
    Split,
    UsageKey,
    WorkDelta,
    work_delta,
)
from exporter.model.values import replace
from exporter.usage import kernel_times
from exporter.usage.accounting import UNATTRIBUTED, account_of, post_time
from exporter.usage.last_minute import Splits, with_window
from exporter.usage.launch_history import may_belong_to

LATE_SECONDS = 15.0
"""A reading that is older than the last window, but less than this, is late or a repetition."""

MAX_WINDOW_SECONDS = 120.0
"""Longer windows are ignored: the clients in them are unknown."""

GPM_SECONDS = 15.0
"""For so long after GPM was read for attribution, a reading of the GPU has no new SM time."""

FRESH_SECONDS = 2.0
"""Launches explain a GPU's use if both were read within this time."""

WATCHED_FRACTION = 0.8
"""Estimates are updated if the probes were attached for this fraction of a window, as if the rest had been like it."""

MAX_ERROR = 0.1
"""A share is withheld if its standard error exceeds this fraction of the clients' SM time."""

MAX_SCALE = 1.25
"""Estimates are scaled to the measured SM time by at most this factor; the rest is unattributed."""

_Shares = tuple[dict[int, Share], dict[int, Share], frozenset[int]]
"""As the fields `shares`, `withheld` and `unknown` of a Split."""


def attribute(node: Node, seen: Observation) -> Node:
    """Attribute the SM time that an observation has, if any."""
    match seen:
        case GpuUse():
            known = _state(node, seen.gpu)
            node = _with_state(node, seen.gpu, replace(known, gpm_read_at=seen.at))
            return _with_sm_time(node, seen.gpu, seen.at, seen.seconds, seen.sm_utilization, seen.dram_bandwidth)
        case GpuReading(sm_utilization=sm, gpm_seconds=seconds) if sm is not None and seconds is not None:
            read_at = _state(node, seen.gpu).gpm_read_at
            read_lately = read_at is not None and abs(seen.at - read_at) < GPM_SECONDS
            if seen.problem is None and not read_lately:
                return _with_sm_time(node, seen.gpu, seen.at, seconds, sm, seen.dram_bandwidth)
    return node


def processes_to_watch(node: Node) -> tuple[dict[int, float], frozenset[int]]:
    """Return the clients, with the thread percentages that their servers allow, and the other processes on GPUs."""
    clients = {}
    for daemon in node.daemons.values():
        for pid, client in daemon.clients.items():
            server = daemon.servers.get(client.server)
            percentage = None if server is None else server.active_thread_percentage
            clients[pid] = 100.0 if percentage is None else percentage
    others = {process.pid for gpu in node.gpus.values() for process in gpu.reading.compute_processes or ()}
    return clients, frozenset(others - clients.keys())


def _with_sm_time(node: Node, uuid: GpuUuid, at: float, seconds: float, sm: float, dram: float | None) -> Node:
    """Update the estimates by a window in which the fraction `sm` of the SMs was busy, divide it, and post it."""
    gpu, known = node.gpus.get(uuid), _state(node, uuid)
    if gpu is None or math.isnan(sm) or not 0 < seconds <= MAX_WINDOW_SECONDS or _is_late(known, at):
        return node
    sm = min(max(sm, 0.0), 1.0)
    present = _clients_on(node, gpu)
    left = _left_since(node, gpu, known, present)
    clients = present | left
    work = node.work if node.work is not None and abs(at - node.work.at) <= FRESH_SECONDS else None
    fraction, deltas, detached = 0.0, None, False
    if work is not None and known.work is not None and work.boot_ns > known.work.boot_ns:
        fraction = _watched_fraction(node, known.work.boot_ns, work.boot_ns)
        deltas = _deltas(node, known.work, work, present, left) if fraction else None
        detached = not fraction
    bypassing, mps = _bypassing_parts(gpu)
    capacity = seconds * (0 if node.work is None else node.work.sms) * 1e9
    estimates = known.estimates.without(_outdated(node, known, clients))
    if deltas is not None and capacity and mps and fraction >= WATCHED_FRACTION and clients <= deltas.keys():
        estimates = estimates.predicted(seconds)
        estimates = kernel_times.updated(estimates, deltas, capacity * fraction, sm * mps * (capacity * fraction))
    shares = {pid: Share(method=Method.MEASURED, sm=sm * part) for pid, part in bypassing.items() if part > 0}
    withheld: Mapping[int, Share] = {}
    unknown = frozenset[int]()
    alone = len(clients) == 1 and clients == known.clients
    if not mps:
        unknown = clients | (bypassing.keys() - shares.keys())
    elif alone:
        shares |= dict.fromkeys(clients, Share(method=Method.MEASURED, sm=sm * mps))
    else:
        if deltas is None:
            found = _as_before(clients, sm * mps, known.watched_windows if detached else ())
        else:
            found = _estimated(clients, deltas, estimates, sm * mps, capacity)
        found = _with_equal_parts(*found, sm * mps) if node.attribution.equal else found
        shares, withheld, unknown = {**shares, **found[0]}, *found[1:]
    split = Split(
        at=at,
        seconds=seconds,
        sm=sm,
        shares=shares,
        unattributed=max(0.0, sm - sum(share.sm for share in shares.values())),
        dram=dram,
        withheld=withheld,
        unknown=unknown,
        clients=clients,
        assumed=detached and not alone,
    )
    known = replace(
        known,
        windows=with_window(known.windows, split),
        estimates=estimates,
        clients=present,
        work=work or known.work,
        watched_windows=known.watched_windows if deltas is None else (*known.watched_windows, split)[-2:],
    )
    node = _with_state(node, uuid, known)
    windows = {gpu: each.windows for gpu, each in node.attribution.gpus.items() if each.windows}
    totals = post_time(node.usage_totals, uuid, round(sm * seconds * 1e6), _parts(node, split), at=at)
    return replace(node, splits=Splits(windows), usage_totals=totals)


def _is_late(known: GpuAttribution, at: float) -> bool:
    """Return whether a window is late or a repetition. If it seems to be much older, the clock was set."""
    return bool(known.windows) and 0 <= known.windows[-1].at - at <= LATE_SECONDS


def _clients_on(node: Node, gpu: Gpu) -> frozenset[int]:
    """Return the clients with a context on a GPU, by NVML and the log; on the only GPU, all clients."""
    listed = {process.pid for process in gpu.reading.mps_processes or () if process.used_bytes}
    clients = {pid for daemon in node.daemons.values() for pid in daemon.clients}
    servers = {
        pid for daemon in node.daemons.values() for pid in (*daemon.servers, *daemon.connections.server_exited_at)
    }
    logged = {pid for daemon in node.daemons.values() for pid in _logged_on(node, gpu, daemon.clients)}
    return frozenset((logged | (listed & clients)) - servers)


def _left_since(node: Node, gpu: Gpu, known: GpuAttribution, present: frozenset[int]) -> frozenset[int]:
    """Return the clients that were on a GPU at some time since the last window and are not there now."""
    left = set(known.clients)
    if known.windows:
        for daemon in node.daemons.values():
            recently = {pid for pid, at in daemon.connections.disconnected_at.items() if at > known.windows[-1].at}
            left.update(recently.intersection(_logged_on(node, gpu, daemon.connections.recently_disconnected)))
    return frozenset(left - present)


def _logged_on(node: Node, gpu: Gpu, clients: Mapping[int, Client]) -> Collection[int]:
    """Return those of the clients that the log places on a GPU."""
    uuid = gpu.reading.gpu
    return clients.keys() if len(node.gpus) == 1 else [pid for pid, client in clients.items() if uuid in client.gpus]


def _bypassing_parts(gpu: Gpu) -> tuple[dict[int, float], float]:
    """Return the parts of the processes that bypass MPS, by PID, and the part of MPS, of the time with any kernel.

    They are those of NVML's last samples, which list a process with a context of its own (measured, R580). If there
    are no samples, MPS has no part, unless no process bypasses it.
    """
    if not gpu.bypassing:
        return {}, 1.0
    percentages: dict[int, list[int]] = {}
    # NVML may have several samples of one process.
    for sample in gpu.reading.process_utilization or ():
        percentages.setdefault(sample.pid, []).append(sample.sm_percent)
    means = {pid: sum(each) / len(each) for pid, each in percentages.items()}
    total = sum(means.values())
    if not total:
        return dict.fromkeys(gpu.bypassing, 0.0), 0.0
    parts = {pid: means.get(pid, 0.0) / total for pid in gpu.bypassing}
    return parts, max(0.0, 1 - sum(parts.values()))


def _outdated(node: Node, known: GpuAttribution, clients: frozenset[int]) -> set[int]:
    """Return the PIDs with an estimate that are no clients any more, or belong to other processes now."""
    pids = known.estimates.indices.keys()
    works = () if known.work is None else known.work.processes
    return {work.pid for work in works if work.pid in pids and not _is_of_pid(node, work)} | (pids - clients)


def _is_of_pid(node: Node, work: ProcessWork) -> bool:
    """Return whether counts are of the process that has their PID, or of the last one that had it."""
    process, death = node.processes.get(work.pid), node.deaths.get(work.pid)
    if process is None and death is not None:
        process = death.process
    return process is None or may_belong_to(work.first_ns, process)


def _watched_fraction(node: Node, began_ns: int, ended_ns: int) -> float:
    """Return the fraction of a time in which the probes were attached."""
    seconds = sum(each for at_ns, each in node.launch_history.watched if began_ns < at_ns <= ended_ns)
    return min(1.0, seconds * 1e9 / (ended_ns - began_ns))


def _deltas(
    node: Node, before: WorkReading, work: WorkReading, present: frozenset[int], left: frozenset[int]
) -> Mapping[int, WorkDelta]:
    """Return what each watched client did between two readings, divided by the number of its GPUs.

    A client that has left is not watched any more, but the last reading may still have its launches.
    """
    earlier = {each.pid: each for each in before.processes if each.pid in present or each.pid in left}
    now = {each.pid: each for each in work.processes if each.pid in present or each.pid in left}
    deltas = {}
    for pid in (present & {*work.watched}) | (left & {*before.watched, *now}):
        if pid not in now:
            deltas[pid] = WorkDelta()
        elif _is_of_pid(node, now[pid]):
            gpus = (len(daemon.clients[pid].gpus) for daemon in node.daemons.values() if pid in daemon.clients)
            deltas[pid] = work_delta(earlier.get(pid), now[pid], work.boot_ns).divided(max((1, *gpus)))
    return deltas


def _as_before(clients: frozenset[int], mps_sm: float, earlier: Sequence[Split]) -> _Shares:
    """Assume that each client goes on as in the last of the `earlier` windows, unless the measurement refutes that.

    An error covers how much the client changed between the last two of them, and the difference between what the GPU
    measured now and then.
    """
    if not earlier:
        return {}, {}, clients
    last, previous = earlier[-1], earlier[-2].estimates if len(earlier) > 1 else {}
    shares = {
        pid: share for pid, share in last.estimates.items() if pid in clients and share.method is not Method.EQUAL
    }
    total = sum(share.sm for share in shares.values())
    unknown = (clients - last.clients) | (clients & last.unknown)
    scale = mps_sm / total if total else 0.0
    scale = min(1.0, scale) if unknown else scale
    if not 1 / MAX_SCALE <= scale <= MAX_SCALE:
        return {}, {}, clients
    certain: dict[int, Share] = {}
    withheld: dict[int, Share] = {}
    for pid, share in shares.items():
        change = abs(share.sm - previous[pid].sm) if pid in previous else share.sm
        error = math.hypot(scale * share.error, change / 2, (scale - 1) * total / 2)
        found = withheld if error > MAX_ERROR * mps_sm else certain
        found[pid] = Share(method=Method.FLIGHT, sm=scale * share.sm, error=error)
    return certain, withheld, unknown


def _estimated(
    clients: frozenset[int],
    deltas: Mapping[int, WorkDelta],
    estimates: KernelTimeEstimates,
    mps_sm: float,
    capacity: float,
) -> _Shares:
    """Return the shares by what the clients launched.

    If all clients were watched, they used all of the SM time. Any of them may have used what the launches do not
    explain, so each error covers it. If no launches explain the busy SMs, the use of every client is unknown.
    """
    used = kernel_times.used_sm_time(estimates, deltas, mps_sm * capacity)
    total, unwatched = sum(used.values()), clients.difference(deltas)
    if total <= 0 or capacity <= 0:
        return {}, {}, unwatched or clients
    scale = min(mps_sm / (total / capacity), 1.0 if unwatched else MAX_SCALE) / capacity
    unexplained = 0.0 if unwatched else max(0.0, mps_sm - scale * total)
    errors = kernel_times.relative_errors(estimates, deltas, used, complete=not unwatched)
    certain: dict[int, Share] = {}
    withheld: dict[int, Share] = {}
    for pid, each in used.items():
        if each:
            error = math.hypot(scale * total * errors[pid], unexplained / 2)
            found = withheld if errors[pid] > MAX_ERROR else certain
            found[pid] = Share(method=Method.FLIGHT, sm=scale * each, error=error)
    return certain, withheld, unwatched


def _with_equal_parts(
    shares: dict[int, Share], withheld: dict[int, Share], unknown: frozenset[int], mps_sm: float
) -> _Shares:
    """Divide what the other clients leave among the `unknown` ones."""
    left = max(0.0, mps_sm - sum(share.sm for share in (*shares.values(), *withheld.values())))
    equal = dict.fromkeys(unknown, Share(method=Method.EQUAL, sm=left / len(unknown))) if unknown else {}
    return {**shares, **equal}, withheld, frozenset()


def _parts(node: Node, split: Split) -> Mapping[UsageKey, float]:
    """Return the part of each account in the SM time of a window."""
    parts: dict[UsageKey, float] = {}
    if split.sm > 0:
        for pid, share in split.shares.items():
            account = account_of(node, pid, at=split.at)
            key = UNATTRIBUTED if account is SharedAccount.UNATTRIBUTED else (account, share.method)
            parts[key] = parts.get(key, 0.0) + share.sm / split.sm
    return parts


def _state(node: Node, uuid: GpuUuid) -> GpuAttribution:
    return node.attribution.gpus.get(uuid, GpuAttribution())


def _with_state(node: Node, uuid: GpuUuid, state: GpuAttribution) -> Node:
    return replace(node, attribution=replace(node.attribution, gpus={**node.attribution.gpus, uuid: state}))
