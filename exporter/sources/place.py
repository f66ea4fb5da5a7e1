"""Where a daemon is, for those who look at it: its directories, as this process can open them, and its process."""

from dataclasses import dataclass
from pathlib import Path

from exporter.sources.directory import Directory
from exporter.sources.pid_namespace import PidNamespace

FILES = ("server.log", "control.log")
"""In the order in which they are read: what a server had to say comes before the daemon's word that it has exited."""
STDOUT = "stdout.log"
"""The one log of a daemon in the foreground whose stdout is a file of its log directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A daemon's place.

    `process` is the PID and start time of the daemon that was last found there; `namespace` is given where it lives in
    another PID namespace. `logs` are its log files, in the order in which they are read. A daemon that is `expected`
    may be run by certain users alone (`owners.py`), of whom `owner` is the one that is named.
    """

    name: str
    pipe: Directory
    log: Directory
    process: tuple[int, int] | None = None
    namespace: PidNamespace | None = None
    logs: tuple[str, ...] = FILES
    expected: bool = False
    owner: int | None = None


def on_host(name: str, pipe_directory: Path, log_directory: Path) -> Place:
    """A place whose paths mean the same to the daemon and to this process."""
    return Place(name=name, pipe=Directory(pipe_directory), log=Directory(log_directory))
