"""The pipe directory of one daemon: its pid file, its control socket, and the processes connected to it.

Each daemon has a thread for this, because a directory can hang (NFS, FUSE), and any user can have a daemon.

A daemon waits for the first bytes of each connection that it has accepted, and serves no other one until then
(measured, R580). So a process that connects and sends nothing holds the daemon. The daemon's sockets are copied for a
moment (pidfd_getfd(2)) and asked for the process at the other end (SO_PEERCRED). This works across network namespaces,
opens no path, and takes the right that ptrace(2) needs. The same shows which process holds a client's connection.
"""

import contextlib
import ctypes
import errno
import os
import select
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from exporter.clock import Clock
from exporter.collectors.daemon_processes import Identities, PidFile, has_bound
from exporter.collectors.pipe_dir import (
    CONTROL_SOCKET,
    CREDENTIALS,
    PRIVILEGED_SOCKET,
    DaemonLocation,
    Directory,
    connected,
    listener,
)
from exporter.collectors.proc import Presence, Proc
from exporter.collectors.thread import CollectorThread, Reading
from exporter.collectors.workload_processes import WorkloadProcesses
from exporter.model.identity import ConnectionHolders, ProcessIdentity, identity_of
from exporter.model.observation import ControlSocket, Observation, ProcessReading, SessionHolder, Wanted
from exporter.model.values import made_of
from exporter.parse.proc import real_user

# -- Sockets of a daemon -----------------------------------------------------------------------------------------------

_PIDFD_GETFD = 438  # the number of the system call on all machines that CUDA supports
_NAMES = (CONTROL_SOCKET, PRIVILEGED_SOCKET)
_MAX_DESCRIPTORS = 4096
SEARCH_SECONDS = 2.0  # The most that a search for what holds connections takes. Beside 384 clients it takes 0.3 s.
MOST_HOLDERS = 64  # How many of a client are named at once. If these have ended, the others are.
_LISTENS_AT = "\0cuda-uvmfd-"  # how the name of libcuda's socket begins (measured, R580)


class ControlSockets(NamedTuple):
    """Whether a daemon listens on its control socket, and the PID and UID of each process that is connected to it.

    These are other processes than the daemon's servers, which stay connected (measured, R580), and the exporter. A
    connection whose other end sends no more does not count: no daemon waits for it. A daemon keeps some of them for
    ever, and while it hangs, that of a command that was killed (measured, R580).
    """

    listening: bool
    peers: tuple[tuple[int, int], ...]


class Connection(NamedTuple):
    """A unix socket of a process, and the PID and UID of what began to listen at it, or made the other end."""

    name: str
    listening: bool
    pid: int
    uid: int


def read_control_sockets(proc: Proc, daemon: ProcessIdentity | None) -> ControlSockets | None:
    """Return the sockets of a daemon; None if they cannot be read, or if the daemon is unknown."""
    if daemon is None:
        return None
    try:
        sockets = [each for each in connections(proc, daemon) if each.name.rpartition("/")[2] in _NAMES]
    except OSError:
        return None
    peers = ((each.pid, each.uid) for each in sockets if not each.listening)
    others = (peer for peer in peers if not proc.descends_from_us(peer[0]) and proc.parent_pid(peer[0]) != daemon.pid)
    return ControlSockets(any(each.listening for each in sockets), tuple(others))


def connection_holders(
    proc: Proc, clock: Clock, name: str, daemon: ProcessIdentity, clients: Mapping[int, ProcessReading | None]
) -> Iterator[ConnectionHolders]:
    """Yield what holds the connection of each client that has exited. Raises OSError, also if it takes too long.

    The daemon makes a client's connection (measured, R580; a server could do so too), and the client's libcuda listens
    at a socket. A process that the client has forked has both. With the sockets of several clients, it is uncertain
    whose connection it has. Any other process can receive sockets (SCM_RIGHTS). So a holder has the client's user and
    cgroup, and is younger. If these are unknown, it has a libcuda.
    """
    ticks = {pid: None if process is None else process.start_ticks for pid, process in clients.items()}
    exited = {pid: clients[pid] for pid in clients if proc.presence(pid, ticks[pid]) is Presence.ENDED}
    began, holders = clock.monotonic(), {pid: list[ProcessIdentity]() for pid in exited}
    for pid in proc.pids() if exited else ():
        if clock.monotonic() - began > SEARCH_SECONDS:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        holder, cgroup = ProcessIdentity(pid=pid, start_ticks=proc.start_ticks(pid) or 0), proc.text(pid, "cgroup")
        possible = {
            client
            for client, process in exited.items()
            if process is None or (process.cgroup == cgroup and process.start_ticks <= holder.start_ticks)
        }
        with contextlib.suppress(OSError):
            sockets = list(connections(proc, holder)) if possible and proc.parent_pid(pid) != daemon.pid else []
            libcuda = {(each.pid, each.uid) for each in sockets if each.listening and each.name.startswith(_LISTENS_AT)}
            makers = {each.pid for each in sockets if not each.listening}
            if len(libcuda) == 1 and any(daemon.pid in (maker, proc.parent_pid(maker)) for maker in makers):
                ((client, uid),) = libcuda
                is_child = client in possible and real_user(proc.status(pid) or "") == uid
                if is_child and (exited[client] is not None or proc.mappings(pid, b"/libcuda.so")):
                    holders[client].append(holder)
    for pid, found in holders.items():
        yield ConnectionHolders(at=clock.now(), daemon=name, pid=pid, holders=tuple(found[:MOST_HOLDERS]) or None)


def session_holder(proc: Proc, clock: Clock, daemon: str, sockets: ControlSockets | None) -> SessionHolder:
    """Return the process that is connected to a daemon, as far as known. It may have ended, but its UID is known."""
    pid, uid = sockets.peers[0] if sockets is not None and sockets.peers else (0, None)
    with contextlib.suppress(OSError):
        if (facts := proc.facts(pid)) is not None:
            return made_of(SessionHolder, facts, at=clock.now(), daemon=daemon)
    return SessionHolder(at=clock.now(), daemon=daemon, uid=uid)


def connections(proc: Proc, process: ProcessIdentity) -> Iterator[Connection]:
    """Yield the unix sockets of a process, except those whose other end sends no more. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    pidfd = os.pidfd_open(process.pid)
    try:
        if proc.presence(process.pid, process.start_ticks) is not Presence.RUNNING:
            raise ProcessLookupError(f"process {process.pid} cannot be read")
        for number in proc.sockets(process.pid, _MAX_DESCRIPTORS):
            copy = libc.syscall(
                ctypes.c_long(_PIDFD_GETFD), ctypes.c_int(pidfd), ctypes.c_int(number), ctypes.c_uint(0)
            )
            if copy < 0:
                if ctypes.get_errno() == errno.EBADF:
                    continue
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            try:
                connection = socket.socket(fileno=copy)
            except OSError:  # It has no name (AF_ALG), or the process has opened a file in its place.
                os.close(copy)
                continue
            with connection:
                if connection.family == socket.AF_UNIX:
                    name = os.fsdecode(connection.getsockname())
                    listening = bool(connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
                    poll = select.poll()
                    poll.register(connection, select.POLLRDHUP)
                    if listening or not poll.poll(0):
                        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
                        pid, uid, _ = CREDENTIALS.unpack(data)
                        yield Connection(name, listening, pid, uid)
    finally:
        os.close(pidfd)


# -- Connections and changes -------------------------------------------------------------------------------------------

ANSWER_SECONDS = 2.0  # time for a daemon to answer a connection
MAX_ANSWER_BYTES = 64

RECHECKS = 2
RECHECK_SECONDS = 0.2
"""How often, and how much later, it is checked again that no other process is connected to a daemon.

A daemon accepts connections in their order. If no other is open and it does not accept this one either, it hangs."""

PERIOD = 1.0
MISSING_PERIOD = 0.2
"""How often the pid file is read, and while the daemon is missing: its return has many consequences."""

SOCKETS_SECONDS = 1.0
HOLDERS_SECONDS = 2.0
EXITED_SECONDS = 10.0
"""Least time between two readings."""

REPORT_INTERVAL = 5.0  # how often the collector reports that nothing is new


def probe(
    pipe: Directory, others: Callable[[], bool | None], deadline: float = ANSWER_SECONDS
) -> tuple[bool | None, bool | None, bool | None]:
    """Connect to the socket of a pipe directory. Return whether a process listens, whether it answers, and `others`.

    None means unknown. `others` returns whether another process is connected. It is called if there is no answer.
    """
    try:
        with connected(pipe) as connection:
            poll = select.poll()
            poll.register(connection, select.POLLIN)
            answered = bool(poll.poll(deadline * 1000))
            for _ in range(RECHECKS):
                known = False if answered else others()
                if known is not False:
                    return True, False, known
                answered = answered or bool(poll.poll(RECHECK_SECONDS * 1000))
            if not answered:
                return True, False, others()
            connection.recv(MAX_ANSWER_BYTES)
    except BlockingIOError:
        # Any user can fill the queue again and again with connections that end at once. No accepted connection shows
        # that user (measured, R580).
        return True, False, others() or None
    except ConnectionRefusedError:
        return False, None, False
    except OSError:
        return None, None, False
    return True, True, False


@dataclass(eq=False)
class DaemonDirectory:
    """Reads what the pipe directory of one daemon shows, and reports changes."""

    location: DaemonLocation  # any thread may set this and `wanted`
    proc: Proc
    clock: Clock
    identities: Identities
    workloads: WorkloadProcesses | None = None
    wanted: Wanted = field(default_factory=Wanted)

    def __post_init__(self) -> None:
        self._pid_file = PidFile(self.proc, self.clock, self.identities, self.workloads)
        self._due: dict[str, float] = {}
        self._last: dict[str, object] = {}

    def collect(self) -> Reading:
        """Return what has changed. What is newly wanted is collected at once, all else at its interval."""
        location, wanted = self.location, self.wanted
        observations: list[Observation] = [*self._pid_file.changed(location)]
        daemon = self._pid_file.found
        process = identity_of(daemon)
        if self._is_due("holder", HOLDERS_SECONDS, location.name in wanted.holders):
            sockets = read_control_sockets(self.proc, process)
            holder = session_holder(self.proc, self.clock, location.name, sockets)
            if self._is_new("holder", (holder.pid, holder.start_ticks, holder.uid)):
                observations.append(holder)
        if self._is_due("socket", SOCKETS_SECONDS, location.name in wanted.sockets):
            listening = self._listening(location, process)
            if self._is_new("socket", listening):
                observations.append(ControlSocket(at=self.clock.now(), daemon=location.name, listening=listening))
        exited = wanted.exited.get(location.name)
        if self._is_due("exited", EXITED_SECONDS, bool(exited)) and exited and process is not None:
            with contextlib.suppress(OSError):
                found = list(connection_holders(self.proc, self.clock, location.name, process, exited))
                if self._is_new("exited", {each.pid: each.holders for each in found}):
                    observations += found
        idle = daemon is None or daemon.pid is not None or daemon.same_as is not None
        routine = len(observations) == 1 and observations[0] is daemon and self._pid_file.repeats
        return Reading(tuple(observations), self._pid_file.problem, idle=idle, routine=routine)

    def _is_due(self, what: str, interval: float, wanted: bool) -> bool:
        now = self.clock.monotonic()
        if not wanted:
            self._due.pop(what, None)
            self._last.pop(what, None)
        elif now >= self._due.get(what, now):
            self._due[what] = now + interval
            return True
        return False

    def _is_new(self, what: str, value: object) -> bool:
        new = what not in self._last or self._last[what] != value
        self._last[what] = value
        return new

    def _listening(self, location: DaemonLocation, process: ProcessIdentity | None) -> bool | None:
        """Return whether a process listens on the control socket; None if that is unknown.

        Only paths are compared in the table of sockets: any user can listen at a path that hangs.
        """
        sockets = read_control_sockets(self.proc, process)
        if sockets is not None:
            return sockets.listening
        if process is None:
            # No table of sockets is certain to be that of an unknown process's network namespace.
            return listener(location.pipe)[0]
        paths = location.pipe.path, location.pipe.path.resolve()
        return any(has_bound(self.proc, process.pid, str(path)) for path in paths) or None


class DirectoryCollector:
    """The pipe directory of one daemon with the thread that reads it."""

    def __init__(self, name: str, directory: DaemonDirectory, **others: Any) -> None:
        """`name` is that of the collector. The `others` are fields of the thread."""
        self.directory = directory
        self.thread = CollectorThread(
            name,
            directory.collect,
            period=MISSING_PERIOD,
            report_interval=REPORT_INTERVAL,
            idle_period=PERIOD,
            daemon=directory.location.name,
            **others,
        )

    def set_location(self, location: DaemonLocation, _share: float) -> None:
        """Set where the daemon is."""
        if location != self.directory.location:
            self.directory.location = location
            self.thread.trigger()

    def want(self, wanted: Wanted) -> None:
        """Set what is collected."""
        changed, self.directory.wanted = wanted != self.directory.wanted, wanted
        if changed:
            self.thread.trigger()

    def stop(self) -> None:
        """Start no further collection."""
        self.thread.stop()
