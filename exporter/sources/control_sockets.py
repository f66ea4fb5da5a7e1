"""Tells whether anybody listens on a control daemon's socket, by the kernel's table: without connecting to it."""

from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from exporter.clock import Clock
from exporter.model.witnesses import ControlSocket
from exporter.parse import unix_sockets
from exporter.sources.directory import Directory
from exporter.sources.place import Place
from exporter.sources.proc import Proc

SOCKET = "control"
INIT_PID = 1
"""Its network namespace is the host's, where the daemon's own is not known."""

MOST_ALIKE = 64
"""How many sockets of this name, under other paths, are looked at: anybody may have as many as they like."""


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
        paths = [path for path in unix_sockets.listening(table) if path.endswith(f"/{SOCKET}")]
        if str(place.pipe.path / SOCKET) in paths or _is_among(paths, place.pipe):
            return True
        return None if pid is None and place.pipe.root is not None else False


def _is_among(paths: list[str], pipe: Directory) -> bool:
    """Whether one of these is in that directory, by whatever path it was bound."""
    identity = pipe.identity()
    directories = (Directory(Path(path).parent, pipe.root) for path in islice(paths, MOST_ALIKE))
    return identity is not None and any(each.identity() == identity for each in directories)
