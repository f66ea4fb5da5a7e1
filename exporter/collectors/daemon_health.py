"""Process states, control sockets and session holders of daemons."""

import os
import select
import socket
import stat
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path

from exporter.clock import Clock
from exporter.collectors.control_daemons import ControlDaemon, ControlDaemons
from exporter.collectors.pid_files import PidFiles
from exporter.collectors.pipe_dir import DaemonLocation, Directory, Identity
from exporter.collectors.proc import Proc
from exporter.model.observation import ControlSocket, Observation, ProcessState, SessionHolder, Wanted
from exporter.parse.proc import children_page_faults, listening_unix_sockets

_STUCK = "D"
_AT_EASE = frozenset("RSI")
"""A sound process goes from one of these to the other with every breath: that is no news."""


class ProcessStates:
    """What /proc/PID/stat says of each, as it was last told."""

    def __init__(self, proc: Proc, clock: Clock) -> None:
        self._proc = proc
        self._clock = clock
        self._told: dict[int, tuple[int, str]] = {}
        self._children: dict[int, int | None] = {}

    def changed(self, pids: Iterable[int]) -> list[ProcessState]:
        """Those in another state than at the last look, or with children that have ended since."""
        now = {pid: standing for pid in pids if (standing := self._proc.standing(pid)) is not None}
        children = {pid: children_page_faults(self._proc.text(pid, "stat") or "") for pid in now}
        news = [
            pid
            for pid, standing in now.items()
            if _class_of(self._told.get(pid)) != _class_of(standing) or children[pid] != self._children.get(pid)
        ]
        self._told, self._children = now, children
        at = self._clock.now()
        return [
            ProcessState(
                at=at,
                pid=pid,
                start_ticks=ticks,
                state=state,
                wait_channel=wait_channel(self._proc, pid) if state == _STUCK else None,
                children_page_faults=children[pid],
            )
            for pid, (ticks, state) in ((pid, now[pid]) for pid in news)
        ]


def wait_channel(proc: Proc, pid: int) -> str | None:
    """Return the kernel function in which a process sleeps; None without the right to see it (ptrace's, to read)."""
    channel = proc.text(pid, "wchan")
    return None if channel in ("", "0") else channel


def _class_of(standing: tuple[int, str] | None) -> tuple[int, str] | None:
    if standing is None:
        return None
    start_ticks, state = standing
    return start_ticks, "S" if state in _AT_EASE else state


SOCKET = "control"
INIT_PID = 1
"""Its network namespace is the host's, where the daemon's own is not known."""

MOST_ALIKE = 64
"""How many sockets of this name, under other paths, are looked at: anybody may have as many as they like."""


ANSWER_SECONDS = 2.0
"""How long a daemon has to answer a connection."""
MOST_ANSWER_BYTES = 64


def probe(pipe: Directory, deadline: float = ANSWER_SECONDS) -> tuple[bool | None, bool | None]:
    """Connect to the socket of a pipe directory; return whether a process listens and whether it answers.

    None is not known. Nothing is sent: the end of the stream follows at once, since a daemon waits for the first bytes
    of a connection and serves no other one until then (measured, R580). A link in the socket's place is not followed.
    """
    try:
        with pipe.opened() as directory:
            found = os.open(SOCKET, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return None, None
    try:
        return _connect(found, deadline) if stat.S_ISSOCK(os.fstat(found).st_mode) else (None, None)
    finally:
        os.close(found)


def _connect(found: int, deadline: float) -> tuple[bool | None, bool | None]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as connection:
        try:
            connection.connect(f"/proc/self/fd/{found}")
            connection.shutdown(socket.SHUT_WR)
            waiting = select.poll()
            waiting.register(connection, select.POLLIN)
            if not waiting.poll(deadline * 1000):
                return True, False
            connection.recv(MOST_ANSWER_BYTES)
        except BlockingIOError:
            # So many connections wait already (128 with R580) that the kernel takes no more.
            return True, False
        except ConnectionRefusedError:
            return False, None
        except OSError:
            return None, None
    return True, True


class ControlSockets:
    """Whether each daemon's socket has a listener, as it was last told."""

    def __init__(self, proc: Proc, clock: Clock) -> None:
        self._proc = proc
        self._clock = clock
        self._told: dict[str, bool | None] = {}

    def changed(self, locations: Mapping[str, tuple[DaemonLocation, int | None]]) -> list[ControlSocket]:
        """Those that are otherwise than at the last look, or new; each place is given with its daemon's PID."""
        now = {name: self._listening(location, pid) for name, (location, pid) in locations.items()}
        news = [name for name, listening in now.items() if name not in self._told or self._told[name] != listening]
        self._told = now
        at = self._clock.now()
        return [ControlSocket(at=at, daemon=name, listening=now[name]) for name in news]

    def _listening(self, location: DaemonLocation, pid: int | None) -> bool | None:
        """None where the table cannot be read; or does not have it, and might be another namespace's."""
        table = self._proc.unix_sockets(INIT_PID if pid is None else pid)
        if table is None:
            return None
        paths = [path for path in listening_unix_sockets(table) if path.endswith(f"/{SOCKET}")]
        if str(location.pipe.path / SOCKET) in paths or _is_among(paths, location.pipe):
            return True
        return None if pid is None and location.pipe.root is not None else False


def _is_among(paths: list[str], pipe: Directory) -> bool:
    """Whether one of these is in that directory, by whatever path it was bound."""
    identity = pipe.identity()
    directories = (Directory(Path(path).parent, pipe.root) for path in islice(paths, MOST_ALIKE))
    return identity is not None and any(each.identity() == identity for each in directories)


MOST_SESSIONS = 64
"""How many are looked at, the eldest first: anybody may start as many as they like."""


class SessionHolders:
    """Who holds each daemon's session, as it was last told."""

    def __init__(self, proc: Proc, clock: Clock) -> None:
        self._proc = proc
        self._programs = ControlDaemons(proc)
        self._clock = clock
        self._told: dict[str, SessionHolder] = {}

    def changed(self, locations: Iterable[DaemonLocation]) -> list[SessionHolder]:
        """Those of these places that are others than at the last look, or new."""
        wanted = {location.name: location.pipe.identity() for location in locations}
        sessions = self._sessions() if wanted else {}
        now = {name: self._held_by(name, None if pipe is None else sessions.get(pipe)) for name, pipe in wanted.items()}
        news = [held for name, held in now.items() if name not in self._told or _who(self._told[name]) != _who(held)]
        self._told = now
        return news

    def _sessions(self) -> Mapping[Identity, ControlDaemon]:
        """The eldest session in each pipe directory that is not one of our own."""
        found: dict[Identity, ControlDaemon] = {}
        for each in self._programs.sessions()[:MOST_SESSIONS]:
            pipe = self._programs.pipe_of(each)
            if pipe is not None and pipe not in found and not self._proc.descends_from_us(each.pid):
                found[pipe] = each
        return found

    def _held_by(self, daemon: str, session: ControlDaemon | None) -> SessionHolder:
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


def _who(held: SessionHolder) -> tuple[int | None, int | None]:
    return held.pid, held.start_ticks


STATES_SECONDS = 0.4
"""How often states are looked at, at most; the looks of which these are a part come twice a second."""
SOCKETS_SECONDS = 1.0
HOLDERS_SECONDS = 2.0
"""This reads the name of every process that there is."""


class DaemonHealth:
    """Tells each of them when it changes, and once at first."""

    def __init__(self, proc: Proc, pid_files: PidFiles, clock: Clock) -> None:
        self._pid_files = pid_files
        self._clock = clock
        self._states = ProcessStates(proc, clock)
        self._holders = SessionHolders(proc, clock)
        self._sockets = ControlSockets(proc, clock)
        self._wanted = Wanted()
        self._looked_for = Wanted()
        self._states_due = self._holders_due = self._sockets_due = 0.0

    def want(self, wanted: Wanted) -> None:
        """Say what is wanted, from the next look on."""
        self._wanted = wanted

    def changed(self, locations: Mapping[str, DaemonLocation]) -> list[Observation]:
        """What is otherwise than it was. Whatever is newly wanted is looked at now."""
        wanted, before = self._wanted, self._looked_for
        self._looked_for = wanted
        now = self._clock.monotonic()
        news: list[Observation] = []
        if now >= self._states_due or wanted.states != before.states:
            self._states_due = now + STATES_SECONDS
            news.extend(self._states.changed(wanted.states))
        if now >= self._holders_due or wanted.holders != before.holders:
            self._holders_due = now + HOLDERS_SECONDS
            news.extend(self._holders.changed([locations[name] for name in wanted.holders if name in locations]))
        if now >= self._sockets_due or wanted.sockets != before.sockets:
            self._sockets_due = now + SOCKETS_SECONDS
            there = {name: (locations[name], self._pid_files.pid(name)) for name in wanted.sockets if name in locations}
            news.extend(self._sockets.changed(there))
        return news
