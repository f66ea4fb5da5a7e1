"""Steps of an action: control command, signal, unit restart, start command, deletion of a pod."""

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from exporter.clock import Clock
from exporter.collectors.child import run_until_exit, user
from exporter.collectors.control_client import ControlClient
from exporter.collectors.pipe_dir import Directory, Root
from exporter.collectors.pods import FORBIDDEN, GONE, Answer, ask_pod, message_of
from exporter.collectors.proc import Proc
from exporter.model.action import DeletePod, EndProcess, RestartUnit, Role, RunCommand
from exporter.model.observation import ControlReply, ProcessReading
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import PIPE_DIRECTORY
from exporter.parse.control_reply import CommandRefusal, QueryOutcome, parse_refusal, query_outcome
from exporter.parse.printable import printable
from exporter.parse.proc import MpsProgram, mps_program
from exporter.parse.units import is_service_name

_POLL_SECONDS = 0.1  # how soon a wait notices that it is cancelled


class Cancellation:
    """Waits for processes, and cancels all waits together when the exporter stops."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []

    def cancel(self) -> None:
        """End all waits, also the later ones."""
        with self._lock:
            self._cancelled.set()
            for callback in self._callbacks:
                callback()

    @contextlib.contextmanager
    def calling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call `callback` if the wait inside is cancelled."""
        with self._lock:
            self._callbacks.append(callback)
            if self.cancelled:
                callback()
        try:
            yield
        finally:
            with self._lock:
                self._callbacks.remove(callback)

    @property
    def cancelled(self) -> bool:
        """Return whether no action is left to start or to wait for."""
        return self._cancelled.is_set()

    def sleep(self, seconds: float) -> None:
        """Wait for so long, or until cancelled."""
        self._cancelled.wait(seconds)

    def wait_for_exit(self, exits: Callable[[float], bool], seconds: float, *, grace: float = 0.0) -> bool:
        """Wait for the exit of a process, `seconds` at most, and `grace` at most once cancelled.

        `exits` waits so many seconds at most. Both return whether the process has exited.
        """
        ends, cancelled = self._clock.monotonic() + seconds, False
        while True:
            now = self._clock.monotonic()
            if self.cancelled and not cancelled:
                ends, cancelled = min(ends, now + grace), True
            if exits(max(0.0, min(_POLL_SECONDS, ends - now))):
                return True
            if now >= ends:
                return False


# -- Control commands --------------------------------------------------------------------------------------------------

COMMAND_SECONDS = 5.0
_SHUTDOWN_SECONDS, _FORCED_SECONDS = 10.0, 20.0
"""The daemon queries the server first, which may wait for its clients. Meanwhile it answers no other command."""

APPEARS_SECONDS = 1.0  # how long a daemon that was just started may take until it listens
_RETRY_SECONDS = 0.01

_REFUSALS = {
    CommandRefusal.NOT_ALLOWED: ReasonCode.COMMAND_NOT_PERMITTED,
    CommandRefusal.NO_SUCH_SERVER: ReasonCode.COMMAND_WITHOUT_SERVER,
    CommandRefusal.UNKNOWN_COMMAND: ReasonCode.COMMAND_UNKNOWN,
}


def command_deadline(command: str) -> float:
    """Return how many seconds a command may take."""
    verb, *words = command.split() or [""]
    if "-f" in words or "--force" in words:
        return _FORCED_SECONDS
    shuts_down = verb == "shutdown_server" or command.startswith("server delete ")
    return _SHUTDOWN_SECONDS if shuts_down else COMMAND_SECONDS


def send_command(
    client: ControlClient, command: str, *, clock: Clock, cancellation: Cancellation, starting: bool
) -> ControlReply:
    """Send a command and return the reply. While a daemon that is `starting` does not listen, retry."""
    ends = clock.monotonic() + APPEARS_SECONDS
    while True:
        reply = client.send(command)
        absent = query_outcome(reply) is QueryOutcome.NO_DAEMON
        if not (starting and absent) or cancellation.cancelled or clock.monotonic() >= ends:
            return reply
        cancellation.sleep(_RETRY_SECONDS)


def command_problem(reply: ControlReply) -> Reason | None:
    """Return why a command was not obeyed; None if nothing indicates that it was not."""
    command = printable(reply.command)
    match query_outcome(reply):
        case QueryOutcome.TIMED_OUT:
            return Reason(ReasonCode.COMMAND_TIMED_OUT, command=command, seconds=command_deadline(reply.command))
        case QueryOutcome.NO_DAEMON:
            return Reason(ReasonCode.COMMAND_WITHOUT_DAEMON, command=command)
        case QueryOutcome.REFUSED:
            return Reason(ReasonCode.COMMAND_BLOCKED_BY_SESSION, command=command)
        case QueryOutcome.UNUSABLE:
            code, text = reply.exit_code, _last_line(reply.stderr) or _last_line(reply.stdout)
            return Reason(ReasonCode.COMMAND_NOT_SENT, command=command, exit_code=code, text=text)
        case QueryOutcome.ANSWERED:
            refusal = parse_refusal(reply.stdout)
            return None if refusal is None else Reason(_REFUSALS[refusal], command=command)


def _last_line(output: str) -> str | None:
    lines = output.strip().splitlines()
    return printable(lines[-1].strip()) if lines else None


# -- Signals -----------------------------------------------------------------------------------------------------------

_LOOK_SECONDS = 0.01
_END_SECONDS = 5.0  # a process in uninterruptible sleep ends when it wakes, which may be never
_GRACE_SECONDS = 0.5

_PROGRAMS = {Role.DAEMON: MpsProgram.CONTROL, Role.SERVER: MpsProgram.SERVER, Role.CLIENT: None}


def end_process(step: EndProcess, *, pipe: Directory, proc: Proc, cancellation: Cancellation) -> Reason | None:
    """Send SIGKILL and wait for the end that the step wants. Return None if it came, else the problem.

    `pipe` is the pipe directory of the daemon. A process that is another one than meant, or has another role by now,
    is left alone.
    """
    pid = step.identity.pid
    if pid <= 0:
        return Reason(ReasonCode.PROCESS_NOT_IN_NAMESPACE, pid=pid)
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    except OSError as error:
        return Reason(ReasonCode.PROCESS_NOT_OPENED, pid=pid, text=error.strerror)
    try:
        # Checked with the pidfd open: a signal through it cannot reach another process.
        facts = proc.facts(pid)
        if facts is None or not _is_meant(step, facts, pipe, proc):
            return None
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)

        def exits(seconds: float) -> bool:
            if step.contexts:
                return bool(poll.poll(seconds * 1000))
            return bool(poll.poll(min(seconds, _LOOK_SECONDS) * 1000)) or proc.is_exiting(pid)

        if cancellation.wait_for_exit(exits, _END_SECONDS, grace=_GRACE_SECONDS):
            return None
    except ProcessLookupError:
        return None
    except PermissionError:
        return Reason(ReasonCode.PROCESS_NOT_KILLABLE, pid=pid)
    except OSError as error:
        return Reason(ReasonCode.PROCESS_NOT_OPENED, pid=pid, text=error.strerror)
    finally:
        os.close(pidfd)
    return Reason(ReasonCode.PROCESS_NOT_ENDED, pid=pid)


def _is_meant(step: EndProcess, facts: ProcessReading, pipe: Directory, proc: Proc) -> bool:
    """Return whether it is the same process, runs the program of its role, and names no other daemon."""
    pid, start_ticks = step.identity.pid, step.identity.start_ticks
    if facts.start_ticks != start_ticks:
        return False
    if mps_program(facts.executable, facts.command) is not _PROGRAMS[step.role]:
        return False
    # A client chooses its environment, and could exempt itself.
    if step.role is Role.CLIENT:
        return True
    path = (proc.variables(pid, (PIPE_DIRECTORY,)) or {}).get(PIPE_DIRECTORY)
    if path is None or not path.startswith("/"):
        return True
    named, own = Directory(Path(path), Root(proc, pid, start_ticks)).identity(), pipe.identity()
    return named is None or own is None or named == own


# -- Units and start commands ------------------------------------------------------------------------------------------

RESTART_UNIT_SECONDS = 100.0  # systemd gives a daemon that hangs its TimeoutStopSec=, 90 s by default, then kills it

_UNIT_PROBLEMS = {
    ReasonCode.UNIT_NOT_PERMITTED: (
        *("Access denied", "Interactive authentication required", "Permission denied", "not authorized"),
    ),
    ReasonCode.UNIT_NOT_FOUND: ("not found",),
    ReasonCode.UNIT_MASKED: ("masked",),
    ReasonCode.UNIT_STARTED_TOO_OFTEN: ("attempted too often", "start-limit-hit", "repeated too quickly"),
    ReasonCode.UNIT_WITHOUT_SYSTEMD: (
        *("not been booted with systemd", "Failed to connect to bus", "Failed to connect to system"),
    ),
    ReasonCode.UNIT_DID_NOT_START: ("Job for ",),
}
"""Output of systemctl if it cannot restart a unit. The first match counts."""


def restart_unit(
    step: RestartUnit, *, systemctl: str, path: str, cancellation: Cancellation, seconds: float = RESTART_UNIT_SECONDS
) -> Reason | None:
    """Restart the unit and wait until it runs. Return why it does not. `path` is the PATH of systemctl."""
    unit = step.unit
    if not is_service_name(unit):
        return Reason(ReasonCode.UNIT_NAME_INVALID, unit=printable(unit))
    arguments = (systemctl, "--no-ask-password", "start" if step.only_start else "restart", "--", unit)
    environment = {"PATH": path, "LC_ALL": "C"}
    try:
        result = run_until_exit(
            arguments, environment=environment, wait=lambda exits: cancellation.wait_for_exit(exits, seconds)
        )
    except OSError as error:
        return Reason(ReasonCode.PROGRAM_NOT_STARTED, command=systemctl, text=error.strerror)
    if result.exit_code == 0:
        return None
    if result.exit_code is None:
        return Reason(ReasonCode.UNIT_TIMED_OUT, unit=unit, seconds=seconds)
    for code, texts in _UNIT_PROBLEMS.items():
        if any(text in result.stdout for text in texts):
            return Reason(code, unit=unit)
    return Reason(ReasonCode.UNIT_NOT_RESTARTED, unit=unit, exit_code=result.exit_code, text=_last_line(result.stdout))


START_SECONDS = 15.0  # `nvidia-cuda-mps-control -d` returns in 14 ms (measured, R580). A script may do more.

GRACE_SECONDS = 1.0
"""How long a start may take after the exporter was told to stop: a daemon that is half started does not work."""


def run_command(
    step: RunCommand, *, path: str, cancellation: Cancellation, seconds: float = START_SECONDS
) -> Reason | None:
    """Run the command and wait for its exit, not for that of the daemon. Return why it failed.

    It has only the rights of its user. A daemon of root has root's: it starts servers for other users.
    """
    program = step.arguments[0] if step.arguments else ""
    if not program:
        return Reason(ReasonCode.NO_PROGRAM)
    try:
        as_user = user(step.uid)
    except PermissionError:
        return Reason(ReasonCode.USER_NOT_PERMITTED, command=program, uid=step.uid)
    try:
        result = run_until_exit(
            step.arguments,
            environment={"PATH": path, **step.environment},
            wait=lambda exits: cancellation.wait_for_exit(exits, seconds, grace=GRACE_SECONDS),
            user=as_user,
        )
    except OSError as error:
        return Reason(ReasonCode.PROGRAM_NOT_STARTED, command=program, text=error.strerror)
    except ValueError as error:
        return Reason(ReasonCode.PROGRAM_NOT_STARTED, command=program, text=str(error))
    if result.exit_code is None:
        return Reason(ReasonCode.PROGRAM_NOT_ENDED, command=program, seconds=seconds)
    if result.exit_code == 0:
        return None
    return Reason(
        ReasonCode.PROGRAM_FAILED, command=program, exit_code=result.exit_code, text=_last_line(result.stdout)
    )


# -- Pods --------------------------------------------------------------------------------------------------------------


def delete_pod(step: DeletePod, *, ask: Callable[..., Answer] = ask_pod) -> Reason | None:
    """Delete the pod if it still has its UID. Return why it was not deleted; None also if it is gone already.

    The exporter's service account does it. The pod's controller, a DaemonSet or Deployment, then creates another one.
    """
    pod = f"{step.namespace}/{step.name}"
    body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": step.uid}}
    answer = ask("DELETE", step.namespace, step.name, body)
    if isinstance(answer, Reason):
        return answer
    status, content = answer
    if status in GONE or 200 <= status < 300:
        return None
    if status in FORBIDDEN:
        return Reason(ReasonCode.POD_DELETION_FORBIDDEN, pod=pod)
    return Reason(ReasonCode.POD_NOT_DELETED, pod=pod, state=f"HTTP {status}", text=message_of(content))
