"""Reads pipe directories and logs of daemons. A reader never raises; it reports what it could not read."""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from exporter.collectors.pid_files import FIFO, PID_FILE, pid_in
from exporter.collectors.pipe_dir import FILES, STDOUT, Directory, Root, open_file
from exporter.collectors.proc import Proc
from exporter.doctor.facts import (
    DaemonFacts,
    DirectoryFacts,
    LogFacts,
    Rotation,
)
from exporter.model.daemon import Daemon
from exporter.parse.log_line import parse_log_line
from exporter.parse.log_message import ClientForwarded, ClientQueued, DaemonStarting, ServerReady, ServerStarting
from exporter.parse.logrotate import parse_logrotate

SERVER_LOG, CONTROL_LOG = FILES


def read_directory(daemon: Daemon, running: Sequence[DaemonFacts], proc: Proc) -> DirectoryFacts:
    """The directory of a daemon: from where one stands that runs there, else by its path here."""
    path, problem = Path(daemon.pipe_directory), None
    for directory in (*_seen_by(running, proc), Directory(path)):
        try:
            return _facts(directory)
        except FileNotFoundError:
            continue
        except OSError as error:
            problem = f"{directory.path}: {error.strerror}"
    return DirectoryFacts(path=str(path), problem=problem)


def _seen_by(running: Sequence[DaemonFacts], proc: Proc) -> list[Directory]:
    for each in running[:1]:
        ticks = proc.start_ticks(each.process.pid)
        if ticks is not None and each.process.variables is not None:
            return [Directory(Path(each.process.pipe_directory), Root(proc, each.process.pid, ticks))]
    return []


def _facts(directory: Directory) -> DirectoryFacts:
    with directory.opened() as descriptor:
        mode = os.fstat(descriptor).st_mode
        pid_file_mode = _mode_of(PID_FILE, descriptor)
        log_fifo_mode = _mode_of_fifo(FIFO, descriptor)
    return DirectoryFacts(
        path=reached(directory),
        closed=_closed(directory, mode),
        writable=bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX,
        pid=pid_in(directory),
        pid_file_mode=pid_file_mode,
        log_fifo_mode=log_fifo_mode,
    )


def _mode_of(name: str, directory: int) -> int | None:
    try:
        return stat.S_IMODE(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except OSError:
        return None


def _mode_of_fifo(name: str, directory: int) -> int | None:
    """Return a fifo's mode; None where there is none. OSError where that cannot be seen."""
    try:
        mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
    return stat.S_IMODE(mode) if stat.S_ISFIFO(mode) else None


def _closed(directory: Directory, mode: int) -> str | None:
    """The first directory on the way, itself last, that other users cannot pass."""
    for parent in reversed(directory.path.parents):
        try:
            with Directory(parent, directory.root).opened() as descriptor:
                if not os.fstat(descriptor).st_mode & stat.S_IXOTH:
                    return reached(Directory(parent, directory.root))
        except OSError:
            continue
    return None if mode & stat.S_IXOTH else reached(directory)


def reached(directory: Directory) -> str:
    """How to get there from here: by its path, or through the root of a process that has it elsewhere."""
    here = Directory(directory.path)
    return str(here) if here.identity() == directory.identity() else str(directory)


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


def queued(lines: Iterable[str]) -> Mapping[int, int]:
    """The UIDs of those who were last put off, by their PIDs, and have not been let through since."""
    waiting: dict[int, int] = {}
    users: dict[int, int] = {}
    for line in lines:
        entry = parse_log_line(line)
        if entry is None or not entry.by_daemon:
            continue
        match entry.message:
            case DaemonStarting():
                waiting.clear()
            case ServerStarting(pid, uid):
                users[pid] = uid
            case ServerReady(int() as pid):
                waiting = {each: uid for each, uid in waiting.items() if uid != users.get(pid)}
            case ClientQueued(pid, uid):
                waiting[pid] = uid
            case ClientForwarded(pid):
                waiting.pop(pid, None)
    return waiting
