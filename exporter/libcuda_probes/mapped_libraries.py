"""The libcuda files that processes have mapped, and how each is opened as exactly the file that is mapped.

A process maps libcuda when it first uses CUDA, perhaps long after its start (dlopen(3)). So each process is read once,
and then again at growing intervals.

A mapped file is opened by the path that the process has, below the root of that process. By now that path can lead to
another file, a device or a pipe. To verify the file, it is mapped here too: the kernel shows the same device and inode
in the maps of all processes. Those of stat(2) can differ (overlayfs before Linux 6.8, btrfs).

A file that a workload serves itself is not opened: one on FUSE, or on an overlay above it, which needs a user namespace
of its own. While the kernel sets a probe it may have to read the file, and meanwhile no process on the node can fork.
"""

import ctypes
import mmap
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from exporter.clock import Clock
from exporter.collectors.pipe_dir import Directory, Root, open_file
from exporter.collectors.proc import Proc
from exporter.parse.proc import FileNumbers, MappedFile, parse_mapped_file

FIRST_INTERVAL_SECONDS, LAST_INTERVAL_SECONDS = 1.0, 60.0
"""When a process without libcuda is read again; each interval is twice the one before."""

MAPPED_INTERVAL_SECONDS = 300.0
"""When a process with libcuda is read again: it may execute another program by now (execve(2))."""

IDENTITY_SECONDS = 10.0
"""How long a PID that is watched without a break counts as the same process."""

MAX_READS = 64
"""Processes that one call reads at most."""

MAX_WATCHED = 4096

OVERLAYFS, FUSE = 0x794C7630, 0x65735546
"""Types of file systems (statfs(2))."""

_LIBCUDA = re.compile(r"libcuda\.so(\.[0-9]{1,9}){0,4}")
_STATFS_BYTES = 256

OverlayKey = tuple[int, int, int, int]
"""What files of several overlays have in common if they are one file below: a probe on one is on the others too."""


class LibraryError(Exception):
    """A reason why a library cannot be probed, for people."""


@dataclass(frozen=True, slots=True)
class LibraryMapping:
    """A process that has a file mapped, with the path that the process has for it."""

    pid: int
    start_ticks: int
    file: MappedFile


@dataclass(slots=True)
class _Process:
    start_ticks: int
    due: float
    verified_until: float
    interval: float = FIRST_INTERVAL_SECONDS
    unreadable: bool = False
    mapped: list[LibraryMapping] = field(default_factory=list)


class MappedLibraries:
    """The libcuda files that the watched processes have mapped."""

    def __init__(self, proc: Proc, clock: Clock) -> None:
        self._proc = proc
        self._clock = clock
        self._processes: dict[int, _Process] = {}

    def find(self, pids: Iterable[int]) -> Mapping[FileNumbers, tuple[LibraryMapping, ...]]:
        """Return the libcuda files of these processes, each with the processes that have it mapped."""
        now = self._clock.monotonic()
        self._processes = dict(self._present(sorted(set(pids))[:MAX_WATCHED], now))
        due = [pid for pid, process in self._processes.items() if process.due <= now]
        for pid in sorted(due, key=lambda each: self._processes[each].due)[:MAX_READS]:
            self._read(pid, self._processes[pid], now)
        mapped: dict[FileNumbers, list[LibraryMapping]] = {}
        for process in self._processes.values():
            for each in process.mapped:
                mapped.setdefault(each.file.numbers, []).append(each)
        return {numbers: tuple(mappings) for numbers, mappings in mapped.items()}

    @property
    def unreadable(self) -> list[int]:
        """Processes with maps that this process may not read."""
        return [pid for pid, process in self._processes.items() if process.unreadable]

    def _present(self, pids: Iterable[int], now: float) -> Iterator[tuple[int, _Process]]:
        """Yield the processes that live. A known one stays known while it is the same process."""
        for pid in pids:
            known = self._processes.get(pid)
            if known is None or now >= known.verified_until:
                known = self._verified(pid, known, now)
            if known is not None:
                yield pid, known

    def _verified(self, pid: int, known: _Process | None, now: float) -> _Process | None:
        standing = self._proc.standing(pid)
        if standing is None:
            return None
        if known is None or known.start_ticks != standing[0]:
            known = _Process(standing[0], due=now, verified_until=now)
        known.verified_until = now + IDENTITY_SECONDS
        return known

    def _read(self, pid: int, process: _Process, now: float) -> None:
        lines = self._proc.mappings(pid, b"libcuda.so")
        process.unreadable = lines is None
        files = dict.fromkeys(
            file for file in map(parse_mapped_file, lines or ()) if file is not None and _is_libcuda(file)
        )
        process.mapped = [LibraryMapping(pid, process.start_ticks, file) for file in files]
        process.due = now + (MAPPED_INTERVAL_SECONDS if process.mapped else process.interval)
        process.interval = min(process.interval * 2, LAST_INTERVAL_SECONDS)


def _is_libcuda(file: MappedFile) -> bool:
    return file.executable and _LIBCUDA.fullmatch(file.path.rpartition("/")[2]) is not None


def open_mapped(mapping: LibraryMapping, proc: Proc) -> int:
    """Return a descriptor of the file that a process has mapped. Raises LibraryError."""
    if proc.namespace(mapping.pid, "user") != proc.namespace(os.getpid(), "user"):
        raise LibraryError("its process has its own user namespace, and no process outside it uses the file")
    path = Path(mapping.file.path)
    places = (Directory(path.parent, Root(proc, mapping.pid, mapping.start_ticks)), Directory(path.parent))
    why = "the file does not exist any more"
    # The kernel shows the paths of a process that called chroot(2) from this process' root.
    for place in places:
        try:
            with place.opened() as directory:
                descriptor = open_file(directory, path.name)
        except FileNotFoundError:
            continue
        except OSError as error:
            why = f"the file cannot be opened: {error.strerror}"
            continue
        if _file_system(descriptor) == FUSE:
            why = "the file is on FUSE: the program that serves it could block the kernel"
        elif file_numbers(descriptor) == mapping.file.numbers:
            return descriptor
        else:
            why = "another file has its name now"
        os.close(descriptor)
    raise LibraryError(why)


def open_path(path: Path) -> int | None:
    """Return a descriptor of the regular file that a path of this node leads to; None if there is none."""
    try:
        real = path.resolve(strict=True)
        with Directory(real.parent).opened() as directory:
            return open_file(directory, real.name)
    except (OSError, RuntimeError, LibraryError):
        return None


def file_numbers(descriptor: int) -> FileNumbers | None:
    """Return the device and inode that maps show for a file; None if it cannot be mapped."""
    try:
        with mmap.mmap(descriptor, 1, access=mmap.ACCESS_COPY) as mapped:
            first = ctypes.c_char.from_buffer(mapped)
            start = f"{ctypes.addressof(first):08x}-".encode()
            del first
            with open("/proc/self/maps", "rb") as lines:
                file = next((parse_mapped_file(line) for line in lines if line.startswith(start)), None)
            return None if file is None else file.numbers
    except (OSError, ValueError):
        return None


def overlay_key(descriptor: int) -> OverlayKey | None:
    """Return what a file of an overlay has in common with the same file of other overlays; None if it is of none."""
    if _file_system(descriptor) != OVERLAYFS:
        return None
    file = os.fstat(descriptor)
    return file.st_ino, file.st_size, file.st_mtime_ns, file.st_ctime_ns


def _file_system(descriptor: int) -> int | None:
    result = ctypes.create_string_buffer(_STATFS_BYTES)
    succeeded = ctypes.CDLL(None).fstatfs(descriptor, result) == 0
    return int.from_bytes(result.raw[:8], "little") if succeeded else None
