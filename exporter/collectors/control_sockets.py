"""The sockets of a control daemon: whether it listens, and which processes are connected to it.

A daemon waits for the first bytes of each connection that it has accepted, and serves no other one until then
(measured, R580). So a process that connects and sends nothing holds the daemon. The daemon's sockets are copied for a
moment (pidfd_getfd(2)) and asked for the process at the other end (SO_PEERCRED). This works across network namespaces,
opens no path, and takes the right that ptrace(2) needs.
"""

import contextlib
import ctypes
import errno
import os
import select
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from exporter.clock import Clock
from exporter.collectors.pipe_dir import CONTROL_SOCKET, PRIVILEGED_SOCKET
from exporter.collectors.proc import Presence, Proc
from exporter.model.identity import ProcessIdentity
from exporter.model.observation import SessionHolder

_PIDFD_GETFD = 438
"""The number of the system call on all machines that CUDA supports."""

_CREDENTIALS = struct.Struct("=iII")
"""`struct ucred` (unix(7))."""

_NAMES = (CONTROL_SOCKET, PRIVILEGED_SOCKET)
_MAX_DESCRIPTORS = 4096


@dataclass(frozen=True, slots=True)
class ControlSockets:
    """Whether a daemon listens on its control socket, and the PID and UID of each process that is connected to it.

    These are other processes than the daemon's servers, which stay connected (measured, R580), and the exporter. A
    connection whose other end sends no more does not count: no daemon waits for it. A daemon keeps some of them for
    ever, and while it hangs, that of a command that was killed (measured, R580).
    """

    listening: bool
    peers: tuple[tuple[int, int], ...]


def read_control_sockets(proc: Proc, daemon: ProcessIdentity) -> ControlSockets | None:
    """Return the sockets of a daemon; None if they cannot be read."""
    listening, peers = False, []
    try:
        for connection in _sockets(proc, daemon):
            with connection:
                name = connection.getsockname() if connection.family == socket.AF_UNIX else ""
                if not isinstance(name, str) or name.rpartition("/")[2] not in _NAMES:
                    continue
                if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    listening = True
                    continue
                if _is_at_end(connection):
                    continue
                data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                pid, uid, _ = _CREDENTIALS.unpack(data)
                if not proc.descends_from_us(pid) and proc.parent_pid(pid) != daemon.pid:
                    peers.append((pid, uid))
    except OSError:
        return None
    return ControlSockets(listening, tuple(peers))


def _is_at_end(connection: socket.socket) -> bool:
    """Return whether the other end has closed the connection, or sends no more."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


def session_holder(proc: Proc, clock: Clock, daemon: str, sockets: ControlSockets | None) -> SessionHolder:
    """Return the process that is connected to a daemon, as far as known. It may have ended, but its UID is known."""
    at = clock.now()
    if sockets is None or not sockets.peers:
        return SessionHolder(at=at, daemon=daemon)
    pid, uid = sockets.peers[0]
    facts = None
    with contextlib.suppress(OSError):
        facts = proc.facts(pid) if pid > 0 else None
    if facts is None or facts.uid is None:
        return SessionHolder(at=at, daemon=daemon, uid=uid)
    return SessionHolder(
        at=at,
        daemon=daemon,
        pid=pid,
        start_ticks=facts.start_ticks,
        started=facts.started,
        uid=facts.uid,
        user=facts.user,
    )


def _sockets(proc: Proc, daemon: ProcessIdentity) -> Iterator[socket.socket]:
    """Yield copies of the sockets of a process. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    pidfd = os.pidfd_open(daemon.pid)
    try:
        if proc.presence(daemon.pid, daemon.start_ticks) is not Presence.RUNNING:
            raise ProcessLookupError(f"process {daemon.pid} cannot be read")
        for number in proc.sockets(daemon.pid, _MAX_DESCRIPTORS):
            copy = libc.syscall(
                ctypes.c_long(_PIDFD_GETFD), ctypes.c_int(pidfd), ctypes.c_int(number), ctypes.c_uint(0)
            )
            if copy >= 0:
                yield socket.socket(fileno=copy)
            elif ctypes.get_errno() != errno.EBADF:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(pidfd)
