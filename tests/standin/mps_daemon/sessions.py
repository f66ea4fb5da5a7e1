"""The command sockets: one session at a time; all others are refused at once.

Measured on an H200 (driver 580.159.04): a connection that sends nothing blocks the daemon until it is closed. One whose
sending side is shut down at once is answered with `OUTBHELL` and closed, also while a session is held.

Any exporter of the machine discovers this daemon and sends queries. If a test names the process that may query
(`Settings.asked_by`), a connection from any other process is closed, and leaves no line in the log.
"""

import socket
import struct
from collections.abc import Callable
from pathlib import Path

from . import sockets
from .loop import Loop
from .settings import ASKED_BY

REPLY_SECONDS = 0.002
"""Duration of a command in the real daemon. Commands at the same time collide now and then, as there."""

PEER_CREDENTIALS = struct.Struct("3i")

LINE_BREAK = "\0"
"""A line break within a row of a reply of `ps`: control.log gets the row as one message with the break."""

Respond = Callable[[str], None]
Execute = Callable[[str, int, Respond], None]
"""Executes a command for the user with this UID."""


class Sessions:
    """Accept or refuse connections, and pass commands to ``execute``, which responds now or, for ``quit``, later."""

    def __init__(
        self,
        loop: Loop,
        write_log: Callable[[str], None],
        flush_log: Callable[[], None],
        execute: Execute,
        asked_by: tuple[int, int] | None = None,
    ) -> None:
        self._loop = loop
        self._asked_by = asked_by
        self._write_log = write_log
        self._flush_log = flush_log
        self._execute = execute
        self._current: socket.socket | None = None
        self.reply_seconds = REPLY_SECONDS
        self.deaf = False
        """Whether commands succeed with an empty reply."""

    def listen(self, directory: Path, name: str) -> None:
        """Listen at one of the daemon's sockets."""
        listener = sockets.listen(directory, name)
        self._loop.watch(listener.fileno(), lambda: self._accept(listener))

    def holder(self) -> int:
        """The PID of the process that has the session, or 0."""
        return 0 if self._current is None else _peer(self._current)[0]

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        if self._asked_by is not None and not may_query(_peer(connection)[0], self._asked_by):
            connection.close()
            return
        if self._current is not None and sockets.is_closed(self._current):
            self._end(self._current)
        self._write_log("Accepting connection...")
        if sockets.is_closed(connection):
            self._write_log("Unable to accept connection")
        elif not _has_credentials(connection):
            self._write_log("User did not send valid credentials")
            _send(connection, sockets.NO_CREDENTIALS)
        elif self.deaf and self._current is None:
            _send(connection, sockets.DEAF)
        elif self._current is None:
            self._begin(connection)
            return
        connection.close()

    def _begin(self, connection: socket.socket) -> None:
        self._write_log("NEW UI")
        self._current = connection
        self._loop.watch(connection.fileno(), lambda: self._receive_command(connection))
        _send(connection, sockets.GREETING)

    def _receive_command(self, connection: socket.socket) -> None:
        try:
            message = connection.recv(sockets.LARGEST_MESSAGE)
        except OSError:
            message = b""
        if not message:
            self._end(connection)
            return
        command = message.decode(errors="replace").rstrip("\n")
        self._write_log(f"Cmd:{command}")
        _, uid = _peer(connection)
        self._execute(command, uid, lambda reply: self._respond_later(connection, reply))

    def _respond_later(self, connection: socket.socket, reply: str) -> None:
        for row in filter(None, reply.split("\n")):
            self._write_log(row.replace(LINE_BREAK, "\n"))
        self._loop.later(self.reply_seconds, lambda: self._respond(connection, reply))

    def _respond(self, connection: socket.socket, reply: str) -> None:
        self._flush_log()  # After a reply, the logs have all earlier lines.
        if connection is self._current:
            _send(connection, sockets.REPLY + reply.replace(LINE_BREAK, "\n").encode(errors="surrogateescape"))

    def _end(self, connection: socket.socket) -> None:
        self._loop.unwatch(connection.fileno())
        connection.close()
        self._current = None
        self._write_log("UI closed")


def may_query(pid: int, ancestor: tuple[int, int]) -> bool:
    """Return whether the process is `ancestor` (PID and start time), descends from it, or names it in its environment.

    True also if that cannot be known: the process has ended, or is in another PID namespace.
    """
    return _descends(pid, ancestor) or _names(pid, ancestor)


def _names(pid: int, ancestor: tuple[int, int]) -> bool:
    """Return whether the environment names the test. A process without its parent descends from init."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{ASKED_BY}={ancestor[0]}:{ancestor[1]}".encode() in variables


def _descends(pid: int, ancestor: tuple[int, int]) -> bool:
    while pid > 0:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return True
        if (pid, int(fields[19])) == ancestor:
            return True
        if pid == 1:
            return False
        pid = int(fields[1])
    return True


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Return PID and UID of the peer, from the kernel."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER_CREDENTIALS.size)
    pid, uid, _ = PEER_CREDENTIALS.unpack(credentials)
    return int(pid), int(uid)


def _has_credentials(connection: socket.socket) -> bool:
    """Wait for the credentials. A peer that sends nothing blocks the whole daemon, as measured."""
    try:
        return connection.recvmsg(sockets.LARGEST_MESSAGE)[0] == sockets.CREDENTIALS
    except OSError:
        return False


def _send(connection: socket.socket, message: bytes) -> None:
    """Send a message. A closed connection is detected by the next read."""
    try:
        connection.send(message)
    except OSError:
        return
