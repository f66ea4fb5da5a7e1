"""Access to a pipe directory, across mount and PID namespaces."""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from exporter.collectors.pid_namespace import PidNamespace
from exporter.collectors.proc import Proc

OPENAT2 = 437
"""The system call's number, the same on every machine that CUDA runs on."""

RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_IN_ROOT = 0x10

_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC

Identity = tuple[int, int]
"""Device and inode: one directory, however it is reached."""


class _How(ctypes.Structure):
    """`struct open_how` (openat2(2))."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@dataclass(frozen=True, slots=True)
class Root:
    """The root directory of a process, which may be another than ours."""

    proc: Proc
    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory by its path; `root` is given where that path means something to another process alone."""

    path: Path
    root: Root | None = None

    def __str__(self) -> str:
        return str(self.path) if self.root is None else f"/proc/{self.root.pid}/root{self.path}"

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """A descriptor of it (O_PATH). Raises OSError."""
        descriptor = self._open()
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def identity(self) -> Identity | None:
        """Which directory it is; None where it is not there, or cannot be reached."""
        try:
            with self.opened() as descriptor:
                found = os.fstat(descriptor)
                return found.st_dev, found.st_ino
        except OSError:
            return None

    def owner(self, name: str) -> int | None:
        """The UID of the owner of what has this name in it, and is no link; None where there is nothing."""
        try:
            with self.opened() as descriptor:
                return os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_uid
        except OSError:
            return None

    def _open(self) -> int:
        if self.root is None:
            return os.open(self.path, _FLAGS)
        root = self.root.proc.open_root(self.root.pid, self.root.start_ticks)
        try:
            return _open_below(root, self.path)
        finally:
            os.close(root)


def open_file(directory: int, name: str) -> int:
    """A descriptor of what has this name in a directory, for reading. Raises OSError.

    No link is followed that somebody may have put in its place, and nobody is waited for.
    """
    return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)


def others_can_be_reached() -> bool:
    """Whether there is a way below another process's root: Linux has one from 5.6 on, where no filter takes it away."""
    try:
        root = os.open("/", _FLAGS)
        try:
            os.close(_open_below(root, Path("/")))
        finally:
            os.close(root)
    except OSError:
        return False
    return True


def _open_below(root: int, path: Path) -> int:
    how = _How(flags=_FLAGS, mode=0, resolve=RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    descriptor: int = libc.syscall(
        ctypes.c_long(OPENAT2),
        ctypes.c_long(root),
        ctypes.c_char_p(os.fsencode(path)),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    return descriptor


FILES = ("server.log", "control.log")
"""In the order in which they are read: what a server had to say comes before the daemon's word that it has exited."""
STDOUT = "stdout.log"
"""The one log of a daemon in the foreground whose stdout is a file of its log directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonLocation:
    """A daemon's place.

    `process` is the PID and start time of the daemon that was last found there; `namespace` is given where it lives in
    another PID namespace. `logs` are its log files, in the order in which they are read. A daemon that is `expected`
    may be run by certain users alone (`owners.py`), of whom `owner` is the one that is named.
    """

    name: str
    pipe: Directory
    log: Directory
    process: tuple[int, int] | None = None
    namespace: PidNamespace | None = None
    logs: tuple[str, ...] = FILES
    expected: bool = False
    owner: int | None = None


def on_host(name: str, pipe_directory: Path, log_directory: Path) -> DaemonLocation:
    """A place whose paths mean the same to the daemon and to this process."""
    return DaemonLocation(name=name, pipe=Directory(pipe_directory), log=Directory(log_directory))
