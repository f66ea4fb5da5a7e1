"""The fifo ``log`` of the pipe directory, and the log files into which the daemon writes what arrives there.

Every process of MPS sends its lines through the fifo, and so can any other process: the daemon checks no writer
a message. Measured on an H200 (driver 580.159.04): a message is a header and a text. After one message without a valid
header the daemon writes no further line to either log. It drops plain text. A line that another process reads from the
fifo appears in no log.
"""

import os
import select
import struct
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime
from enum import IntEnum
from pathlib import Path

HEADER = struct.Struct("<II8iQ")
"""Kind, PID, year, month, day, 0, hour, minute, second, millisecond, length of the text in bytes."""

LONGEST_TEXT = 1 << 20
"""The stand-in calls a longer text invalid. The limit of the real daemon was not measured."""

CHUNK = 1 << 16
MOST_CHUNKS = 16


class Kind(IntEnum):
    """The first number of a header, which names the sender's role and chooses the file.

    The value of `OTHER`, which a server uses until it knows its role, was not measured.
    """

    CONTROL = 0xABCDE000
    SERVER = 0xABCDE001
    OTHER = 0xABCDE002

    @property
    def role(self) -> str:
        """Return the role as a line of a log names it."""
        return self.name.capitalize()


KINDS = frozenset(Kind)
FILES = {Kind.CONTROL: "control.log", Kind.SERVER: "server.log", Kind.OTHER: "server.log"}


def message(kind: int, pid: int, text: str, at: datetime | None = None) -> bytes:
    """Return a message as MPS' processes send it: at most PIPE_BUF bytes arrive as a whole."""
    clock, body = at or datetime.now(), text.encode(errors="surrogateescape")
    stamp = (clock.year, clock.month, clock.day, 0, clock.hour, clock.minute, clock.second, clock.microsecond // 1000)
    return HEADER.pack(kind, pid, *stamp, len(body)) + body


def send(fifo: str | os.PathLike[str], data: bytes) -> None:
    """Write to a fifo that a daemon reads, as any process of the machine may.

    Raises:
        OSError: there is no fifo, no daemon reads it, or it is full.
    """
    descriptor = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


class LogFiles:
    """The log files of a directory. Without a directory all lines go to standard output, as of a daemon with ``-f``.

    A file is opened when its first line is written, to append, and never again: so it follows a rename, and starts
    anew when it is truncated.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self.server_directory = ""
        """The directory of the server's log below that, with protocol 3."""
        self._descriptors: dict[str, int] = {}

    def write(self, kind: Kind, lines: bytes) -> None:
        """Append lines to the file of this kind of message."""
        if self._directory is None:
            os.write(sys.stdout.fileno(), lines)
            return
        below = "" if kind is Kind.CONTROL else self.server_directory
        os.write(self._open(self._directory / below, FILES[kind]), lines)

    def _open(self, directory: Path, name: str) -> int:
        path = str(directory / name)
        if path not in self._descriptors:
            directory.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._descriptors[path] = os.open(path, flags, 0o644)
        return self._descriptors[path]


class LogFifo:
    """The daemon's side of the fifo: it sends the lines of the stand-in's processes, and reads all messages.

    A thread reads, as in the real daemon: lines of others reach the logs while the daemon waits for a stopped server.

    Args:
        path: path of the fifo; that of an earlier daemon is replaced.
        files: the log files.
        worded: returns a line in the words of the driver, None if it has no such line.
    """

    def __init__(self, path: Path, files: LogFiles, worded: Callable[[Kind, str], tuple[Kind, str] | None]) -> None:
        self._path = path
        self._worded = worded
        self.files = files
        self._received = b""
        self._blocked = False
        self._reading = threading.Lock()
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        path.chmod(0o777)
        # The daemon has a writer open itself, so it never reads an end of file.
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        threading.Thread(target=self._follow, daemon=True).start()

    def fileno(self) -> int:
        """Return the descriptor, which a server inherits."""
        return self._descriptor

    def write(self, kind: Kind, pid: int, text: str) -> None:
        """Send a line of the stand-in; make room if the fifo is full."""
        line = self._worded(kind, text)
        rest = b"" if line is None else message(line[0], pid, line[1])
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                self.flush()

    def flush(self) -> None:
        """Write arrived messages to the logs, for a limited time."""
        for _ in range(MOST_CHUNKS):
            if not self._read():
                return

    def remove(self) -> None:
        """Read a last time, then remove the fifo."""
        self._path.unlink(missing_ok=True)
        self.flush()

    def _follow(self) -> None:
        while True:
            select.select([self._descriptor], [], [])
            self._read()

    def _read(self) -> bool:
        """Return whether there were messages."""
        with self._reading:
            try:
                self._received += os.read(self._descriptor, CHUNK)
            except BlockingIOError:
                return False
            if not self._blocked:
                self._write_messages()
            if self._blocked or not _may_begin_message(self._received):
                self._received = b""
            return True

    def _write_messages(self) -> None:
        """Write all complete messages, and stop permanently at an invalid one."""
        while len(self._received) >= HEADER.size:
            kind, pid, year, month, day, _, hour, minute, second, fraction, size = HEADER.unpack_from(self._received)
            if kind not in KINDS or size > LONGEST_TEXT:
                self._blocked = True
                return
            end = HEADER.size + size
            if len(self._received) < end:
                return
            stamp = f"{year}-{month:02d}-{day:02d} {hour:02d}:{minute:02d}:{second:02d}.{fraction:03d}"
            opening = f"[{stamp} {Kind(kind).role} {pid:5d}] ".encode()
            self.files.write(Kind(kind), opening + self._received[HEADER.size : end] + b"\n")
            self._received = self._received[end:]


class TruthFile:
    """The real events, for tests. No line of a log proves anything.

    A line is ``TIME WHAT SERVER DETAILS``: ``fault SERVER KIND CULPRIT VICTIMS``, ``gone SERVER client PID`` (its
    contexts ended), ``left SERVER`` (it ended by itself), and ``forced SERVER`` (a forced shutdown).
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def add(self, what: str, server: int, *details: object) -> None:
        """Write a line."""
        os.write(self._descriptor, " ".join(map(str, (f"{time.time():.3f}", what, server, *details))).encode() + b"\n")


def _may_begin_message(received: bytes) -> bool:
    """Return whether these bytes may start with a kind. Other short bytes are plain text."""
    return any(kind.to_bytes(4, "little").startswith(received[:4]) for kind in KINDS)
