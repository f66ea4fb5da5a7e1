"""Access to pipe directories, across mount and PID namespaces."""

import contextlib
import ctypes
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from exporter.collectors.pid_namespace import PidNamespace
from exporter.collectors.proc import Proc

OPENAT2 = 437
"""The number of the system call on all machines that CUDA supports."""

RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_IN_ROOT = 0x10

_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC

Identity = tuple[int, int]
"""Device and inode: one directory, by whatever path it is reached."""


class _OpenHow(ctypes.Structure):
    """`struct open_how` (openat2(2))."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@dataclass(frozen=True, slots=True)
class Root:
    """The root directory of a process, in which paths can differ from those of this process."""

    proc: Proc
    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory by its path, below a `root` if only that process has this path."""

    path: Path
    root: Root | None = None

    def __str__(self) -> str:
        return str(self.path) if self.root is None else f"/proc/{self.root.pid}/root{self.path}"

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """Yield a descriptor of it (O_PATH). Raises OSError."""
        descriptor = self._open()
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def identity(self) -> Identity | None:
        """Return its device and inode; None if it does not exist or cannot be reached."""
        try:
            with self.opened() as descriptor:
                found = os.fstat(descriptor)
                return found.st_dev, found.st_ino
        except OSError:
            return None

    def owner(self, name: str) -> int | None:
        """Return the UID of the owner of a file in it; None if there is none. A link is not followed."""
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
    """Return a descriptor to read a file of a directory, or of a directory in it. Raises OSError.

    It follows no link that another user may have put there, and a FIFO does not block it.
    """
    below, _, file = name.rpartition("/")
    if not below:
        return os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    inner = os.open(below, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        return open_file(inner, file)
    finally:
        os.close(inner)


def can_open_below_roots() -> bool:
    """Return whether the kernel has openat2 (Linux 5.6), and no filter prevents it."""
    try:
        with Directory(Path("/")).opened() as root:
            os.close(_open_below(root, Path("/")))
    except OSError:
        return False
    return True


def _open_below(root: int, path: Path) -> int:
    how = _OpenHow(flags=_FLAGS, mode=0, resolve=RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)
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


PID_FILE = "nvidia-cuda-mps-control.pid"
CONTROL_SOCKET = "control"
PRIVILEGED_SOCKET = "control_privileged"
FIFO = "log"
_LINKED = (CONTROL_SOCKET, PRIVILEGED_SOCKET, "control_lock", FIFO)

SERVER_LOG, CONTROL_LOG = "server.log", "control.log"
FILES = (SERVER_LOG, CONTROL_LOG)
"""The log files in the order in which they are read: a server's last lines before the daemon's line that it exited."""
STDOUT = "stdout.log"
"""The only log of a foreground daemon that writes its stdout to a file of its log directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonLocation:
    """Where a daemon is.

    `process` is the PID and start time of the daemon that was last found there. `namespace` is set if it is in another
    PID namespace. `logs` are its log files in reading order. If it is `expected`, only root, the exporter's user, the
    configured `owner` (a UID) and the user to whom root gave the directory may run it (`pid_files.py`).
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
    """Return a location with paths that are the same for the daemon and this process."""
    return DaemonLocation(name=name, pipe=Directory(pipe_directory), log=Directory(log_directory))


@dataclass(frozen=True, slots=True)
class PipeAccess:
    """How a child process reaches a pipe directory. `identity` is None if it does not exist.

    The child gets the path `pipe_directory` and inherits the `descriptors`.
    """

    pipe_directory: str
    descriptors: tuple[int, ...] = ()
    identity: Identity | None = None


@contextlib.contextmanager
def pipe_access(location: DaemonLocation, runtime_directory: Path | None = None) -> Iterator[PipeAccess]:
    """Give a child process access to a pipe directory until it has ended. Raises nothing: the child reports problems.

    The control program reads the daemon's PID in its own PID namespace. If that is not the daemon's, the child gets a
    directory with links and a pid file of this namespace, in `runtime_directory` or among the temporary files.
    """
    with contextlib.ExitStack() as stack:
        yield _access(location, runtime_directory, stack)


def _access(location: DaemonLocation, runtime_directory: Path | None, stack: contextlib.ExitStack) -> PipeAccess:
    pipe = location.pipe
    try:
        descriptor = stack.enter_context(pipe.opened())
        found = os.fstat(descriptor)
    except OSError:
        return PipeAccess(str(pipe))
    path, identity = f"/proc/self/fd/{descriptor}", (found.st_dev, found.st_ino)
    if location.namespace is not None and location.process is not None:
        with contextlib.suppress(OSError):
            made = tempfile.TemporaryDirectory(prefix="pipe-", dir=runtime_directory, ignore_cleanup_errors=True)
            links = Path(stack.enter_context(made))
            links.chmod(0o711)
            for name in _LINKED:
                (links / name).symlink_to(f"{path}/{name}")
            (links / PID_FILE).write_text(f"{location.process[0]}\n")
            return PipeAccess(str(links), (descriptor,), identity)
    if pipe.root is None:
        return PipeAccess(str(pipe), (), identity)
    return PipeAccess(path, (descriptor,), identity)
