"""How a child reaches a daemon's pipe directory, whatever namespaces lie between.

The child has none of this process's rights: a directory in another mount namespace is opened here and handed over. And
NVIDIA's program believes the PID that it reads beside the sockets, which a daemon in another PID namespace writes in
numbers of its own: it gets a directory with links to these sockets, and the PID as it is here.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from exporter.sources.directory import Identity
from exporter.sources.pid_files import PID_FILE, SOCKET
from exporter.sources.place import Place

_LINKED = ("control", SOCKET, "control_lock", "log")


@dataclass(frozen=True, slots=True)
class Way:
    """What to tell a child, and to hand over to it; `identity` is None where the directory is not there."""

    pipe_directory: str
    descriptors: tuple[int, ...] = ()
    identity: Identity | None = None


class Approach:
    """The way to one place. Raises nothing: where there is none, the child will say so."""

    def __init__(self, place: Place, runtime_directory: Path | None = None) -> None:
        """Directories of links are made in `runtime_directory`, or among the temporary files."""
        self._place = place
        self._runtime_directory = runtime_directory

    @contextlib.contextmanager
    def opened(self) -> Iterator[Way]:
        """The way, open as long as a child goes it."""
        with contextlib.ExitStack() as held:
            yield self._way(held)

    def _way(self, held: contextlib.ExitStack) -> Way:
        pipe, process = self._place.pipe, self._place.process
        try:
            descriptor = held.enter_context(pipe.opened())
            found = os.fstat(descriptor)
        except OSError:
            return Way(str(pipe))
        identity = found.st_dev, found.st_ino
        if self._place.namespace is not None and process is not None:
            with contextlib.suppress(OSError):
                return Way(self._linked(descriptor, process[0], held), (descriptor,), identity)
        if pipe.root is None:
            return Way(str(pipe), (), identity)
        return Way(_from_child(descriptor), (descriptor,), identity)

    def _linked(self, descriptor: int, pid: int, held: contextlib.ExitStack) -> str:
        made = tempfile.TemporaryDirectory(prefix="way-", dir=self._runtime_directory, ignore_cleanup_errors=True)
        directory = Path(held.enter_context(made))
        directory.chmod(0o711)
        for name in _LINKED:
            (directory / name).symlink_to(f"{_from_child(descriptor)}/{name}")
        (directory / PID_FILE).write_text(f"{pid}\n")
        return str(directory)


def _from_child(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"
