"""Tells whether a process listens on a control daemon's socket, and whether it answers there.

`ControlSockets` reads the kernel's table and does not connect. `probe` connects, without the control program. The
daemon answers each connection in 0.5 ms, also while a session is open and beside a stopped server (measured, R580).
"""

import os
import select
import socket
import stat
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from exporter.clock import Clock
from exporter.model.witnesses import ControlSocket
from exporter.parse.proc import listening_unix_sockets
from exporter.sources.directory import Directory
from exporter.sources.place import Place
from exporter.sources.proc import Proc

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

    def changed(self, places: Mapping[str, tuple[Place, int | None]]) -> list[ControlSocket]:
        """Those that are otherwise than at the last look, or new; each place is given with its daemon's PID."""
        now = {name: self._listening(place, pid) for name, (place, pid) in places.items()}
        news = [name for name, listening in now.items() if name not in self._told or self._told[name] != listening]
        self._told = now
        at = self._clock.now()
        return [ControlSocket(at=at, daemon=name, listening=now[name]) for name in news]

    def _listening(self, place: Place, pid: int | None) -> bool | None:
        """None where the table cannot be read; or does not have it, and might be another namespace's."""
        table = self._proc.unix_sockets(INIT_PID if pid is None else pid)
        if table is None:
            return None
        paths = [path for path in listening_unix_sockets(table) if path.endswith(f"/{SOCKET}")]
        if str(place.pipe.path / SOCKET) in paths or _is_among(paths, place.pipe):
            return True
        return None if pid is None and place.pipe.root is not None else False


def _is_among(paths: list[str], pipe: Directory) -> bool:
    """Whether one of these is in that directory, by whatever path it was bound."""
    identity = pipe.identity()
    directories = (Directory(Path(path).parent, pipe.root) for path in islice(paths, MOST_ALIKE))
    return identity is not None and any(each.identity() == identity for each in directories)
