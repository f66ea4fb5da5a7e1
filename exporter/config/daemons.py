"""Which daemons to watch: the one that the flags name, or those of the file, or that of MPS' own variables."""

import posixpath
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from exporter.config.daemon_keys import DAEMON_KEYS, parse_pipe_directory
from exporter.config.document import DAEMONS, Document, unknown
from exporter.config.settings import DaemonConfig
from exporter.config.values import parse_directory
from exporter.errors import ConfigError
from exporter.model.settings import Mode
from exporter.model.variables import DEFAULT_LOG_DIRECTORY, DEFAULT_PIPE_DIRECTORY, LOG_DIRECTORY, PIPE_DIRECTORY

MOST_DAEMONS = 64


def watched_daemons(
    arguments: Namespace, environment: Mapping[str, str], document: Document, *, discovery: bool
) -> tuple[DaemonConfig, ...]:
    """The daemons to watch; ConfigError names what cannot be used.

    Where none is named, it is that of MPS' default directories, unless `discovery` would find it there.
    """
    named = _named(document)
    pipe = _directory("--pipe-directory", getattr(arguments, "pipe_directory", None), parse_pipe_directory)
    log = _directory("--log-directory", getattr(arguments, "log_directory", None))
    if named and pipe is None:
        if log is not None:
            raise ConfigError(f"--log-directory: of which daemon? {document.path} names some; add --pipe-directory")
        return named
    known = (each for each in named if pipe is not None and _is_same(each.pipe_directory, pipe))
    daemon = next(known, None) or _of_variables(pipe, environment)
    if discovery and log is None and daemon == _of_variables(None, {}):
        return ()
    return (daemon if log is None else replace(daemon, log_directory=log),)


def _is_same(one: Path, other: Path) -> bool:
    return posixpath.normpath(one) == posixpath.normpath(other)


def _directory(where: str, text: str | None, parse: Callable[[str, str], Path] = parse_directory) -> Path | None:
    return parse(where, text) if text else None


def _of_variables(pipe: Path | None, environment: Mapping[str, str]) -> DaemonConfig:
    """The daemon in `pipe`, or where the variables that MPS itself reads say, or where MPS has it by default."""
    pipe = pipe or _directory(PIPE_DIRECTORY, environment.get(PIPE_DIRECTORY), parse_pipe_directory)
    return DaemonConfig(
        pipe_directory=pipe or Path(DEFAULT_PIPE_DIRECTORY),
        log_directory=_directory(LOG_DIRECTORY, environment.get(LOG_DIRECTORY)) or Path(DEFAULT_LOG_DIRECTORY),
        expected=pipe is not None,
    )


def _named(document: Document) -> tuple[DaemonConfig, ...]:
    if len(document.daemons) > MOST_DAEMONS:
        raise ConfigError(f"{document.path}: {DAEMONS}: {len(document.daemons)} of them; at most {MOST_DAEMONS}")
    named = tuple(
        _daemon(f"{document.path}: {DAEMONS}[{number}]", table)
        for number, table in enumerate(document.daemons, start=1)
    )
    _differ(document, "name", [each.name for each in named])
    _differ(document, "pipe_directory", [each.pipe_directory for each in named])
    # What one writes to its journal is not in these files.
    _differ(document, "log_directory", [each.log_directory for each in named if each.unit is None])
    return named


def same_directories(daemons: Sequence[DaemonConfig]) -> str | None:
    """Say which two daemons have one pipe directory under two paths, as by a link or a bind mount; None: no two.

    A path that cannot be reached now is passed over. This looks at the file system, which may hang.
    """
    known: dict[tuple[int, int], DaemonConfig] = {}
    for daemon in daemons:
        try:
            found = daemon.pipe_directory.stat()
        except OSError:
            continue
        first = known.setdefault((found.st_dev, found.st_ino), daemon)
        if first is not daemon:
            return (
                f"{DAEMONS}: {str(first.pipe_directory)!r} and {str(daemon.pipe_directory)!r} are one directory"
                " (a link or a bind mount), and one directory has one daemon; remove one of the two"
            )
    return None


def _daemon(where: str, table: Mapping[str, object]) -> DaemonConfig:
    keys = {each.key: each for each in DAEMON_KEYS}
    values: dict[str, Any] = {"log_directory": Path(DEFAULT_LOG_DIRECTORY), "expected": True}
    for key, raw in table.items():
        if key not in keys:
            raise ConfigError(f"{where} {unknown(key, keys, 'key')}")
        values[keys[key].attribute] = keys[key].kind.of_toml(f"{where}.{key}", raw)
    if "pipe_directory" not in values:
        raise ConfigError(f"{where}: it has no pipe_directory, by which to know the daemon; add it")
    for each in DAEMON_KEYS:
        if each.key in table and each.instead_of in table:
            raise ConfigError(f"{where}: it has {each.instead_of} and {each.key}; who restarts it? leave one out")
    daemon = DaemonConfig(**values)
    if not daemon.expected and (daemon.watchdog is Mode.ACT or daemon.restart_command):
        raise ConfigError(f"{where}: nothing is ever done for a daemon that is not expected; leave expected out")
    return daemon


def _differ(document: Document, key: str, values: Sequence[object]) -> None:
    """Refuse what two daemons have in common; paths are compared without `..`, `.` and further slashes."""
    alike = [posixpath.normpath(value) if isinstance(value, Path) else value for value in values]
    for value, count in Counter(alike).items():
        if count > 1:
            written = dict.fromkeys(repr(str(each)) for each, its in zip(values, alike, strict=True) if its == value)
            raise ConfigError(
                f"{document.path}: {DAEMONS}: {count} of them have the {key} {', '.join(written)}; each needs its own"
            )
