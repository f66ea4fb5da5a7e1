"""Queries of an MPS control daemon through nvidia-cuda-mps-control."""

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tenacity import RetryCallState, Retrying, retry_if_result, stop_after_attempt, wait_exponential_jitter

from exporter.clock import Clock
from exporter.collectors.child import OURSELVES, User, communicate, disarming
from exporter.collectors.daemon_health import probe, wait_channel
from exporter.collectors.location_registry import Approach, Way
from exporter.collectors.pid_files import foreign_listener
from exporter.collectors.pid_namespace import PidNamespace
from exporter.collectors.pipe_dir import DaemonLocation, Identity, on_host
from exporter.collectors.proc import Proc
from exporter.collectors.thread import Reading
from exporter.model.identity import ProcessIdentity, identity_of
from exporter.model.observation import ControlReply, ControlSocket, Observation, ProcessState
from exporter.model.problem import Problem, ProblemCode, command_failed, timed_out
from exporter.model.settings import PIPE_DIRECTORY
from exporter.parse.control_reply import (
    VERSION_FLAG,
    QueryOutcome,
    numbers_in_text,
    query_outcome,
    servers_queried,
    translate_command,
)

RETRY_SECONDS = 0.02
LOCKS = 64
"""How many lock files there can be, however many pipe directories come and go. Two that share one wait for each other,
as for anybody else."""


class SessionLock:
    """The right to ask a daemon, which is known by the identity of its pipe directory."""

    def __init__(
        self, directory: Path, clock: Clock, *, deadline: float = 1.0, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """`deadline` is how long to wait for others, in seconds."""
        self._directory = directory
        self._clock = clock
        self._deadline = deadline
        self._sleep = sleep

    @contextlib.contextmanager
    def held(self, identity: Identity | None) -> Iterator[bool]:
        """Hold the lock, if it can be had in time; says whether."""
        descriptor = None if identity is None else self._open(identity)
        try:
            yield descriptor is not None and self._acquire(descriptor)
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _open(self, identity: Identity) -> int | None:
        device, inode = identity
        file = self._directory / f"session-{(device + inode) % LOCKS}.lock"
        with contextlib.suppress(OSError):
            return os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        return None

    def _acquire(self, descriptor: int) -> bool:
        ends = self._clock.monotonic() + self._deadline
        while True:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            if self._clock.monotonic() >= ends:
                return False
            self._sleep(RETRY_SECONDS)


ATTEMPTS = 4

PROBES_AT_ONCE = 2
LATER_PROBE_SECONDS = 60.0
"""After so many connections in a row without an answer, the next one follows this much later: each that a daemon does
not accept takes one of 128 places in its queue (measured, R580)."""

_STOPPED = "Tt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Commands to give, and the processes that they concern: the daemon's own and its servers."""

    commands: tuple[str, ...] = ()
    process: ProcessIdentity | None = None
    servers: frozenset[int] = field(default_factory=frozenset)


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
        proc: Proc | None = None,
    ) -> None:
        """`user` is who asks: what changes anything is granted to the daemon's own user and to root alone (R580).

        `proc` shows whether a process is stopped; without it, every process is taken to run.
        """
        self.daemon = daemon
        self._executable = executable
        self._deadline = deadline
        self._clock = clock
        self._environment: Mapping[str, str] = {"PATH": path, "LC_ALL": "C"}
        self._sleep = sleep
        self._lock = lock
        self._runtime_directory = runtime_directory
        self._user = user
        self._location = on_host(daemon, pipe_directory, pipe_directory)
        self._proc = proc
        self._request = Request()
        self._probes_unanswered = 0
        self._next_probe = float("-inf")
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False

    def set_location(self, location: DaemonLocation) -> None:
        """The daemon's place is now this, from the next command on."""
        self._location = location

    def request(
        self, commands: tuple[str, ...], *, process: ProcessIdentity | None = None, servers: Iterable[int] = ()
    ) -> None:
        """Say what to ask at the next look; `process` and `servers` are the daemon's, as far as they are known."""
        self._request = Request(commands=commands, process=process, servers=frozenset(servers))

    def collect(self) -> Reading:
        """Ask what is wanted; after a command that got no answer, nothing more.

        A question is not asked if it would make the daemon wait for a server that is stopped: the daemon would hang for
        every other process too (measured, R580). The core knows states of half a second ago; this is the last look.
        """
        request, self._request = self._request, Request()
        if foreign_listener(self._location) is not None:
            return Reading()
        seen: list[Observation] = []
        problem: Problem | None = None
        for command in () if self._closed else request.commands:
            stopped = self._stopped_server(command, request.servers)
            if stopped is not None:
                seen.append(stopped)
                problem = Problem(code=ProblemCode.SERVER_STOPPED, subject=command, pid=stopped.pid)
                continue
            reply = self.ask(command)
            seen.append(reply)
            problem = self._problem(reply) or problem
            found = query_outcome(reply.exit_code, reply.stderr)
            if found is QueryOutcome.TIMED_OUT:
                seen.extend(self._probed(request.process))
            else:
                self._probes_unanswered = 0
            if found is not QueryOutcome.ANSWERED:
                break
        return Reading(tuple(seen), problem)

    def _stopped_server(self, command: str, servers: frozenset[int]) -> ProcessState | None:
        """Return the first server that this command asks and that is stopped."""
        for pid in sorted(servers_queried(command, servers)):
            state = self._state(pid)
            if state is not None and state.state in _STOPPED:
                return state
        return None

    def _probed(self, process: ProcessIdentity | None) -> Iterable[ControlSocket]:
        """Connect to the daemon without the program, unless it is known to be stopped or was just tried in vain."""
        state = None if process is None else self._state(process.pid)
        stopped = state is not None and identity_of(state) == process and state.state in _STOPPED
        now = self._clock.monotonic()
        if self._closed or stopped or (self._probes_unanswered >= PROBES_AT_ONCE and now < self._next_probe):
            return
        listening, answers = probe(self._location.pipe)
        self._probes_unanswered = self._probes_unanswered + 1 if answers is False else 0
        self._next_probe = now + LATER_PROBE_SECONDS
        channel = None
        if answers is False and process is not None and self._proc is not None:
            channel = wait_channel(self._proc, process.pid)
        yield ControlSocket(
            at=self._clock.now(), daemon=self.daemon, listening=listening, answers=answers, wait_channel=channel
        )

    def _state(self, pid: int) -> ProcessState | None:
        standing = None if self._proc is None else self._proc.standing(pid)
        if standing is None:
            return None
        return ProcessState(at=self._clock.now(), pid=pid, start_ticks=standing[0], state=standing[1])

    def ask(self, command: str) -> ControlReply:
        """Give one command, again where it collides with another's; the answer of the last attempt.

        A daemon of a user who may not run the expected one is told nothing.
        """
        foreign = foreign_listener(self._location)
        if foreign is not None:
            return self._unasked(command, f"the control socket belongs to UID {foreign}, who must not run this daemon")
        retrying = Retrying(
            retry=retry_if_result(_refused),
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_exponential_jitter(multiplier=0.05, max=0.5, jitter=0.05),
            retry_error_callback=_last_result,
            sleep=self._sleep,
        )
        reply: ControlReply = retrying(self._ask_once, command)
        return reply

    def _unasked(self, command: str, why: str) -> ControlReply:
        return ControlReply(at=self._clock.now(), daemon=self.daemon, command=command, exit_code=127, stderr=why)

    def _ask_once(self, command: str) -> ControlReply:
        location = self._location
        with Approach(location, self._runtime_directory).opened() as way, self._alone(way):
            began = self._clock.monotonic()
            exit_code, stdout, stderr = self._run(_spoken(command, location.namespace), way)
        return ControlReply(
            at=self._clock.now(),
            daemon=self.daemon,
            command=command,
            exit_code=exit_code,
            stdout=stdout,
            stderr=stderr,
            seconds=round(self._clock.monotonic() - began, 6),
            pids=_pids(stdout, location.namespace),
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
        arguments = [self._executable, command] if command == VERSION_FLAG else [self._executable]
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
            output = communicate(child, f"{command}\n".encode(), self._deadline, self._clock)
            if output is None:
                _end(child)
                return None, "", ""
        return child.returncode, _text(output[0]), _text(output[1])

    def _problem(self, reply: ControlReply) -> Problem | None:
        """Return why there is no reply of the daemon. That no daemon runs, or that it refuses, is a reply."""
        match query_outcome(reply.exit_code, reply.stderr):
            case QueryOutcome.TIMED_OUT:
                return timed_out(reply.command, self._deadline)
            case QueryOutcome.UNUSABLE:
                output = (reply.stderr.strip() or reply.stdout.strip())[:200]
                return command_failed(self._executable, reply.exit_code, output)
            case _:
                return None


def _end(child: "subprocess.Popen[bytes]") -> None:
    """With all that it started. To end another user's takes CAP_KILL."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def _spoken(command: str, namespace: PidNamespace | None) -> str:
    return command if namespace is None else translate_command(command, namespace.inner)


def _pids(stdout: str, namespace: PidNamespace | None) -> Mapping[int, int] | None:
    """Whom an answer speaks of, in this namespace's PIDs, where its daemon's are others."""
    if namespace is None:
        return None
    spoken = numbers_in_text(stdout)
    namespace.meet(spoken)
    return namespace.outer(spoken)


def _refused(reply: ControlReply) -> bool:
    return query_outcome(reply.exit_code, reply.stderr) is QueryOutcome.REFUSED


def _last_result(state: RetryCallState) -> object:
    return None if state.outcome is None else state.outcome.result()


def _text(output: bytes) -> str:
    return output.decode(errors="replace")
