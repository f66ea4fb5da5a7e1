"""Families of the memory limits of cgroups (R615)."""

from collections.abc import Callable

from exporter.metrics.family import Choice, Items, Labels, Samples, Scope, family, group
from exporter.model.device_memory import DeviceMemory
from exporter.model.identity import WorkloadKind
from exporter.parse.dmem import smallest
from exporter.parse.printable import printable
from exporter.state.processes import workload_of
from exporter.usage.capacity import ClientUsage
from exporter.view import View


def _clients(view: View) -> Items[ClientUsage]:
    shown = {(daemon.name, client.pid): client_id for daemon, client, client_id in view.clients}
    for gpu, sharing in view.sharing.items():
        for each in sharing.clients:
            client_id = shown.get((each.daemon, each.client.pid))
            if client_id is not None:
                yield (each.daemon, client_id, gpu), each


def _effective_limits(view: View) -> Samples:
    """Return the smallest limit of clients in a cgroup that was read. If the pinned limit is unknown, so is this."""
    for labels, each in _clients(view):
        total = view.sharing[labels[-1]].memory_total_bytes
        if each.memory_limit_known and each.shared_memory is not None and total is not None:
            limit = smallest(each.memory_limit, each.shared_memory.limit, total)
            if limit is not None:
                yield labels, limit


def _of_workloads(value: Callable[[DeviceMemory], int | None]) -> Callable[[View], Samples]:
    """Read the cgroup that all clients of a workload on a GPU have. Two cgroups are not one value."""

    def samples(view: View) -> Samples:
        found: dict[Labels, dict[str | None, DeviceMemory | None]] = {}
        for gpu, sharing in view.sharing.items():
            for each in sharing.clients:
                workload = workload_of(view.node.processes.get(each.client.pid))
                if workload is not None:
                    labels: Labels = (workload.kind, printable(workload.name), gpu)
                    found.setdefault(labels, {})[each.cgroup] = each.shared_memory
        for key, by_cgroup in found.items():
            memory, *others = by_cgroup.values()
            amount = None if memory is None or others else value(memory)
            if amount is not None:
                yield key, amount

    return samples


def _of_cgroup(value: Callable[[DeviceMemory], int | None]) -> Callable[[ClientUsage], int | None]:
    return lambda each: None if each.shared_memory is None else value(each.shared_memory)


_CLIENT: Scope[ClientUsage] = Scope(("daemon", "client", "gpu"), _clients)
_WORKLOAD = (Choice("workload_kind", WorkloadKind), "workload", "gpu")

DEVICE_MEMORY = group(
    "Memory limits of cgroups (R615)",
    "clients whose cgroup has used 90 % of its limit",
    "cuda_mps_client_cgroup_memory_used_bytes / cuda_mps_client_cgroup_memory_limit_bytes > 0.9",
    _CLIENT.value("cuda_mps_client_cgroup_memory_limit_bytes", _of_cgroup(lambda each: each.limit)),
    "GPU memory that the client's cgroup may use: the smallest hard limit (dmem.max) of it and its ancestors, or the "
    "nearest in NVML. All its clients share it: do not sum it. Absent if unknown or not set.",
    _CLIENT.value("cuda_mps_client_cgroup_memory_soft_limit_bytes", _of_cgroup(lambda each: each.soft_limit)),
    "GPU memory (dmem.min) beyond which clients of the cgroup may be evicted under memory pressure. Do not sum it.",
    _CLIENT.value("cuda_mps_client_cgroup_memory_used_bytes", _of_cgroup(lambda each: each.used)),
    "GPU memory that all processes in the client's cgroup use (dmem.current). Do not sum it.",
    family("cuda_mps_client_memory_limit_bytes", _CLIENT.labels, _effective_limits),
    "The smallest of the client's pinned memory limit, its cgroup's limit and the GPU's memory. Absent if one of them "
    "is unknown.",
    family("cuda_mps_workload_cgroup_memory_limit_bytes", _WORKLOAD, _of_workloads(lambda each: each.limit)),
    "The limit of the cgroup that all clients of the workload share. Absent if they are in several cgroups.",
    family("cuda_mps_workload_cgroup_memory_used_bytes", _WORKLOAD, _of_workloads(lambda each: each.used)),
    "The use of the cgroup that all clients of the workload share. Absent if they are in several cgroups.",
)
