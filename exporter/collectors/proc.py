"""Reads /proc. The only importer of psutil."""

import contextlib
import ctypes
import fcntl
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from errno import ENOENT
from pathlib import Path

import psutil

from exporter.clock import Clock
from exporter.model.identity import ProcessIdentity
from exporter.model.observation import ProcessReading
from exporter.parse import proc
from exporter.parse.proc import is_environment_intact


class _Span(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("start", ctypes.c_void_p), ("size", ctypes.c_size_t))


def read_memory(pid: int, start: int, size: int) -> bytes:
    """What lies at an address of a process, as far as it is mapped. Raises OSError: it has gone, or may not be read."""
    read = ctypes.CDLL(None, use_errno=True).process_vm_readv
    read.restype = ctypes.c_ssize_t
    buffer = ctypes.create_string_buffer(size)
    here, there = _Span(ctypes.addressof(buffer), size), _Span(start, size)
    one, flags = ctypes.c_ulong(1), ctypes.c_ulong(0)
    count: int = read(pid, ctypes.byref(here), one, ctypes.byref(there), one, flags)
    if count < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return buffer.raw[:count]


NS_GET_PARENT = 0xB702
"""ioctl_ns(2)."""

_MOST_TEXT = 4096
_MOST_BYTES = 1 << 20
_MOST_SOCKETS = 1 << 22
_MOST_ANCESTORS = 64
_MOST_DESCRIPTORS = 4096
_MOST_MAPPINGS = 1 << 17
_MOST_LINES = 64


class Proc:
    """The processes that this /proc shows. What may not be read, or is gone, is None."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._root = root
        self._clock = clock

    def start_ticks(self, pid: int) -> int | None:
        """When a process that lives started, in clock ticks since boot; None too for the remains of one (a zombie)."""
        text = self._text(pid, "stat")
        return None if text is None or proc.is_zombie(text) else proc.start_ticks(text)

    def standing(self, pid: int) -> tuple[int, str] | None:
        """When a process that lives started, as `start_ticks`, and how it stands with the scheduler."""
        stat = self._bare(pid, "stat", _MOST_TEXT)
        text = "" if stat is None else _text(stat)
        state, ticks = proc.process_state(text), proc.start_ticks(text)
        return None if state is None or ticks is None or proc.is_zombie(text) else (ticks, state)

    def descends_from_us(self, pid: int) -> bool:
        """Whether this process, or one that it comes from, was started by the present one."""
        own = self._own_pid() or os.getpid()
        line: list[int] = []
        while pid > 0 and pid not in line and len(line) < _MOST_ANCESTORS:
            if pid == own:
                return True
            line.append(pid)
            pid = self._parent_pid(pid) or 0
        return False

    def unix_sockets(self, pid: int) -> str | None:
        """The table of unix sockets of a process's network namespace; None where it may not be read, or is too long."""
        table = self._bytes(pid, "net/unix", _MOST_SOCKETS)
        return None if table is None or len(table) == _MOST_SOCKETS else _text(table)

    def wait_status(self, pid: int, start_ticks: int) -> int | None:
        """How this process ended, as from waitpid(2), where it waits for its parent and the right to know is there."""
        text = self._text(pid, "stat")
        if text is None or proc.start_ticks(text) != start_ticks:
            return None
        status = proc.wait_status(text)
        # Whoever lacks the right is told 0; the namespace is shown by the same right (ptrace's, to read).
        return status if status or self.pid_namespace(pid) is not None else None

    def facts(self, pid: int) -> ProcessReading | None:
        """Who a process is."""
        start_ticks = self.start_ticks(pid)
        if start_ticks is None:
            return None
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                return ProcessReading(
                    at=self._clock.now(),
                    pid=pid,
                    start_ticks=start_ticks,
                    started=process.create_time(),
                    uid=process.uids().real,
                    user=_encodable(process.username()),
                    command=_encodable(process.name()),
                    executable=_executable(process),
                    cgroup=self._text(pid, "cgroup"),
                    parent=self._parent(pid),
                )
        except (psutil.Error, OSError):
            return None

    def _parent(self, pid: int) -> ProcessIdentity | None:
        """Return the parent of a process."""
        parent = self._parent_pid(pid)
        started = None if not parent else self.start_ticks(parent)
        return None if not parent or started is None else ProcessIdentity(pid=parent, start_ticks=started)

    def _parent_pid(self, pid: int) -> int | None:
        text = self._text(pid, "stat")
        return None if text is None else proc.parent_pid(text)

    def variables(self, pid: int, names: Iterable[str], *, intact: bool = False) -> Mapping[str, str] | None:
        """Those of these variables that a process's environment has, and nothing else of it; None where unreadable.

        If `intact`, None too where it is empty or overwritten.
        """
        environment = self._bytes(pid, "environ", _MOST_BYTES)
        if environment is None:
            environment = self._environment_in_memory(pid)
        if environment is None or (intact and not is_environment_intact(environment)):
            return None
        wanted = {name.encode() for name in names}
        pairs = (variable.partition(b"=") for variable in environment.split(b"\0"))
        return {_text(name): _text(value[:_MOST_TEXT]) for name, _, value in pairs if name in wanted}

    def _environment_in_memory(self, pid: int) -> bytes | None:
        """The environment of another user's process, for whoever may look into it but not open its files."""
        stat = self._text(pid, "stat")
        span = None if stat is None else proc.environment_addresses(stat)
        if stat is None or span is None or self._own_pid() != os.getpid():
            return None
        try:
            found = read_memory(pid, span[0], min(span[1] - span[0], _MOST_BYTES))
        except OSError:
            return None
        return found if self.start_ticks(pid) == proc.start_ticks(stat) else None

    def _own_pid(self) -> int | None:
        """The PID of this process in this /proc, which may be another PID namespace's."""
        try:
            return int((self._root / "self").readlink().name)
        except (OSError, ValueError):
            return None

    def pids(self) -> list[int]:
        """All processes that there are."""
        try:
            names = os.listdir(self._root)  # noqa: PTH208 (names are all that is needed, ten times sooner)
            return [int(name) for name in names if name.isdecimal()]
        except OSError:
            return []

    def name(self, pid: int) -> str | None:
        """A process's name, cut to 15 bytes by the kernel."""
        name = self._bare(pid, "comm", 64)
        return None if name is None else _text(name).removesuffix("\n")

    def arguments(self, pid: int) -> tuple[str, ...]:
        """How a process was started, its own name first."""
        words = self._bytes(pid, "cmdline", _MOST_TEXT)
        return () if not words else tuple(_text(words).removesuffix("\0").split("\0"))

    def stdout(self, pid: int) -> str | None:
        """What a process's stdout is: a path, where it is a file, which the process has chosen."""
        return self._link(pid, "fd/1")

    def program(self, pid: int) -> str | None:
        """The file that a process runs, as the kernel names it: one that is no more there ends with ` (deleted)`."""
        return self._link(pid, "exe")

    def open_files(self, pid: int) -> Iterator[str]:
        """What a process has open, as paths, which it has chosen; nothing where that may not be seen."""
        try:
            for descriptor in itertools.islice(os.scandir(self._root / str(pid) / "fd"), _MOST_DESCRIPTORS):
                with contextlib.suppress(OSError):
                    yield _encodable(str(Path(descriptor.path).readlink()))
        except OSError:
            return

    def status(self, pid: int) -> str | None:
        """The text of its `status`, which everybody may read (`process_status`)."""
        status = self._bytes(pid, "status", _MOST_BYTES)
        return None if status is None else _text(status)

    def text(self, pid: int, name: str) -> str | None:
        """Return the text of one of its files; None if it cannot be read."""
        return self._text(pid, name)

    def driver(self) -> str | None:
        """What the kernel's module of NVIDIA's driver says of itself; None where there is none."""
        try:
            return (self._root / "driver" / "nvidia" / "version").read_text(errors="replace")[:_MOST_TEXT]
        except OSError:
            return None

    def namespaced_pids(self, pid: int) -> tuple[int, ...]:
        """The PID of a process in this /proc's namespace, then in each that lies between, last in its own."""
        status = self.status(pid)
        return () if status is None else proc.namespace_pids(status)

    def mappings(self, pid: int, about: bytes) -> list[bytes] | None:
        """Those lines of its `maps` that have this in them; None without the right to see them (ptrace's, to read)."""
        try:
            with open(self._root / str(pid) / "maps", "rb") as file:
                lines = itertools.islice(file, _MOST_MAPPINGS)
                return list(itertools.islice((line for line in lines if about in line), _MOST_LINES))
        except OSError:
            return None

    def pid_namespace(self, pid: int, above: int = 0) -> int | None:
        """The inode of a process's PID namespace, or of one so many levels above; None without the right to see it."""
        try:
            namespace = os.open(self._root / str(pid) / "ns" / "pid", os.O_RDONLY | os.O_CLOEXEC)
            for _ in range(above):
                namespace = _parent(namespace)
            try:
                return os.fstat(namespace).st_ino
            finally:
                os.close(namespace)
        except OSError:
            return None

    def namespace(self, pid: int, kind: str) -> int | None:
        """The inode of a process's namespace, `mnt` or `user`; None without the right to see it."""
        try:
            return os.stat(self._root / str(pid) / "ns" / kind).st_ino
        except OSError:
            return None

    def open_root(self, pid: int, start_ticks: int) -> int:
        """A descriptor of the root directory of this process, and of no other that has its PID by now.

        Raises OSError: it has gone, or the right is missing (that of ptrace, CAP_SYS_PTRACE for others' processes).
        """
        process = os.open(self._root / str(pid), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            root = os.open("root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=process)
        except ProcessLookupError as error:
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT)) from error
        finally:
            os.close(process)
        if self.start_ticks(pid) != start_ticks:
            os.close(root)
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT))
        return root

    def _link(self, pid: int, name: str) -> str | None:
        """Where a link of a process's leads."""
        try:
            return _encodable(str((self._root / str(pid) / name).readlink()))
        except OSError:
            return None

    def _text(self, pid: int, name: str) -> str | None:
        text = self._bytes(pid, name, _MOST_TEXT)
        return None if text is None else _text(text)

    def _bare(self, pid: int, name: str, most: int) -> bytes | None:
        """What is asked of many processes, again and again: a file object would take longer than the reading."""
        try:
            descriptor = os.open(f"{self._root}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return os.read(descriptor, most)
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def _bytes(self, pid: int, name: str, most: int) -> bytes | None:
        try:
            with open(self._root / str(pid) / name, "rb") as file:
                return file.read(most)
        except OSError:
            return None


def _parent(namespace: int) -> int:
    """The namespace above this one, which is let go of."""
    try:
        return fcntl.ioctl(namespace, NS_GET_PARENT)
    finally:
        os.close(namespace)


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _executable(process: psutil.Process) -> str | None:
    """The path of the program; None where the exporter's user may not see it (another user's, without privilege)."""
    try:
        return _encodable(process.exe()) or None
    except (psutil.Error, OSError):
        return None


def _encodable(text: str) -> str:
    """Names may hold any bytes, which psutil hands over as lone surrogates; these no file and no socket would take."""
    return text[:_MOST_TEXT].encode(errors="replace").decode()
