"""A libcuda's file, opened as the one that is meant, and no other.

It is opened by a path that a process has, below that process' root, where by now there may be another file, a device or
a pipe. Which file was opened is told by mapping it: the kernel gives it the same numbers in everybody's maps, which
are not always those of stat(2) (overlayfs before Linux 6.8, btrfs).

No file is opened that a workload serves itself, by FUSE, or by an overlay above that, which takes a user namespace of
its own: while the kernel sets a probe it may have to read the file, and until it has, nobody on the node can fork.
"""

import contextlib
import ctypes
import mmap
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from exporter.parse.memory_map import FileNumbers, mapped_file
from exporter.sources.directory import Directory, Root
from exporter.sources.doors.mappers import Mapper
from exporter.sources.proc import Proc

OVERLAYFS, FUSE = 0x794C7630, 0x65735546
"""statfs(2)."""

_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_OF_STATFS = 256

Twin = tuple[int, int, int, int]
"""What files of several overlays have in common that are one file below: probes on the one are on the others too."""


class LibraryError(Exception):
    """Why a library cannot be used, in words."""


def open_of_process(mapper: Mapper, proc: Proc) -> int:
    """A descriptor of the file that a process has mapped. Raises LibraryError."""
    if proc.namespace(mapper.pid, "user") != proc.namespace(os.getpid(), "user"):
        raise LibraryError("its process has a user namespace of its own, and it is none that others use")
    path = Path(mapper.file.path)
    places = (Directory(path.parent, Root(proc, mapper.pid, mapper.start_ticks)), Directory(path.parent))
    why = "it is not there any more"
    # A process whose root alone is another (chroot(2)) has its paths shown from here.
    for place in places:
        try:
            with place.opened() as directory:
                descriptor = _opened(directory, path.name)
        except FileNotFoundError:
            continue
        except OSError as error:
            why = f"it cannot be opened: {error.strerror}"
            continue
        if _file_system(descriptor) == FUSE:
            why = "a program serves it (FUSE), which nobody shall wait for"
        elif numbers(descriptor) == mapper.file.numbers:
            return descriptor
        else:
            why = "another file has its name by now"
        os.close(descriptor)
    raise LibraryError(why)


def open_here(path: Path) -> int | None:
    """A descriptor of the regular file that a path of this node's leads to; None where none does."""
    try:
        real = path.resolve(strict=True)
        with Directory(real.parent).opened() as directory:
            return _opened(directory, real.name)
    except (OSError, RuntimeError, LibraryError):
        return None


def numbers(descriptor: int) -> FileNumbers | None:
    """Which file that is, in maps; None where it cannot be mapped."""
    try:
        with mmap.mmap(descriptor, 1, access=mmap.ACCESS_COPY) as mapped:
            first = ctypes.c_char.from_buffer(mapped)
            start = f"{ctypes.addressof(first):08x}-".encode()
            del first
            with open("/proc/self/maps", "rb") as lines:
                file = next((mapped_file(line) for line in lines if line.startswith(start)), None)
            return None if file is None else file.numbers
    except (OSError, ValueError):
        return None


def twin(descriptor: int) -> Twin | None:
    """What its twins have in common with it; None where it is of no overlay, and so has none."""
    if _file_system(descriptor) != OVERLAYFS:
        return None
    file = os.fstat(descriptor)
    return file.st_ino, file.st_size, file.st_mtime_ns, file.st_ctime_ns


def _file_system(descriptor: int) -> int | None:
    told = ctypes.create_string_buffer(_MOST_OF_STATFS)
    known = ctypes.CDLL(None).fstatfs(descriptor, told) == 0
    return int.from_bytes(told.raw[:8], "little") if known else None


def _opened(directory: int, name: str) -> int:
    """It is looked at before it is opened: to open a device, or a pipe, can do something, or wait."""
    with _closed_after(os.open(name, _FLAGS, dir_fd=directory)) as seen:
        if not stat.S_ISREG(os.fstat(seen).st_mode):
            raise LibraryError("it is no regular file")
        return os.open(f"/proc/self/fd/{seen}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


@contextlib.contextmanager
def _closed_after(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)
