"""Reads limits and use of GPU memory by cgroup: cgroup v2's dmem controller, else NVML. Not tried on hardware."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from exporter.clock import Clock
from exporter.collectors.thread import Reading
from exporter.model.device_memory import CgroupPath, DeviceMemory, DeviceMemoryReading, PciAddress
from exporter.parse.dmem import MAX_BYTES, components, parse_cgroup_v2, parse_regions, smallest

MAX_CGROUPS = 512
"""Cgroups that are read in one collection. The kubelet runs 110 pods by default."""

CAPACITY, CURRENT, HARD, SOFT = "dmem.capacity", "dmem.current", "dmem.max", "dmem.min"

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Memory = Mapping[PciAddress, DeviceMemory]
ReadLimits = Callable[[Path], Memory | None]
"""Returns NVML's values of the cgroup that is this directory, None if it has none."""


class DeviceMemories:
    """What the wanted cgroups have of each GPU."""

    def __init__(self, root: Path, proc: Path, clock: Clock, *, by_nvml: ReadLimits = lambda _: None) -> None:
        """`root` is where cgroup v2 is mounted. `by_nvml` is used if the kernel has no dmem controller."""
        self._root = root
        self._own_cgroup = proc / "self" / "cgroup"
        self._clock = clock
        self._by_nvml = by_nvml
        self._wanted: frozenset[CgroupPath] = frozenset()

    def watch(self, cgroups: frozenset[CgroupPath]) -> None:
        """Set the cgroups to read."""
        self._wanted = cgroups

    def collect(self) -> Reading:
        """Read the cgroups of the clients, and the exporter's own."""
        wanted = sorted(self._wanted)[:MAX_CGROUPS]
        try:
            with _opened(self._root) as root:
                capacity, inner = _regions(root, CAPACITY), _regions(root, CURRENT)
                controlled = capacity is not None or inner is not None
                read = self._in_files if controlled else self._in_nvml
                found = {path: memory for path in wanted if (memory := read(path)) is not None}
                own = self._own_path()
                mine = None if own is None else read(own)
            if controlled and capacity is None and not any(each.limit is not None for each in (mine or {}).values()):
                # Ancestors with a limit may be hidden: this is not the root of all cgroups.
                mine = None
        except (OSError, ValueError):
            # Without cgroup v2 there is nothing to read.
            return Reading((DeviceMemoryReading(at=self._clock.now()),))
        sizes = {address: size for address, size in (capacity or {}).items() if size is not None}
        return Reading((DeviceMemoryReading(at=self._clock.now(), cgroups=found, own=mine, capacity=sizes),))

    def _own_path(self) -> CgroupPath | None:
        try:
            return parse_cgroup_v2(self._own_cgroup.read_text(errors="replace"))
        except OSError:
            return None

    def _in_files(self, path: CgroupPath) -> Memory | None:
        """Read a cgroup and its ancestors. Without the controller, a cgroup's memory is charged to its parent."""
        limits: dict[PciAddress, int | None] = {}
        soft: Mapping[PciAddress, int | None] = {}
        used: Mapping[PciAddress, int | None] = {}
        try:
            for level in self._levels(path):
                for address, limit in (_regions(level, HARD) or {}).items():
                    limits[address] = smallest(limits.get(address), limit)
                current = _regions(level, CURRENT)
                if current is not None:
                    used, soft = current, _regions(level, SOFT) or {}
        except (OSError, ValueError):
            return None
        return {
            address: DeviceMemory(limit=limits.get(address), soft_limit=soft.get(address), used=used.get(address))
            for address in limits.keys() | used.keys()
        }

    def _levels(self, path: CgroupPath) -> Iterator[int]:
        """Open the root, and each cgroup on the path. No link is followed."""
        with contextlib.ExitStack() as opened:
            level = opened.enter_context(_opened(self._root))
            yield level
            for name in components(path):
                level = opened.enter_context(_opened(name, level))
                yield level

    def _in_nvml(self, path: CgroupPath) -> Memory | None:
        """Ask NVML for a cgroup and its ancestors. Whether NVML considers the ancestors is not documented."""
        found: Memory | None = None
        directory, limits = self._root, dict[PciAddress, int | None]()
        for name in components(path):
            directory /= name
            found = self._by_nvml(directory)
            for address, memory in (found or {}).items():
                limits[address] = smallest(limits.get(address), memory.limit)
        return (
            None
            if found is None
            else {
                address: DeviceMemory(limit=limits[address], soft_limit=memory.soft_limit, used=memory.used)
                for address, memory in found.items()
            }
        )


@contextlib.contextmanager
def _opened(path: Path | str, directory: int | None = None) -> Iterator[int]:
    descriptor = os.open(path, _DIRECTORY, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _regions(directory: int, name: str) -> Mapping[PciAddress, int | None] | None:
    """Read a file of a cgroup; None if there is none. Raises OSError and ValueError if it cannot be read whole."""
    try:
        descriptor = os.open(name, _FILE, dir_fd=directory)
    except FileNotFoundError:
        return None
    data = bytearray()
    try:
        while chunk := os.read(descriptor, MAX_BYTES + 1 - len(data)):
            data += chunk
    finally:
        os.close(descriptor)
    if len(data) > MAX_BYTES:
        raise ValueError(name)
    return parse_regions(data.decode(errors="replace"))
