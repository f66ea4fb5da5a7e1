"""Capacity: how well a GPU is shared by MPS clients, the limits of each client, and how many more clients fit."""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from math import ceil, fsum, hypot, inf

from exporter.model.contention import Bandwidth, GpuContention, Resource, Slowdown
from exporter.model.daemon import Daemon
from exporter.model.node import Gpu, Node
from exporter.model.observation import DaemonName, GpuUuid
from exporter.model.server import Client
from exporter.model.settings import ACTIVE_THREAD_PERCENTAGE, VISIBLE_DEVICES, Limits
from exporter.model.sharing import HeadroomStatus, SharingStatus
from exporter.model.usage import Method, Share, Split
from exporter.model.values import frozen
from exporter.parse.mps_variables import LEAST_SMS, client_memory_limits, client_thread_percentage, sms_of
from exporter.state.devices import MOST_DEVICES, client_devices, device_count, gpus_of_clients
from exporter.state.gpus import used_bytes
from exporter.state.limits import device_limit
from exporter.state.processes import cgroup_of
from exporter.usage.bandwidth import bandwidths
from exporter.usage.contention import STARVED_RATIO, is_clearly_slowed, sharing_gain, slowdowns
from exporter.usage.last_minute import MINUTE_SECONDS, current_reading, fresh_splits

WHOLE = 100.0  # The active thread percentage without a limit.
IDLE_BELOW = 0.01  # A client that used less of the SMs is idle.
WHOLE_MINUTE = 55.0  # Seconds. Windows do not fill the last minute exactly.

NEARLY_ALL = 0.8
"""From this fraction of its peak on, a memory's bandwidth is used up: no real access pattern reaches all of it."""

LEAST_SLOWDOWN = 1.2  # A client that is less slowed down is not reported as such.

LARGE_CLIENT = 0.9
"""A new client is expected to need as much memory as this quantile of the clients: memory that runs out is an error.
It is expected to use the mean SM time: if SM time runs out, all clients only become slower."""

CONTEXT_BYTES = 640 << 20
"""NVML's memory of a client includes its context (516 to 610 MiB, H200, R580), which no memory limit counts."""

LEAST_SHOWN = 0.01  # A smaller part of a resource is not mentioned.
LEAST_SM = 1e-4  # If all clients used less of the SMs, nothing follows about a new one.
_DIGITS = 6  # A quotient is rounded, so that what fits exactly three times is not reported to fit twice.


@frozen
class ClientUsage:
    """One client on one GPU, with the names of the status document. None: not known.

    A limit is the smaller of its server's and the one with which it was started. A client without one of its own may
    have set one inside the process: then the limit is an upper bound, and not `certain`. Its own memory limit is not
    `certain` if another order of its GPUs, set inside, gives another one. It may use `active_thread_ratio` of
    the SMs. A `memory_limit_bytes` of None means no limit if `memory_limit_known`. `share` is what it used of the SMs.
    It `is_idle` if it used next to nothing for a whole minute. `watched` is whether its libcuda is probed; None: the
    probes are not attached.
    """

    daemon: DaemonName
    client: Client
    active_thread_ratio: float | None
    active_thread_certain: bool | None
    usable_sms: int | None
    memory_limit_bytes: int | None
    memory_limit_known: bool
    memory_limit_certain: bool | None
    memory_used_bytes: int | None
    share: Share | None
    is_idle: bool | None
    watched: bool | None
    slowdown: Slowdown | None
    bandwidth: Bandwidth | None

    @property
    def is_slowed(self) -> bool:
        """Whether the client is clearly slower than on a quiet GPU."""
        return is_clearly_slowed(self.slowdown, LEAST_SLOWDOWN)

    @property
    def is_over_limit(self) -> bool:
        """Whether the client holds more memory than it may have, as if a limit was set after it allocated it."""
        limit = self.memory_limit_bytes
        return limit is not None and (self.memory_used_bytes or 0) > limit + CONTEXT_BYTES


class Bound(StrEnum):
    """A resource that limits how many more clients fit."""

    MEMORY = "memory"
    SM = "sm"
    SLOTS = "slots"
    CONTENTION = "contention"


COUNTED = (Bound.MEMORY, Bound.SM, Bound.SLOTS)
"""Bounds that permit a number of clients. Contention only shows that there is no room."""

NEEDED = frozenset({Bound.MEMORY, Bound.SLOTS})
"""Beyond these bounds a new client fails. Beyond the others, clients become slower."""


@frozen
class GpuSharing(SharingStatus):
    """How a GPU is shared by MPS clients; without `reserved`, which is text. None: not known.

    `shares` has the known parts of its SM time, by PID, and `bypassing` those of processes outside MPS. What other
    processes than the clients used has the standard error `others_sm_error_ratio`. `threads_at_most` and
    `memory_at_most` are the sums of the clients' limits, as fractions of what the GPU has, even if uncertain.
    """

    clients: Sequence[ClientUsage]
    shares: Mapping[int, Share]
    bypassing: Mapping[int, Share]
    others_sm_error_ratio: float
    unified_memory: bool | None
    threads_at_most: float | None
    memory_at_most: float | None

    def main_neighbour(self, slowdown: Slowdown) -> tuple[int, float, float] | None:
        """Return the other that uses most of what a client waits for, with the fraction and its standard error.

        None if it may have used nothing of it.
        """
        of_memory, (pid, part) = slowdown.resource is Resource.MEMORY, (*slowdown.neighbours, (0, 0.0))[0]
        uses = [each.bandwidth if of_memory else each.share for each in self.clients if each.client.pid == pid]
        error = max((inf if use is None else use.error for use in uses), default=0.0)
        return (pid, part, error) if part >= max(LEAST_SHOWN, 2 * error) else None

    @property
    def bandwidth_is_full(self) -> bool:
        """Whether several processes compete for the memory's bandwidth."""
        return (self.dram_bandwidth_ratio or 0.0) >= NEARLY_ALL and len(self.clients) + len(self.bypassing) > 1


def gpu_sharing(node: Node) -> Mapping[GpuUuid, GpuSharing]:
    """Return how each GPU is shared that has MPS clients."""
    recent = _recent(node)
    slowed = {uuid: slowdowns(state) for uuid, state in recent.items()}
    clients = _clients(node, slowed, {uuid: bandwidths(state) for uuid, state in recent.items()})
    free = _free_slots(node, clients)
    return {uuid: _sharing(node, uuid, found, slowed.get(uuid, {}), free[uuid]) for uuid, found in clients.items()}


def _recent(node: Node) -> Mapping[GpuUuid, GpuContention]:
    """Return the contention of the GPUs that the probes have watched in the last minute, if they are read now."""
    if current_reading(node) is None:
        return {}
    known = ((uuid, state) for uuid, state in node.contention.items() if uuid in node.gpus and state.windows)
    return {uuid: state for uuid, state in known if 0 <= node.at - state.windows[-1].at < MINUTE_SECONDS}


def _sharing(
    node: Node,
    uuid: GpuUuid,
    clients: Sequence[ClientUsage],
    slowed: Mapping[int, Slowdown],
    free: int | None,
) -> GpuSharing:
    gpu, split = node.gpus[uuid], fresh_splits(node).get(uuid)
    reading, pids = gpu.reading, {client.client.pid for client in clients}
    shares: Mapping[int, Share] = {} if split is None else split.shares
    if split is None:
        seconds, sm, dram, unattributed = reading.gpm_seconds, reading.sm_utilization, reading.dram_bandwidth, 0.0
    else:
        seconds, dram, unattributed = split.seconds, split.dram, split.unattributed
        sm = split.sm if split.measured or not split.unknown else None
    others, departed = None, 0.0
    if reading.compute_processes is not None:
        servers = {pid for daemon in node.daemons.values() for pid in daemon.servers}
        others = {process.pid for process in reading.compute_processes} - servers - pids
        present = others.union(servers, *(daemon.clients for daemon in node.daemons.values()))
        departed = sum(share.sm for pid, share in shares.items() if pid not in present)
    known = shares.keys() & pids
    error, others_error = (hypot(*(shares[pid].error for pid in each)) for each in (known, shares.keys() - pids))
    methods = tuple(method for method in Method if any(shares[pid].method is method for pid in known))
    if Method.LAUNCHES not in methods:
        # GPM measured the sum, so the clients' part is as certain as the rest.
        error = min(error, hypot(others_error, unattributed))
    daemons = [node.daemons[name] for name in {client.daemon for client in clients}]
    # A client without a static partition fails.
    partitioned = any(daemon.has_static_partitions for daemon in daemons)
    gain = sharing_gain(node.contention[uuid]) if slowed else None
    by_bound = {
        Bound.MEMORY: None if reading.unified_memory else _fit_in_memory(gpu, clients),
        Bound.SM: None if partitioned else _fit_in_sm_time(sm, shares, others, departed, len(clients)),
        Bound.SLOTS: None if partitioned else free,
        Bound.CONTENTION: 0 if _is_contended(clients, gain) else None,
    }
    total = reading.memory_total_bytes
    held = [client.memory_used_bytes for client in clients if client.memory_used_bytes is not None]
    threads = _sum([client.active_thread_ratio for client in clients])
    memory = _sum([client.memory_limit_bytes for client in clients])
    memory = None if memory is None or not total else memory / total
    return GpuSharing(
        clients=clients,
        seconds=seconds,
        sm_utilization_ratio=sm,
        dram_bandwidth_ratio=dram,
        shares=shares,
        bypassing={pid: shares[pid] for pid in gpu.outside if pid in shares},
        clients_sm_ratio=sum(shares[pid].sm for pid in known) if known else None,
        clients_sm_error_ratio=error if known else None,
        others_sm_error_ratio=others_error,
        unattributed_ratio=unattributed if shares else None,
        departed_sm_ratio=departed if shares else None,
        methods=methods,
        clients_memory_bytes=sum(held) if held else None,
        memory_total_bytes=total,
        unified_memory=reading.unified_memory,
        sms=reading.sms,
        threads_committed_ratio=threads if all(client.active_thread_certain for client in clients) else None,
        threads_at_most=threads,
        memory_committed_ratio=memory if all(client.memory_limit_certain for client in clients) else None,
        memory_at_most=memory,
        reserved=(),
        headroom=headroom({bound: max(0, count) for bound, count in by_bound.items() if count is not None}),
        idle=tuple(each.client.pid for each in clients if each.is_idle and each.memory_used_bytes),
        over_limit=tuple(each.client.pid for each in clients if each.is_over_limit),
        sharing_gain_ratio=gain,
    )


def headroom(by_resource: Mapping[str, int]) -> HeadroomStatus:
    """Return the smallest bound; none if a bound that is needed is not known, unless another one is 0."""
    is_known = 0 in by_resource.values() or by_resource.keys() >= NEEDED
    resource = min(by_resource, key=lambda bound: by_resource[bound]) if is_known else None
    clients = None if resource is None else by_resource[resource]
    return HeadroomStatus(clients=clients, resource=resource, by_resource=by_resource)


def _sum(parts: Sequence[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return fsum(known) if len(known) == len(parts) else None


def _clients(
    node: Node, slowed: Mapping[GpuUuid, Mapping[int, Slowdown]], moved: Mapping[GpuUuid, Mapping[int, Bandwidth]]
) -> Mapping[GpuUuid, Sequence[ClientUsage]]:
    """Return the clients on each GPU that has any, the oldest first. A GPU with MIG has none."""
    by_gpu: dict[GpuUuid, list[ClientUsage]] = {uuid: [] for uuid, gpu in node.gpus.items() if not gpu.reading.mig_mode}
    held = {uuid: used_bytes(node.gpus[uuid].reading) for uuid in by_gpu}
    splits, work = fresh_splits(node), current_reading(node)
    watched = None if work is None else frozenset(work.watched)
    for daemon in node.daemons.values():
        if not daemon.is_reported(node.at):
            continue
        for pid, gpus in gpus_of_clients(node, daemon, daemon.clients).items():
            client = daemon.clients[pid]
            percentage_set = ACTIVE_THREAD_PERCENTAGE in (_limits_and_variables(node, daemon, client)[1] or {})
            for uuid in gpus & by_gpu.keys():
                split, slowdown = splits.get(uuid), slowed.get(uuid, {}).get(pid)
                limit, limit_known, limit_certain = memory_limit(node, daemon, client, uuid, gpus)
                threads = thread_ratio(node, daemon, client, sms := node.gpus[uuid].reading.sms)
                usable = None if threads is None or sms is None else round(threads * sms)
                certain = percentage_set or 0 < (usable or 0) <= LEAST_SMS
                by_gpu[uuid].append(
                    ClientUsage(
                        daemon=daemon.name,
                        client=client,
                        active_thread_ratio=threads,
                        active_thread_certain=None if threads is None else certain,
                        usable_sms=usable,
                        memory_limit_bytes=limit,
                        memory_limit_known=limit_known,
                        memory_limit_certain=None if limit is None else limit_certain,
                        memory_used_bytes=held[uuid].get(pid),
                        share=None if split is None else split.since_begin(pid),
                        is_idle=None if split is None else _is_idle(client, split, slowdown, node.at),
                        watched=None if watched is None else pid in watched,
                        slowdown=slowdown,
                        bandwidth=moved.get(uuid, {}).get(pid),
                    )
                )
    return {
        uuid: sorted(clients, key=lambda usage: (usage.client.connected_at, usage.client.pid))
        for uuid, clients in by_gpu.items()
        if clients
    }


def _is_idle(client: Client, split: Split, slowdown: Slowdown | None, at: float) -> bool | None:
    """Return whether a client used next to nothing of the SMs for a whole minute; None: unknown.

    A client that had to wait is not idle. Commands to end clients follow from this: if it is not certain, the answer
    is None.
    """
    whole = min(split.seconds, at - client.connected_at) >= WHOLE_MINUTE
    if whole and split.measured and split.sm < IDLE_BELOW:
        return True  # So is each client of the GPU, also without the probes.
    if (share := split.since_begin(client.pid)) is None:
        return None
    if is_clearly_slowed(slowdown, LEAST_SLOWDOWN) or share.sm - 2 * share.error >= IDLE_BELOW:
        return False
    whole = whole and share == split.shares[client.pid]
    return True if whole and share.sm + 2 * share.error < IDLE_BELOW else None


def _fit_in_memory(gpu: Gpu, clients: Sequence[ClientUsage]) -> int | None:
    """Count a client with a memory limit as if it had all of that memory: it may allocate it at any time."""
    used, total = gpu.reading.memory_used_bytes, gpu.reading.memory_total_bytes
    sizes = [(client.memory_used_bytes or 0, client.memory_limit_bytes or 0) for client in clients]
    needs = sorted(filter(None, map(max, sizes)))
    if used is None or total is None or not needs or not all(client.memory_limit_known for client in clients):
        return None
    reserved = sum(max(0, limit - held) for held, limit in sizes)
    return (total - used - reserved) // needs[ceil(LARGE_CLIENT * len(needs)) - 1]


def _fit_in_sm_time(
    sm: float | None, shares: Mapping[int, Share], others: set[int] | None, departed: float, clients: int
) -> int | None:
    """Compare the free SM time with what a client uses on average.

    The clients' own shares are not needed. What is unattributed counts as theirs. What departed processes used is free.
    """
    if sm is None or others is None or not others <= shares.keys():
        return None
    busy = sm - departed
    by_clients = busy - sum(shares[pid].sm for pid in others)
    return int(round((1 - busy) / by_clients * clients, _DIGITS)) if by_clients >= LEAST_SM else None


def _is_contended(clients: Sequence[ClientUsage], gain: float | None) -> bool:
    """Return whether another client would only slow down the others: one is slowed a lot, or turns would be faster."""
    slowed = any(each.is_slowed for each in clients) and gain is not None and gain < 1
    return slowed or any(is_clearly_slowed(each.slowdown, STARVED_RATIO) for each in clients)


def _free_slots(node: Node, clients: Mapping[GpuUuid, Sequence[ClientUsage]]) -> Mapping[GpuUuid, int | None]:
    """Return how many clients the servers of each GPU's clients still accept there; None: unknown of one of them.

    A client that has no known GPU may have a context on each of them.
    """
    on = {uuid: Counter((each.daemon, each.client.server) for each in found) for uuid, found in clients.items()}
    of_server = {(each.daemon, each.client.pid): each.client.server for found in clients.values() for each in found}
    placed = Counter((daemon, server) for (daemon, _), server in of_server.items())
    free: dict[tuple[DaemonName, int], int | None] = {}
    for name, pid in placed:
        daemon, server = node.daemons[name], node.daemons[name].servers.get(pid)
        limit = None if server is None or server.has_hidden_pids else device_limit(node, daemon, server)
        unplaced = sum(client.server == pid for client in daemon.clients.values()) - placed[name, pid]
        free[name, pid] = None if limit is None else limit - unplaced
    slots = {
        uuid: _sum([None if (left := free[each]) is None else max(0, left - used) for each, used in here.items()])
        for uuid, here in on.items()
    }
    return {uuid: None if number is None else int(number) for uuid, number in slots.items()}


# -- Limits of a client --------------------------------------------------------------------------------------------


def thread_ratio(node: Node, daemon: Daemon, client: Client, sms: int | None = None) -> float | None:
    """Return the fraction of the threads of a GPU with so many SMs that a client may use; None if it is unknown."""
    limits, variables = _limits_and_variables(node, daemon, client)
    limit = limits.active_thread_percentage
    if daemon.has_static_partitions or limit is None or variables is None:
        return None
    own = client_thread_percentage(variables)
    if own is not None and daemon.dialect.limits_by_namespace:
        # The percentage of a namespace replaces the client's own (guide, release 615). 100 may mean that none is set.
        own = limit if limit < WHOLE or own == WHOLE else None
    if own is None:
        return None
    return (sms_of(min(limit, own), sms) or sms) / sms if sms else min(limit, own) / WHOLE


def _limits_and_variables(node: Node, daemon: Daemon, client: Client) -> tuple[Limits, Mapping[str, str] | None]:
    server, process = daemon.servers.get(client.server), node.processes.get(client.pid)
    return Limits() if server is None else server.limits_of(client), None if process is None else process.environment


def memory_limit(
    node: Node, daemon: Daemon, client: Client, uuid: GpuUuid, gpus: frozenset[GpuUuid]
) -> tuple[int | None, bool, bool]:
    """Return the fields `memory_limit_bytes`, `memory_limit_known` and `memory_limit_certain` of a client on a GPU.

    Limits of the server and of the client are by the client's own device numbers. If the client's name a device that it
    does not see, it has no limit at all (measured, R580; published by NVIDIA for driver 615.71).
    """
    limits, variables = _limits_and_variables(node, daemon, client)
    own = None if variables is None else client_memory_limits(variables)
    if limits.active_thread_percentage is None or variables is None or own is None:
        return None, False, False
    if not own and not limits.pinned_memory:
        return None, True, False
    process = node.processes[client.pid]
    devices = client_devices(node, daemon, process, variables, gpus)
    if own.keys() == {"0"} and len(gpus) == 1 and cgroup_of(process).pod_uid is not None:
        # GKE gives a pod with MPS one GPU, which is device 0 there, and sets `0=SIZE` (container-engine-accelerators,
        # pkg/gpu/nvidia/manager.go).
        devices = (uuid,)
    numbers, seen = range(device_count(node, daemon) or MOST_DEVICES), {*gpus, *map(str, range(len(gpus)))}
    if devices is not None:
        started, names = devices.index(uuid), {*devices, *map(str, range(len(devices)))}
        if not own.keys() <= names:
            return None, own.keys().isdisjoint(names), True
        if len(devices) == 1 or VISIBLE_DEVICES in variables:
            numbers, seen = range(started, started + 1), names
        else:
            # It may have set the variable inside the process. It uses the first GPUs that it sees.
            numbers = range(max(started + 1, len(gpus)))
    launched = [*node.begun_on(client.pid)]
    if len(gpus) == len(launched) == 1:
        numbers, seen = range(launched[0], launched[0] + 1), {*seen, str(launched[0])}
    found = [
        min(filter(None, (limits.pinned_memory.get(each), own.get(str(each)), own.get(uuid))), default=None)
        for each in numbers
    ]
    possible = {*found, *(() if own.keys() <= seen else (None,))}
    if len(possible) == 1:
        return possible.pop(), True, bool(own)
    if devices is None or (not own and None in possible):
        return None, False, False
    if not own:
        return max(found, key=lambda each: each or 0), True, False
    # Who starts a process with limits means the devices with which it starts, unless it holds more.
    limit, held = found[numbers.index(started)], used_bytes(node.gpus[uuid].reading).get(client.pid) or 0
    known = limit is not None and held <= limit + CONTEXT_BYTES
    return limit if known else None, known, False
