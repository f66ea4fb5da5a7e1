"""Limits and use of GPU memory by cgroup: the dmem controller (Linux 6.14), or NVML (R615)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

CgroupPath = str
PciAddress = str


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupLimit:
    """A hard limit of a cgroup, and what all processes in it use; None if that is unknown. Both are in bytes."""

    cgroup: CgroupPath
    limit: int
    used: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Memory of one GPU in one cgroup, in bytes.

    `limits` are the hard limits that hold for it, those of ancestors first. `soft_limit` is what the cgroup itself may
    use before its clients can be evicted. `used` is None if it is unknown.
    """

    limits: tuple[CgroupLimit, ...] = ()
    soft_limit: int | None = None
    used: int | None = None

    @property
    def limit(self) -> int | None:
        """The smallest limit, None without one."""
        return min((each.limit for each in self.limits), default=None)

    @property
    def tightest(self) -> CgroupLimit | None:
        """The limit of which the least is left; of equal ones that of the ancestor, None without one."""
        return min(self.limits, key=lambda each: each.limit - (each.used or 0), default=None)


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
