"""Reads how a pipe directory is, as the daemon sees it."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from exporter.doctor.facts import DaemonFacts, DirectoryFacts
from exporter.model.daemon import Daemon
from exporter.sources.directory import Directory, Root
from exporter.sources.pid_files import FIFO, PID_FILE, pid_in
from exporter.sources.proc import Proc


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
