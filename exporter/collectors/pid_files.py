"""The process of each daemon, by its pid file or as it was found running."""

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from exporter.clock import Clock
from exporter.collectors.control_daemons import ControlDaemon, ControlDaemons
from exporter.collectors.pipe_dir import DaemonLocation, Directory, Identity, open_file
from exporter.collectors.proc import Proc
from exporter.model.observation import DaemonProcess
from exporter.model.problem import Problem, ProblemCode, joined

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_SOCKETS = ("control", "control_privileged")


def may_run(location: DaemonLocation, uid: int | None) -> bool:
    """Return whether a daemon of this user is the expected one. If none is expected, any user may run one there."""
    if not location.expected or uid is None or uid in (0, os.geteuid(), location.owner):
        return True
    return location.pipe.root is None and _is_given_to(location.pipe.path, uid)


def foreign_listener(location: DaemonLocation) -> int | None:
    """Return the user to whom a control socket there belongs, if they may not run the daemon."""
    return _foreign(location, _SOCKETS)


def foreign_user(location: DaemonLocation) -> int | None:
    """Return the user to whom the pipe directory or a control socket belongs, if they may not run the daemon."""
    return _foreign(location, (".", *_SOCKETS))


def _foreign(location: DaemonLocation, names: Iterable[str]) -> int | None:
    owners = (location.pipe.owner(name) for name in names) if location.expected else ()
    return next((uid for uid in owners if not may_run(location, uid)), None)


def _is_given_to(path: Path, uid: int) -> bool:
    """Return whether root alone has decided that this user may make, and replace, what is at this path."""
    try:
        real = Path(os.path.realpath(path))
        return all(_is_kept(above.lstat(), uid) for above in {*path.parents, *real.parents})
    except OSError:
        return False


def _is_kept(found: os.stat_result, uid: int) -> bool:
    """Return whether no other user can change what is in a directory. A link has no mode of its own."""
    return found.st_uid in (0, uid) and (stat.S_ISLNK(found.st_mode) or not found.st_mode & _WRITABLE_BY_OTHERS)


PID_FILE = "nvidia-cuda-mps-control.pid"
SOCKET = "control_privileged"
FIFO = "log"

REPEAT_SECONDS = 10.0
"""How often a daemon that runs on is reported again. A reading can be lost: its collector may fail after this one."""


class PidFiles:
    """The control daemon of each place, as a process."""

    def __init__(self, proc: Proc, clock: Clock) -> None:
        self._proc = proc
        self._daemons = ControlDaemons(proc)
        self._clock = clock
        self._found: dict[str, DaemonProcess] = {}
        self._identities: dict[str, Identity] = {}
        self._repeat_due = 0.0

    def changed(self, locations: Mapping[str, DaemonLocation]) -> list[DaemonProcess]:
        """Return the daemons that changed or ended since the last call, and from time to time each one that runs."""
        repeat = self._clock.monotonic() >= self._repeat_due
        if repeat:
            self._repeat_due = self._clock.monotonic() + REPEAT_SECONDS
        for name in self._found.keys() - locations.keys():
            del self._found[name]
            self._identities.pop(name, None)
        changed: list[DaemonProcess] = []
        for name, location in locations.items():
            before = self._found.get(name)
            if before is not None and before.pid is not None and self._lives(before.pid, before.start_ticks):
                if repeat:
                    changed.append(replace(before, at=self._clock.now()))
                continue
            now = self._now(location)
            if before is None or _news_of(before) != _news_of(now):
                self._found[name] = now
                changed.append(now)
        return changed

    @property
    def all_found(self) -> bool:
        """Whether every daemon was there at the last look."""
        return all(each.pid is not None or each.same_as is not None for each in self._found.values())

    @property
    def problem(self) -> Problem | None:
        """The daemons that are not followed because their directories are those of others."""
        return joined(
            Problem(code=ProblemCode.DIRECTORY_SHARED, subject=each.daemon, detail=each.same_as)
            for each in self._found.values()
            if each.same_as is not None
        )

    def pid(self, name: str) -> int | None:
        """The PID of the daemon that a place had at the last look."""
        found = self._found.get(name)
        return None if found is None else found.pid

    def _now(self, location: DaemonLocation) -> DaemonProcess:
        """Who is behind a place now. One directory is one daemon: the first of two names of it has the daemon."""
        identity = location.pipe.identity()
        self._identities.pop(location.name, None)
        if identity is not None:
            first = next((name for name, known in self._identities.items() if known == identity), None)
            if first is not None:
                return DaemonProcess(at=self._clock.now(), daemon=location.name, pid=None, same_as=first)
            self._identities[location.name] = identity
        daemon = self._daemon_of(location)
        expected = daemon is not None and may_run(location, daemon.facts.uid)
        return daemon.told(location.name) if daemon is not None and expected else self._nobody(location, daemon)

    def _lives(self, pid: int, start_ticks: int | None) -> bool:
        return self._proc.start_ticks(pid) == start_ticks

    def _nobody(self, location: DaemonLocation, other: ControlDaemon | None) -> DaemonProcess:
        """Return that the daemon does not run there. The pid file of another user's one says nothing of it."""
        foreign = foreign_user(location) if other is None else other.facts.uid
        left, quit_traces = (None, None) if foreign is not None else traces_in(location.pipe)
        at = self._clock.now()
        return DaemonProcess(
            at=at, daemon=location.name, pid=None, pid_file_left=left, quit_traces=quit_traces, foreign_owner=foreign
        )

    def _daemon_of(self, location: DaemonLocation) -> ControlDaemon | None:
        """Whom the pid file names, else who was found running there, if it still does."""
        number = pid_in(location.pipe)
        named = None if number is None else self._named(number, location)
        if named is not None or location.process is None or not self._lives(*location.process):
            return named
        return owned(location.pipe, filter(None, [self._daemons.at(location.process[0])]))

    def _named(self, number: int, location: DaemonLocation) -> ControlDaemon | None:
        pid: int | None = number
        if location.namespace is not None:
            location.namespace.meet([number])
            pid = location.namespace.outer([number]).get(number)
        daemon = None if pid is None else self._daemons.at(pid)
        if daemon is None or daemon.own_pid != number:
            return None
        # Every user may write the PID of another daemon of the same user into the file.
        elsewhere = self._daemons.pipe_of(daemon)
        if elsewhere is not None and elsewhere != location.pipe.identity():
            return None
        return owned(location.pipe, [daemon])


def _news_of(found: DaemonProcess) -> tuple[int | bool | str | None, ...]:
    return found.pid, found.start_ticks, found.pid_file_left, found.quit_traces, found.foreign_owner, found.same_as


def owned(pipe: Directory, daemons: Iterable[ControlDaemon]) -> ControlDaemon | None:
    """The one among these whose pipe directory this can be: nobody else's process can have made the socket in it."""
    owner = pipe.owner(SOCKET)
    mine = [each for each in daemons if owner is not None and each.facts.uid == owner]
    return mine[0] if len(mine) == 1 else None


def traces_in(pipe: Directory) -> tuple[bool | None, bool | None]:
    """Return whether there is a pid file, and whether the directory looks as after a quit; None if it cannot be seen.

    A quit removes the pid file and the fifo, and leaves the sockets (measured, R580). If the directory is gone too, as
    a unit's RuntimeDirectory after a crash, that tells nothing. Nor does the root of a process that has gone.
    """
    try:
        with pipe.opened() as directory:
            pid_file, fifo, socket = (_is_in(directory, name) for name in (PID_FILE, FIFO, SOCKET))
    except FileNotFoundError:
        return (False, False) if pipe.root is None else (None, None)
    except OSError:
        return None, None
    return pid_file, socket and not pid_file and not fifo


def _is_in(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def pid_in(pipe: Directory) -> int | None:
    """The PID in a pid file; None where there is none. Nothing is followed that somebody may have put in its place."""
    try:
        with pipe.opened() as directory:
            descriptor = open_file(directory, PID_FILE)
    except OSError:
        return None
    try:
        text = os.read(descriptor, 16).strip()
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return int(text) if text.isdigit() and 0 < int(text) <= 2**22 else None
