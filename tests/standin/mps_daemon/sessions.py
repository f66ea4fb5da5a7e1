"""The sockets on which commands come: one session at a time, everybody else refused at once.

Measured on an H200 (driver 580.159.04): a connection that says nothing blocks the daemon until it is closed. One whose
sending side is shut down at once is answered with `OUTBHELL` and closed, also while a session is held.

Any exporter of the machine finds this daemon in /proc, and asks it. If a test says which process may ask
(`Settings.asked_by`), a connection from any other process is closed, and leaves no line in the log.
"""

import socket
import struct
from collections.abc import Callable
from pathlib import Path

from . import sockets
from .loop import Loop
from .settings import ASKED_BY

USUAL_REPLY_SECONDS = 0.002
"""What the real daemon takes, and long enough that commands sent together collide now and then, as they do there."""

PEER_CREDENTIALS = struct.Struct("3i")

LINE_BREAK = "\0"
"""A line break within one row of a reply, as of `ps`: control.log gets the row as one message, with its break."""

Respond = Callable[[str], None]
Execute = Callable[[str, int, Respond], None]
"""Carries out a command for the user with this UID."""


class Sessions:
    """Accepts, refuses, and carries commands to ``execute``, which responds now or, for ``quit``, much later."""

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
        self.reply_seconds = USUAL_REPLY_SECONDS
        self.deaf = False
        """Whether commands are answered, successfully, with nothing at all."""

    def listen(self, directory: Path, name: str) -> None:
        """Take connections at one of the daemon's sockets."""
        listener = sockets.listen(directory, name)
        self._loop.watch(listener.fileno(), lambda: self._accept(listener))

    def holder(self) -> int:
        """The PID of the process whose session it is, or 0."""
        return 0 if self._current is None else _peer(self._current)[0]

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        if self._asked_by is not None and not may_ask(_peer(connection)[0], self._asked_by):
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
        self._loop.watch(connection.fileno(), lambda: self._hear(connection))
        _send(connection, sockets.GREETING)

    def _hear(self, connection: socket.socket) -> None:
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
        self._flush_log()  # A test that has an answer finds in the logs what was before it.
        if connection is self._current:
            _send(connection, sockets.REPLY + reply.replace(LINE_BREAK, "\n").encode(errors="surrogateescape"))

    def _end(self, connection: socket.socket) -> None:
        self._loop.unwatch(connection.fileno())
        connection.close()
        self._current = None
        self._write_log("UI closed")


def may_ask(pid: int, ancestor: tuple[int, int]) -> bool:
    """Return whether the process is `ancestor` (PID and start time), descends from it, or names it in its environment.

    True also if that cannot be known: the process has ended, or is in another PID namespace.
    """
    return _descends(pid, ancestor) or _names(pid, ancestor)


def _names(pid: int, ancestor: tuple[int, int]) -> bool:
    """A process whose parent has ended descends from init, but keeps the environment that the test gave it."""
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
    """PID and UID of who connected, as the kernel knows them."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER_CREDENTIALS.size)
    pid, uid, _ = PEER_CREDENTIALS.unpack(credentials)
    return int(pid), int(uid)


def _has_credentials(connection: socket.socket) -> bool:
    """Wait until the program says what it is. One that sends nothing keeps the whole daemon waiting, as measured."""
    try:
        return connection.recvmsg(sockets.LARGEST_MESSAGE)[0] == sockets.CREDENTIALS
    except OSError:
        return False


def _send(connection: socket.socket, message: bytes) -> None:
    """Whoever has gone in the meantime is noticed when the connection is read."""
    try:
        connection.send(message)
    except OSError:
        return
