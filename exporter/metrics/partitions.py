"""Families of named servers, namespaces and static SM partitions (R590 to R615)."""

from collections import Counter

from exporter.metrics.daemons import DAEMON, as_ratio, memory_by_gpu
from exporter.metrics.family import Choice, Items, Labels, Samples, Scope, family, group, info
from exporter.model.server import SmPartition
from exporter.model.settings import Limits
from exporter.parse.protocol3 import PROTOCOL
from exporter.state.failure_domains import is_upper_bound
from exporter.state.gpus import physical_gpu
from exporter.state.sm_partitions import gpu_of, partition_of, partitions_with_clients
from exporter.view import View


def _namespaces(view: View) -> Items[Limits]:
    for daemon, server in view.servers():
        for name, limits in server.namespaces.items():
            yield (daemon.name, str(server.pid), name), limits


def _namespace_memory(view: View) -> Samples:
    daemons = {daemon.name: daemon for daemon in view.daemons()}
    for labels, limits in _namespaces(view):
        yield from memory_by_gpu(view, daemons[labels[0]], labels, limits.pinned_memory)


def _namespace_clients(view: View) -> Samples:
    counts: dict[Labels, int] = {labels: 0 for labels, _ in _namespaces(view)}
    for daemon, client in view.connected():
        labels = (daemon.name, str(client.server), client.namespace or "")
        if labels in counts:
            counts[labels] += 1
    return counts.items()


def _replies_unrecognized(view: View) -> Samples:
    for labels, daemon in DAEMON.items(view):
        if daemon.runtime.protocol == PROTOCOL or daemon.has_static_partitions:
            yield from (((*labels, part), count) for part, count in daemon.totals.replies_unrecognized.items())


_NAMESPACE: Scope[Limits] = Scope(("daemon", "server", "mps_namespace"), _namespaces)

NAMESPACES = group(
    "Protocol 3 (R615): named servers and namespaces",
    "clients by server and namespace",
    "sum by (instance, daemon, name, mps_namespace) (cuda_mps_namespace_clients\n"
    "  * on (job, instance, daemon, server) group_left (name) cuda_mps_server_name_info)",
    info(
        "cuda_mps_server_name_info",
        ("daemon", "server", "name"),
        lambda view: (
            (daemon.name, str(server.pid), server.name) for daemon, server in view.servers() if server.name is not None
        ),
    ),
    "The name of the server (protocol 3), always 1.",
    family("cuda_mps_namespace_clients", _NAMESPACE.labels, _namespace_clients),
    "Clients in the namespace of a server (protocol 3).",
    _NAMESPACE.value("cuda_mps_namespace_active_thread_ratio", lambda each: as_ratio(each.active_thread_percentage)),
    "Fraction of a GPU's threads that each client in the namespace may use.",
    _NAMESPACE.value("cuda_mps_namespace_client_priority", lambda each: each.client_priority),
    "Priority of the clients in the namespace: 0 is normal, 1 is below normal.",
    family("cuda_mps_namespace_pinned_memory_limit_bytes", (*_NAMESPACE.labels, "gpu"), _namespace_memory),
    "GPU memory that each client in the namespace may allocate. Absent without a limit.",
    family(
        "cuda_mps_exporter_replies_unrecognized_total",
        ("daemon", Choice("part", ("column", "row"))),
        _replies_unrecognized,
    ),
    "Columns and rows of the daemon's tables that the exporter does not know. Counted in each reply.",
)


def _partitions(view: View) -> Items[SmPartition]:
    """Yield the partitions on known GPUs."""
    for daemon in view.daemons():
        for each in () if daemon.runtime.partitions is None else daemon.runtime.partitions.partitions:
            gpu = gpu_of(view.node, each.gpu)
            if gpu is not None:
                yield (daemon.name, gpu, each.id), each


def _partition_clients(view: View) -> Samples:
    """Read the clients of each partition. If a client's environment is unknown, 0 is known only from the daemon."""
    for daemon in view.daemons():
        used = partitions_with_clients(view.node, daemon)
        named = [partition_of(view.node, daemon, client) for client in daemon.clients.values()]
        for each in () if daemon.runtime.partitions is None else daemon.runtime.partitions.partitions:
            gpu, count = gpu_of(view.node, each.gpu), named.count(each)
            if gpu is not None and (None not in named or (used is not None and each not in used)):
                yield (daemon.name, gpu, each.id), count


def _free(view: View, *, sms: bool) -> Samples:
    for daemon in view.daemons():
        for name, free in {} if daemon.runtime.partitions is None else daemon.runtime.partitions.free.items():
            gpu = gpu_of(view.node, name)
            if gpu is not None:
                yield (daemon.name, gpu), free.sms if sms else free.chunks


def _client_partitions(view: View) -> Samples:
    for daemon, client, client_id in view.clients:
        found = partition_of(view.node, daemon, client)
        gpu = None if found is None else gpu_of(view.node, found.gpu)
        if found is not None and gpu is not None:
            yield (daemon.name, client_id, gpu, found.id), 1


def _upper_bounds(view: View) -> Samples:
    """Return the clients whose failure domain is only an upper bound."""
    bounds = {daemon.name: is_upper_bound(view.node, daemon) for daemon in view.daemons()}
    return (((daemon.name, client_id), 1) for daemon, _, client_id in view.clients if bounds.get(daemon.name))


def _mlopart_devices(view: View) -> Samples:
    for daemon in view.daemons():
        divided = Counter(
            physical_gpu(view.node, daemon, uuid) for uuid in daemon.runtime.addresses if uuid not in view.node.gpus
        )
        yield from (((daemon.name, gpu), count) for gpu, count in divided.items() if gpu is not None)


_PARTITION: Scope[SmPartition] = Scope(("daemon", "gpu", "partition"), _partitions)

PARTITIONS = group(
    "Static SM partitions (R590 and later)",
    "SMs of partitions without clients",
    "cuda_mps_sm_partition_sms and on (job, instance, daemon, gpu, partition) cuda_mps_sm_partition_clients == 0",
    _PARTITION.value("cuda_mps_sm_partition_sms", lambda each: each.sms),
    "SMs of the static partition. Only its clients use them. partition is its ID in CUDA_MPS_SM_PARTITION.",
    _PARTITION.value("cuda_mps_sm_partition_chunks", lambda each: each.chunks),
    "Chunks of the static partition.",
    family("cuda_mps_sm_partition_clients", _PARTITION.labels, _partition_clients),
    "Clients whose environment names the partition. Absent if it is unknown for a client.",
    family("cuda_mps_sm_partition_free_sms", ("daemon", "gpu"), lambda view: _free(view, sms=True)),
    "SMs of the GPU that no static partition has. No client uses them.",
    family("cuda_mps_sm_partition_free_chunks", ("daemon", "gpu"), lambda view: _free(view, sms=False)),
    "Chunks of the GPU that no static partition has.",
    family("cuda_mps_client_sm_partition_info", ("daemon", "client", "gpu", "partition"), _client_partitions),
    "The static partition that the client's environment names, always 1.",
    family("cuda_mps_client_failure_domain_upper_bound", ("daemon", "client"), _upper_bounds),
    "1 if the client's failure domain is an upper bound. With static partitions and driver R610, clients in other "
    "partitions may survive a fault. With MLOPart devices, it is unknown. Otherwise absent.",
    family("cuda_mps_gpu_mlopart_devices", ("daemon", "gpu"), _mlopart_devices),
    "MLOPart devices (locality domains) into which the daemon's servers divide the GPU. Absent without any.",
)
