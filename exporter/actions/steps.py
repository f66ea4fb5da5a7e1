"""Steps of an action: control command, signal, unit restart, start command."""

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from exporter.clock import Clock
from exporter.collectors.child import OWN_USER, User, user
from exporter.collectors.control import ControlClient
from exporter.collectors.pipe_dir import Directory, Root
from exporter.collectors.proc import Proc
from exporter.model.action import EndProcess, RestartUnit, Role, RunCommand
from exporter.model.observation import ControlReply
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import PIPE_DIRECTORY
from exporter.parse.control_reply import CommandRefusal, QueryOutcome, parse_refusal, query_outcome
from exporter.parse.printable import printable
from exporter.parse.proc import MpsProgram, mps_program
from exporter.parse.unit_name import is_service_name

_SLICE_SECONDS = 0.1
"""How soon it is seen that everything is broken off."""


class Deadline:
    """Waits for processes. To be shared by all who do, so that they can be told together to wait no longer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._ends: list[Callable[[], None]] = []

    def end(self) -> None:
        """Wait for nothing any more."""
        with self._lock:
            self._over.set()
            for end in self._ends:
                end()

    @contextlib.contextmanager
    def ended_by(self, end: Callable[[], None]) -> Iterator[None]:
        """What waits in here for something else is told by this to end, where everything is broken off."""
        with self._lock:
            self._ends.append(end)
            if self.over:
                end()
        try:
            yield
        finally:
            with self._lock:
                self._ends.remove(end)

    @property
    def over(self) -> bool:
        """Whether nothing is waited for any more, and nothing to be begun."""
        return self._over.is_set()

    def rest(self, seconds: float) -> None:
        """Wait for so long."""
        self._over.wait(seconds)

    def until_end(self, descriptor: int, seconds: float, *, grace: float = 0.0) -> bool:
        """Wait for the end of the process of this pidfd, at most so long; whether it came.

        `grace` is how long, at most, it is waited for all the same where everything is broken off.
        """
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        ends = self._clock.monotonic() + seconds
        graced = False
        while True:
            now = self._clock.monotonic()
            if self.over and not graced:
                ends, graced = min(ends, now + grace), True
            if poll.poll(max(0.0, min(_SLICE_SECONDS, ends - now)) * 1000):
                return True
            if now >= ends:
                return False

    def until_end_of(self, pid: int, seconds: float, *, grace: float = 0.0) -> bool:
        """The same of a child of this process, which has not been collected yet."""
        descriptor = os.pidfd_open(pid)
        try:
            return self.until_end(descriptor, seconds, grace=grace)
        finally:
            os.close(descriptor)


MOST_BYTES = 1 << 14

_KILL_SECONDS = 1.0
_UMASK = 0o022
"""A daemon's sockets and logs are for its clients: ours may be stricter than that."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """How a program ended: with this exit code, None where it was not waited for any longer, and what it said."""

    exit_code: int | None
    said: str

    @property
    def last_line(self) -> str | None:
        """The last line of its output; None if it has no output."""
        lines = [line for line in self.said.splitlines() if line.strip()]
        return printable(lines[-1].strip()) if lines else None


def run_program(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    seconds: float,
    patience: Deadline,
    user: User = OWN_USER,
    grace: float = 0.0,
) -> ProgramResult:
    """Run it, for so long at most, then end it with all of its session that is left; `grace` is as in `until_end`.

    Raises OSError where it cannot be started, ValueError where an argument cannot be one.
    """
    output = _bounded_file()
    try:
        child = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(environment),
            cwd="/",
            umask=_UMASK,
            start_new_session=True,
            user=user.uid,
            group=user.gid,
            extra_groups=user.groups,
        )
        in_time = patience.until_end_of(child.pid, seconds, grace=grace)
        if not in_time:
            _end(child, patience)
        exit_code = child.poll()
        return ProgramResult(exit_code if in_time else None, _said(output))
    finally:
        os.close(output)


def _bounded_file() -> int:
    descriptor = os.memfd_create("said", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, MOST_BYTES)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    return descriptor


def _end(child: "subprocess.Popen[bytes]", patience: Deadline) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    patience.until_end_of(child.pid, _KILL_SECONDS, grace=_KILL_SECONDS)


def _said(output: int) -> str:
    return os.pread(output, MOST_BYTES, 0).rstrip(b"\0").decode(errors="replace")


COMMAND_SECONDS = 5.0
_LONG_DEADLINES = {"shutdown_server": 10.0}
"""The daemon asks the server first, which may have to wait for its clients; meanwhile nobody else is answered."""
_FORCED_SECONDS = 20.0

APPEARS_SECONDS = 1.0
"""How long a daemon that was just started may take until it listens."""
_AGAIN_SECONDS = 0.02

_DENIALS = {
    CommandRefusal.NOT_ALLOWED: ReasonCode.COMMAND_NOT_PERMITTED,
    CommandRefusal.NO_SUCH_SERVER: ReasonCode.COMMAND_WITHOUT_SERVER,
    CommandRefusal.UNKNOWN_COMMAND: ReasonCode.COMMAND_UNKNOWN,
}


def command_deadline(command: str) -> float:
    """How many seconds a command may take."""
    verb, *words = command.split() or [""]
    return _FORCED_SECONDS if "-f" in words else _LONG_DEADLINES.get(verb, COMMAND_SECONDS)


def give_command(
    client: ControlClient, command: str, *, clock: Clock, patience: Deadline, appearing: bool
) -> ControlReply:
    """Give a command, again while a daemon that is `appearing` is not there yet; the last reply."""
    ends = clock.monotonic() + APPEARS_SECONDS
    while True:
        reply = client.send(command)
        absent = query_outcome(reply.exit_code, reply.stderr) is QueryOutcome.NO_DAEMON
        if not (appearing and absent) or patience.over or clock.monotonic() >= ends:
            return reply
        patience.rest(_AGAIN_SECONDS)


def command_problem(reply: ControlReply) -> Reason | None:
    """Return why a command was not obeyed; None if nothing indicates that it was not."""
    command = printable(reply.command)
    match query_outcome(reply.exit_code, reply.stderr):
        case QueryOutcome.TIMED_OUT:
            return Reason(ReasonCode.COMMAND_TIMED_OUT, command=command, seconds=command_deadline(reply.command))
        case QueryOutcome.NO_DAEMON:
            return Reason(ReasonCode.COMMAND_WITHOUT_DAEMON, command=command)
        case QueryOutcome.REFUSED:
            return Reason(ReasonCode.COMMAND_BLOCKED_BY_SESSION, command=command)
        case QueryOutcome.UNUSABLE:
            code, text = reply.exit_code, _last_line(reply)
            return Reason(ReasonCode.COMMAND_NOT_SENT, command=command, exit_code=code, text=text)
        case QueryOutcome.ANSWERED:
            denied = parse_refusal(reply.stdout)
            return None if denied is None else Reason(_DENIALS[denied], command=command)


def _last_line(reply: ControlReply) -> str | None:
    lines = (reply.stderr.strip() or reply.stdout.strip()).splitlines()
    return printable(lines[-1]) if lines else None


_END_SECONDS = 5.0
"""A process that sleeps in the kernel ends when it wakes, which may be never."""

_GRACE_SECONDS = 0.5

_PROGRAMS = {Role.DAEMON: MpsProgram.CONTROL, Role.SERVER: MpsProgram.SERVER, Role.CLIENT: None}


def end_process(step: EndProcess, *, pipe: Directory, proc: Proc, patience: Deadline) -> Reason | None:
    """Send SIGKILL, and wait for the end. Return the problem if it does not come; None if the process had ended.

    `pipe` is the pipe directory of the daemon for which this is done. A process that is another than the one that is
    meant, or has another role by now, is left alone.
    """
    pid = step.identity.pid
    if pid <= 0:
        return Reason(ReasonCode.PROCESS_NOT_IN_NAMESPACE, pid=pid)
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    except OSError as error:
        return Reason(ReasonCode.PROCESS_NOT_OPENED, pid=pid, text=error.strerror)
    try:
        # Checked only now: while the descriptor is open, a signal through it cannot reach another process.
        if not _is_meant(step, pipe, proc):
            return None
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        if patience.until_end(descriptor, _END_SECONDS, grace=_GRACE_SECONDS):
            return None
    except ProcessLookupError:
        return None
    except PermissionError:
        return Reason(ReasonCode.PROCESS_NOT_KILLABLE, pid=pid)
    finally:
        os.close(descriptor)
    return Reason(ReasonCode.PROCESS_NOT_ENDED, pid=pid)


def _is_meant(step: EndProcess, pipe: Directory, proc: Proc) -> bool:
    """Return whether it is the same process still, runs the program of its role, and names no other daemon."""
    pid = step.identity.pid
    facts = proc.facts(pid)
    if facts is None or facts.start_ticks != step.identity.start_ticks:
        return False
    if mps_program(facts.executable, facts.command) is not _PROGRAMS[step.role]:
        return False
    # A client chooses its environment, and could exempt itself.
    return step.role is Role.CLIENT or not _is_of_another_daemon(step, pipe, proc)


def _is_of_another_daemon(step: EndProcess, pipe: Directory, proc: Proc) -> bool:
    """Return whether its environment names another pipe directory, as far as both can be reached."""
    path = (proc.variables(step.identity.pid, (PIPE_DIRECTORY,)) or {}).get(PIPE_DIRECTORY)
    if path is None or not path.startswith("/"):
        return False
    root = Root(proc, step.identity.pid, step.identity.start_ticks)
    there, here = Directory(Path(path), root).identity(), pipe.identity()
    return there is not None and here is not None and there != here


RESTART_UNIT_SECONDS = 75.0
"""A daemon that hangs is given its TimeoutStopSec= by systemd before it is killed."""

_PROBLEMS = (
    (
        ("Access denied", "Interactive authentication required", "Permission denied", "not authorized"),
        ReasonCode.UNIT_NOT_PERMITTED,
    ),
    (("not found",), ReasonCode.UNIT_NOT_FOUND),
    (("masked",), ReasonCode.UNIT_MASKED),
    (("attempted too often", "start-limit-hit", "repeated too quickly"), ReasonCode.UNIT_STARTED_TOO_OFTEN),
    (
        ("not been booted with systemd", "Failed to connect to bus", "Failed to connect to system"),
        ReasonCode.UNIT_WITHOUT_SYSTEMD,
    ),
    (("Job for ",), ReasonCode.UNIT_DID_NOT_START),
)
"""What systemctl says if it cannot restart a unit; the first that applies counts."""


def restart_unit(
    step: RestartUnit, *, systemctl: str, path: str, patience: Deadline, seconds: float = RESTART_UNIT_SECONDS
) -> Reason | None:
    """Restart the unit and wait until it runs. Return why it does not. `path` is the PATH of systemctl."""
    if not is_service_name(step.unit):
        return Reason(ReasonCode.UNIT_NAME_INVALID, unit=printable(step.unit))
    verb = "start" if step.only_start else "restart"
    arguments = (systemctl, "--no-ask-password", verb, "--", step.unit)
    try:
        ended = run_program(arguments, environment={"PATH": path, "LC_ALL": "C"}, seconds=seconds, patience=patience)
    except OSError as error:
        return Reason(ReasonCode.PROGRAM_NOT_STARTED, command=systemctl, text=error.strerror)
    if ended.exit_code == 0:
        return None
    if ended.exit_code is None:
        return Reason(ReasonCode.UNIT_TIMED_OUT, unit=step.unit, seconds=seconds)
    return _problem(step.unit, ended)


def _problem(unit: str, ended: ProgramResult) -> Reason:
    """Return what the output of systemctl means."""
    for words, code in _PROBLEMS:
        if any(each in ended.said for each in words):
            return Reason(code, unit=unit)
    return Reason(ReasonCode.UNIT_NOT_RESTARTED, unit=unit, exit_code=ended.exit_code, text=ended.last_line)


START_SECONDS = 15.0
"""`nvidia-cuda-mps-control -d` returns in 14 ms (measured, R580); a script may do more than that."""

GRACE_SECONDS = 1.0
"""A daemon that is half started is no daemon: the command is let end where the exporter itself is told to."""


def run_command(step: RunCommand, *, path: str, patience: Deadline, seconds: float = START_SECONDS) -> Reason | None:
    """Run the command and wait for its end, not for that of the daemon that it starts. Return why it failed.

    It has the rights of its user and no others. A daemon of root has root's: it starts servers for other users.
    """
    program = step.arguments[0] if step.arguments else ""
    if not program:
        return Reason(ReasonCode.NO_PROGRAM)
    try:
        as_user = user(step.uid)
    except PermissionError:
        return Reason(ReasonCode.USER_NOT_PERMITTED, command=program, uid=step.uid)
    try:
        ended = run_program(
            step.arguments,
            environment={"PATH": path, **step.environment},
            seconds=seconds,
            patience=patience,
            user=as_user,
            grace=GRACE_SECONDS,
        )
    except OSError as error:
        return Reason(ReasonCode.PROGRAM_NOT_STARTED, command=program, text=error.strerror)
    except ValueError as error:
        return Reason(ReasonCode.PROGRAM_NOT_STARTED, command=program, text=str(error))
    if ended.exit_code is None:
        return Reason(ReasonCode.PROGRAM_NOT_ENDED, command=program, seconds=seconds)
    if ended.exit_code == 0:
        return None
    return Reason(ReasonCode.PROGRAM_FAILED, command=program, exit_code=ended.exit_code, text=ended.last_line)
