"""Child processes: their user, capabilities, output and deadline."""

import contextlib
import ctypes
import errno
import os
import pwd
import select
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from exporter.clock import Clock
from exporter.collectors import without_capabilities
from exporter.parse.proc import Capability, effective_capabilities

NOGROUP = 65534
"""The group of a user who is not in the password database. This process's own groups are not for that user."""

NO_UID = 2**32 - 1  # (uid_t) -1 is no user (setuid(2))
_STATUS = Path("/proc/thread-self/status")


class User(NamedTuple):
    """A user and their groups. None is that of this process."""

    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] | None = None


OWN_USER = User()


def user(uid: int | None) -> User:
    """Return the user with this UID; OWN_USER for one's own UID or None. Raises PermissionError without the right."""
    if uid is None or uid == os.geteuid():
        return OWN_USER
    if not may_switch_user():
        raise PermissionError(errno.EPERM, f"it takes CAP_SETUID and CAP_SETGID to start a process as UID {uid}")
    try:
        entry = pwd.getpwuid(uid)
    except (KeyError, OverflowError):
        return User(uid, NOGROUP, (NOGROUP,))
    return User(uid, entry.pw_gid, tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)))


def uid_of(name: str) -> int | None:
    """Return the UID of a user by name or number; None if the password database does not know the name."""
    if name.isascii() and name.isdecimal():
        return int(name) if int(name) < NO_UID else None
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return None


def may_switch_user() -> bool:
    """Return whether a child of this thread can become any user."""
    try:
        capabilities = effective_capabilities(_STATUS.read_text(errors="replace"))
    except OSError:
        return False
    return all(capabilities >> capability & 1 for capability in (Capability.SETGID, Capability.SETUID))


def keep_capabilities_from_children() -> bool:
    """Empty the inheritable set, and with it the ambient one (capset(2)).

    This process keeps its capabilities then, and a program that it starts has none, unless root runs it.
    Call it before any thread starts, since each thread has its own sets. Return False if the kernel refuses it.
    """
    libc, masks = ctypes.CDLL(None), (ctypes.c_uint32 * 6)()
    header = (ctypes.c_uint32 * 2)(without_capabilities.CAPSET_VERSION, 0)
    if libc.capget(header, masks):
        return False
    masks[2] = masks[5] = 0
    return bool(libc.capset(header, masks) == 0)


def _start(
    arguments: Sequence[str], environment: Mapping[str, str], user: User = OWN_USER, **options: Any
) -> "subprocess.Popen[bytes]":
    """Start a program in a session of its own, with these `options` of Popen.

    It has no `preexec_fn`, which can deadlock in a process with threads. Raises OSError, or ValueError if an argument
    is invalid.
    """
    options |= {"user": user.uid, "group": user.gid, "extra_groups": user.groups}
    child: subprocess.Popen[bytes] = subprocess.Popen(
        arguments, env=dict(environment), start_new_session=True, **options
    )
    return child


def kill_session(child: "subprocess.Popen[bytes]") -> None:
    """Kill a child and all that it started. To kill another user's child takes CAP_KILL."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


# -- Programs with text as their input ---------------------------------------------------------------------------------

MOST_BYTES = 1 << 20  # a child that writes more to one stream is ended
SLICE_SECONDS = 0.2  # the longest wait at a time, and the most that one wait counts


class Output(NamedTuple):
    """The exit code of a child, None after a timeout, and its output."""

    exit_code: int | None
    stdout: str = ""
    stderr: str = ""


def run(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    deadline: float,
    clock: Clock,
    text: str = "",
    user: User = OWN_USER,
    descriptors: Sequence[int] = (),
    on_start: Callable[["subprocess.Popen[bytes]"], object] = lambda _child: None,
) -> Output:
    """Run a program in a session of its own, write `text` to its stdin, and return its output.

    If it has not ended after `deadline` seconds, or writes too much, kill its session. It inherits
    these `descriptors` and no others. Raises OSError if it cannot be started.
    """
    if user.uid == 0:
        # The kernel gives a program of root all capabilities that this process may have. A program of another user has
        # none, and needs no other program in between.
        arguments = (sys.executable, "-I", "-S", without_capabilities.__file__, *arguments)
    child = _start(
        arguments,
        environment,
        user,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=descriptors,
    )
    with child:
        on_start(child)
        output = _communicate(child, text.encode(), deadline, clock)
        if output is None:
            kill_session(child)
            return Output(None)
    return Output(child.returncode, *(stream.decode(errors="replace") for stream in output))


def _communicate(
    child: "subprocess.Popen[bytes]", data: bytes, deadline: float, clock: Clock
) -> tuple[bytes, bytes] | None:
    """Return stdout and stderr; None after the deadline. `subprocess` itself would store any amount of output.

    Time in which this process does not run (SIGSTOP, a frozen cgroup) hardly counts, or a healthy daemon would be late.
    """
    stdin, stdout, stderr = (cast("IO[bytes]", stream) for stream in (child.stdin, child.stdout, child.stderr))
    left = deadline
    with contextlib.suppress(OSError):
        stdin.write(data)
        stdin.close()
    output = {stdout: b"", stderr: b""}
    with selectors.DefaultSelector() as selector:
        for stream in output:
            selector.register(stream, selectors.EVENT_READ, stream)
        while selector.get_map():
            began, slice_seconds = clock.monotonic(), max(0.0, min(left, SLICE_SECONDS))
            ready = selector.select(slice_seconds)
            if not ready and left <= 0:
                return None
            left -= min(clock.monotonic() - began, SLICE_SECONDS)
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                output[key.data] += data
                if not data:
                    selector.unregister(key.fileobj)
                if len(output[key.data]) > MOST_BYTES:
                    return None
    try:
        child.wait(max(SLICE_SECONDS, left))
    except subprocess.TimeoutExpired:
        return None
    return output[stdout], output[stderr]


# -- Programs that may start a daemon ----------------------------------------------------------------------------------

HEAD_BYTES, TAIL_BYTES = 1 << 13, 1 << 13  # how much of a program's output is stored: its beginning and its end

_CHUNKS_AFTER_EXIT = 32
"""How much is read after the exit of a program; a pipe holds 16 of these by default. A daemon may write on for ever."""

_KILL_SECONDS = 1.0
_UMASK = 0o022
"""Clients use a daemon's sockets and logs. The exporter's own umask may be stricter."""


def run_until_exit(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    wait: Callable[[Callable[[float], bool]], bool],
    user: User = OWN_USER,
) -> Output:
    """Run a program, and return its output on both streams as stdout. What it started may run on.

    `wait` returns whether the program has exited in time. If not, kill its session. `wait` gets a function that waits
    for so many seconds at most, and returns whether the program has exited. A program of root has root's capabilities.

    Raises OSError if it cannot be started, ValueError if an argument is invalid.
    """
    with contextlib.ExitStack() as closing:
        reader, writer = os.pipe2(os.O_CLOEXEC)
        closing.callback(os.close, reader)
        closing.callback(_let_write, reader)
        try:
            child = _start(
                arguments,
                environment,
                user,
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                cwd="/",
                umask=_UMASK,
            )
        finally:
            os.close(writer)
        output = _HeadAndTail(reader)
        # Without a pidfd, `wait` decides how soon an exit is noticed: what the program started may have the pipe open.
        with contextlib.suppress(OSError):
            pidfd = os.pidfd_open(child.pid)
            closing.callback(os.close, pidfd)
            output.wake_for(pidfd)

        def exits(seconds: float) -> bool:
            output.read(seconds)
            return child.poll() is not None

        in_time = wait(exits)
        if not in_time:
            kill_session(child)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_KILL_SECONDS)
        for _ in range(_CHUNKS_AFTER_EXIT):
            output.read(0)
        return Output(child.returncode if in_time else None, output.text)


class _HeadAndTail:
    """The output of a program. It is read while the program runs, because a full pipe would stop it."""

    def __init__(self, reader: int) -> None:
        self._reader = reader
        self._poll = select.poll()
        self._poll.register(reader, select.POLLIN)
        self._head, self._tail = b"", b""

    def wake_for(self, pidfd: int) -> None:
        """End each later wait when this process exits."""
        self._poll.register(pidfd, select.POLLIN)

    def read(self, seconds: float) -> None:
        if self._reader not in dict(self._poll.poll(seconds * 1000)):
            return
        data = os.read(self._reader, 1 << 16)
        if not data:
            self._poll.unregister(self._reader)
        room = HEAD_BYTES - len(self._head)
        self._head += data[:room]
        self._tail = (self._tail + data[room:])[-TAIL_BYTES:]

    @property
    def text(self) -> str:
        """What was read, without the middle if that was much."""
        omitted = b"\n[...]\n" if len(self._tail) == TAIL_BYTES else b""
        return (self._head + omitted + self._tail).decode(errors="replace")


def _let_write(reader: int) -> None:
    """If a daemon has the other end of a pipe, let a process read on: without a reader, a write ends the daemon."""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    if not any(event & select.POLLHUP for _, event in poll.poll(0)):
        with contextlib.suppress(OSError):
            drain = ("sh", "-c", "exec 3<&0; cat <&3 >/dev/null 2>&1 &")
            subprocess.run(drain, stdin=reader, cwd="/", start_new_session=True, check=False)


# -- Programs that run for long

MOST_BYTES_ONCE = 1 << 18
LONGEST_LINE = 1 << 16
LONGEST_ERROR = 1 << 10


class Child:
    """A child that writes lines for as long as it runs."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start it. Raises OSError if it cannot be started, ValueError if an argument is invalid."""
        self._child = _start(
            arguments, environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._stdout, self._stderr = (cast("IO[bytes]", each) for each in (self._child.stdout, self._child.stderr))
        self._partial = b""
        self._skipping = False
        self._error = b""

    @property
    def ended(self) -> int | None:
        """Its exit code if it has ended. Call `lines` once more after that for the rest of its output."""
        return self._child.poll()

    @property
    def error_line(self) -> str:
        """The last line that `lines` has read from stderr, or an empty string."""
        return (self._error.decode(errors="replace").strip().splitlines() or [""])[-1]

    def lines(self) -> tuple[list[bytes], int]:
        """Return the complete lines that it has written, and how many more were too long.

        One call reads MOST_BYTES_ONCE at most. The rest stays in the pipe, and the child waits.
        """
        self._error = (self._error + _read_available(self._stderr))[-LONGEST_ERROR:]
        *complete, self._partial = (self._partial + _read_available(self._stdout)).split(b"\n")
        if complete and self._skipping:
            self._skipping = False
            del complete[0]
        lines = [line for line in complete if len(line) <= LONGEST_LINE]
        too_long = len(complete) - len(lines)
        if len(self._partial) > LONGEST_LINE:
            too_long += not self._skipping
            self._partial, self._skipping = b"", True
        return lines, too_long

    def close(self) -> None:
        """Kill it with all that it started, unless it has ended, and close its pipes."""
        if self._child.poll() is None:
            kill_session(self._child)
        with self._child:
            pass


def _read_available(stream: IO[bytes]) -> bytes:
    os.set_blocking(stream.fileno(), False)
    available = bytearray()
    with contextlib.suppress(BlockingIOError):
        while len(available) < MOST_BYTES_ONCE:
            data = os.read(stream.fileno(), 1 << 16)
            if not data:
                break
            available += data
    return bytes(available)
