"""Allocation: the shares of GPUs that Kubernetes has allocated to pods, and those of pods without a CUDA context."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from exporter.model.identity import PodResourcesReading
from exporter.model.node import Node
from exporter.model.observation import GpuUuid
from exporter.parse.cgroup import cdi_claim_uid, gpu_device
from exporter.state.devices import gpus_of_clients
from exporter.state.processes import cgroup_of

STALE_SECONDS = 60.0  # An older reading is not current. The kubelet is asked every 15 s.


class PodName(NamedTuple):
    """The name of a pod. A new pod, such as that of a StatefulSet, can have the name of an earlier one."""

    namespace: str
    pod: str


class ContainerName(NamedTuple):
    """The name of a container of a pod."""

    namespace: str
    pod: str
    container: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedShares:
    """The shares of one GPU that are devices of one resource.

    A share that is listed for several pods counts once: kubelets before 1.34 also list pods that have ended. `unused`
    is the number of shares that no pod with a CUDA context on this GPU has, and `unused_by` are the pods that have
    them. Both are None if the pod of a process with a context is unknown.
    """

    allocatable: int = 0
    allocated: int = 0
    by_container: Mapping[ContainerName, int] = field(default_factory=dict)
    unused: int | None = None
    unused_by: tuple[PodName, ...] | None = None


Allocation = Mapping[GpuUuid, Mapping[str, AllocatedShares]]  # By GPU and by resource.


def allocation(node: Node) -> Allocation:
    """Return the shares of each known GPU that has any; empty if the kubelet's data is not current."""
    reading = _current(node)
    if reading is None:
        return {}
    uuids = {gpu.reading.index: uuid for uuid, gpu in node.gpus.items() if gpu.reading.index is not None}

    def gpu_of(device_id: str) -> GpuUuid | None:
        """Return the GPU of a share. A device that is a whole GPU or another one has none."""
        device = gpu_device(device_id)
        if device is None or not device.shared:
            return None
        uuid = uuids.get(device.gpu) if isinstance(device.gpu, int) else device.gpu
        return uuid if uuid in node.gpus else None

    allocatable: defaultdict[tuple[GpuUuid, str], set[str]] = defaultdict(set)
    listed: defaultdict[tuple[GpuUuid, str], defaultdict[ContainerName, set[str]]]
    listed = defaultdict(lambda: defaultdict(set))
    for resource, ids in reading.allocatable.items():
        for share in ids:
            if (uuid := gpu_of(share)) is not None:
                allocatable[uuid, resource].add(share)
    for devices in reading.devices:
        for share in devices.ids:
            if (uuid := gpu_of(share)) is not None:
                container = ContainerName(devices.namespace, devices.pod, devices.container)
                listed[uuid, devices.resource][container].add(share)
    keys = sorted(allocatable.keys() | listed.keys())
    users = _users(node, {uuid for uuid, _ in keys})
    by_gpu: dict[GpuUuid, dict[str, AllocatedShares]] = {}
    for uuid, resource in keys:
        shares = _shares(allocatable[uuid, resource], listed[uuid, resource], users[uuid])
        by_gpu.setdefault(uuid, {})[resource] = shares
    return by_gpu


def claim_names(node: Node) -> Mapping[str, tuple[str, str]]:
    """Return namespace and name of the known resource claims by UID."""
    reading = _current(node)
    claims = () if reading is None else reading.claims
    uids = ((cdi_claim_uid(device), claim) for claim in claims for device in claim.devices)
    return {uid: (claim.claim_namespace, claim.claim) for uid, claim in uids if uid is not None}


def _current(node: Node) -> PodResourcesReading | None:
    reading = node.pod_resources
    return None if reading is None or node.at - reading.at > STALE_SECONDS else reading


def _shares(
    allocatable: Set[str], listed: Mapping[ContainerName, Set[str]], users: Set[PodName] | None
) -> AllocatedShares:
    used, unused = set[str](), set[str]()
    for container, ids in listed.items():
        (used if users is not None and PodName(*container[:2]) in users else unused).update(ids)
    unused -= used
    by = sorted({PodName(*container[:2]) for container, ids in listed.items() if ids & unused})
    return AllocatedShares(
        allocatable=len(allocatable),
        allocated=len(used | unused),
        by_container={container: len(ids) for container, ids in sorted(listed.items())},
        unused=None if users is None else len(unused),
        unused_by=None if users is None else tuple(by),
    )


def _users(node: Node, gpus: Iterable[GpuUuid]) -> Mapping[GpuUuid, Set[PodName] | None]:
    """Return the pods with a context, or an MPS client, on each GPU; None if the pod of a process is unknown."""
    clients: defaultdict[GpuUuid, set[int]] = defaultdict(set)
    servers = {pid for daemon in node.daemons.values() for pid in daemon.servers}
    for daemon in node.daemons.values():
        for pid, uuids in gpus_of_clients(node, daemon, daemon.clients).items():
            for uuid in uuids:
                clients[uuid].add(pid)
    pods: dict[GpuUuid, Set[PodName] | None] = {}
    for uuid in gpus:
        reading = node.gpus[uuid].reading
        if reading.compute_processes is None or reading.mig_mode:
            pods[uuid] = None
        else:
            pids = clients[uuid].union(process.pid for process in reading.compute_processes) - servers
            # A process outside pods has none.
            uids = {uid for pid in pids if (uid := cgroup_of(node.processes.get(pid)).pod_uid) is not None}
            known = [node.pods[uid] for uid in uids if uid in node.pods]
            complete = pids <= node.processes.keys() and len(known) == len(uids)
            pods[uuid] = {PodName(pod.namespace, pod.name) for pod in known} if complete else None
    return pods
