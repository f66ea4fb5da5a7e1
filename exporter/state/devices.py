"""Devices of a daemon: the GPUs and MIG instances it serves, those of its clients, and which clients fail together."""

from collections.abc import Collection, Iterable, Mapping
from itertools import chain

from exporter.model.daemon import ClaimKind, Daemon, with_runtime
from exporter.model.node import Node
from exporter.model.observation import DaemonProcess, GpuReading, GpuUuid, ProcessReading
from exporter.model.reason import ReasonCode
from exporter.model.settings import VISIBLE_DEVICES
from exporter.model.values import frozen, without
from exporter.parse.cgroup import CgroupMembership
from exporter.parse.control_reply import DEVICE_QUERY
from exporter.parse.mps_variables import has_ordinals, names_device, visible_device_entries, visible_gpu_uuids
from exporter.state.processes import cgroup_of

Gpus = frozenset[GpuUuid]

VOLTA = 7  # The major compute capability of Volta.
MOST_DEVICES = 64  # No machine has more. Log lines and replies about further devices are ignored.

LOST = (ReasonCode.GPU_LOST, ReasonCode.GPU_NOT_REPORTED)
"""Problems of a GPU that NVML reports as a fact. With any other one, the GPU may be well."""

ELSEWHERE: GpuUuid = ""
"""A GPU of which NVML does not list the processes. It may be in no reading: containers can hide GPUs."""


def queries(node: Node, daemon: Daemon) -> Iterable[tuple[str, float | None]]:
    """Yield the query for the daemon's devices, if they are needed, and when it was last sent."""
    if not daemon.runtime.devices and len(usable_gpus(node)) > 1:
        yield DEVICE_QUERY, daemon.commands.asked_at.get(DEVICE_QUERY)


def usable_gpus(node: Node) -> Mapping[GpuUuid, GpuReading]:
    """Return what CUDA processes can use: MIG instances, and all GPUs but those with known instances."""
    divided = {gpu.reading.mig.parent for gpu in node.gpus.values() if gpu.reading.mig is not None}
    return {uuid: gpu.reading for uuid, gpu in node.gpus.items() if uuid not in divided}


def instances_of(node: Node, uuid: GpuUuid) -> tuple[GpuUuid, ...]:
    """Return the MIG instances of a GPU."""
    return tuple(each for each, gpu in node.gpus.items() if gpu.reading.mig and gpu.reading.mig.parent == uuid)


def whole_gpu(node: Node, uuid: GpuUuid) -> GpuUuid:
    """Return the GPU of a MIG instance, and any other GPU as it is. Only the whole GPU can be reset."""
    mig = node.gpus[uuid].reading.mig if uuid in node.gpus else None
    return uuid if mig is None else mig.parent


def is_lost(reading: GpuReading) -> bool:
    """Return whether a whole GPU is lost: it does not respond, or NVML works and does not list it."""
    return reading.mig is None and reading.problem is not None and reading.problem.code in LOST


def serves_gpu(node: Node, daemon: Daemon, gpu: GpuReading) -> bool | None:
    """Return whether the daemon has this GPU or MIG instance; None if that is not known.

    Its own list decides. Before R580 there is none: then a server with a client has a context on each of its GPUs
    (measured, R580), and a UUID in CUDA_VISIBLE_DEVICES names a GPU. If a GPU from Volta on is visible, the daemon
    ignores those before Volta (NVIDIA's MPS guide).
    """
    if daemon.runtime.devices:
        return gpu.gpu in daemon.runtime.devices.values()
    if gpu.gpu in daemon.runtime.seen_on:
        return True
    visible = _is_visible(node, daemon, gpu)
    if visible is not False and is_from_volta(gpu) is False:
        newer = {_is_visible(node, daemon, each.reading) for each in node.gpus.values() if is_from_volta(each.reading)}
        return False if True in newer else None if None in newer else visible
    return visible


def with_contexts(daemon: Daemon, reading: GpuReading) -> Daemon:
    """Return the daemon with this GPU if NVML shows one of its servers, or of the clients that it lists, there."""
    servers = {pid for pid in daemon.servers if not daemon.claimed(ClaimKind.SERVER_START, pid)}
    clients = {pid for pid, client in daemon.clients.items() if client.listed_at is not None}
    if (servers | clients).isdisjoint(_processes_with_context(reading)) or reading.gpu in daemon.runtime.seen_on:
        return daemon
    return with_runtime(daemon, seen_on=daemon.runtime.seen_on | {reading.gpu})


def serves_process(node: Node, daemon: Daemon, process: ProcessReading | None) -> bool:
    """Return whether the daemon certainly serves a process: root's serves all who can enter its pipe directory.

    A directory in a container is certain to be in the pods and containers of the daemon and of its clients only.
    """
    own, uid = daemon.runtime.last_process, None if process is None else process.uid
    if daemon.is_apart and (place := _pod_or_container(own)):
        clients = map(node.processes.get, daemon.clients)
        if _pod_or_container(process) not in (place, *filter(None, map(_pod_or_container, clients))):
            return False
    owner = daemon.declared.owner if own is None or own.uid is None else own.uid
    only = owner or (None if own is None else own.entered_by)
    return only is None or uid == only or (uid == 0 and not owner)


def _pod_or_container(process: ProcessReading | DaemonProcess | None) -> str | None:
    member = cgroup_of(process)
    return member.pod_uid or member.container


def is_from_volta(gpu: GpuReading) -> bool | None:
    """Return whether the architecture of a GPU is Volta or later; None if it is unknown."""
    major = version_number((gpu.compute_capability or "").partition(".")[0])
    return None if major is None else major >= VOLTA


def version_number(text: str) -> int | None:
    """Return one number of a version; None if the text is not one."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 4 else None


def _is_visible(node: Node, daemon: Daemon, gpu: GpuReading) -> bool | None:
    """Return whether CUDA_VISIBLE_DEVICES leaves the GPU or MIG instance visible; None if that is not known.

    A device cgroup or a container may hide other GPUs, and renumbers them. Without a MIG instance in the variable, CUDA
    uses one instance (MIG user guide), and it is not known which.
    """
    visible = daemon.runtime.visible_devices
    if gpu.mig is not None:
        older_name = f"MIG-{gpu.mig.parent}/{gpu.mig.gpu_instance}/{gpu.mig.compute_instance}"
        named = any(names_device(each, None, gpu.gpu, older_name) for each in visible_device_entries(visible or ""))
        parent = node.gpus.get(gpu.mig.parent)
        return named or (None if parent is None or _is_visible(node, daemon, parent.reading) is not False else False)
    uuids = {gpu.gpu, *(uuid for uuid, each in node.gpus.items() if each.reading.mig is None)}
    if len(uuids) == 1:
        return visible is None or bool(visible_gpu_uuids(visible, {gpu.gpu: gpu.index}))
    if visible is None:
        return None
    return gpu.gpu in visible_gpu_uuids(visible, dict.fromkeys(uuids)) or (None if has_ordinals(visible) else False)


def device_count(node: Node, daemon: Daemon) -> int:
    """Return how many devices the daemon has at most; 0 if unknown. Of a GPU with MIG, CUDA uses one instance."""
    if daemon.runtime.devices:
        return min(max(daemon.runtime.devices) + 1, MOST_DEVICES)
    visible = daemon.runtime.visible_devices
    most = MOST_DEVICES if visible is None else min(MOST_DEVICES, len(visible_device_entries(visible)))
    served = ((gpu.reading, serves_gpu(node, daemon, gpu.reading)) for gpu in node.gpus.values())
    found = {whole_gpu(node, each.gpu) for each, serves in served if serves or (serves is None and each.mig is None)}
    return min(len(found), most)


def gpus_by_ordinal(node: Node, daemon: Daemon) -> Mapping[int, GpuUuid]:
    """Return the GPUs by the daemon's ordinals: by its own list, else by UUIDs in its environment; empty if unknown.

    Of several GPUs, their numbers there show nothing (see `_is_visible`).
    """
    if daemon.runtime.devices:
        return daemon.runtime.devices
    devices = usable_gpus(node)
    served = {uuid: serves_gpu(node, daemon, reading) for uuid, reading in devices.items()}
    uuids = tuple(uuid for uuid, serves in served.items() if serves)
    # CUDA enumerates one MIG instance at most (MIG user guide).
    if None in served.values() or (len(uuids) > 1 and any(devices[uuid].mig for uuid in uuids)):
        return {}
    if len(uuids) > 1:
        named = visible_gpu_uuids(daemon.runtime.visible_devices or "", dict.fromkeys(devices))
        uuids = tuple(uuid for uuid in named if served[uuid])
    return dict(enumerate(uuids))


def gpus_in_order(node: Node, daemon: Daemon) -> tuple[GpuUuid, ...]:
    """Return the daemon's GPUs as a client counts them that sees all of them; empty if unknown.

    Clients count them in the order of the node. The order in the daemon's CUDA_VISIBLE_DEVICES changes only the
    daemon's own ordinals (measured, R580). Of different GPUs, CUDA counts the fastest first. It counts like ones by
    their place on the PCI bus, which NVML's index need not follow (nvml.h), and leaves out a lost one.
    """
    gpus = frozenset(gpus_by_ordinal(node, daemon).values())
    readings = [node.gpus[uuid].reading for uuid in gpus if uuid in node.gpus and not is_lost(node.gpus[uuid].reading)]
    # NVML writes all numbers of the bus ids in the same width (nvml.h).
    by_bus_id = {each.pci_bus_id: each.gpu for each in readings if each.pci_bus_id and each.name}
    if len(gpus) < 2:
        return tuple(gpus)
    are_alike = len({each.name for each in readings}) == 1 and len(by_bus_id) == len(gpus)
    return tuple(by_bus_id[bus_id] for bus_id in sorted(by_bus_id)) if are_alike else ()


def client_devices(
    node: Node, daemon: Daemon, process: ProcessReading | None, variables: Mapping[str, str] | None, gpus: Gpus
) -> tuple[GpuUuid, ...] | None:
    """Return the GPUs by the numbers that a client gives them, as far as it was started so; None if unknown.

    Containers and jobs can hide GPUs, and all later ones have other numbers. If the client is on other `gpus`, or does
    not launch on one of them by these numbers, it has changed its CUDA_VISIBLE_DEVICES before its first CUDA call.
    """
    found, member = gpus_in_order(node, daemon), cgroup_of(process)
    visible = None if variables is None else variables.get(VISIBLE_DEVICES)
    hides = len(found) > 1 and (process is None or member != CgroupMembership(unit=member.unit))
    if variables is None or not found or (hides and (visible is None or has_ordinals(visible))):
        return None
    if visible is not None:
        found = visible_gpu_uuids(visible, {uuid: number for number, uuid in enumerate(found)})
    launched = {} if process is None or not gpus else node.begun_on(process.pid)
    works_there = all(gpus.intersection(found[each : each + 1]) for each in launched)
    return found if gpus <= set(found) and works_there else None


def devices_of(node: Node, daemon: Daemon, pid: int, gpus: Gpus) -> tuple[GpuUuid, ...] | None:
    """Return the GPUs by the numbers that a client gives them, by its environment as it was read."""
    process = node.processes.get(pid)
    return client_devices(node, daemon, process, None if process is None else process.environment, gpus)


def uses_gpu(node: Node, daemon: Daemon, uuid: GpuUuid) -> bool | None:
    """Return whether the daemon has this GPU, or a MIG instance of it: a fault of a GPU concerns all of them.

    None if that is not known. Of a GPU that NVML has not shown, only the daemon's own list of devices is known.
    """
    if uuid not in node.gpus:
        return uuid in daemon.runtime.devices.values()
    serves = [serves_gpu(node, daemon, node.gpus[each].reading) for each in (uuid, *instances_of(node, uuid))]
    return True in serves or (None if None in serves else False)


def is_same_or_parent(node: Node, uuid: GpuUuid, others: Collection[GpuUuid]) -> bool:
    """Return whether a GPU is one of the others, or one of them is a MIG instance of it."""
    return uuid in others or any(each in others for each in instances_of(node, uuid))


def serving_daemons(node: Node, gpu: GpuReading) -> Iterable[Daemon]:
    """Return all known daemons that certainly serve this GPU, or would if they ran."""
    known = (each for each in node.daemons.values() if each.is_reported(node.at) and not each.is_over)
    return (each for each in known if serves_gpu(node, each, gpu))


def mps_pids(node: Node) -> frozenset[int] | None:
    """Return the MPS clients on all GPUs; None if NVML has no list of them for any GPU."""
    lists = [gpu.reading.mps_processes for gpu in node.gpus.values() if gpu.reading.mps_processes is not None]
    return frozenset(process.pid for each in lists for process in each) if lists else None


# -- failure domains ---------------------------------------------------------------------------------------------------


@frozen
class FailureDomain:
    """Clients of one server that one fault would end together, and their GPUs."""

    clients: frozenset[int]
    gpus: Gpus
    upper_bound: bool = False  # Whether some of them may survive.


def failure_domains(node: Node, daemon: Daemon) -> Mapping[int, tuple[FailureDomain, ...]]:
    """Return the failure domains by server. A client without complete information about its GPUs has none."""
    # NVML must list the processes of all GPUs that clients of the daemon may use.
    readings = [each for each in usable_gpus(node).values() if serves_gpu(node, daemon, each) is not False]
    complete = len(gpus_by_ordinal(node, daemon)) == 1 or all(
        reading.compute_processes is not None and not reading.mig_mode for reading in readings
    )
    by_server: dict[int, dict[int, Gpus]] = {server: {} for server in daemon.servers}
    for pid, gpus in gpus_of_clients(node, daemon, daemon.clients).items():
        if complete or logged_gpus(daemon, pid):
            by_server.setdefault(daemon.clients[pid].server, {})[pid] = gpus
    # From driver R610 on, clients in other partitions survive some faults (guide, release 615).
    partial = daemon.has_static_partitions
    return {server: tuple(_domains(clients, upper_bound=partial)) for server, clients in by_server.items()}


def gpus_of_clients(node: Node, daemon: Daemon, pids: Collection[int], *, in_use: bool = False) -> Mapping[int, Gpus]:
    """Return the GPUs of clients; one without an entry has unknown GPUs.

    A client is where NVML shows its memory and the log a context, else on the only GPU that the daemon has. For those
    `in_use`, NVML counts only if it was read since the client connected, and since it launched on more devices than
    NVML shows. NVML outweighs the log if it was read since the log added a GPU. A client of which NVML still does not
    show all devices then has one `ELSEWHERE`, unless NVML lists the processes of all GPUs of the node.
    """
    usable = usable_gpus(node)
    divided = node.gpus.keys() - usable.keys()
    shown: dict[int, set[GpuUuid]] = {}
    for uuid, reading in usable.items():
        for pid in _processes_with_context(reading).intersection(pids):
            shown.setdefault(pid, set()).add(uuid)
    listed = {uuid: each for uuid, each in usable.items() if lists_processes(each)}
    read_at = min((reading.at for reading in listed.values()), default=0.0)
    number = 0 if node.work is None else node.work.gpus
    lists_all = 0 < number <= len({whole_gpu(node, uuid) for uuid in listed})
    # NVML shows one GPU, but a container can hide others of the node.
    is_assumed = len(usable) == 1 and not daemon.runtime.devices
    every = usable.keys() if in_use and is_assumed else {*gpus_by_ordinal(node, daemon).values()}
    found: dict[int, Gpus] = {}
    for pid in pids:
        client, devices, launched = daemon.clients.get(pid), node.begun_on(pid), node.launch_history.begun.get(pid, {})
        by_nvml, by_log = frozenset(shown.get(pid, ())), logged_gpus(daemon, pid) - divided
        # It launches on more GPUs than NVML shows: on one that NVML does not list, or NVML was read before.
        has_one = number <= 1 and not devices if is_assumed else len(every) == 1
        shows_fewer = not has_one and len(by_nvml) < (len(devices) or bool(launched))
        is_elsewhere = shows_fewer and client is not None and not lists_all
        since = (() if client is None else (client.connected_at,), launched.values() if shows_fewer else ())
        is_current = read_at >= max(chain(*since), default=0.0)
        if in_use and not is_current:
            by_nvml = frozenset()
        elif in_use:
            by_nvml |= {ELSEWHERE} if is_elsewhere else set()
            if by_nvml and (client is None or read_at >= client.gpu_added_at):
                by_log -= listed.keys()
        # That it could use no other GPU is not known of a client that may be elsewhere.
        has_other = is_elsewhere and (is_current or (in_use and devices))
        if gpus := by_nvml | by_log or (every if len(every) == 1 and not has_other else ()):
            found[pid] = frozenset(gpus)
    return found


def logged_gpus(daemon: Daemon, pid: int) -> Gpus:
    """Return the GPUs of a connected or recently disconnected client by the log, which any user can write."""
    connections = daemon.connections
    known = daemon.clients.get(pid) or connections.disconnects.get(pid) or connections.recently_disconnected.get(pid)
    return frozenset() if known is None else known.gpus


def serves_all_gpus_of(node: Node, daemon: Daemon, pid: int) -> bool:
    """Return whether the daemon may serve all GPUs that a process uses: a client sees no other GPUs than its daemon."""
    readings = (each for each in usable_gpus(node).values() if pid in _processes_with_context(each))
    return all(serves_gpu(node, daemon, each) is not False for each in readings)


def listed_without_context(node: Node, uuid: GpuUuid) -> set[int]:
    """Return the processes that see a GPU and have no context there: in the MPS list only, without memory (R580)."""
    reading = None if uuid not in node.gpus else node.gpus[uuid].reading
    listed = () if reading is None else reading.mps_processes or ()
    return {process.pid for process in listed if process.used_bytes == 0}


def lists_processes(reading: GpuReading) -> bool:
    """Return whether NVML lists the clients with a context on this GPU. Under MIG it lists those of all instances."""
    return reading.mps_processes is not None and not reading.mig_mode


def has_unlisted_gpu(node: Node, daemon: Daemon, other_than: GpuUuid) -> bool:
    """Return whether the daemon may have another GPU of which NVML does not list the processes."""
    others = without(usable_gpus(node), other_than).values()
    unlisted = (reading for reading in others if not lists_processes(reading))
    return (
        not node.gpus.keys() >= {*daemon.runtime.devices.values()}
        or any(serves_gpu(node, daemon, reading) is not False for reading in unlisted)
        or any(ELSEWHERE in gpus for gpus in gpus_of_clients(node, daemon, daemon.clients, in_use=True).values())
    )


def _processes_with_context(reading: GpuReading) -> set[int]:
    """Return the processes that have a context on this GPU.

    Before its first context, a client is in the MPS list of every GPU, with no memory (measured, R580). Under MIG, the
    lists are of all instances together (nvml.h), and a client uses one.
    """
    if reading.mig_mode:
        return set()
    of_mps = {process.pid for process in reading.mps_processes or () if process.used_bytes}
    return of_mps | {process.pid for process in reading.compute_processes or ()}


def _domains(clients: Mapping[int, Gpus], *, upper_bound: bool) -> Iterable[FailureDomain]:
    """Group clients that have a GPU in common, directly or through other clients."""
    groups: list[Gpus] = []
    for gpus in dict.fromkeys(clients.values()):
        overlapping = [each for each in groups if each & gpus]
        groups = [*(each for each in groups if not each & gpus), gpus.union(*overlapping)]
    members: dict[Gpus, set[int]] = {group: set() for group in groups}
    group_of = {gpu: group for group in groups for gpu in group}
    for pid, gpus in clients.items():
        members[group_of[next(iter(gpus))]].add(pid)
    for gpus, pids in members.items():
        yield FailureDomain(clients=frozenset(pids), gpus=gpus, upper_bound=upper_bound)
