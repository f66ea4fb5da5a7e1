"""Asks an MPS control daemon, through `nvidia-cuda-mps-control`.

A session holds all others out, so each command is a child of its own that ends with its answer or its deadline.
Commands that collide with somebody else's are refused at once (measured, R580), and asked again.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tenacity import RetryCallState, Retrying, retry_if_result, stop_after_attempt, wait_exponential_jitter

from exporter.clock import Clock
from exporter.model.observation import ControlReply
from exporter.model.variables import PIPE_DIRECTORY
from exporter.parse.control_reply import VERSION, Verdict, verdict
from exporter.parse.pid_fields import command_of, numbers
from exporter.sources.approach import Approach, Way
from exporter.sources.pid_namespace import PidNamespace
from exporter.sources.place import Place, on_host
from exporter.sources.reading import Reading
from exporter.sources.session_lock import SessionLock
from exporter.sources.talk import talk
from exporter.sources.user import OURSELVES, User, disarming

ATTEMPTS = 4


class ControlClient:
    """Gives commands to one daemon, one at a time."""

    def __init__(
        self,
        daemon: str,
        pipe_directory: Path,
        *,
        executable: str,
        deadline: float,
        clock: Clock,
        path: str = os.defpath,
        sleep: Callable[[float], None] = time.sleep,
        lock: SessionLock | None = None,
        runtime_directory: Path | None = None,
        user: User = OURSELVES,
    ) -> None:
        """`user` is who asks: what changes anything is granted to the daemon's own user and to root alone (R580)."""
        self.daemon = daemon
        self._executable = executable
        self._deadline = deadline
        self._clock = clock
        self._environment: Mapping[str, str] = {"PATH": path, "LC_ALL": "C"}
        self._sleep = sleep
        self._lock = lock
        self._runtime_directory = runtime_directory
        self._user = user
        self._place = on_host(daemon, pipe_directory, pipe_directory)
        self._wanted: tuple[str, ...] = ()
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False

    def move(self, place: Place) -> None:
        """The daemon's place is now this, from the next command on."""
        self._place = place

    def want(self, commands: tuple[str, ...]) -> None:
        """Say what to ask at the next look."""
        self._wanted = commands

    def look(self) -> Reading:
        """Ask what is wanted; after a command that got no answer, nothing more."""
        commands, self._wanted = self._wanted, ()
        replies: list[ControlReply] = []
        for command in () if self._closed else commands:
            replies.append(self.ask(command))
            if verdict(replies[-1].exit_code, replies[-1].stderr) is not Verdict.ANSWERED:
                break
        return Reading(tuple(replies), self._problem(replies[-1]) if replies else None)

    def ask(self, command: str) -> ControlReply:
        """Give one command, again where it collides with another's; the answer of the last attempt."""
        retrying = Retrying(
            retry=retry_if_result(_refused),
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_exponential_jitter(multiplier=0.05, max=0.5, jitter=0.05),
            retry_error_callback=_last_result,
            sleep=self._sleep,
        )
        reply: ControlReply = retrying(self._ask_once, command)
        return reply

    def _ask_once(self, command: str) -> ControlReply:
        place = self._place
        with Approach(place, self._runtime_directory).opened() as way, self._alone(way):
            began = self._clock.monotonic()
            exit_code, stdout, stderr = self._run(_spoken(command, place.namespace), way)
        return ControlReply(
            at=self._clock.now(),
            daemon=self.daemon,
            command=command,
            exit_code=exit_code,
            stdout=stdout,
            stderr=stderr,
            seconds=round(self._clock.monotonic() - began, 6),
            pids=_pids(stdout, place.namespace),
        )

    def _alone(self, way: Way) -> contextlib.AbstractContextManager[bool]:
        return contextlib.nullcontext(False) if self._lock is None else self._lock.held(way.identity)

    def close(self) -> None:
        """Ask no more; a question that is under way is broken off, so that its child does not outlive the exporter."""
        self._closed = True
        child = self._child
        if child is not None and child.poll() is None:
            _end(child)

    def _run(self, command: str, way: Way) -> tuple[int | None, str, str]:
        arguments = [self._executable, command] if command == VERSION else [self._executable]
        try:
            child = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**self._environment, PIPE_DIRECTORY: way.pipe_directory},
                pass_fds=way.descriptors,
                start_new_session=True,
                user=self._user.uid,
                group=self._user.gid,
                extra_groups=self._user.groups,
                preexec_fn=None if self._user is OURSELVES else disarming(),
            )
        except OSError as error:
            return 127, "", f"{self._executable}: {error.strerror or error}"
        self._child = child
        with child:
            if self._closed:
                _end(child)
            output = talk(child, f"{command}\n".encode(), self._deadline, self._clock)
            if output is None:
                _end(child)
                return None, "", ""
        return child.returncode, _text(output[0]), _text(output[1])

    def _problem(self, reply: ControlReply) -> str | None:
        """What kept the daemon from being heard. That there is none, or that it refuses, has been heard."""
        match verdict(reply.exit_code, reply.stderr):
            case Verdict.TIMED_OUT:
                return f"{self.daemon}: no answer to {reply.command} within {self._deadline:g} s"
            case Verdict.UNUSABLE:
                said = (reply.stderr.strip() or reply.stdout.strip() or "nothing")[:200]
                return f"{self._executable} cannot be used (exit code {reply.exit_code}): {said}"
            case _:
                return None


def _end(child: "subprocess.Popen[bytes]") -> None:
    """With all that it started. To end another user's takes CAP_KILL."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def _spoken(command: str, namespace: PidNamespace | None) -> str:
    return command if namespace is None else command_of(command, namespace.inner)


def _pids(stdout: str, namespace: PidNamespace | None) -> Mapping[int, int] | None:
    """Whom an answer speaks of, in this namespace's PIDs, where its daemon's are others."""
    if namespace is None:
        return None
    spoken = numbers(stdout)
    namespace.meet(spoken)
    return namespace.outer(spoken)


def _refused(reply: ControlReply) -> bool:
    return verdict(reply.exit_code, reply.stderr) is Verdict.REFUSED


def _last_result(state: RetryCallState) -> object:
    return None if state.outcome is None else state.outcome.result()


def _text(output: bytes) -> str:
    return output.decode(errors="replace")
