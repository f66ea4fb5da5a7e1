"""Child processes: their user, their output, their deadline."""

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
from exporter.model.problem import Problem, command_failed, not_started, timed_out
from exporter.parse.proc import effective_capabilities

CAP_SETGID, CAP_SETUID = 6, 7
"""Their numbers (linux/capability.h)."""

NOBODYS_GROUP = 65534
"""For a user whom the password database does not know: this process's own groups are not for him."""

NO_UID = 2**32 - 1
"""(uid_t) -1 is no user (setuid(2))."""

PR_SET_NO_NEW_PRIVS = 38
_CAPSET_VERSION = 0x20080522
"""capset(2): two masks of effective, permitted and inheritable capabilities each."""

_STATUS = Path("/proc/thread-self/status")


@dataclass(frozen=True, slots=True)
class User:
    """A user and his groups; None: those of this process."""

    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] | None = None


OURSELVES = User()


def user(uid: int | None) -> User:
    """The user with this UID; ourselves where that is nobody else, or None.

    Raises PermissionError where no child of this process can be somebody else's.
    """
    if uid is None or uid == os.geteuid():
        return OURSELVES
    if not may_be_others():
        raise PermissionError(errno.EPERM, f"it takes CAP_SETUID and CAP_SETGID to start a process as UID {uid}")
    try:
        known = pwd.getpwuid(uid)
    except (KeyError, OverflowError):
        return User(uid, NOBODYS_GROUP, (NOBODYS_GROUP,))
    return User(uid, known.pw_gid, tuple(os.getgrouplist(known.pw_name, known.pw_gid)))


def uid_of(name: str) -> int | None:
    """Return the UID of a user by name or number; None if the password database does not know the name."""
    if name.isascii() and name.isdecimal():
        return int(name) if int(name) < NO_UID else None
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return None


def disarming() -> Callable[[], None]:
    """What a child does right before its program, when it is its user already: it lets go of all capabilities.

    Root's programs would have ours otherwise. All is made ready here, since little may be done after a fork.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    header, none = (ctypes.c_uint32 * 2)(_CAPSET_VERSION, 0), (ctypes.c_uint32 * 6)()

    def disarm() -> None:
        if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.capset(header, none):
            raise OSError(ctypes.get_errno(), "capabilities cannot be let go of")

    return disarm


def may_be_others() -> bool:
    """Whether a child of this thread can become any user."""
    try:
        held = effective_capabilities(_STATUS.read_text(errors="replace"))
    except OSError:
        return False
    return all(held >> capability & 1 for capability in (CAP_SETGID, CAP_SETUID))


MOST_BYTES = 1 << 20
"""A child that says more on one stream is not heard out."""


def communicate(
    child: "subprocess.Popen[bytes]", words: bytes, deadline: float, clock: Clock
) -> tuple[bytes, bytes] | None:
    """Say `words` to a child and hear what it says on stdout and stderr until it ends.

    None where it has not ended within `deadline` seconds, or does not stop talking; it is then the caller's to kill.
    `subprocess` itself would keep whatever comes, without bound.
    """
    if child.stdin is None or child.stdout is None or child.stderr is None:
        raise ValueError("a child without pipes cannot be talked to")
    ends = clock.monotonic() + deadline
    with contextlib.suppress(OSError):
        child.stdin.write(words)
        child.stdin.close()
    heard = {child.stdout: b"", child.stderr: b""}
    with selectors.DefaultSelector() as selector:
        for stream in heard:
            selector.register(stream, selectors.EVENT_READ, stream)
        while selector.get_map():
            ready = selector.select(ends - clock.monotonic()) if clock.monotonic() < ends else []
            if not ready:
                return None
            for key, _ in ready:
                said = os.read(key.fd, 1 << 16)
                heard[key.data] += said
                if not said:
                    selector.unregister(key.fileobj)
                if len(heard[key.data]) > MOST_BYTES:
                    return None
    try:
        child.wait(max(0.0, ends - clock.monotonic()))
    except subprocess.TimeoutExpired:
        return None
    return heard[child.stdout], heard[child.stderr]


MOST_BYTES_A_LOOK = 1 << 18
LONGEST_LINE = 1 << 16
LONGEST_COMPLAINT = 1 << 10


class Child:
    """One child, from its start to its end."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start it. Raises OSError where it cannot be started, ValueError where an argument cannot be one."""
        self._child = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )
        self._torn = b""
        self._skipping = False
        self._complaint = b""

    @property
    def ended(self) -> int | None:
        """Its exit code, once it has ended. What `lines` tells after that is all there was."""
        return self._child.poll()

    @property
    def error_line(self) -> str:
        """The last line that it wrote to stderr by the last call of `lines`; empty where there is none."""
        return (self._complaint.decode(errors="replace").strip().splitlines() or [""])[-1]

    def lines(self) -> tuple[list[bytes], int]:
        """The whole lines that it has written by now, and how many more were too long to be kept.

        At most so much as `MOST_BYTES_A_LOOK`: the rest waits in the pipe, and the child with it.
        """
        self._complaint = (self._complaint + _heard(self._child.stderr))[-LONGEST_COMPLAINT:]
        *whole, self._torn = (self._torn + _heard(self._child.stdout)).split(b"\n")
        if whole and self._skipping:
            self._skipping = False
            del whole[0]
        kept = [line for line in whole if len(line) <= LONGEST_LINE]
        too_long = len(whole) - len(kept)
        if len(self._torn) > LONGEST_LINE:
            too_long += not self._skipping
            self._torn, self._skipping = b"", True
        return kept, too_long

    def close(self) -> None:
        """End it, with all that it started, unless it has ended; then let go of it."""
        if self._child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
        with self._child:
            pass


def _heard(stream: IO[bytes] | None) -> bytes:
    """What is in a pipe by now."""
    if stream is None:
        raise ValueError("a child without pipes cannot be heard")
    os.set_blocking(stream.fileno(), False)
    heard = bytearray()
    with contextlib.suppress(BlockingIOError):
        while len(heard) < MOST_BYTES_A_LOOK:
            said = os.read(stream.fileno(), 1 << 16)
            if not said:
                break
            heard += said
    return bytes(heard)


_SHOW = ("show", "--all", "--no-pager", "--no-ask-password")
"""Without --all it would leave out units that do not run, and what is empty."""

_NO_SYSTEMD = ("not been booted with systemd", "bus: No such file or directory", "bus: Host is down")


@dataclass(frozen=True, slots=True)
class Shown:
    """The output of `systemctl show`, or the problem that prevented it; neither if systemd does not run."""

    text: str | None = None
    problem: Problem | None = None


class Systemctl:
    """`systemctl show`, which anybody may."""

    def __init__(
        self, clock: Clock, *, executable: str = "systemctl", path: str = os.defpath, deadline: float = 5.0
    ) -> None:
        """`path` is where `executable` is looked for; `deadline` is how long it may take to answer, in seconds."""
        self._clock = clock
        self._executable = executable
        self._environment = {"PATH": path, "LC_ALL": "C"}
        self._deadline = deadline

    def show(self, properties: tuple[str, ...], *units: str) -> Shown:
        """These properties of these units; of all that a pattern among them fits."""
        command = (self._executable, *_SHOW, f"--property={','.join(properties)}", "--", *units)
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment,
                start_new_session=True,
            )
        except FileNotFoundError:
            return Shown()
        except OSError as error:
            return Shown(problem=not_started(self._executable, error))
        with child:
            told = communicate(child, b"", self._deadline, self._clock)
            if told is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                return Shown(problem=timed_out(self._executable, self._deadline))
        stdout, stderr = (each.decode(errors="replace") for each in told)
        if child.returncode == 0:
            return Shown(stdout)
        if any(each in stderr for each in _NO_SYSTEMD):
            return Shown()
        last_line = (stderr.strip().splitlines() or [""])[-1][:200]
        return Shown(problem=command_failed(self._executable, child.returncode, last_line))
