"""The libcuda files to probe: those that processes have mapped, and the node's own.

Any process can map a file of its own under that name. So files are opened, read and attached to within bounds, only
files with the probe points get probes, and holders get the places in turn. The probes are attached to the file that
was read: it stays open, and is named by its descriptor.

A process maps libcuda when it first uses CUDA, perhaps long after its start (dlopen(3)). So each process is read once,
and then again at growing intervals.

A mapped file is opened by the path that the process has, below the root of that process. By now that path can lead to
another file, a device or a pipe. To verify the file, it is mapped here too: the kernel shows the same device and inode
in the maps of all processes. Those of stat(2) can differ (overlayfs before Linux 6.8, btrfs).

A file that a workload serves itself is not opened: one on FUSE, or on an overlay above it, which needs a user namespace
of its own. While the kernel sets a probe it may have to read the file, and meanwhile no process on the node can fork.
"""

import contextlib
import ctypes
import mmap
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import NamedTuple

from exporter.clock import Clock
from exporter.collectors.pipe_dir import Directory, Root, open_file, open_path
from exporter.collectors.proc import Proc
from exporter.libcuda_probes.probes import LAUNCHES, PROBE_POINTS, WAITS
from exporter.model.values import frozen
from exporter.parse.cgroup import parse_cgroup
from exporter.parse.elf import ElfError, Machine, exported_functions
from exporter.parse.printable import LONGEST_PROBLEM, printable
from exporter.parse.proc import FileNumbers, MappedFile, parse_mapped_file, real_user

# -- Mapped files ------------------------------------------------------------------------------------------------------

FIRST_INTERVAL_SECONDS, LAST_INTERVAL_SECONDS = 1.0, 60.0
"""When a process without libcuda is read again; each interval is twice the one before."""

MAPPED_INTERVAL_SECONDS = 300.0
"""When a process with libcuda is read again: it may execute another program by now (execve(2))."""

IDENTITY_SECONDS = 10.0  # how long a PID that is watched without a break counts as the same process
MAX_READS = 64  # processes that one call reads at most
MAX_WATCHED = 4096

OVERLAYFS, FUSE = 0x794C7630, 0x65735546  # types of file systems (statfs(2))
_LIBCUDA = re.compile(r"libcuda\.so(\.[0-9]{1,9}){0,4}")
_STATFS_BYTES = 256

OverlayKey = tuple[int, int, int, int]
"""What files of several overlays have in common if they are one file below: a probe on one is on the others too."""


class LibraryError(Exception):
    """A reason why a library cannot be probed, for people."""


class LibraryMapping(NamedTuple):
    """A process that has a file mapped, with the path that the process has for it."""

    pid: int
    start_ticks: int
    file: MappedFile
    holder: object  # what the process shares places with; root chose it


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
        self._processes = dict(self._present(islice(dict.fromkeys(pids), MAX_WATCHED), now))
        due = [pid for pid, process in self._processes.items() if process.due <= now]
        for pid in sorted(due, key=lambda pid: self._processes[pid].due)[:MAX_READS]:
            self._read(pid, self._processes[pid], now)
        mapped: dict[FileNumbers, list[LibraryMapping]] = {}
        for process in self._processes.values():
            for mapping in process.mapped:
                mapped.setdefault(mapping.file.numbers, []).append(mapping)
        return {numbers: tuple(mappings) for numbers, mappings in mapped.items()}

    @property
    def unreadable(self) -> list[int]:
        """Processes with maps that this process may not read."""
        return [pid for pid, process in self._processes.items() if process.unreadable]

    def _present(self, pids: Iterable[int], now: float) -> Iterator[tuple[int, _Process]]:
        for pid in pids:
            process = self._processes.get(pid)
            if process is None or now >= process.verified_until:
                start_ticks = self._proc.start_ticks(pid)
                if start_ticks is None:
                    continue
                if process is None or process.start_ticks != start_ticks:
                    process = _Process(start_ticks, due=now, verified_until=now)
                process.verified_until = now + IDENTITY_SECONDS
            yield pid, process

    def _read(self, pid: int, process: _Process, now: float) -> None:
        lines = self._proc.mappings(pid, b"libcuda.so")
        process.unreadable = lines is None
        files = dict.fromkeys(map(parse_mapped_file, lines or ()))
        process.mapped = [
            LibraryMapping(pid, process.start_ticks, file, holder_of(self._proc, pid))
            for file in files
            if file is not None and file.executable and _LIBCUDA.fullmatch(file.path.rpartition("/")[2])
        ]
        process.due = now + (MAPPED_INTERVAL_SECONDS if process.mapped else process.interval)
        process.interval = min(process.interval * 2, LAST_INTERVAL_SECONDS)


def holder_of(proc: Proc, pid: int) -> object:
    """Return the job or container, where root can have any UID; else the user, whatever namespaces that creates."""
    member = parse_cgroup(proc.text(pid, "cgroup") or "")
    user = proc.user_namespace_owner(pid) or real_user(proc.status(pid) or "")
    inside = member.job_or_pod or member.task or member.container
    return inside or user or (member, proc.namespace(pid, "mnt"))


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


# -- Libraries ---------------------------------------------------------------------------------------------------------

NODE_PATHS = tuple(
    Path(directory) / "libcuda.so.1"
    for directory in (
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/nvidia/lib64",
        "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
        "/run/nvidia/driver/usr/lib64",
        "/home/kubernetes/bin/nvidia/lib64",
    )
)
"""Where distributions, NVIDIA's containers and GKE nodes have it."""

MAX_LIBRARIES = 32
MAX_EXAMINED = 256  # mapped files that one call considers, in turn

RETENTION_SECONDS = 60.0
"""How long the probes stay on a library without processes: the next process may be about to start."""

RETRY_SECONDS = 60.0  # how often the node's own paths, and files that could not be used, are tried again
_MAX_REPORTED = 8
_MAX_ATTEMPTS = 3

_REPLACED = "its file was replaced while the process ran, perhaps by an upgrade; a restart of the process helps"

_COPIED = "if overlayfs copied it, only older processes are watched; after a restart of the exporter, only newer ones"

CUDA_MACHINES = {"x86_64": Machine.X86_64, "aarch64": Machine.ARM64}
"""The machines that CUDA runs on, as uname(2) names them."""


@frozen
class Library:
    """A libcuda file with its probe points' offsets. Only this process can open `path_to_open`, while it is watched."""

    path_to_open: str
    path: str
    offsets: Mapping[str, int]
    pids: tuple[int, ...] = ()


class Found(NamedTuple):
    """The libraries, and why others are not among them."""

    libraries: tuple[Library, ...]
    problems: tuple[str, ...] = ()


@dataclass(slots=True)
class _OpenLibrary:
    library: Library
    descriptor: int
    overlay: OverlayKey | None
    numbers: FileNumbers
    needed: float


class Libraries:
    """The libcuda files of a node, which stay open from one call to the next."""

    def __init__(self, proc: Proc, clock: Clock, machine: Machine, node_paths: Sequence[Path] = NODE_PATHS) -> None:
        """`node_paths` is where the node's own file can be."""
        self._proc = proc
        self._clock = clock
        self._machine = machine
        self._paths = node_paths
        self._mapped = MappedLibraries(proc, clock)
        self._open: dict[FileNumbers, _OpenLibrary] = {}
        self._chosen: set[FileNumbers] = set()  # the libraries that have a place
        self._refused: dict[FileNumbers, tuple[str, float]] = {}
        """Why each file cannot be used, and when it is tried again."""
        self._own: frozenset[FileNumbers] = frozenset()
        self._own_due = clock.monotonic()

    def find(self, pids: Iterable[int], first: Collection[int] = ()) -> Found:
        """Return the node's own libraries, then those of these processes; `first` has those that come first."""
        now = self._clock.monotonic()
        self._chosen = set()
        if now >= self._own_due:
            self._own_due = now + RETRY_SECONDS
            self._own = frozenset(self._open_own(now))
        mapped = self._mapped.find(pids)
        self._refused = {
            file: (why, until) for file, (why, until) in self._refused.items() if file in mapped and now < until
        }
        for file in (*self._own, *self._in_fair_order(chain.from_iterable(mapped.values()), first)):
            if file in mapped and file not in self._open and file not in self._refused:
                self._open_mapped(file, mapped[file], now)
            opened = self._open.get(file)
            if opened is not None and len(self._chosen) < MAX_LIBRARIES:
                self._chosen.add(opened.numbers)
        # Files are closed after others were opened, so that one call never reuses a descriptor's number.
        self._close_unneeded(mapped, now)
        users: dict[FileNumbers, set[int]] = {}
        for file, opened in self._open.items():
            users.setdefault(opened.numbers, set()).update(mapping.pid for mapping in mapped.get(file, ()))
        libraries = (replace(opened.library, pids=tuple(sorted(users[opened.numbers]))) for opened in self._distinct())
        return Found(tuple(libraries), tuple(self._problems(mapped)))

    def close(self) -> None:
        """Close all files."""
        for library in self._distinct():
            os.close(library.descriptor)
        self._open.clear()

    def _open_own(self, now: float) -> Iterator[FileNumbers]:
        """Open the node's own, so that later processes are watched from their first launch on."""
        for path in self._paths:
            descriptor = open_path(path)
            if descriptor is not None:
                file = file_numbers(descriptor)
                with contextlib.suppress(LibraryError):
                    self._take(descriptor, file, str(path), now)
                if file is not None:
                    yield file

    def _in_fair_order(self, mappings: Iterable[LibraryMapping], first: Collection[int]) -> list[FileNumbers]:
        """Return one file of each holder, then another, and so on. Open files are before others, so places last."""
        files = defaultdict[object, dict[FileNumbers, None]](dict)
        for each in sorted(mappings, key=lambda each: (each.pid not in first, each.file.numbers not in self._open)):
            files[each.holder][each.file.numbers] = None
        turns = chain.from_iterable(zip_longest(*files.values()))
        return list(dict.fromkeys(file for file in turns if file is not None))[:MAX_EXAMINED]

    def _open_mapped(self, file: FileNumbers, mappings: Iterable[LibraryMapping], now: float) -> None:
        why = _REPLACED
        for mapping in [mapping for mapping in mappings if not mapping.file.deleted][:_MAX_ATTEMPTS]:
            try:
                self._take(open_mapped(mapping, self._proc), file, mapping.file.path, now)
            except LibraryError as error:
                why = str(error)
            else:
                return
        self._refused[file] = why, now + RETRY_SECONDS

    def _take(self, descriptor: int, file: FileNumbers | None, path: str, now: float) -> None:
        """Store an open file, or close it. Raises LibraryError if it cannot be used."""
        # The same file may be open already, also through another overlay: two probes would count each call twice. The
        # kernel does not report that two files of overlays are one below. Inode, size and times decide; so of two
        # overlays above two equal read-only images only one is watched.
        library = None if file is None else self._open.get(file)
        try:
            key = overlay_key(descriptor)
            same = (other for other in self._distinct() if key is not None and other.overlay == key)
            library = library or next(same, None) or self._read(descriptor, file, path, now)
        except BaseException:
            os.close(descriptor)
            raise
        if library.descriptor != descriptor:
            os.close(descriptor)
        self._open[file or library.numbers] = library

    def _read(self, descriptor: int, file: FileNumbers | None, path: str, now: float) -> _OpenLibrary:
        if file is None:
            raise LibraryError("it cannot be mapped")
        if len(self._chosen) >= MAX_LIBRARIES:
            raise LibraryError(f"{MAX_LIBRARIES} others are watched already")
        library = Library(
            path_to_open=f"/proc/self/fd/{descriptor}",
            path=printable(path, LONGEST_PROBLEM),
            offsets=_read_offsets(descriptor, self._machine),
        )
        return _OpenLibrary(library, descriptor, overlay_key(descriptor), file, now)

    def _distinct(self) -> list[_OpenLibrary]:
        """Return each open library once, although several device and inode numbers can lead to it."""
        return [opened for file, opened in self._open.items() if file == opened.numbers]

    def _close_unneeded(self, mapped: Mapping[FileNumbers, object], now: float) -> None:
        retention = RETENTION_SECONDS if len(self._distinct()) <= MAX_LIBRARIES else 0.0
        for file, opened in list(self._open.items()):
            if opened.numbers in self._chosen:
                opened.needed = now
            unneeded = opened.numbers not in self._chosen and now - opened.needed >= retention
            # A later overlay can get the numbers of one that is gone.
            if unneeded or (file != opened.numbers and file not in mapped):
                del self._open[file]
            if unneeded and file == opened.numbers:
                os.close(opened.descriptor)

    def _problems(self, mapped: Mapping[FileNumbers, Sequence[LibraryMapping]]) -> Iterator[str]:
        unreadable = self._mapped.unreadable
        if unreadable:
            others = f" and of {len(unreadable) - 1} more processes" if len(unreadable) > 1 else ""
            yield f"cannot read the maps of PID {unreadable[0]}{others}: this needs CAP_SYS_PTRACE"
        for file, (why, _) in islice(self._refused.items(), _MAX_REPORTED):
            mapping = mapped[file][0]
            path = printable(mapping.file.path, LONGEST_PROBLEM)
            yield f"{path} of PID {mapping.pid} is not watched: {why}"
        if len(self._refused) > _MAX_REPORTED:
            yield f"{len(self._refused) - _MAX_REPORTED} more libcuda files are not watched"
        for opened in self._distinct():
            # Overlayfs copies a file before a change. The copy has the same numbers, and the original has the probes.
            if opened.overlay is not None and opened.overlay != overlay_key(opened.descriptor):
                yield f"{opened.library.path} was changed in its container: {_COPIED}"


def _read_offsets(descriptor: int, machine: Machine) -> Mapping[str, int]:
    """Return the probe points of an open file. Raises LibraryError unless it can launch and wait."""
    try:
        found = exported_functions(
            lambda offset, size: os.pread(descriptor, size, offset), [point.name for point in PROBE_POINTS]
        )
    except ElfError as error:
        raise LibraryError(str(error)) from error
    except OSError as error:
        raise LibraryError(f"it cannot be read: {error.strerror}") from error
    if found.machine is not machine:
        raise LibraryError(f"it is for {found.machine}, and this machine is {machine}")
    kinds = {point.kind for point in PROBE_POINTS if point.name in found.offsets}
    if not kinds & LAUNCHES or not kinds & WAITS:
        raise LibraryError("it does not have the functions of libcuda")
    offsets: dict[str, int] = {}
    for name, offset in found.offsets.items():
        # Two probes at one place would count each call twice.
        if offset not in offsets.values():
            offsets[name] = offset
    return offsets
