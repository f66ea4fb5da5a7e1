"""Directories on this host that may be a daemon's pipe directory, by their paths."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from exporter.model.variables import DEFAULT_LOG_DIRECTORY
from exporter.sources.place import Place, on_host

MOST_OF_ONE_PATTERN = 256
LONGEST_NAME = 110
"""With the `@` and the container after it, a name is no longer than a label is shown (128).

No daemon's socket has a path of more than 107 bytes (unix(7))."""

LONGEST_PATH = 256


def named_by(patterns: Sequence[str]) -> Iterator[Place]:
    """The directories with a control socket that these absolute globs name. /tmp is everybody's: links are not."""
    for pattern in patterns:
        paths = Path("/").glob(pattern.lstrip("/"))
        for path in sorted(itertools.islice(paths, MOST_OF_ONE_PATTERN)):
            if is_nameable(str(path)) and _is_pipe_directory(path):
                yield on_host(str(path), path, _log_directory_beside(path))


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


def _log_directory_beside(pipe: Path) -> Path:
    """Where the logs are likely to be, until a daemon's own word is known (as in the Kubernetes device plugin)."""
    return pipe.with_name("log") if pipe.name == "pipe" else Path(DEFAULT_LOG_DIRECTORY)
