"""Capacity: how well a GPU is shared by MPS clients, the limits of each client, and how many more clients fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil, fsum

from exporter.model.contention import Bandwidth, GpuContention, Slowdown
from exporter.model.daemon import Daemon
from exporter.model.node import Gpu, Node
from exporter.model.observation import DaemonName, GpuUuid
from exporter.model.server import Client
from exporter.model.settings import ACTIVE_THREAD_PERCENTAGE, VISIBLE_DEVICES, Limits
from exporter.model.usage import Method, Share
from exporter.parse.mps_variables import LEAST_SMS, client_memory_limits, client_thread_percentage, sms_of
from exporter.parse.protocol3 import PROTOCOL
from exporter.state.devices import MOST_DEVICES, client_devices, device_count, gpus_of_clients
from exporter.state.gpus import used_bytes
from exporter.state.limits import clients_limit
from exporter.state.processes import cgroup_of
from exporter.usage.bandwidth import bandwidths
from exporter.usage.contention import STARVED_RATIO, is_clearly_slowed, sharing_gain, slowdowns
from exporter.usage.last_minute import MINUTE_SECONDS, current_reading, fresh_splits

WHOLE = 100.0  # The active thread percentage without a limit.
IDLE_BELOW = 0.01  # A client that used less of the SMs is idle.

NEARLY_ALL = 0.8
"""From this fraction of its peak on, a memory's bandwidth is used up: no real access pattern reaches all of it."""

LEAST_SLOWDOWN = 1.2  # A client that is less slowed down is not reported as such.

LARGE_CLIENT = 0.9
"""A new client is expected to need as much memory as this quantile of the clients: memory that runs out is an error.
It is expected to use the mean SM time: if SM time runs out, all clients only become slower."""

CONTEXT_BYTES = 640 << 20
"""NVML's memory of a client includes its context (516 to 610 MiB, H200, R580), which no memory limit counts."""

LEAST_SM = 1e-4  # If all clients used less of the SMs, nothing follows about a new one.
_DIGITS = 6  # A quotient is rounded, so that what fits exactly three times is not reported to fit twice.


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientUsage:
    """One client on one GPU. None: not known.

    A limit is the smaller of its server's and the one with which it was started. A client without one of its own may
    have set one inside the process: then the limit is an upper bound, and not `certain`. Its own memory limit is not
    `certain` if another order of its GPUs, set inside, gives another one. `threads` is the fraction of the SMs that the
    client may use. `memory_limit` is how much memory it may have, and `memory` how much it has, in bytes. A
    `memory_limit` of None means no limit if `memory_limit_known`. `share` is what it used of the SMs.
    `watched` is whether its libcuda is probed; None: the probes are not attached.
    """

    daemon: DaemonName
    client: Client
    threads: float | None = None
    threads_certain: bool = False
    memory_limit: int | None = None
    memory_limit_known: bool = False
    memory_limit_certain: bool = False
    memory: int | None = None
    share: Share | None = None
    watched: bool | None = None
    slowdown: Slowdown | None = None
    bandwidth: Bandwidth | None = None

    @property
    def is_slowed(self) -> bool:
        """Whether the client is clearly slower than on a quiet GPU."""
        return is_clearly_slowed(self.slowdown, LEAST_SLOWDOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentUse:
    """The used fractions of a GPU's SMs and of its memory's bandwidth; None: not known.

    `shares` has the known parts by PID. `unattributed` is the rest.
    """

    seconds: float | None = None
    sm: float | None = None
    dram: float | None = None
    shares: Mapping[int, Share] = field(default_factory=dict)
    unattributed: float = 0.0


class Bound(StrEnum):
    """A resource that limits how many more clients fit."""

    MEMORY = "memory"
    SM = "sm"
    SLOTS = "slots"
    CONTENTION = "contention"


NEEDED = frozenset({Bound.MEMORY, Bound.SLOTS})
"""Beyond these bounds a new client fails. Beyond the others, clients become slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """How many more clients such as the present ones fit, by each bound that is known."""

    by_bound: Mapping[Bound, int]

    @property
    def fits(self) -> int | None:
        """How many more fit; None: not known."""
        return None if self.binding is None else self.by_bound[self.binding]

    @property
    def binding(self) -> Bound | None:
        """The smallest bound; None if a bound that is needed is not known, unless another one is 0."""
        is_known = 0 in self.by_bound.values() or self.by_bound.keys() >= NEEDED
        return min(self.by_bound, key=lambda bound: self.by_bound[bound]) if is_known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSharing:
    """How a GPU is shared by MPS clients. None: not known.

    `threads_at_most` and `memory_at_most` are the sums of the clients' limits, as fractions of what the GPU has. They
    are also `threads_committed` and `memory_committed` if all of these limits are certain. `sms` is its number of SMs.
    `bypassing` has the shares of processes outside MPS, by PID. `departed_sm` is the fraction of the SMs that was
    used by processes that have left the GPU. `gain` is how many clients' worth of work the GPU did.
    """

    clients: Sequence[ClientUsage]
    recent: RecentUse
    headroom: Headroom
    memory_total_bytes: int | None
    unified_memory: bool | None
    sms: int | None
    threads_committed: float | None
    threads_at_most: float | None
    memory_committed: float | None
    memory_at_most: float | None
    gain: float | None
    bypassing: Mapping[int, Share]
    departed_sm: float

    @property
    def bandwidth_is_full(self) -> bool:
        """Whether several processes compete for the memory's bandwidth."""
        return (self.recent.dram or 0.0) >= NEARLY_ALL and len(self.clients) + len(self.bypassing) > 1

    @property
    def memory_held(self) -> int | None:
        """The memory of the clients for which it is known, in bytes."""
        sizes = [client.memory for client in self.clients if client.memory is not None]
        return sum(sizes) if sizes else None

    @property
    def shares(self) -> Sequence[Share]:
        """The known shares of the clients."""
        return [client.share for client in self.clients if client.share is not None]

    @property
    def methods(self) -> Sequence[Method]:
        """The methods by which the shares were found."""
        return [method for method in Method if any(share.method is method for share in self.shares)]

    @property
    def unwatched(self) -> Sequence[ClientUsage]:
        """The clients that are not probed, although the probes are attached."""
        return [client for client in self.clients if client.watched is False]

    @property
    def over_limit(self) -> Sequence[ClientUsage]:
        """The clients that hold more memory than they may have, as if a limit was set after they allocated it."""
        return [
            client
            for client in self.clients
            if client.memory_limit is not None and (client.memory or 0) > client.memory_limit + CONTEXT_BYTES
        ]


def gpu_sharing(node: Node) -> Mapping[GpuUuid, GpuSharing]:
    """Return how each GPU is shared that has MPS clients."""
    recent = _recent(node)
    slowed = {uuid: slowdowns(state) for uuid, state in recent.items()}
    clients = _clients(node, slowed, {uuid: bandwidths(state) for uuid, state in recent.items()})
    return {uuid: _sharing(node, uuid, found, slowed.get(uuid, {})) for uuid, found in clients.items()}


def _recent(node: Node) -> Mapping[GpuUuid, GpuContention]:
    """Return the contention of the GPUs that the probes have watched in the last minute, if they are read now."""
    if current_reading(node) is None:
        return {}
    known = ((uuid, state) for uuid, state in node.contention.items() if uuid in node.gpus and state.windows)
    return {uuid: state for uuid, state in known if 0 <= node.at - state.windows[-1].at < MINUTE_SECONDS}


def _sharing(node: Node, uuid: GpuUuid, clients: Sequence[ClientUsage], slowed: Mapping[int, Slowdown]) -> GpuSharing:
    gpu, split = node.gpus[uuid], fresh_splits(node).get(uuid)
    reading = gpu.reading
    if split is None:
        recent = RecentUse(seconds=reading.gpm_seconds, sm=reading.sm_utilization, dram=reading.dram_bandwidth)
    else:
        recent = RecentUse(
            seconds=split.seconds,
            sm=split.sm if split.measured or not split.unknown else None,
            dram=split.dram,
            shares=split.shares,
            unattributed=split.unattributed,
        )
    others, departed = None, 0.0
    if reading.compute_processes is not None:
        servers = {pid for daemon in node.daemons.values() for pid in daemon.servers}
        others = {process.pid for process in reading.compute_processes} - servers - {c.client.pid for c in clients}
        present = {*others, *servers, *(pid for daemon in node.daemons.values() for pid in daemon.clients)}
        departed = sum(share.sm for pid, share in recent.shares.items() if pid not in present)
    daemons = [node.daemons[name] for name in {client.daemon for client in clients}]
    # How much is free in each part of a divided GPU is unknown. A client without a static partition fails.
    partitioned = any(daemon.has_static_partitions for daemon in daemons)
    divided = any(daemon.has_mlopart_devices for daemon in daemons)
    gain = sharing_gain(node.contention[uuid]) if slowed else None
    by_bound = {
        Bound.MEMORY: None if divided or reading.unified_memory else _fit_in_memory(gpu, clients),
        Bound.SM: None if partitioned or divided else _fit_in_sm_time(recent, others, departed, len(clients)),
        Bound.SLOTS: None if partitioned else _fit_in_slots(node, clients),
        Bound.CONTENTION: 0 if _is_contended(clients, gain) else None,
    }
    total = reading.memory_total_bytes
    threads = _sum([client.threads for client in clients])
    memory = _sum([client.memory_limit for client in clients])
    memory = None if memory is None or not total else memory / total
    return GpuSharing(
        clients=clients,
        recent=recent,
        headroom=Headroom(by_bound={bound: max(0, count) for bound, count in by_bound.items() if count is not None}),
        memory_total_bytes=total,
        unified_memory=reading.unified_memory,
        sms=reading.sms,
        threads_committed=threads if all(client.threads_certain for client in clients) else None,
        threads_at_most=threads,
        memory_committed=memory if all(client.memory_limit_certain for client in clients) else None,
        memory_at_most=memory,
        gain=gain,
        bypassing={pid: recent.shares[pid] for pid in gpu.outside if pid in recent.shares},
        departed_sm=departed,
    )


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
                split = splits.get(uuid)
                limit, limit_known, limit_certain = memory_limit(node, daemon, client, uuid, gpus)
                threads = thread_ratio(node, daemon, client, sms := node.gpus[uuid].reading.sms)
                by_gpu[uuid].append(
                    ClientUsage(
                        daemon=daemon.name,
                        client=client,
                        threads=threads,
                        threads_certain=percentage_set or 0 < (threads or 0) * (sms or 0) <= LEAST_SMS,
                        memory_limit=limit,
                        memory_limit_known=limit_known,
                        memory_limit_certain=limit_certain,
                        memory=held[uuid].get(pid),
                        share=None if split is None else split.since_begin(pid),
                        watched=None if watched is None else pid in watched,
                        slowdown=slowed.get(uuid, {}).get(pid),
                        bandwidth=moved.get(uuid, {}).get(pid),
                    )
                )
    return {
        uuid: sorted(clients, key=lambda usage: (usage.client.connected_at, usage.client.pid))
        for uuid, clients in by_gpu.items()
        if clients
    }


def _fit_in_memory(gpu: Gpu, clients: Sequence[ClientUsage]) -> int | None:
    """Count a client with a memory limit as if it had all of that memory: it may allocate it at any time."""
    used, total = gpu.reading.memory_used_bytes, gpu.reading.memory_total_bytes
    needs = sorted(need for client in clients if (need := max(client.memory or 0, client.memory_limit or 0)))
    if used is None or total is None or not needs or not all(client.memory_limit_known for client in clients):
        return None
    reserved = sum(max(0, (client.memory_limit or 0) - (client.memory or 0)) for client in clients)
    return (total - used - reserved) // needs[ceil(LARGE_CLIENT * len(needs)) - 1]


def _fit_in_sm_time(recent: RecentUse, others: set[int] | None, departed: float, clients: int) -> int | None:
    """Compare the free SM time with what a client uses on average.

    The clients' own shares are not needed. What is unattributed counts as theirs. What departed processes used is free.
    """
    if recent.sm is None or others is None or not others <= recent.shares.keys():
        return None
    busy = recent.sm - departed
    by_clients = busy - sum(recent.shares[pid].sm for pid in others)
    return int(round((1 - busy) / by_clients * clients, _DIGITS)) if by_clients >= LEAST_SM else None


def _is_contended(clients: Sequence[ClientUsage], gain: float | None) -> bool:
    """Return whether another client would only slow down the others: one is slowed a lot, or turns would be faster."""
    slowed = any(each.is_slowed for each in clients) and gain is not None and gain < 1
    return slowed or any(is_clearly_slowed(each.slowdown, STARVED_RATIO) for each in clients)


def _fit_in_slots(node: Node, clients: Sequence[ClientUsage]) -> int | None:
    """Return how many clients the servers still accept; None if it is not known for one of them."""
    free = 0
    for name, pid in {(client.daemon, client.client.server) for client in clients}:
        daemon = node.daemons[name]
        server = daemon.servers.get(pid)
        limit = None if server is None else clients_limit(node, daemon, server)
        if server is None or limit is None or server.has_hidden_pids:
            return None
        free += max(0, limit - sum(client.server == pid for client in daemon.clients.values()))
    return free


# -- Limits of a client --------------------------------------------------------------------------------------------


def thread_ratio(node: Node, daemon: Daemon, client: Client, sms: int | None = None) -> float | None:
    """Return the fraction of the threads of a GPU with so many SMs that a client may use; None if it is unknown."""
    limits, variables = _limits_and_variables(node, daemon, client)
    limit = limits.active_thread_percentage
    if daemon.has_static_partitions or daemon.has_mlopart_devices or limit is None or variables is None:
        return None
    own = client_thread_percentage(variables)
    if own is not None and daemon.runtime.protocol == PROTOCOL:
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
    """Return the fields `memory_limit`, `memory_limit_known` and `memory_limit_certain` of a client on a GPU.

    Limits of the server and of the client are by the client's own device numbers. If the client's name a device that it
    does not see, it has no limit at all (measured, R580; published by NVIDIA for driver 615.71).
    """
    limits, variables = _limits_and_variables(node, daemon, client)
    own = None if variables is None else client_memory_limits(variables)
    if limits.active_thread_percentage is None or variables is None or own is None:
        return None, False, False
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
    launched = [each for each in node.launch_history.begun.get(client.pid, {}) if each >= 0]
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
