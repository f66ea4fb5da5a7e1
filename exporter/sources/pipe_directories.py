"""Directories on this host that may be a daemon's pipe directory, by their paths."""

import itertools
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from exporter.model.variables import DEFAULT_LOG_DIRECTORY
from exporter.sources.place import Place, on_host

MOST_OF_ONE_PATTERN = 256
MOST_DECLARED = 64
STARTED = ".started"
LONGEST_NAME = 110
"""With the `@` and the container after it, a name is no longer than a label is shown (128).

No daemon's socket has a path of more than 107 bytes (unix(7))."""

LONGEST_PATH = 256


def named_by(patterns: Sequence[str]) -> Iterator[Place]:
    """The directories with a control socket that these absolute globs name. /tmp is everybody's: links are not."""
    return (_place(path) for path in _matches(patterns) if _is_pipe_directory(path))


def declared_by_device_plugin(patterns: Sequence[str]) -> Sequence[Place]:
    """Return the places in which NVIDIA's device plugin for Kubernetes has started a daemon and has not stopped it.

    The plugin makes the file `.started` beside the pipe directory of a resource after it started the daemon, and
    removes it after it stopped the daemon (cmd/mps-control-daemon/mps of k8s-device-plugin, 0.15 and later). Only root
    and the exporter's own user can declare a daemon so.
    """
    declared = (_place(path) for path in _matches(patterns) if path.name == "pipe" and _is_started(path.parent))
    return tuple(itertools.islice(declared, MOST_DECLARED))


def _matches(patterns: Sequence[str]) -> Iterator[Path]:
    for pattern in patterns:
        paths = Path("/").glob(pattern.lstrip("/"))
        for path in sorted(itertools.islice(paths, MOST_OF_ONE_PATTERN)):
            if is_nameable(str(path)):
                yield path


def _place(path: Path) -> Place:
    return on_host(str(path), path, _log_directory_beside(path))


def is_nameable(path: str) -> bool:
    """Whether a path can be a daemon's name."""
    return len(path) <= LONGEST_NAME and is_path(path)


def is_path(path: str) -> bool:
    """Whether a path can be opened and shown."""
    return path.startswith("/") and len(path) <= LONGEST_PATH and path.isprintable()


def _is_pipe_directory(path: Path) -> bool:
    try:
        return not path.is_symlink() and (path / "control").is_socket()
    except OSError:
        return False


def _is_started(resource: Path) -> bool:
    try:
        found = (resource / STARTED).lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid in (0, os.geteuid())


def _log_directory_beside(pipe: Path) -> Path:
    """Where the logs are likely to be, until a daemon's own word is known (as in the Kubernetes device plugin)."""
    return pipe.with_name("log") if pipe.name == "pipe" else Path(DEFAULT_LOG_DIRECTORY)
