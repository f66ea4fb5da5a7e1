"""The process of each daemon, from its pid file or as discovery found it, and the users who may run it."""

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

from exporter.clock import Clock
from exporter.collectors.control_daemons import ControlDaemon, ControlDaemons
from exporter.collectors.pipe_dir import (
    CONTROL_SOCKET,
    FIFO,
    PID_FILE,
    PRIVILEGED_SOCKET,
    DaemonLocation,
    Directory,
    Identity,
    open_file,
)
from exporter.collectors.proc import Proc
from exporter.model.observation import DaemonProcess
from exporter.model.problem import Problem, ProblemCode, joined
from exporter.model.settings import DEFAULT_PROTOCOL

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_SOCKETS = (CONTROL_SOCKET, PRIVILEGED_SOCKET)


def may_run(location: DaemonLocation, uid: int | None) -> bool:
    """Return whether a daemon of this user is the expected one. If none is expected, any user may run one there."""
    if not location.expected or uid is None or uid in (0, os.geteuid(), location.owner):
        return True
    return location.pipe.root is None and _is_given_to(location.pipe.path, uid)


def foreign_listener(location: DaemonLocation) -> int | None:
    """Return the owner of a control socket there who may not run the daemon."""
    return _foreign_owner(location, _SOCKETS)


def foreign_user(location: DaemonLocation) -> int | None:
    """Return the owner of the pipe directory or of a control socket who may not run the daemon."""
    return _foreign_owner(location, (".", *_SOCKETS))


def _foreign_owner(location: DaemonLocation, names: Iterable[str]) -> int | None:
    owners = (location.pipe.owner(name) for name in names) if location.expected else ()
    return next((uid for uid in owners if not may_run(location, uid)), None)


def _is_given_to(path: Path, uid: int) -> bool:
    """Return whether only root and this user can create or replace what is at this path."""
    try:
        real = Path(os.path.realpath(path))
        return all(_is_protected(above.lstat(), uid) for above in {*path.parents, *real.parents})
    except OSError:
        return False


def _is_protected(found: os.stat_result, uid: int) -> bool:
    """Return whether no other user can change a directory or link. A link has no mode of its own."""
    return found.st_uid in (0, uid) and (stat.S_ISLNK(found.st_mode) or not found.st_mode & _WRITABLE_BY_OTHERS)


REPEAT_SECONDS = 10.0
"""How often a running daemon is reported again. A reading can be lost if its collector then fails."""


MAX_SERVERS = 64
"""Servers of one daemon that are reported."""


class PidFiles:
    """The process of the control daemon in each location."""

    def __init__(self, proc: Proc, clock: Clock) -> None:
        self._proc = proc
        self._daemons = ControlDaemons(proc)
        self._clock = clock
        self._found: dict[str, DaemonProcess] = {}
        self._identities: dict[str, Identity] = {}
        self._repeat_due = 0.0

    def changed(self, locations: Mapping[str, DaemonLocation]) -> list[DaemonProcess]:
        """Return the daemons that changed or ended since the last call, and every REPEAT_SECONDS all that run."""
        repeat = self._clock.monotonic() >= self._repeat_due
        if repeat:
            self._repeat_due = self._clock.monotonic() + REPEAT_SECONDS
        for name in self._found.keys() - locations.keys():
            del self._found[name]
            self._identities.pop(name, None)
        changed: list[DaemonProcess] = []
        for name, location in locations.items():
            before = self._found.get(name)
            if before is not None and before.pid is not None and self._is_alive(before.pid, before.start_ticks):
                now = self._with_servers(replace(before, at=self._clock.now()))
                if repeat or now.servers != before.servers:
                    self._found[name] = now
                    changed.append(now)
                continue
            now = self._find(location)
            if before is None or _key(before) != _key(now):
                self._found[name] = now
                changed.append(now)
        return changed

    @property
    def all_found(self) -> bool:
        """Whether the last call found every daemon."""
        return all(each.pid is not None or each.same_as is not None for each in self._found.values())

    @property
    def problem(self) -> Problem | None:
        """The daemons that are not followed because another one has their directory."""
        return joined(
            Problem(code=ProblemCode.DIRECTORY_SHARED, subject=each.daemon, detail=each.same_as)
            for each in self._found.values()
            if each.same_as is not None
        )

    def pid(self, name: str) -> int | None:
        """Return the PID of a daemon at the last call."""
        return self._found[name].pid if name in self._found else None

    def _find(self, location: DaemonLocation) -> DaemonProcess:
        """Return the daemon of a location. If a directory has several names, the first one has the daemon."""
        identity = location.pipe.identity()
        missing = DaemonProcess(at=self._clock.now(), daemon=location.name, pid=None)
        self._identities.pop(location.name, None)
        if identity is not None:
            first = next((name for name, known in self._identities.items() if known == identity), None)
            if first is not None:
                return replace(missing, same_as=first)
            self._identities[location.name] = identity
        daemon = self._daemon_of(location)
        if daemon is not None and may_run(location, daemon.facts.uid):
            return self._with_servers(daemon.observation(location.name))
        foreign_owner = foreign_user(location) if daemon is None else daemon.facts.uid
        if foreign_owner is not None:
            # The pid file of another user's daemon proves nothing about the expected one.
            return replace(missing, foreign_owner=foreign_owner)
        pid_file_left, quit_traces = exit_traces(location.pipe)
        return replace(missing, pid_file_left=pid_file_left, quit_traces=quit_traces)

    def _with_servers(self, daemon: DaemonProcess) -> DaemonProcess:
        if daemon.pid is None or daemon.protocol in (None, DEFAULT_PROTOCOL):
            return daemon
        children = self._proc.children(daemon.pid)
        if children is None:
            return replace(daemon, servers=None)
        return replace(daemon, servers=tuple(islice(filter(self._daemons.is_server, children), MAX_SERVERS)))

    def _is_alive(self, pid: int, start_ticks: int | None) -> bool:
        return self._proc.start_ticks(pid) == start_ticks

    def _daemon_of(self, location: DaemonLocation) -> ControlDaemon | None:
        """Return the daemon that the pid file names, else the one that discovery found and that still runs."""
        pid = read_pid(location.pipe)
        named = None if pid is None else self._named(pid, location)
        if named is not None or location.process is None or not self._is_alive(*location.process):
            return named
        return socket_owner(location.pipe, filter(None, [self._daemons.at(location.process[0])]))

    def _named(self, own_pid: int, location: DaemonLocation) -> ControlDaemon | None:
        pid: int | None = own_pid
        if location.namespace is not None:
            location.namespace.update([own_pid])
            pid = location.namespace.outer([own_pid]).get(own_pid)
        daemon = None if pid is None else self._daemons.at(pid)
        if daemon is None or daemon.own_pid != own_pid:
            return None
        # Every user can write the PID of another daemon of the same user into the file.
        pipe = self._daemons.pipe_of(daemon)
        return socket_owner(location.pipe, [daemon]) if pipe in (None, location.pipe.identity()) else None


def _key(found: DaemonProcess) -> tuple[int | bool | str | None, ...]:
    """Return what makes a daemon's process a different one."""
    return found.pid, found.start_ticks, found.pid_file_left, found.quit_traces, found.foreign_owner, found.same_as


def socket_owner(pipe: Directory, daemons: Iterable[ControlDaemon]) -> ControlDaemon | None:
    """Return the daemon whose user owns the socket in a pipe directory; None if there is not exactly one."""
    owner = pipe.owner(PRIVILEGED_SOCKET)
    found = [each for each in daemons if owner is not None and each.facts.uid == owner]
    return found[0] if len(found) == 1 else None


def exit_traces(pipe: Directory) -> tuple[bool | None, bool | None]:
    """Return whether there is a pid file, and whether the directory looks as after a quit; None if unknown.

    A quit removes the pid file and the fifo, and leaves the sockets (measured, R580). A missing directory proves
    nothing: systemd removes a unit's RuntimeDirectory after a crash too. Neither does the root of an ended process.
    """
    try:
        with pipe.opened() as directory:
            pid_file, fifo, socket = (_exists(directory, name) for name in (PID_FILE, FIFO, PRIVILEGED_SOCKET))
    except FileNotFoundError:
        return (False, False) if pipe.root is None else (None, None)
    except OSError:
        return None, None
    return pid_file, socket and not pid_file and not fifo


def _exists(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def read_pid(pipe: Directory) -> int | None:
    """Return the PID in a pid file; None if there is none. A link in its place is not followed."""
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
