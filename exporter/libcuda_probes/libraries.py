"""The libcuda files to probe: those that processes have mapped, and the node's own.

Any process can map a file of its own under that name. So files are opened, read and attached to within bounds, only
files with the probe points get probes, and one user cannot take all places. The probes are attached to the file that
was read: it stays open, and is named by its descriptor.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from pathlib import Path

from exporter.clock import Clock
from exporter.collectors.proc import Proc
from exporter.libcuda_probes.mapped_libraries import (
    LibraryError,
    LibraryMapping,
    MappedLibraries,
    OverlayKey,
    file_numbers,
    open_mapped,
    open_path,
    overlay_key,
)
from exporter.parse.elf import ElfError, Machine, exported_functions
from exporter.parse.printable import LONGEST_PROBLEM, printable
from exporter.parse.proc import FileNumbers


class Kind(StrEnum):
    """What a function does. Each kind has a BPF program of this name in probes.bpf.c."""

    LAUNCH = "launch"
    LAUNCH_EX = "launch_ex"
    LAUNCH_OLD = "launch_old"
    GRAPH = "graph"
    INIT = "init"
    BEGIN_CAPTURE = "begin_capture"
    END_CAPTURE = "end_capture"
    RECORD = "record"
    UPLOAD = "upload"
    END_CONTEXT = "end_context"
    WAIT_CONTEXT = "wait_context"
    WAIT_STREAM = "wait_stream"
    END_STREAM = "end_stream"
    WAIT_EVENT = "wait_event"
    WAIT_DEFAULT = "wait_default"
    COPY = "copy"
    SET_CONTEXT = "set_context"
    PUSH_CONTEXT = "push_context"
    POP_CONTEXT = "pop_context"
    RETAIN_CONTEXT = "retain_context"
    CREATE_CONTEXT = "create_context"
    CREATE_CONTEXT_V3 = "create_context_v3"
    CREATE_CONTEXT_V4 = "create_context_v4"


LAUNCHES = frozenset({Kind.LAUNCH, Kind.LAUNCH_EX, Kind.LAUNCH_OLD, Kind.GRAPH})

ENDS = frozenset({Kind.END_CONTEXT, Kind.END_STREAM})
WAITS = ENDS | {Kind.WAIT_CONTEXT, Kind.WAIT_STREAM, Kind.WAIT_EVENT, Kind.WAIT_DEFAULT, Kind.COPY}
"""Synchronisations, copies that may wait, and the end of a context or stream. `RETURN` probes their return."""

CREATIONS = frozenset({Kind.RETAIN_CONTEXT, Kind.CREATE_CONTEXT, Kind.CREATE_CONTEXT_V3, Kind.CREATE_CONTEXT_V4})
"""Functions that return a context. Their return is probed by the program `CREATED`."""

CONTEXTS = CREATIONS | {Kind.SET_CONTEXT, Kind.PUSH_CONTEXT, Kind.POP_CONTEXT}
"""Functions that show the GPU of a launch. Only nodes with several GPUs need them."""

RETURN, CREATED = "return", "created"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePoint:
    """A function of libcuda, and the BPF program that runs when it is called."""

    name: str
    kind: Kind
    program: str


def _points(kind: Kind, *names: str) -> tuple[ProbePoint, ...]:
    return tuple(ProbePoint(name=name, kind=kind, program=kind) for name in names)


def _with_variants(kind: Kind, *names: str, suffix: str = "_ptsz") -> tuple[ProbePoint, ...]:
    """Add the variant of each function for which the default stream is the thread's own."""
    variants = (ProbePoint(name=name + suffix, kind=kind, program=f"{kind}_ptsz") for name in names)
    return *_points(kind, *names), *variants


PROBE_POINTS = (
    *_with_variants(Kind.LAUNCH, "cuLaunchKernel", "cuLaunchCooperativeKernel"),
    *_with_variants(Kind.LAUNCH_EX, "cuLaunchKernelEx"),
    *_points(Kind.LAUNCH_OLD, "cuLaunch", "cuLaunchGrid", "cuLaunchGridAsync", "cuLaunchCooperativeKernelMultiDevice"),
    *_with_variants(Kind.GRAPH, "cuGraphLaunch"),
    *_points(Kind.INIT, "cuInit"),
    *_points(
        Kind.BEGIN_CAPTURE,
        *("cuStreamBeginCapture", "cuStreamBeginCapture_v2", "cuStreamBeginCaptureToGraph"),
        *("cuStreamBeginCapture_ptsz", "cuStreamBeginCapture_v2_ptsz", "cuStreamBeginCaptureToGraph_ptsz"),
    ),
    *_points(Kind.END_CAPTURE, "cuStreamEndCapture", "cuStreamEndCapture_ptsz"),
    *_with_variants(Kind.RECORD, "cuEventRecord", "cuEventRecordWithFlags"),
    *_points(Kind.UPLOAD, "cuMemcpyHtoDAsync_v2", "cuMemcpyHtoDAsync_v2_ptsz"),
    *_points(Kind.WAIT_CONTEXT, "cuCtxSynchronize", "cuCtxSynchronize_v2"),
    *_points(Kind.END_CONTEXT, "cuCtxDestroy_v2", "cuDevicePrimaryCtxReset_v2"),
    *_with_variants(Kind.WAIT_STREAM, "cuStreamSynchronize"),
    *_points(Kind.END_STREAM, "cuStreamDestroy_v2"),
    *_points(Kind.WAIT_EVENT, "cuEventSynchronize"),
    *_with_variants(Kind.WAIT_DEFAULT, "cuMemcpyDtoH_v2", "cuMemcpy", suffix="_ptds"),
    *_with_variants(Kind.COPY, "cuMemcpyDtoHAsync_v2"),
    *_points(Kind.SET_CONTEXT, "cuCtxSetCurrent"),
    *_points(Kind.PUSH_CONTEXT, "cuCtxPushCurrent_v2"),
    *_points(Kind.POP_CONTEXT, "cuCtxPopCurrent_v2"),
    *_points(Kind.RETAIN_CONTEXT, "cuDevicePrimaryCtxRetain"),
    *_points(Kind.CREATE_CONTEXT, "cuCtxCreate_v2"),
    *_points(Kind.CREATE_CONTEXT_V3, "cuCtxCreate_v3"),
    *_points(Kind.CREATE_CONTEXT_V4, "cuCtxCreate_v4"),
)
"""A copy from the device that waits is a synchronisation with the default stream. An asynchronous copy to pageable
memory waits, too. The destruction of a stream ends its span, because nothing later reports on its work. Queries have no
probe: a client can query a million times a second, and each call would have its cost."""

PROGRAMS = tuple(dict.fromkeys([*(point.program for point in PROBE_POINTS), RETURN, CREATED]))

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
MAX_PER_USER = 8
"""How many of them one user may own; root has no such limit."""

RETENTION_SECONDS = 60.0
"""How long the probes stay on a library without processes: the next process may be about to start."""

RETRY_SECONDS = 60.0
"""How often the node's own paths, and files that could not be used, are tried again."""

_MAX_REFUSED = 256
_MAX_REPORTED = 8
_MAX_ATTEMPTS = 3

_REPLACED = "its file was replaced while the process ran, perhaps by an upgrade; a restart of the process helps"

_MACHINES = {"x86_64": Machine.X86_64, "aarch64": Machine.ARM64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A libcuda file: the offset of each probe point by its name, and the processes that have the file mapped.

    Only this process can open `path_to_open`, until `Libraries` no longer returns the library. `path` is its name.
    """

    path_to_open: str
    path: str
    offsets: Mapping[str, int]
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """The libraries, and why others are not among them."""

    libraries: tuple[Library, ...]
    problems: tuple[str, ...] = ()


def machine_named(name: str) -> Machine | None:
    """Return the machine that uname(2) names so; None if CUDA does not run on it."""
    return _MACHINES.get(name)


@dataclass(slots=True)
class _OpenLibrary:
    """A library, its open file, and when it was last needed."""

    library: Library
    descriptor: int
    owner: int
    overlay: OverlayKey | None
    numbers: FileNumbers
    needed: float


@dataclass(frozen=True, slots=True)
class _Refusal:
    why: str
    until: float


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
        self._refused: dict[FileNumbers, _Refusal] = {}
        self._own: frozenset[FileNumbers] = frozenset()
        self._own_due = clock.monotonic()

    def find(self, pids: Iterable[int]) -> Found:
        """Return the node's own libraries, and those of these processes."""
        now = self._clock.monotonic()
        if now >= self._own_due:
            self._own_due = now + RETRY_SECONDS
            self._own = frozenset(filter(None, [self._open_own(path, now) for path in self._paths]))
        mapped = self._mapped.find(pids)
        self._refused = {file: each for file, each in self._refused.items() if file in mapped and now < each.until}
        for file, mappings in mapped.items():
            if file not in self._open and file not in self._refused:
                self._open_mapped(file, mappings, now)
        # Files are closed after others were opened, so that one call never reuses a descriptor's number.
        self._close_unneeded(mapped, now)
        return Found(tuple(self._libraries(mapped)), tuple(self._problems(mapped)))

    def close(self) -> None:
        """Close all files."""
        for each in self._each():
            os.close(each.descriptor)
        self._open.clear()

    def _open_own(self, path: Path, now: float) -> FileNumbers | None:
        """Open one of the node's own, so that later processes are watched from their first launch on."""
        descriptor = open_path(path)
        if descriptor is None:
            return None
        file = file_numbers(descriptor)
        with contextlib.suppress(LibraryError):
            self._take(descriptor, file, str(path), now)
        return file

    def _open_mapped(self, file: FileNumbers, mappings: Iterable[LibraryMapping], now: float) -> None:
        """Open a mapped file through one of its processes."""
        why = _REPLACED
        for mapping in [each for each in mappings if not each.file.deleted][:_MAX_ATTEMPTS]:
            try:
                self._take(open_mapped(mapping, self._proc), file, mapping.file.path, now)
            except LibraryError as error:
                why = str(error)
            else:
                return
        if len(self._refused) < _MAX_REFUSED:
            self._refused[file] = _Refusal(why, now + RETRY_SECONDS)

    def _take(self, descriptor: int, file: FileNumbers | None, path: str, now: float) -> None:
        """Store an open file, or close it. Raises LibraryError if it cannot be used."""
        try:
            found = self._same(descriptor, file) or self._read(descriptor, file, path, now)
        except BaseException:
            os.close(descriptor)
            raise
        if found.descriptor != descriptor:
            os.close(descriptor)
        self._open[file or found.numbers] = found

    def _same(self, descriptor: int, file: FileNumbers | None) -> _OpenLibrary | None:
        """Return the open file that this one is, also through another overlay: two probes would count each call twice.

        The kernel does not report that two files of overlays are one below. Inode, size and times decide; so of two
        overlays above two equal read-only images only one is watched.
        """
        if file in self._open:
            return self._open[file]
        key = overlay_key(descriptor)
        return next((each for each in self._each() if key is not None and each.overlay == key), None)

    def _read(self, descriptor: int, file: FileNumbers | None, path: str, now: float) -> _OpenLibrary:
        if file is None:
            raise LibraryError("it cannot be mapped")
        owner = os.fstat(descriptor).st_uid
        if len(self._each()) >= MAX_LIBRARIES:
            raise LibraryError(f"{MAX_LIBRARIES} others are watched already")
        if owner != 0 and sum(each.owner == owner for each in self._each()) >= MAX_PER_USER:
            raise LibraryError(f"{MAX_PER_USER} others of UID {owner} are watched already")
        library = Library(
            path_to_open=f"/proc/self/fd/{descriptor}",
            path=printable(path, LONGEST_PROBLEM),
            offsets=_read_offsets(descriptor, self._machine),
        )
        return _OpenLibrary(library, descriptor, owner, overlay_key(descriptor), file, now)

    def _each(self) -> list[_OpenLibrary]:
        """Return each open library once, although several device and inode numbers can lead to it."""
        return [each for file, each in self._open.items() if file == each.numbers]

    def _close_unneeded(self, mapped: Mapping[FileNumbers, object], now: float) -> None:
        for file, each in self._open.items():
            if file in mapped or file in self._own:
                each.needed = now
        for file, each in list(self._open.items()):
            unneeded = now - each.needed > RETENTION_SECONDS
            # A later overlay can get the numbers of one that is gone.
            if unneeded or (file != each.numbers and file not in mapped):
                del self._open[file]
            if unneeded and file == each.numbers:
                os.close(each.descriptor)

    def _libraries(self, mapped: Mapping[FileNumbers, Sequence[LibraryMapping]]) -> Iterator[Library]:
        pids: dict[FileNumbers, set[int]] = {}
        for file, each in self._open.items():
            pids.setdefault(each.numbers, set()).update(mapping.pid for mapping in mapped.get(file, ()))
        for each in self._each():
            yield replace(each.library, pids=tuple(sorted(pids[each.numbers])))

    def _problems(self, mapped: Mapping[FileNumbers, Sequence[LibraryMapping]]) -> Iterator[str]:
        unreadable = self._mapped.unreadable
        if unreadable:
            others = f" and of {len(unreadable) - 1} more processes" if len(unreadable) > 1 else ""
            yield f"cannot read the maps of PID {unreadable[0]}{others}: this needs CAP_SYS_PTRACE"
        for file, refusal in islice(self._refused.items(), _MAX_REPORTED):
            mapping = mapped[file][0]
            path = printable(mapping.file.path, LONGEST_PROBLEM)
            yield f"{path} of PID {mapping.pid} is not watched: {refusal.why}"
        if len(self._refused) > _MAX_REPORTED:
            yield f"{len(self._refused) - _MAX_REPORTED} more libcuda files are not watched"


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
    return _without_aliases(found.offsets)


def _without_aliases(offsets: Mapping[str, int]) -> Mapping[str, int]:
    """Return one name for each offset: two probes at one place would count each call twice."""
    names: dict[int, str] = {}
    for name, offset in offsets.items():
        names.setdefault(offset, name)
    return {name: offset for offset, name in names.items()}
