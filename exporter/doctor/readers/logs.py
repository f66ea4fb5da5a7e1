"""Reads how daemons' logs are: how large, whether they may be read, and into which file is really written."""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from exporter.doctor.facts import DaemonFacts, LogFacts, Rotation
from exporter.doctor.queue import queued
from exporter.doctor.readers.directories import reached
from exporter.model.daemon import Daemon
from exporter.parse.logrotate import parse_logrotate
from exporter.sources.directory import Directory, Root, open_file
from exporter.sources.place import FILES, STDOUT
from exporter.sources.proc import Proc

SERVER_LOG, CONTROL_LOG = FILES

_MOST_BYTES = 1 << 16
_MOST_FILES = 256
_SUFFIXES = (".", "-")
"""Between a log's name and what a rotation adds: `control.log.1`, `control.log-20261121`."""


def read_logs(daemon: Daemon, running: Sequence[DaemonFacts], proc: Proc) -> tuple[LogFacts, ...]:
    """The logs of a daemon. One in the foreground that keeps none in a file has none."""
    if daemon.runtime.foreground and not daemon.runtime.stdout_in_file:
        return ()
    names = (STDOUT,) if daemon.runtime.foreground else FILES
    directory = _directory(daemon, running, proc)
    written = [path for each in running[:1] for path in proc.open_files(each.process.pid)]
    logs = (_log(directory, name, written) for name in names)
    return tuple(each for each in logs if each is not None)


def read_queue(daemon: Daemon, running: Sequence[DaemonFacts], proc: Proc) -> Mapping[int, int]:
    """Who waits at a daemon, by the end of its log: UIDs by PID. One in another PID namespace speaks of its own."""
    if daemon.runtime.in_foreign_namespace:
        return {}
    name = STDOUT if daemon.runtime.foreground else CONTROL_LOG
    try:
        with _directory(daemon, running, proc).opened() as descriptor:
            file = open_file(descriptor, name)
    except OSError:
        return {}
    try:
        size = os.fstat(file).st_size
        text = os.pread(file, _MOST_BYTES, max(0, size - _MOST_BYTES)).decode(errors="replace")
    except OSError:
        return {}
    finally:
        os.close(file)
    return queued(text.split("\n"))


def read_rotations(logs: Sequence[LogFacts], configuration: Path) -> tuple[tuple[Rotation, ...], str | None]:
    """What logrotate is told of these logs, and the problem that kept it from being read."""
    try:
        files = sorted(configuration.iterdir())[:_MOST_FILES]
    except FileNotFoundError:
        return (), None
    except OSError as error:
        return (), f"{configuration}: {error.strerror}"
    rotations: dict[str, Rotation] = {}
    problem = None
    for file in files:
        try:
            with file.open(errors="replace") as opened:
                text = opened.read(_MOST_BYTES)
        except OSError as error:
            problem = f"{file}: {error.strerror}"
            continue
        for log, truncates in _told(text, logs):
            rotations.setdefault(log, Rotation(path=log, file=str(file), truncates=truncates))
    return tuple(rotations.values()), problem


def _told(text: str, logs: Sequence[LogFacts]) -> Iterator[tuple[str, bool]]:
    for stanza in parse_logrotate(text):
        for log in logs:
            if stanza.matches(log.path):
                yield log.path, stanza.truncates


def _directory(daemon: Daemon, running: Sequence[DaemonFacts], proc: Proc) -> Directory:
    """By its path here, where that is the daemon's too; else from where the daemon stands."""
    here = Directory(Path(daemon.log_directory))
    for each in running[:1]:
        ticks = proc.start_ticks(each.process.pid)
        there = None if ticks is None else Directory(here.path, Root(proc, each.process.pid, ticks))
        if there is not None and there.identity() not in (None, here.identity()):
            return there
    return here


def _log(directory: Directory, name: str, written: Sequence[str]) -> LogFacts | None:
    """One log; None where no server has written any yet."""
    path = f"{reached(directory)}/{name}"
    renamed = _renamed(str(directory.path / name), written)
    try:
        with directory.opened() as descriptor:
            file = open_file(descriptor, name)
    except FileNotFoundError as error:
        begun = name != SERVER_LOG or renamed is not None
        return LogFacts(path=path, renamed=renamed, problem=error.strerror) if begun else None
    except OSError as error:
        return LogFacts(path=path, renamed=renamed, problem=error.strerror)
    try:
        found = os.fstat(file)
    finally:
        os.close(file)
    if not stat.S_ISREG(found.st_mode):
        return LogFacts(path=path, renamed=renamed, problem="it is no regular file")
    return LogFacts(path=path, size=found.st_size, renamed=renamed)


def _renamed(path: str, written: Sequence[str]) -> str | None:
    """The file to which the daemon writes instead of this one: what it has open, as the kernel now names it."""
    if path in written:
        return None
    return next((each for each in written if each.startswith(tuple(f"{path}{suffix}" for suffix in _SUFFIXES))), None)
