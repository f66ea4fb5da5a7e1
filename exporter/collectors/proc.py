"""Reads /proc. The only importer of psutil."""

import contextlib
import ctypes
import errno
import fcntl
import grp
import itertools
import os
import pwd
import sys
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, auto
from errno import EIO, ENOENT
from functools import lru_cache
from pathlib import Path

import psutil

from exporter.clock import Clock, boot_ns
from exporter.model.identity import ProcessIdentity
from exporter.model.observation import AddressRanges, ProcessReading
from exporter.parse import proc
from exporter.parse.proc import is_environment_intact, stable_command


def read_memory(pid: int, start: int, size: int) -> bytes:
    """Return the memory of a process at an address, as far as it is mapped. Raises OSError."""
    read = ctypes.CDLL(None, use_errno=True).process_vm_readv
    read.restype = ctypes.c_ssize_t
    buffer = ctypes.create_string_buffer(size)
    span = ctypes.c_size_t * 2  # struct iovec
    local, remote = span(ctypes.addressof(buffer), size), span(start, size)
    one, flags = ctypes.c_ulong(1), ctypes.c_ulong(0)
    count: int = read(pid, ctypes.byref(local), one, ctypes.byref(remote), one, flags)
    if count < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return buffer.raw[:count]


NS_GET_PARENT, NS_GET_OWNER_UID = 0xB702, 0xB704  # ioctl_ns(2)
INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # the inode of the host's PID namespace (Linux, include/linux/proc_ns.h)
NO_PID = 1 << 31  # the least number that is no `pid_t`

_TICKS = os.sysconf("SC_CLK_TCK")  # Clock ticks in a second, as in /proc/PID/stat.
_MAX_TEXT = 4096
_MAX_BYTES = 1 << 20
_MAX_CHUNK = 1 << 16
_MAX_SOCKETS = 1 << 22
_MAX_ANCESTORS = 64
_MAX_THREADS = 64
_MAX_DESCRIPTORS = 4096
_MAX_MAPPINGS = 1 << 17
_MAX_LINES = 64
_MAX_MAPS = 1 << 19
"""Bytes of /proc/PID/maps that are read for address ranges. PyTorch has 40 KB, and 512 KiB take 10 ms."""


class Presence(Enum):
    """Whether a process runs. What cannot be read is UNKNOWN: nothing follows from it."""

    RUNNING = auto()
    ENDED = auto()
    UNKNOWN = auto()


class Proc:
    """The processes of one /proc. A value that cannot be read is None; often this is a matter of permission.

    So None never shows that a process has ended; `presence` shows that.
    "Needs ptrace" means the right that ptrace(2) needs to read: the same user, or CAP_SYS_PTRACE.
    """

    def __init__(self, root: Path, clock: Clock) -> None:
        self._root = root
        self._clock = clock
        self._booted_at = clock.now() - boot_ns() / 1e9
        self._is_own: bool | None = None
        """Whether PIDs here are those of this process's PID namespace."""

    def presence(self, pid: int, start_ticks: int | None) -> Presence:
        """Return whether the process with this start time runs.

        It has ended if another process has its PID, if it is a zombie, or if the kernel knows no process with the PID.
        /proc alone does not show the last: it can hide processes (hidepid=2), or be read without a free descriptor.
        """
        stat = self.text(pid, "stat")
        if stat is None:
            return Presence.ENDED if self.is_unused(pid) else Presence.UNKNOWN
        ticks = proc.start_ticks(stat)
        if ticks is None or start_ticks is None:
            return Presence.UNKNOWN
        return Presence.ENDED if ticks != start_ticks or proc.is_zombie(stat) else Presence.RUNNING

    def is_unused(self, pid: int) -> bool:
        """Return whether the kernel knows no process with this PID. Needs a /proc of this PID namespace."""
        if self._is_own is None and (own_pid := self._own_pid()) is not None:
            # Of the process itself, any /proc shows one PID for each namespace from that /proc's to its own.
            self._is_own = len(self.namespaced_pids(own_pid)) == 1
        if not 0 < pid < NO_PID or not self._is_own:
            return False
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return False

    def start_ticks(self, pid: int) -> int | None:
        """Return the start time of a running process in clock ticks since boot. A zombie does not run."""
        stat = self.text(pid, "stat")
        return None if stat is None or proc.is_zombie(stat) else proc.start_ticks(stat)

    def standing(self, pid: int) -> tuple[int, str, int | None] | None:
        """Return the start time of a running process, as `start_ticks`, its state, and its children's page faults.

        None if it has ended. If the first thread has ended (Z) and another one sleeps in a driver, the state is D.
        """
        stat = self.text(pid, "stat") or ""
        state, ticks, faults = proc.process_state(stat), proc.start_ticks(stat), proc.children_page_faults(stat)
        if state is None or ticks is None or proc.is_zombie(stat):
            return None
        if state == "Z" and "D" in (proc.process_state(each or "") for each in self._of_threads(pid, "stat")):
            state = "D"
        return ticks, state, faults

    def descends_from_us(self, pid: int) -> bool:
        """Return whether a process is the exporter or one of its descendants."""
        own = self._own_pid() or os.getpid()
        for _ in range(_MAX_ANCESTORS):
            if pid in (0, own):
                return pid == own
            pid = self.parent_pid(pid) or 0
        return False

    def unix_sockets(self, pid: int) -> str | None:
        """Return the unix sockets of a process's network namespace; None if the table is too long."""
        table = self._bytes(pid, "net/unix", _MAX_SOCKETS)
        return None if table is None or len(table) == _MAX_SOCKETS else _decoded(table)

    def wait_status(self, pid: int, start_ticks: int) -> int | None:
        """Return the wait status (waitpid(2)) of a process that has exited and was not reaped. Needs ptrace."""
        stat = self.text(pid, "stat")
        if stat is None or proc.start_ticks(stat) != start_ticks:
            return None
        status = proc.wait_status(stat)
        # Without the right, the kernel shows 0. The namespace needs the same right.
        return status if status or self.pid_namespace(pid) is not None else None

    def facts(self, pid: int) -> ProcessReading | None:
        """Return the identity of a process; None if there is none with this PID. Raises OSError if it is unreadable."""
        if not 0 < pid < NO_PID:
            return None
        start_ticks = self.start_ticks(pid)
        try:
            process = psutil.Process(pid)
            # psutil finds the user by the first `Uid:` in the status, and a process can have that as its name.
            uid = proc.real_user(self.status(pid) or "")
            if start_ticks is None or uid is None:
                raise OSError(EIO, f"process {pid} cannot be read")
            parent = None
            if (parent_pid := self.parent_pid(pid)) and (parent_ticks := self.start_ticks(parent_pid)) is not None:
                parent = ProcessIdentity(pid=parent_pid, start_ticks=parent_ticks)
            arguments = self._bytes(pid, "cmdline", _MAX_BYTES) or b""
            # psutil would open paths, of which another user may have made one that hangs, and guess.
            executable = (self.program(pid) or "").removesuffix(" (deleted)") or None
            return ProcessReading(
                at=self._clock.now(),
                pid=pid,
                start_ticks=start_ticks,
                # psutil's start time moves if the wall clock is set, and those of this clock do not.
                started=round(self._booted_at + start_ticks / _TICKS, 2),
                uid=uid,
                user=_user_name(uid),
                command=stable_command(_encodable(process.name()), arguments, executable),
                executable=executable,
                cgroup=None if (cgroup := self.text(pid, "cgroup")) is None else sys.intern(cgroup),
                parent=parent,
            )
        except (psutil.Error, OSError) as error:
            stat = self.text(pid, "stat")
            if self.is_unused(pid) or (stat is not None and proc.is_zombie(stat)):
                return None
            raise OSError(getattr(error, "errno", None) or EIO, f"process {pid} cannot be read") from error

    def variables(self, pid: int, names: Iterable[str]) -> Mapping[str, str] | None:
        """Return those a process was started with; None if unreadable or overwritten. Needs ptrace."""
        environment = self._bytes(pid, "environ", _MAX_BYTES)
        if environment is None:
            environment = self._environment_in_memory(pid)
        arguments = self._bytes(pid, "cmdline", _MAX_BYTES)
        if environment == b"":
            # In execve(2), it is empty until the arguments are there.
            environment = self._bytes(pid, "environ", _MAX_BYTES)
        if environment is None or arguments is None or not is_environment_intact(environment, arguments):
            return None
        wanted = {name.encode() for name in names}
        pairs = (variable.partition(b"=") for variable in environment.split(b"\0"))
        return {_decoded(name): _decoded(value[:_MAX_TEXT]) for name, _, value in pairs if name in wanted}

    def _environment_in_memory(self, pid: int) -> bytes | None:
        """Read the environment with CAP_SYS_PTRACE alone, which does not open the files of other users' processes."""
        stat = self.text(pid, "stat")
        span = None if stat is None else proc.environment_addresses(stat)
        if stat is None or span is None or self._own_pid() != os.getpid():
            return None
        try:
            environment = read_memory(pid, span[0], min(span[1] - span[0], _MAX_BYTES))
        except OSError:
            return None
        return environment if self.start_ticks(pid) == proc.start_ticks(stat) else None

    def _own_pid(self) -> int | None:
        """Return the PID of this process in this /proc, which may be of another PID namespace."""
        try:
            return int((self._root / "self").readlink().name)
        except (OSError, ValueError):
            return None

    def parent_pid(self, pid: int) -> int | None:
        """Return the parent's PID, 0 if it is in another PID namespace."""
        stat = self.text(pid, "stat")
        return None if stat is None else proc.parent_pid(stat)

    def pids(self) -> list[int]:
        """Return all processes that this /proc shows. Raises OSError."""
        names = os.listdir(self._root)  # noqa: PTH208 (ten times as fast, and only names are needed)
        return [int(name) for name in names if name.isdecimal()]

    def children(self, pid: int) -> tuple[int, ...] | None:
        """Return the child processes; None if it ended, a part is unreadable, or CONFIG_PROC_CHILDREN is missing."""
        texts = self._of_threads(pid, "children")
        if None in texts or not texts:
            return None
        return tuple(sorted(int(word) for text in texts if text for word in text.split() if word.isdecimal()))

    def is_exiting(self, pid: int) -> bool:
        """Return whether all threads of a process are ending. Its first one can end while another is in the driver."""
        texts = self._of_threads(pid, "stat")
        known = [text for text in texts if text]  # The others have ended since.
        return bool(known) and len(texts) < _MAX_THREADS and all(map(proc.is_exiting, known))

    def _of_threads(self, pid: int, name: str) -> list[str | None]:
        """Return the text of a file of each thread, None for one that is unreadable. The list is empty if it ended."""
        try:
            threads = os.listdir(self._root / str(pid) / "task")[:_MAX_THREADS]  # noqa: PTH208 (as in `pids`)
        except OSError:
            return []
        return [self.text(pid, f"task/{thread}/{name}") for thread in threads]

    def name(self, pid: int) -> str | None:
        """Return the name of a process, of which the kernel stores 15 bytes."""
        name = self._bytes(pid, "comm", 64)
        return None if name is None else _decoded(name).removesuffix("\n")

    def arguments(self, pid: int) -> tuple[str, ...]:
        """Return the arguments of a process, its name first. They are empty during execve(2)."""
        arguments = self.text(pid, "cmdline")
        return tuple(arguments.removesuffix("\0").split("\0")) if arguments else ()

    def stdout(self, pid: int) -> str | None:
        """Return the target of a process's stdout; if it is a file, its path, which the process may have chosen."""
        return self._link(pid, "fd/1")

    def program(self, pid: int) -> str | None:
        """Return the executable of a process. If the file was removed, the path ends with ` (deleted)`."""
        return self._link(pid, "exe")

    def working_directory(self, pid: int) -> str | None:
        """Return the working directory of a process. Needs ptrace."""
        return self._link(pid, "cwd")

    def open_files(self, pid: int) -> Iterator[str]:
        """Yield the paths of a process's open files, which it may have chosen. Needs ptrace."""
        with contextlib.suppress(OSError), os.scandir(self._root / str(pid) / "fd") as descriptors:
            for descriptor in itertools.islice(descriptors, _MAX_DESCRIPTORS):
                if (path := self._link(pid, f"fd/{descriptor.name}")) is not None:
                    yield path

    def sockets(self, pid: int, most: int) -> list[int]:
        """Return the descriptors of a process's sockets. Raises OSError, also if there are too many. Needs ptrace."""
        names = os.listdir(self._root / str(pid) / "fd")  # noqa: PTH208 (as in `pids`)
        if len(names) > most:
            raise OSError(EIO, f"process {pid} has more than {most} open files")
        return [int(name) for name in names if (self._link(pid, f"fd/{name}") or "").startswith("socket:")]

    def status(self, pid: int) -> str | None:
        """Return /proc/PID/status, which any user may read."""
        return self.text(pid, "status", _MAX_BYTES)

    def text(self, pid: int, name: str, limit: int = _MAX_TEXT) -> str | None:
        """Return the text of a file of a process, at most `limit` bytes."""
        data = self._bytes(pid, name, limit)
        return None if data is None else _decoded(data)

    def certain_text(self, pid: int, name: str) -> str:
        """Return the text of a file of a process; empty if the process ended. Raises OSError if that is not certain."""
        text = self.text(pid, name)
        if text is None and not self.is_unused(pid):
            raise OSError(errno.EIO, f"process {pid} cannot be read")
        return text or ""

    def namespaced_pids(self, pid: int) -> tuple[int, ...]:
        """Return the PID of a process in the namespace of this /proc, in each one between, and in its own."""
        status = self.status(pid)
        return () if status is None else proc.namespace_pids(status)

    def mappings(self, pid: int, text: bytes) -> list[bytes] | None:
        """Return the lines of /proc/PID/maps that contain a text. Needs ptrace."""
        try:
            with open(self._root / str(pid) / "maps", "rb") as file:
                lines = itertools.islice(file, _MAX_MAPPINGS)
                return list(itertools.islice((line for line in lines if text in line), _MAX_LINES))
        except OSError:
            return None

    def address_ranges(self, pid: int, start_ticks: int) -> AddressRanges | None:
        """Return the address ranges of a process, and nothing else of /proc/PID/maps. Needs ptrace."""
        at, maps = self._clock.now(), self._bytes(pid, "maps", _MAX_MAPS)
        # The file has nothing once the process has ended. A process of the same start time has been there all the time.
        if not maps or self.start_ticks(pid) != start_ticks:
            return None
        gpu, host, complete = proc.parse_address_ranges(maps)
        return AddressRanges(
            at=at, pid=pid, start_ticks=start_ticks, gpu=gpu, host=host, complete=complete and len(maps) < _MAX_MAPS
        )

    def pid_namespace(self, pid: int, above: int = 0) -> int | None:
        """Return the inode of a process's PID namespace, or of the one `above` levels above. Needs ptrace."""
        try:
            namespace = os.open(self._root / str(pid) / "ns" / "pid", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        with contextlib.ExitStack() as opened:
            opened.callback(os.close, namespace)
            try:
                for _ in range(above):
                    namespace = fcntl.ioctl(namespace, NS_GET_PARENT)
                    opened.callback(os.close, namespace)
                return os.fstat(namespace).st_ino
            except OSError:
                return None

    @property
    def is_apart(self) -> bool:
        """Whether this process is in another PID namespace than the host's, of which it may not see the daemons."""
        return self.pid_namespace(os.getpid()) not in (None, INITIAL_PID_NAMESPACE)

    def namespace(self, pid: int, kind: str) -> int | None:
        """Return the inode of a process's namespace of this kind, `mnt` or `user`. Needs ptrace."""
        try:
            return os.stat(self._root / str(pid) / "ns" / kind).st_ino
        except OSError:
            return None

    def user_namespace_owner(self, pid: int) -> int | None:
        """Return who created a process's user namespace; of nested ones, the outermost below this one's. Needs ptrace.

        None if the process is in the user namespace of this one, or if that cannot be read.
        """
        with contextlib.ExitStack() as opened, contextlib.suppress(OSError):
            own = self.namespace(os.getpid(), "user")
            owner = None
            namespace = os.open(self._root / str(pid) / "ns" / "user", os.O_RDONLY | os.O_CLOEXEC)
            opened.callback(os.close, namespace)
            while os.fstat(namespace).st_ino != own:
                uid = bytearray(4)
                fcntl.ioctl(namespace, NS_GET_OWNER_UID, uid)
                owner = int.from_bytes(uid, sys.byteorder)
                namespace = fcntl.ioctl(namespace, NS_GET_PARENT)
                opened.callback(os.close, namespace)
            return owner
        return None

    def open_root(self, pid: int, start_ticks: int) -> int:
        """Open the root directory of this very process. Raises OSError; FileNotFoundError if it ended. Needs ptrace."""
        try:
            process = os.open(self._root / str(pid), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            if self.is_unused(pid):
                raise
            raise OSError(EIO, f"process {pid} cannot be read") from error
        try:
            root = os.open("root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=process)
        except ProcessLookupError as error:
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT)) from error
        finally:
            os.close(process)
        presence = self.presence(pid, start_ticks)
        if presence is not Presence.RUNNING:
            os.close(root)
            code = ENOENT if presence is Presence.ENDED else EIO
            raise OSError(code, os.strerror(code))
        return root

    def _link(self, pid: int, name: str) -> str | None:
        try:
            return _encodable(os.readlink(f"{self._root}/{pid}/{name}"))
        except OSError:
            return None

    def _bytes(self, pid: int, name: str, limit: int) -> bytes | None:
        """Read a file with plain system calls: a file object takes longer than the read itself."""
        try:
            descriptor = os.open(f"{self._root}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        data = bytearray()
        try:
            while chunk := os.read(descriptor, min(limit - len(data), _MAX_CHUNK)):
                data += chunk
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return bytes(data)


def _decoded(data: bytes) -> str:
    return data.decode(errors="replace")


def _user_name(uid: int) -> str:
    """Return the name of a user, or the UID if the password database has none."""
    try:
        return _encodable(pwd.getpwuid(uid).pw_name)
    except (KeyError, OverflowError):
        return str(uid)


@lru_cache(maxsize=1024)  # The database may be on another machine.
def has_name(group: int) -> bool:
    """Return whether the group database has a group."""
    try:
        return bool(grp.getgrgid(group))
    except (KeyError, OverflowError):
        return False


def _encodable(text: str) -> str:
    """Replace lone surrogates, as which psutil returns bytes that are not UTF-8. Files and sockets refuse them."""
    return sys.intern(text[:_MAX_TEXT].encode(errors="replace").decode())
