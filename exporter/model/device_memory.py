"""Limits and use of GPU memory by cgroup: the dmem controller (Linux 6.14), or NVML (R615)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

CgroupPath = str
PciAddress = str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Memory of one GPU in one cgroup, in bytes.

    `limit` is the hard limit that counts, None without one. `limited` is the cgroup that has it, which can be an
    ancestor, and `limited_used` what all processes in that cgroup use. `soft_limit` is what the cgroup itself may use
    before its clients can be evicted. `used` is None if it is unknown.
    """

    limit: int | None = None
    limited: CgroupPath | None = None
    limited_used: int | None = None
    soft_limit: int | None = None
    used: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemoryReading:
    """What the cgroups of clients have of each GPU, by PCI address as in `parse_bus_id`.

    A cgroup that could not be read is absent. `own` is the exporter's cgroup, None if it could not be read.
    `capacity` is the size of each GPU's memory. Only the root of all cgroups has it.
    """

    at: float
    cgroups: Mapping[CgroupPath, Mapping[PciAddress, DeviceMemory]] = field(default_factory=dict)
    own: Mapping[PciAddress, DeviceMemory] | None = None
    capacity: Mapping[PciAddress, int] = field(default_factory=dict)
