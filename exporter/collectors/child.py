"""Child processes: their user, capabilities, output and deadline."""

import contextlib
import ctypes
import errno
import os
import pwd
import selectors
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from exporter.clock import Clock
from exporter.parse.proc import effective_capabilities

CAP_SETGID, CAP_SETUID = 6, 7
"""linux/capability.h"""

NOGROUP = 65534
"""The group of a user who is not in the password database. This process's own groups are not for that user."""

NO_UID = 2**32 - 1
"""(uid_t) -1 is no user (setuid(2))."""

PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPSET_VERSION = 0x20080522
"""capset(2): two masks each of effective, permitted and inheritable capabilities."""

_STATUS = Path("/proc/thread-self/status")


@dataclass(frozen=True, slots=True)
class User:
    """A user and their groups. None is that of this process."""

    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] | None = None


OWN_USER = User()


def user(uid: int | None) -> User:
    """Return the user with this UID, which is OWN_USER if it is this process's UID or None.

    Raises PermissionError if this process has not the capabilities to start a child as another user.
    """
    if uid is None or uid == os.geteuid():
        return OWN_USER
    if not may_switch_user():
        raise PermissionError(errno.EPERM, f"it takes CAP_SETUID and CAP_SETGID to start a process as UID {uid}")
    try:
        known = pwd.getpwuid(uid)
    except (KeyError, OverflowError):
        return User(uid, NOGROUP, (NOGROUP,))
    return User(uid, known.pw_gid, tuple(os.getgrouplist(known.pw_name, known.pw_gid)))


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
    return all(capabilities >> each & 1 for each in (CAP_SETGID, CAP_SETUID))


def keep_capabilities_from_children() -> bool:
    """Empty the ambient set (prctl(2)), so that this process keeps its capabilities and its children get none.

    Call it before any thread starts, since each thread has its own set. Return False if the kernel cannot do it.
    """
    return bool(ctypes.CDLL(None).prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) == 0)


def _drop_capabilities() -> Callable[[], None]:
    """Return a function that drops all capabilities, for a child that has switched its user.

    A program of root would have this process's capabilities otherwise. Little may be done after a fork, so this
    prepares everything.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    header, none = (ctypes.c_uint32 * 2)(_CAPSET_VERSION, 0), (ctypes.c_uint32 * 6)()

    def drop() -> None:
        if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.capset(header, none):
            raise OSError(ctypes.get_errno(), "capabilities cannot be dropped")

    return drop


MOST_BYTES = 1 << 20
"""A child that writes more to one stream is ended."""

SLICE_SECONDS = 0.2
"""The longest wait at a time, and the most that one wait counts."""


@dataclass(frozen=True, slots=True)
class Output:
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
    child = subprocess.Popen(
        arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environment),
        pass_fds=descriptors,
        start_new_session=True,
        user=user.uid,
        group=user.gid,
        extra_groups=user.groups,
        preexec_fn=None if user is OWN_USER else _drop_capabilities(),
    )
    with child:
        on_start(child)
        output = _communicate(child, text.encode(), deadline, clock)
        if output is None:
            kill_session(child)
            return Output(None)
    return Output(child.returncode, *(each.decode(errors="replace") for each in output))


def kill_session(child: "subprocess.Popen[bytes]") -> None:
    """Kill a child and all that it started. To kill another user's child takes CAP_KILL."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def _communicate(
    child: "subprocess.Popen[bytes]", data: bytes, deadline: float, clock: Clock
) -> tuple[bytes, bytes] | None:
    """Return stdout and stderr; None after the deadline. `subprocess` itself would store any amount of output.

    Time in which this process does not run (SIGSTOP, a frozen cgroup) hardly counts, or a healthy daemon would be late.
    """
    stdin, stdout, stderr = _pipe(child.stdin), _pipe(child.stdout), _pipe(child.stderr)
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


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise ValueError("the child has no pipe for this stream")
    return stream


MOST_BYTES_ONCE = 1 << 18
LONGEST_LINE = 1 << 16
LONGEST_ERROR = 1 << 10


class Child:
    """A child that writes lines for as long as it runs."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start it. Raises OSError if it cannot be started, ValueError if an argument is invalid."""
        self._child = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )
        self._stdout, self._stderr = _pipe(self._child.stdout), _pipe(self._child.stderr)
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
