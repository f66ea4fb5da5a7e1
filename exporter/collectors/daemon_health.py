"""Process states, control sockets and session holders of daemons."""

import os
import select
import socket
import stat
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from exporter.clock import Clock
from exporter.collectors.control_daemons import ControlDaemon, ControlDaemons
from exporter.collectors.pid_files import PidFiles
from exporter.collectors.pipe_dir import DaemonLocation, Directory, Identity
from exporter.collectors.proc import Proc
from exporter.model.observation import ControlSocket, Observation, ProcessState, SessionHolder, Wanted
from exporter.parse.proc import children_page_faults, listening_unix_sockets

SOCKET = "control"
ANSWER_SECONDS = 2.0
"""Time for a daemon to answer a connection."""
MAX_ANSWER_BYTES = 64

STATES_SECONDS = 0.4
SOCKETS_SECONDS = 1.0
HOLDERS_SECONDS = 2.0
"""Least time between two readings. The one of the session holders reads the name of every process."""

MAX_PATHS = 64
MAX_SESSIONS = 64
"""How many sockets with the name of a control socket are compared, and how many sessions. Any user can have many."""

INIT_PID = 1
"""If the PID of a daemon is unknown, its socket is searched in the network namespace of this process."""

_STUCK = "D"
_NORMAL = frozenset("RSI")
"""A healthy process alternates between these states all the time, so they count as one."""


def wait_channel(proc: Proc, pid: int) -> str | None:
    """Return the kernel function in which a process sleeps; None if the exporter may not read it (as with ptrace)."""
    channel = proc.text(pid, "wchan")
    return None if channel in ("", "0") else channel


def probe(pipe: Directory, deadline: float = ANSWER_SECONDS) -> tuple[bool | None, bool | None]:
    """Connect to the socket of a pipe directory. Return whether a process listens and whether it answers.

    None means unknown. Nothing is sent, and the end of the stream follows at once: a daemon waits for the first bytes
    of a connection and serves no other one until then (measured, R580). A link instead of the socket is not followed.
    """
    try:
        with pipe.opened() as directory:
            descriptor = os.open(SOCKET, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return None, None
    try:
        return _connect(descriptor, deadline) if stat.S_ISSOCK(os.fstat(descriptor).st_mode) else (None, None)
    finally:
        os.close(descriptor)


def _connect(descriptor: int, deadline: float) -> tuple[bool | None, bool | None]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as connection:
        try:
            connection.connect(f"/proc/self/fd/{descriptor}")
            connection.shutdown(socket.SHUT_WR)
            poll = select.poll()
            poll.register(connection, select.POLLIN)
            if not poll.poll(deadline * 1000):
                return True, False
            connection.recv(MAX_ANSWER_BYTES)
        except BlockingIOError:
            # The queue of waiting connections is full (128 with R580).
            return True, False
        except ConnectionRefusedError:
            return False, None
        except OSError:
            return None, None
    return True, True


class DaemonHealth:
    """Reports the wanted states, sockets and sessions at first, and whenever they change."""

    def __init__(self, proc: Proc, pid_files: PidFiles, clock: Clock) -> None:
        self._proc = proc
        self._pid_files = pid_files
        self._programs = ControlDaemons(proc)
        self._clock = clock
        self._wanted = self._collected = Wanted()
        self._due: dict[str, float] = {}
        self._states: Mapping[int, ProcessState] = {}
        self._sockets: Mapping[str, ControlSocket] = {}
        self._holders: Mapping[str, SessionHolder] = {}

    def want(self, wanted: Wanted) -> None:
        """Set what is collected from the next collection on."""
        self._wanted = wanted

    def changed(self, locations: Mapping[str, DaemonLocation]) -> list[Observation]:
        """Return what has changed. What is newly wanted is collected at once, all else at its interval."""
        wanted, before = self._wanted, self._collected
        self._collected = wanted
        observations: list[Observation] = []
        if self._is_due("states", STATES_SECONDS, wanted.states != before.states):
            states = {pid: state for pid in wanted.states if (state := self._state(pid)) is not None}
            observations.extend(_changes(self._states, states, _condition))
            self._states = states
        if self._is_due("holders", HOLDERS_SECONDS, wanted.holders != before.holders):
            holders = self._session_holders([locations[name] for name in wanted.holders if name in locations])
            observations.extend(_changes(self._holders, holders, attrgetter("pid", "start_ticks")))
            self._holders = holders
        if self._is_due("sockets", SOCKETS_SECONDS, wanted.sockets != before.sockets):
            sockets = {name: self._socket(locations[name]) for name in wanted.sockets if name in locations}
            observations.extend(_changes(self._sockets, sockets, attrgetter("listening")))
            self._sockets = sockets
        return observations

    def _is_due(self, what: str, interval: float, requested: bool) -> bool:
        now = self._clock.monotonic()
        due = requested or now >= self._due.get(what, 0.0)
        if due:
            self._due[what] = now + interval
        return due

    def _state(self, pid: int) -> ProcessState | None:
        standing = self._proc.standing(pid)
        if standing is None:
            return None
        start_ticks, state = standing
        return ProcessState(
            at=self._clock.now(),
            pid=pid,
            start_ticks=start_ticks,
            state=state,
            wait_channel=wait_channel(self._proc, pid) if state == _STUCK else None,
            children_page_faults=children_page_faults(self._proc.text(pid, "stat") or ""),
        )

    def _socket(self, location: DaemonLocation) -> ControlSocket:
        listening = self._listening(location, self._pid_files.pid(location.name))
        return ControlSocket(at=self._clock.now(), daemon=location.name, listening=listening)

    def _listening(self, location: DaemonLocation, pid: int | None) -> bool | None:
        """Return None if the socket table cannot be read, or lacks the socket and may be of another namespace."""
        table = self._proc.unix_sockets(INIT_PID if pid is None else pid)
        if table is None:
            return None
        paths = [path for path in listening_unix_sockets(table) if path.endswith(f"/{SOCKET}")]
        if str(location.pipe.path / SOCKET) in paths or _is_among(paths, location.pipe):
            return True
        return None if pid is None and location.pipe.root is not None else False

    def _session_holders(self, locations: Iterable[DaemonLocation]) -> Mapping[str, SessionHolder]:
        pipes = {location.name: location.pipe.identity() for location in locations}
        sessions = self._sessions() if pipes else {}
        return {name: self._holder(name, None if pipe is None else sessions.get(pipe)) for name, pipe in pipes.items()}

    def _sessions(self) -> Mapping[Identity, ControlDaemon]:
        """Return the oldest session in each pipe directory that is not of the exporter."""
        sessions: dict[Identity, ControlDaemon] = {}
        for session in self._programs.sessions()[:MAX_SESSIONS]:
            pipe = self._programs.pipe_of(session)
            if pipe is not None and pipe not in sessions and not self._proc.descends_from_us(session.pid):
                sessions[pipe] = session
        return sessions

    def _holder(self, daemon: str, session: ControlDaemon | None) -> SessionHolder:
        at = self._clock.now()
        if session is None:
            return SessionHolder(at=at, daemon=daemon)
        facts = session.facts
        return SessionHolder(
            at=at,
            daemon=daemon,
            pid=facts.pid,
            start_ticks=facts.start_ticks,
            started=facts.started,
            uid=facts.uid,
            user=facts.user,
        )


Key = TypeVar("Key")
Value = TypeVar("Value")


def _changes(before: Mapping[Key, Value], now: Mapping[Key, Value], compared: Callable[[Any], object]) -> list[Value]:
    """Return the values that are new, or differ from `before` in what is compared."""
    return [value for key, value in now.items() if key not in before or compared(before[key]) != compared(value)]


def _condition(state: ProcessState) -> tuple[int, str, int | None]:
    return state.start_ticks, "S" if state.state in _NORMAL else state.state, state.children_page_faults


def _is_among(paths: list[str], pipe: Directory) -> bool:
    """Return whether the directory of one of these paths is the pipe directory, for example below a bind mount."""
    identity = pipe.identity()
    directories = (Directory(Path(path).parent, pipe.root) for path in islice(paths, MAX_PATHS))
    return identity is not None and any(each.identity() == identity for each in directories)
