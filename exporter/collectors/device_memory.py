"""Reads limits and use of GPU memory by cgroup: cgroup v2's dmem controller, else NVML. Not tried on hardware."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from exporter.clock import Clock
from exporter.collectors.nvml.driver import DriverError
from exporter.collectors.thread import Reading
from exporter.model.device_memory import CgroupLimit, CgroupPath, DeviceMemory, DeviceMemoryReading, PciAddress
from exporter.model.values import replace
from exporter.parse.dmem import MAX_BYTES, components, parse_cgroup_v2, parse_regions

MAX_CGROUPS = 512
"""Cgroups that are read in one collection. The kubelet runs 110 pods by default."""

CAPACITY, CURRENT, HARD, SOFT = "dmem.capacity", "dmem.current", "dmem.max", "dmem.min"

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Names = tuple[str, ...]
Memory = Mapping[PciAddress, DeviceMemory]
ReadLimits = Callable[[Path], Memory | None]
"""Returns NVML's values of the cgroup that is this directory, None if it has none. Raises DriverError."""


class DeviceMemories:
    """What the wanted cgroups have of each GPU."""

    def __init__(self, root: Path, proc: Path, clock: Clock, *, by_nvml: ReadLimits = lambda _: None) -> None:
        """`root` is where cgroup v2 is mounted. `by_nvml` is used if no dmem controller has NVIDIA's GPUs."""
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
        own_path = self._own_path()
        wanted = {*sorted(self._wanted)[:MAX_CGROUPS], *(() if own_path is None else (own_path,))}
        try:
            with _opened(self._root) as root:
                capacity = _regions(root, CAPACITY) or {}
                controlled = bool(capacity or _regions(root, CURRENT))
                if controlled:
                    found = dict(_in_files(root, 0, sorted(map(components, wanted)), {})) if wanted else {}
                else:
                    found = self._in_nvml(wanted)
        except (OSError, ValueError, DriverError):
            # Without cgroup v2 or the driver there is nothing to read. Each question to a closed driver would wait.
            return Reading((DeviceMemoryReading(at=self._clock.now()),))
        own = None if own_path is None else found.get(own_path)
        if controlled and not capacity and not any(each.limits or each.soft_limit for each in (own or {}).values()):
            # Ancestors with a limit may be hidden: this is not the root of all cgroups.
            own = None
        clients = {path: memory for path, memory in found.items() if path in self._wanted}
        sizes = {address: size for address, size in capacity.items() if size is not None}
        return Reading((DeviceMemoryReading(at=self._clock.now(), cgroups=clients, own=own, capacity=sizes),))

    def _own_path(self) -> CgroupPath | None:
        try:
            return parse_cgroup_v2(self._own_cgroup.read_text(errors="replace"))
        except OSError:
            return None

    def _in_nvml(self, wanted: Iterable[CgroupPath]) -> dict[CgroupPath, Memory]:
        """Ask NVML for cgroups and their ancestors. Without dmem, the nearest one with limits counts (guide, 615)."""
        ask = cache(self._by_nvml)
        found: dict[CgroupPath, Memory] = {}
        for path in wanted:
            names = components(path)
            here: Memory = {}
            for end in range(1, len(names) + 1):
                level = ask(self._root.joinpath(*names[:end])) or {}
                here = {gpu: _nearest(memory, names[:end], here.get(gpu)) for gpu, memory in level.items()}
            if here:
                found[path] = here
        return found


def _nearest(memory: DeviceMemory, names: Names, above: DeviceMemory | None) -> DeviceMemory:
    """Return what NVML has of a cgroup, with the limit of its parent if it has none."""
    if memory.limits or memory.soft_limit or above is None:
        own = tuple(replace(each, cgroup=_path(names), used=memory.used) for each in memory.limits)
        return replace(memory, limits=own)
    return replace(memory, limits=above.limits)


def _path(names: Names) -> CgroupPath:
    return "/" + "/".join(names)


def _in_files(level: int, depth: int, wanted: Sequence[Names], above: Memory) -> Iterator[tuple[CgroupPath, Memory]]:
    """Yield what the wanted cgroups, which are sorted, have at and below an open directory. No link is followed.

    `above` is what the parent has. A cgroup that cannot be read is absent, with all below it.
    """
    here = _with_level(level, wanted[0][:depth], above)
    below = [names for names in wanted if len(names) > depth]
    if len(below) < len(wanted):
        yield _path(wanted[0]), here
    for name, inner in groupby(below, key=itemgetter(depth)):
        with contextlib.suppress(OSError, ValueError), _opened(name, level) as opened:
            yield from _in_files(opened, depth + 1, list(inner), here)


def _with_level(level: int, names: Names, above: Memory) -> Memory:
    """Add the files of a cgroup. Without the controller, a cgroup's memory is charged to its parent.

    The kernel charges all ancestors, so the limits of all hold.
    """
    limits, used = _regions(level, HARD) or {}, _regions(level, CURRENT)
    soft = {} if used is None else _regions(level, SOFT) or {}
    found = {}
    for address in limits.keys() | above.keys() | (used or {}).keys():
        before, own = above.get(address, DeviceMemory()), limits.get(address)
        in_use = before.used if used is None else used.get(address)
        added = () if own is None else (CgroupLimit(cgroup=_path(names), limit=own, used=in_use),)
        found[address] = DeviceMemory(
            limits=before.limits + added,
            soft_limit=before.soft_limit if used is None else soft.get(address),
            used=in_use,
        )
    return found


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
