"""Queries of an MPS control daemon through nvidia-cuda-mps-control."""

import contextlib
import errno
import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import KW_ONLY, InitVar, dataclass
from pathlib import Path
from typing import Any

from exporter.clock import Clock
from exporter.collectors.child import OWN_USER, Output, User, kill_session, run
from exporter.collectors.daemon_directory import ControlSockets, probe, read_control_sockets
from exporter.collectors.daemon_processes import foreign_listener
from exporter.collectors.pipe_dir import DaemonLocation, Identity, pipe_access
from exporter.collectors.proc import Proc
from exporter.collectors.processes import wait_channel
from exporter.collectors.thread import Reading
from exporter.logger import logger
from exporter.model.daemon import Daemon
from exporter.model.dialect import is_given_as_arguments
from exporter.model.identity import ProcessIdentity, identity_of
from exporter.model.observation import ControlReply, ControlSocket, Observation
from exporter.model.reason import Reason, ReasonCode, command_failed, of_error, timed_out
from exporter.model.settings import PIPE_DIRECTORY
from exporter.model.values import frozen, made_of
from exporter.parse import control_reply
from exporter.parse.control_reply import QueryOutcome, is_empty_answer, query_outcome, servers_queried
from exporter.parse.proc import SUSPENDED

RETRY_SECONDS = 0.02
LOCKS = 64
"""How many lock files there can be, however many pipe directories come and go. Two that share one wait for each other,
as for another program."""


@dataclass(eq=False)
class SessionLock:
    """The right to send commands to a daemon. Exporters take turns, and wait `deadline` seconds for each other."""

    directory: Path
    clock: Clock
    _: KW_ONLY
    deadline: float = 1.0
    sleep: Callable[[float], None] = time.sleep

    @contextlib.contextmanager
    def held(self, identity: Identity | None) -> Iterator[str | None]:
        """Hold the lock if possible; a missing pipe directory or `directory` needs none. Yield why not, or None."""
        problem = None
        with contextlib.ExitStack() as stack:
            if identity is not None:
                file = self.directory / f"session-{sum(identity) % LOCKS}.lock"
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                try:
                    descriptor = os.open(file, flags, 0o600)
                    stack.callback(os.close, descriptor)
                    self._acquire(descriptor)
                except FileNotFoundError:
                    pass
                except OSError as error:
                    problem = f"{file}: {error.strerror}"
            yield problem

    def _acquire(self, descriptor: int) -> None:
        ends = self.clock.monotonic() + self.deadline
        while True:
            try:
                return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if self.clock.monotonic() >= ends:
                    raise OSError(error.errno, "another exporter holds it") from error
            self.sleep(RETRY_SECONDS)


ATTEMPTS = 6

PROBES_AT_ONCE = 2
LATER_PROBE_SECONDS = 60.0
"""After so many connections in a row without an answer, the next one follows this much later. Each one that a daemon
does not accept takes one of 128 places in its queue (measured, R580)."""

_NOT_STARTED = 127  # the exit code of a shell that finds no program


@frozen
class Request:
    """Commands to send, and the daemon's process and servers, some `with_clients`, that must answer them.

    `listed` is whether all servers were known before. `with_clients` may include servers with unknown clients.
    """

    commands: tuple[str, ...] = ()
    process: ProcessIdentity | None = None
    servers: Collection[int] = ()
    with_clients: Collection[int] = ()
    listed: bool = True

    def expects_output(self, command: str) -> bool:
        """Return whether the answer to a command may name servers or clients, as far as known."""
        if command == control_reply.LIST_SERVERS:
            return bool(self.servers) or not self.listed
        return command.startswith(control_reply.LIST_CLIENTS) and bool(servers_queried(command, self.with_clients))


@dataclass(eq=False)
class ControlClient:
    """Sends commands to one daemon, one at a time.

    `user` runs the program: only root and the daemon's own user may change anything (R580). `proc` shows whether a
    process is stopped. Without it, every process counts as running.
    """

    location: DaemonLocation
    _: KW_ONLY
    executable: str
    deadline: float
    clock: Clock
    path: InitVar[str] = os.defpath
    sleep: InitVar[Callable[[float], None]] = time.sleep
    lock: SessionLock | None = None
    user: User = OWN_USER
    proc: Proc | None = None

    def __post_init__(self, path: str, sleep: Callable[[float], None]) -> None:
        self.daemon = self.location.name
        self._missing = f"{self.executable}: {os.strerror(errno.ENOENT)}"
        self._environment = {"PATH": path, "LC_ALL": "C"}
        self._lock_problem: str | None = None
        self._request = Request()
        self._probes_unanswered = 0
        self._next_probe = float("-inf")
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._sleep = sleep

    def request(self, commands: tuple[str, ...], **known: Any) -> None:
        """Set the commands of the next collection, and the other fields of the `Request` as far as known."""
        self._request = Request(commands=commands, **known)

    def request_from(self, daemon: Daemon, commands: tuple[str, ...]) -> None:
        """Set the commands of the next collection, which this daemon must answer."""
        with_clients = {client.server for client in daemon.clients.values()}
        with_clients.update(server.pid for server in daemon.servers.values() if not server.clients_known)
        process, listed = identity_of(daemon.runtime.process), daemon.connections.listed_at is not None
        self.request(commands, process=process, servers=daemon.servers, with_clients=with_clients, listed=listed)

    def collect(self) -> Reading:
        """Send the requested commands, until one gets no answer.

        A query that a stopped server must answer is not sent: the daemon would hang for every other program too
        (measured, R580). The reducer's states are up to half a second old, so they are read again here. They are not
        reported: `DaemonHealth` reports changes only, so it would not correct a stop that it did not read itself.
        """
        request, self._request = self._request, Request()
        try:
            if self._closed or foreign_listener(self.location) is not None:
                return Reading()
        except OSError as error:
            return Reading(problem=of_error(self.location.pipe, error))
        seen: list[Observation] = []
        problem: Reason | None = None
        for command in request.commands:
            stopped = next(filter(self._is_stopped, sorted(servers_queried(command, request.servers))), None)
            if stopped is not None:
                problem = Reason(ReasonCode.SERVER_STOPPED, subject=command, pid=stopped)
                continue
            reply = self.send(command, expects_output=request.expects_output(command))
            seen.append(reply)
            outcome = query_outcome(reply)
            if outcome is QueryOutcome.TIMED_OUT:
                problem = timed_out(command, self.deadline)
                seen.extend(self._probe(request.process))
                break
            self._probes_unanswered = 0
            if outcome is QueryOutcome.UNUSABLE:
                if reply.exit_code == _NOT_STARTED and reply.stderr == self._missing:
                    problem = Reason(ReasonCode.PROGRAM_MISSING, subject=self.executable)
                    break
                output = (reply.stderr.strip() or reply.stdout.strip())[:200]
                problem = command_failed(self.executable, reply.exit_code, output)
            if outcome is not QueryOutcome.ANSWERED:
                # That no daemon runs, or that it refuses, is a reply and not a problem of this collector.
                break
        return Reading(tuple(seen), problem)

    def _probe(self, process: ProcessIdentity | None) -> Iterator[ControlSocket]:
        """Connect to the daemon without the program, unless it is stopped or was recently probed without an answer."""
        stopped = process is not None and self._is_stopped(process.pid, process.start_ticks)
        now = self.clock.monotonic()
        if self._closed or stopped or (self._probes_unanswered >= PROBES_AT_ONCE and now < self._next_probe):
            return

        def others_connected() -> bool | None:
            sockets = self._sockets(process)
            return None if sockets is None else bool(sockets.peers)

        listening, answers, others = probe(self.location.pipe, others_connected)
        if listening is False and process is not None:
            # This socket may be another one than the daemon's, if other users can write to the directory.
            sockets = self._sockets(process)
            listening = None if sockets is None else sockets.listening
        self._probes_unanswered = self._probes_unanswered + 1 if answers is False else 0
        self._next_probe = now + LATER_PROBE_SECONDS
        channel = None
        if answers is False and process is not None and self.proc is not None:
            channel = wait_channel(self.proc, process.pid)
        yield ControlSocket(
            at=self.clock.now(),
            daemon=self.daemon,
            listening=listening,
            answers=answers,
            others=others,
            wait_channel=channel,
        )

    def _sockets(self, process: ProcessIdentity | None) -> ControlSockets | None:
        return None if self.proc is None else read_control_sockets(self.proc, process)

    def _is_stopped(self, pid: int, start_ticks: int | None = None) -> bool:
        """Return whether a process is stopped, and is the one with this start time if that is given."""
        standing = None if self.proc is None else self.proc.standing(pid)
        return standing is not None and standing[1] in SUSPENDED and start_ticks in (None, standing[0])

    def send(self, command: str, *, expects_output: bool = False) -> ControlReply:
        """Send one command, and again if it collides with that of another program. Return the last reply, or a refusal.

        An empty reply to a query is an answer only if no attempt was refused: while another session is open, 1 to 3 %
        of the refused commands end so (measured, R580). If the query `expects_output`, the daemon must also answer a
        query whose answer has text.
        Nothing is sent to a daemon of a user who may not run the expected one.
        """
        # Imported here, because `status` mostly finds no daemon if no service runs.
        from tenacity import Retrying, retry_if_result, stop_after_attempt, wait_exponential, wait_random

        try:
            foreign = foreign_listener(self.location)
            text = f"the control socket belongs to UID {foreign}, who must not run this daemon"
        except OSError as error:
            foreign, text = -1, f"{self.location.pipe} cannot be read: {error.strerror}"
        if foreign is not None:
            return ControlReply(
                at=self.clock.now(), daemon=self.daemon, command=command, exit_code=_NOT_STARTED, stderr=text
            )
        refused: list[ControlReply] = []

        def may_be_refused(reply: ControlReply) -> bool:
            doubtful = expects_output and is_empty_answer(reply)
            answer = self._send_once(control_reply.DEFAULT_THREADS) if doubtful else reply
            outcome = query_outcome(answer)
            if outcome is QueryOutcome.REFUSED or (doubtful and outcome is not QueryOutcome.ANSWERED):
                refused.append(answer)
                return outcome is QueryOutcome.REFUSED
            if doubtful:
                refused.clear()
            return is_empty_answer(reply) and bool(refused)

        retrying = Retrying(
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_exponential(multiplier=0.01) + wait_random(max=0.02),
            retry=retry_if_result(may_be_refused),
            retry_error_callback=lambda state: state.outcome and state.outcome.result(),
            sleep=self._sleep,
        )
        reply: ControlReply = retrying(self._send_once, command)
        return refused[-1] if refused and is_empty_answer(reply) else reply

    def _send_once(self, command: str) -> ControlReply:
        location, lock = self.location, self.lock
        namespace = location.namespace
        text = command if namespace is None else control_reply.translate_command(command, namespace.inner)
        with contextlib.ExitStack() as stack:
            access = stack.enter_context(pipe_access(location, None if lock is None else lock.directory))
            if lock is not None:
                problem = stack.enter_context(lock.held(access.identity))
                # The command is sent all the same, and repeated if it collides with another one.
                if problem is not None and problem != self._lock_problem:
                    self._lock_problem = problem
                    logger().info("control_lock_not_held", daemon=self.daemon, reason=problem)
            began = self.clock.monotonic()
            try:
                output = run(
                    [self.executable, *text.split()] if is_given_as_arguments(text) else [self.executable],
                    text=f"{text}\n",
                    environment={**self._environment, PIPE_DIRECTORY: access.pipe_directory},
                    deadline=self.deadline,
                    clock=self.clock,
                    user=self.user,
                    descriptors=access.descriptors,
                    on_start=self._on_start,
                )
            except OSError as error:
                output = Output(_NOT_STARTED, stderr=f"{self.executable}: {error.strerror or error}")
        pids = None
        if namespace is not None:
            numbers = control_reply.numbers_in_text(output.stdout)
            namespace.update(numbers)
            pids = namespace.outer(numbers)
        at, seconds = self.clock.now(), round(self.clock.monotonic() - began, 6)
        return made_of(ControlReply, output, at=at, daemon=self.daemon, command=command, seconds=seconds, pids=pids)

    def _on_start(self, child: "subprocess.Popen[bytes]") -> None:
        self._child = child
        if self._closed:
            kill_session(child)

    def close(self) -> None:
        """Send nothing more, and kill a child that runs, so that it does not outlive the exporter."""
        self._closed = True
        child = self._child
        if child is not None and child.poll() is None:
            kill_session(child)
