"""Access to pipe directories, across mount and PID namespaces."""

import contextlib
import ctypes
import errno
import os
import socket
import stat
import struct
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from exporter.clock import Clock
from exporter.collectors.proc import Presence, Proc
from exporter.model.values import frozen, frozen_positional
from exporter.parse.proc import mount_type

# -- PIDs of another namespace -----------------------------------------------------------------------------------------

REMEMBERED_SECONDS = 600.0  # how long an ended process is remembered: a log reports its end later
MOST_REMEMBERED = 4096

IGNORED_SECONDS = 10.0  # How long a PID of another namespace is ignored. A process of this namespace may have it later.


class _Member(NamedTuple):
    """A process of the namespace. It is not `certain` if it may be in another namespace of the same depth."""

    pid: int
    start_ticks: int
    inner: int
    certain: bool


class PidNamespace:
    """The processes of a daemon's PID namespace. Several threads may use it."""

    def __init__(self, proc: Proc, daemon_pid: int, clock: Clock) -> None:
        self._proc = proc
        self._clock = clock
        self._depth = len(proc.namespaced_pids(daemon_pid))
        self._inode = proc.pid_namespace(daemon_pid)
        self._lock = threading.Lock()
        self._living: dict[int, _Member | None] = {}
        """All processes of /proc by PID; None for those of other namespaces."""
        self._ignored_since = clock.monotonic()
        self._ended: dict[_Member, float] = {}
        self._outer: Mapping[int, int] = {}
        self._inner: Mapping[int, int] = {}
        with self._lock:
            self._scan()

    def update(self, numbers: Iterable[int]) -> None:
        """Look for new processes if one of these PIDs of the namespace is unknown."""
        with self._lock:
            if any(number not in self._outer for number in numbers):
                self._scan()

    def outer(self, numbers: Iterable[int]) -> Mapping[int, int]:
        """Return the PIDs in /proc of those numbers that are known PIDs of the namespace."""
        known = self._outer
        return {number: known[number] for number in numbers if number in known}

    def inner(self, pid: int) -> int | None:
        """Return the PID in the namespace of a living process. A negative `pid` is one of the namespace already."""
        return -pid if pid < 0 else self._inner.get(pid)

    def contains(self, pid: int) -> bool:
        """Return whether a process is in this namespace itself, not in one below it."""
        numbers = self._proc.namespaced_pids(pid)
        return len(numbers) == self._depth and self._proc.pid_namespace(pid) == self._inode

    def _scan(self) -> None:
        """Add new processes and remove ended ones. A process that is known costs only a name in a list."""
        now = self._clock.monotonic()
        if now - self._ignored_since > IGNORED_SECONDS:
            self._ignored_since = now
            self._living = {pid: member for pid, member in self._living.items() if member is not None}
        try:
            present = set(self._proc.pids())
        except OSError:
            return
        for pid, member in list(self._living.items()):
            if self._proc.presence(pid, member.start_ticks) is Presence.ENDED if member else pid not in present:
                del self._living[pid]
                if member:
                    self._ended[member] = now
        for pid in present - self._living.keys():
            self._living[pid] = self._member(pid)
        self._ended = {member: at for member, at in self._ended.items() if now - at < REMEMBERED_SECONDS}
        for oldest in list(self._ended)[:-MOST_REMEMBERED]:
            del self._ended[oldest]
        candidates: defaultdict[int, list[_Member]] = defaultdict(list)
        for member in (*self._ended, *filter(None, self._living.values())):
            candidates[member.inner].append(member)
        # One process for each PID: the youngest that is certain, or the only one if none is certain.
        known: dict[int, _Member] = {}
        for inner, members in candidates.items():
            certain = [member for member in members if member.certain]
            if certain or len(members) == 1:
                known[inner] = max(certain or members, key=lambda member: member.start_ticks)
        self._outer = {inner: member.pid for inner, member in known.items()}
        self._inner = {member.pid: inner for inner, member in known.items() if self._living.get(member.pid) == member}

    def _member(self, pid: int) -> _Member | None:
        numbers = self._proc.namespaced_pids(pid)
        start_ticks = self._proc.start_ticks(pid)
        if len(numbers) < self._depth or start_ticks is None:
            return None
        inode = self._proc.pid_namespace(pid, above=len(numbers) - self._depth)
        if inode is not None and self._inode is not None and inode != self._inode:
            return None
        certain = inode is not None and inode == self._inode
        return _Member(pid, start_ticks, numbers[self._depth - 1], certain)


# -- Directories -------------------------------------------------------------------------------------------------------

OPENAT2 = 437  # the number of the system call on all machines that CUDA supports
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_IN_ROOT = 0x10

_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC

Identity = tuple[int, int]  # device and inode: one directory, by whatever path it is reached


class Root(NamedTuple):
    """The root directory of a process, in which paths can differ from those of this process."""

    proc: Proc
    pid: int
    start_ticks: int


@frozen_positional
class Directory:
    """A directory by its path, below a `root` if only that process has this path."""

    path: Path
    root: Root | None = None

    def __str__(self) -> str:
        return str(self.path) if self.root is None else f"/proc/{self.root.pid}/root{self.path}"

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """Yield a descriptor of it (O_PATH). Raises OSError."""
        if self.root is None:
            descriptor = os.open(self.path, _FLAGS)
        else:
            root = self.root.proc.open_root(self.root.pid, self.root.start_ticks)
            try:
                descriptor = _open_below(root, self.path)
            finally:
                os.close(root)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def files(self) -> "PipeFiles | None":
        """Return the files of a pipe directory; None if there is no such directory. Raises OSError."""
        try:
            with self.opened() as directory:
                status = os.fstat(directory)
                owners = {".": status.st_uid}
                for name in (CONTROL_SOCKET, PRIVILEGED_SOCKET, FIFO, PID_FILE):
                    with contextlib.suppress(FileNotFoundError):
                        owners[name] = os.stat(name, dir_fd=directory, follow_symlinks=False).st_uid
                pid = _read_pid(directory) if PID_FILE in owners else None
                return PipeFiles(identity=(status.st_dev, status.st_ino), owners=owners, pid=pid)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def identity(self) -> Identity | None:
        """Return its device and inode; None if it does not exist or cannot be reached."""
        try:
            with self.opened() as descriptor:
                found = os.fstat(descriptor)
                return found.st_dev, found.st_ino
        except OSError:
            return None

    def file_system(self) -> str | None:
        """Return the type of its file system, as `nfs4`; None if that cannot be read."""
        with contextlib.suppress(OSError), self.opened() as descriptor:
            mounts = Path("/proc/self/mountinfo").read_text()
            if self.root is not None:
                mounts = self.root.proc.text(self.root.pid, "mountinfo", 1 << 20) or ""
            return mount_type(mounts, Path(f"/proc/self/fdinfo/{descriptor}").read_text())
        return None

    def closed(self) -> "tuple[Directory, int] | None":
        """Return the first directory of the path that other users cannot enter, and its owner; None also if unknown."""
        for path in (*reversed(self.path.parents), self.path):
            directory = Directory(path, self.root)
            with contextlib.suppress(OSError), directory.opened() as descriptor:
                status = os.fstat(descriptor)
                if not status.st_mode & stat.S_IXOTH:
                    return directory, status.st_uid
        return None

    def owner(self, name: str) -> int | None:
        """Return the UID of the owner of a file in it; None if there is none. A link is not followed."""
        try:
            with self.opened() as descriptor:
                return os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_uid
        except OSError:
            return None


def open_file(directory: int, name: str) -> int:
    """Return a descriptor to read a regular file of a directory, or of a directory in it. Raises OSError.

    Another user may have put anything there. A link is not followed, and what is no regular file is not opened: to open
    a device can act on it. OSError has EMEDIUMTYPE then.
    """
    below, _, file = name.rpartition("/")
    if not below:
        found = os.open(file, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            if not stat.S_ISREG(os.fstat(found).st_mode):
                raise OSError(errno.EMEDIUMTYPE, "it is not a regular file", name)
            return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise OSError(errno.EIO, "/proc/self/fd cannot be read") from error
        finally:
            os.close(found)
    inner = os.open(below, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        return open_file(inner, file)
    finally:
        os.close(inner)


def open_path(path: Path) -> int | None:
    """Return a descriptor of the regular file that a path of this node leads to; None if there is none."""
    try:
        real = path.resolve(strict=True)
        with Directory(real.parent).opened() as directory:
            return open_file(directory, real.name)
    except (OSError, RuntimeError):
        return None


def end_of_file(directory: int, name: str, most: int) -> bytes:
    """Return the last `most` bytes of such a file at most. Raises OSError."""
    descriptor = open_file(directory, name)
    try:
        return os.pread(descriptor, most, max(0, os.fstat(descriptor).st_size - most))
    finally:
        os.close(descriptor)


def can_open_below_roots() -> bool:
    """Return whether the kernel has openat2 (Linux 5.6), and no filter prevents it."""
    try:
        with Directory(Path("/")).opened() as root:
            os.close(_open_below(root, Path("/")))
    except OSError:
        return False
    return True


def _open_below(root: int, path: Path) -> int:
    how = (ctypes.c_uint64 * 3)(_FLAGS, 0, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)  # struct open_how
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


@frozen
class PipeFiles:
    """The files of a pipe directory.

    `owners` are the UIDs of the directory (`.`) and of what exists among the sockets, the fifo and the pid file. `pid`
    is the PID in the pid file; None if it is missing or is no regular file with a PID.
    """

    identity: Identity
    owners: Mapping[str, int]
    pid: int | None = None


def _read_pid(directory: int) -> int | None:
    try:
        descriptor = open_file(directory, PID_FILE)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EMEDIUMTYPE:
            return None
        raise
    try:
        text = os.read(descriptor, 16).strip()
    finally:
        os.close(descriptor)
    return int(text) if text.isdigit() and 0 < int(text) <= 2**22 else None


PID_FILE = "nvidia-cuda-mps-control.pid"
CONTROL_SOCKET = "control"
PRIVILEGED_SOCKET = "control_privileged"
FIFO = "log"
_LINKED = (CONTROL_SOCKET, PRIVILEGED_SOCKET, "control_lock", FIFO)

SERVER_LOG, CONTROL_LOG = "server.log", "control.log"
FILES = (SERVER_LOG, CONTROL_LOG)
"""The log files in the order in which they are read: a server's last lines before the daemon's line that it exited."""
STDOUT = "stdout.log"  # the only log of a foreground daemon that writes its stdout to a file of its log directory


@frozen
class DaemonLocation:
    """Where a daemon is.

    `process` is the PID and start time of the daemon that was last found there. `namespace` is set if it is in another
    PID namespace. `logs` are its log files in reading order. If it is `expected`, only root, the exporter's user, the
    configured `owner` (a UID) and the user to whom root gave the directory may run it (`daemon_processes.py`).
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


class PipeAccess(NamedTuple):
    """How a child reaches a pipe directory: by this path and `descriptors`. `identity` is None if it is missing."""

    pipe_directory: str
    descriptors: tuple[int, ...] = ()
    identity: Identity | None = None


@contextlib.contextmanager
def pipe_access(location: DaemonLocation, runtime_directory: Path | None = None) -> Iterator[PipeAccess]:
    """Give a child process access to a pipe directory until it has ended. Raises nothing: the child reports problems.

    The control program reads the daemon's PID in its own PID namespace. If that is not the daemon's, the child gets a
    directory with links and a pid file of this namespace, in `runtime_directory` or among the temporary files.
    """
    pipe, access = location.pipe, PipeAccess(str(location.pipe))
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            descriptor = stack.enter_context(pipe.opened())
            found = os.fstat(descriptor)
            path, identity = f"/proc/self/fd/{descriptor}", (found.st_dev, found.st_ino)
            access = PipeAccess(str(pipe), (), identity)
            if pipe.root is not None:
                access = PipeAccess(path, (descriptor,), identity)
            if location.namespace is not None and location.process is not None:
                made = tempfile.TemporaryDirectory(prefix="pipe-", dir=runtime_directory, ignore_cleanup_errors=True)
                links = Path(stack.enter_context(made))
                links.chmod(0o711)
                for name in _LINKED:
                    (links / name).symlink_to(f"{path}/{name}")
                (links / PID_FILE).write_text(f"{location.process[0]}\n")
                access = PipeAccess(str(links), (descriptor,), identity)
        yield access


# -- The control socket ------------------------------------------------------------------------------------------------

CREDENTIALS = struct.Struct("=iII")  # `struct ucred` (unix(7))


@contextlib.contextmanager
def connected(pipe: Directory) -> Iterator[socket.socket]:
    """Yield a connection to the control socket. Raises OSError; BlockingIOError if its queue is full (128 with R580).

    Nothing is sent, and the end of the stream follows at once: a daemon waits for the first bytes of a connection and
    serves no other one until then (measured, R580). A link instead of the socket is not followed.
    """
    with pipe.opened() as directory:
        descriptor = os.open(CONTROL_SOCKET, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENOTSOCK, "it is not a socket", CONTROL_SOCKET)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as connection:
            connection.connect(f"/proc/self/fd/{descriptor}")
            connection.shutdown(socket.SHUT_WR)
            yield connection
    finally:
        os.close(descriptor)


def listener(pipe: Directory) -> tuple[bool | None, int | None]:
    """Return whether a process listens on the control socket, and the PID that began to; None if unknown.

    The PID is 0 if the process is not in this PID namespace.
    """
    try:
        with connected(pipe) as connection:
            data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
            return True, CREDENTIALS.unpack(data)[0]
    except BlockingIOError:
        return True, None
    except ConnectionRefusedError:
        return False, None
    except OSError:
        return None, None
