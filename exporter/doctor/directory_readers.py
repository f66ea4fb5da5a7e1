"""Readers of daemons' pipe directories and logs. A reader never raises: it returns the problem."""

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

from exporter.collectors.pipe_dir import FIFO, PID_FILE, SERVER_LOG, Directory, Root, open_file
from exporter.collectors.pool import log_files
from exporter.collectors.proc import Proc
from exporter.doctor.facts import DaemonFacts, DirectoryFacts, Identity, LogFacts, Rotation
from exporter.model.daemon import Daemon
from exporter.parse.protocol3 import is_server_name


@dataclass(frozen=True, slots=True)
class LogrotateStanza:
    """The directives for the logs that some patterns match."""

    patterns: tuple[str, ...]
    directives: frozenset[str]

    def matches(self, path: str) -> bool:
        """Return whether the stanza is for this log. As in a shell, `*` matches no slash."""
        depth = path.count("/")
        return any(fnmatchcase(path, each) and each.count("/") == depth for each in self.patterns)

    @property
    def truncates(self) -> bool:
        """Whether logrotate truncates the log instead of renaming it."""
        return "copytruncate" in self.directives


def parse_logrotate(text: str) -> Iterator[LogrotateStanza]:
    """Yield the stanzas of a file."""
    for head, body in re.findall(r"([^{}]*)\{([^{}]*)\}", re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)):
        patterns = (word.strip("\"'") for word in head.split())
        directives = (line.split()[0] for line in body.splitlines() if line.split())
        yield LogrotateStanza(tuple(each for each in patterns if each.startswith("/")), frozenset(directives))


_MAX_BYTES = 1 << 16
_MAX_FILES = 256
_SERVER_AND_NAMESPACE = 2
_SUFFIXES = (".", "-")
"""What follows a log's name after a rotation: `control.log.1`, `control.log-20261121`."""


def read_namespaces(pipe_directory: str, root: Root) -> frozenset[Identity]:
    """Return the directories of servers, and of their namespaces, in a pipe directory (protocol 3)."""
    found: set[Identity] = set()
    with contextlib.suppress(OSError, ValueError), Directory(Path(pipe_directory), root).opened() as top:
        _add_named(top, ".", _SERVER_AND_NAMESPACE, found)
    return frozenset(found)


def _add_named(above: int, name: str, levels: int, found: set[Identity]) -> None:
    """Add the directories in one that a server or a namespace can have. No link is followed."""
    directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        with os.scandir(directory) as entries:
            named = [each for each in islice(entries, _MAX_FILES) if is_server_name(each.name)]
        for each in named:
            if each.is_dir(follow_symlinks=False):
                status = each.stat(follow_symlinks=False)
                found.add((status.st_dev, status.st_ino))
                if levels > 1:
                    _add_named(directory, each.name, levels - 1, found)
    finally:
        os.close(directory)


def read_directory(daemon: Daemon, running: DaemonFacts | None, proc: Proc) -> DirectoryFacts:
    """Return the daemon's pipe directory as the running daemon sees it, else by its path in this mount namespace."""
    here, problem = Directory(Path(daemon.pipe_directory)), None
    directories = [here]
    if running is not None and running.process.variables is not None:
        root = _root(running, proc)
        directories[:0] = [] if root is None else [Directory(Path(running.process.pipe_directory), root)]
    for directory in directories:
        try:
            return _directory_facts(directory)
        except FileNotFoundError:
            continue
        except OSError as error:
            problem = f"{directory.path}: {error.strerror}"
    return DirectoryFacts(path=str(here.path), problem=problem)


def _root(running: DaemonFacts, proc: Proc) -> Root | None:
    ticks = proc.start_ticks(running.process.pid)
    return None if ticks is None else Root(proc, running.process.pid, ticks)


def _directory_facts(directory: Directory) -> DirectoryFacts:
    with directory.opened() as descriptor:
        mode = os.fstat(descriptor).st_mode
        pid_file, fifo = _mode_of(PID_FILE, descriptor), _mode_of(FIFO, descriptor)
    return DirectoryFacts(
        path=path_here(directory),
        closed=_closed(directory, mode),
        writable=bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX,
        pid=_pid(directory),
        pid_file_mode=None if pid_file is None else stat.S_IMODE(pid_file),
        log_fifo_mode=stat.S_IMODE(fifo) if fifo is not None and stat.S_ISFIFO(fifo) else None,
    )


def _mode_of(name: str, directory: int) -> int | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


def _closed(directory: Directory, mode: int) -> str | None:
    """Return the first directory of the path that other users cannot enter."""
    for parent in reversed(directory.path.parents):
        above = Directory(parent, directory.root)
        try:
            with above.opened() as descriptor:
                if not os.fstat(descriptor).st_mode & stat.S_IXOTH:
                    return path_here(above)
        except OSError:
            continue
    return None if mode & stat.S_IXOTH else path_here(directory)


def path_here(directory: Directory) -> str:
    """Return a path of the directory in this mount namespace; it may lead through the root of a process."""
    here = Directory(directory.path)
    return str(here) if here.identity() == directory.identity() else str(directory)


def read_logs(daemon: Daemon, running: DaemonFacts | None, proc: Proc) -> tuple[LogFacts, ...]:
    """Return the logs of a daemon. One in the foreground that does not write to a file has none."""
    if daemon.runtime.foreground and not daemon.runtime.stdout_in_file:
        return ()
    names = log_files(daemon)
    directory = _log_directory(daemon, running, proc)
    written = [] if running is None else list(proc.open_files(running.process.pid))
    logs = (_log(directory, name, written) for name in names)
    return tuple(each for each in logs if each is not None)


def read_rotations(logs: Sequence[LogFacts], configuration: Path) -> tuple[tuple[Rotation, ...], str | None]:
    """Return how logrotate rotates these logs, and why a file of its configuration could not be read."""
    try:
        files = sorted(configuration.iterdir())[:_MAX_FILES]
    except FileNotFoundError:
        return (), None
    except OSError as error:
        return (), f"{configuration}: {error.strerror}"
    rotations: dict[str, Rotation] = {}
    problem = None
    for file in files:
        try:
            with file.open(errors="replace") as opened:
                text = opened.read(_MAX_BYTES)
        except OSError as error:
            problem = f"{file}: {error.strerror}"
            continue
        for stanza in parse_logrotate(text):
            for log in logs:
                if stanza.matches(log.path):
                    found = Rotation(path=log.path, file=str(file), truncates=stanza.truncates)
                    rotations.setdefault(log.path, found)
    return tuple(rotations.values()), problem


def _log_directory(daemon: Daemon, running: DaemonFacts | None, proc: Proc) -> Directory:
    """Return the log directory by its path here, or below the daemon's root if that is another directory."""
    here = Directory(Path(daemon.log_directory))
    root = None if running is None else _root(running, proc)
    if root is not None:
        there = Directory(here.path, root)
        if there.identity() not in (None, here.identity()):
            return there
    return here


def _log(directory: Directory, name: str, written: Sequence[str]) -> LogFacts | None:
    """Return one log; None if it is the servers' and no server has written it yet."""
    path = f"{path_here(directory)}/{name}"
    renamed = _renamed(str(directory.path / name), written)
    try:
        with directory.opened() as descriptor:
            file = open_file(descriptor, name)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and name.endswith(SERVER_LOG) and renamed is None:
            return None
        problem = "it is not a regular file" if error.errno == errno.EMEDIUMTYPE else error.strerror
        return LogFacts(path=path, renamed=renamed, problem=problem)
    try:
        size = os.fstat(file).st_size
    finally:
        os.close(file)
    return LogFacts(path=path, size=size, renamed=renamed)


def _renamed(path: str, written: Sequence[str]) -> str | None:
    """Return the new path of a renamed log: that of a file that the daemon has open."""
    if path in written:
        return None
    return next((each for each in written if each.startswith(tuple(f"{path}{suffix}" for suffix in _SUFFIXES))), None)


def _pid(directory: Directory) -> int | None:
    try:
        files = directory.files()
    except OSError:
        return None
    return None if files is None else files.pid
