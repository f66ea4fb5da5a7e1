"""Limits of GPU memory by cgroup: those of clients, and that of the exporter itself."""

from collections.abc import Mapping

from exporter.model.device_memory import CgroupPath, DeviceMemory, DeviceMemoryReading, PciAddress
from exporter.model.node import Node
from exporter.model.observation import GpuReading, ProcessReading
from exporter.model.values import replace
from exporter.parse.dmem import parse_cgroup_v2
from exporter.parse.kernel_log import parse_bus_id

DEVICE_MEMORY = "device_memory"
"""Name of the collector that reads the cgroups."""


def cgroups_wanted(node: Node) -> frozenset[CgroupPath]:
    """Return the cgroups of all clients, as far as they are known."""
    clients = {pid for daemon in node.daemons.values() for pid in daemon.clients}
    paths = (_path(node.processes.get(pid)) for pid in clients)
    return frozenset(path for path in paths if path is not None)


def cgroup_memory(
    node: Node, process: ProcessReading | None, gpu: GpuReading
) -> tuple[CgroupPath | None, DeviceMemory | None]:
    """Return the cgroup of a process, and what it has of a GPU; None if it is unknown."""
    path = _path(process)
    reading = node.device_memory
    known = None if reading is None or path is None else reading.cgroups.get(path)
    return path, None if known is None else known.get(_address(gpu))


def apply_reading(node: Node, reading: DeviceMemoryReading) -> Node:
    """Apply a reading, also to the known GPUs: what NVML returned before may be the exporter's own limit."""
    node = replace(node, device_memory=reading)
    gpus = {uuid: replace(gpu, reading=with_device_size(node, gpu.reading)) for uuid, gpu in node.gpus.items()}
    return replace(node, gpus=gpus)


def with_device_size(node: Node, gpu: GpuReading) -> GpuReading:
    """Return a reading with the memory of the whole GPU.

    If the exporter's own cgroup has limits, NVML returns size and use within them (MPS guide, release 615).
    """
    if not has_own_limit(node, gpu) or node.device_memory is None:
        return gpu
    size = node.device_memory.capacity.get(_address(gpu))
    return replace(gpu, memory_used_bytes=None, memory_total_bytes=size)


def has_own_limit(node: Node, gpu: GpuReading) -> bool:
    """Return whether the exporter's own cgroup is known to have a hard or soft limit of a GPU's memory."""
    own: Mapping[PciAddress, DeviceMemory] | None = None if node.device_memory is None else node.device_memory.own
    found = None if own is None else own.get(_address(gpu))
    return found is not None and bool(found.limits or found.soft_limit)


def _path(process: ProcessReading | None) -> CgroupPath | None:
    return None if process is None or process.cgroup is None else parse_cgroup_v2(process.cgroup)


def _address(gpu: GpuReading) -> PciAddress:
    return (None if gpu.pci_bus_id is None else parse_bus_id(gpu.pci_bus_id)) or ""
