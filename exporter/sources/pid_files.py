"""Knows the control daemon of each place as a process: by its pid file, or as it was found running.

The daemon makes that file writable for everybody (measured, R580, umask 022): what it says is checked, and never
outweighs a daemon that is known to live.
"""

import os
from collections.abc import Iterable, Mapping

from exporter.clock import Clock
from exporter.model.observation import DaemonProcess
from exporter.sources.control_daemons import ControlDaemon, ControlDaemons
from exporter.sources.directory import Directory, open_file
from exporter.sources.place import Place
from exporter.sources.proc import Proc

PID_FILE = "nvidia-cuda-mps-control.pid"
SOCKET = "control_privileged"


class PidFiles:
    """The control daemon of each place, as a process."""

    def __init__(self, proc: Proc, clock: Clock) -> None:
        self._proc = proc
        self._daemons = ControlDaemons(proc)
        self._clock = clock
        self._found: dict[str, DaemonProcess] = {}

    def changed(self, places: Mapping[str, Place]) -> list[DaemonProcess]:
        """The daemons that are others than at the last look, or not there any more."""
        for name in self._found.keys() - places.keys():
            del self._found[name]
        changed: list[DaemonProcess] = []
        for name, place in places.items():
            before = self._found.get(name)
            if before is not None and before.pid is not None and self._lives(before.pid, before.start_ticks):
                continue
            daemon = self._daemon_of(place)
            now = self._nobody(place) if daemon is None else daemon.told(name)
            if before is None or _news_of(before) != _news_of(now):
                self._found[name] = now
                changed.append(now)
        return changed

    @property
    def all_found(self) -> bool:
        """Whether every daemon was there at the last look."""
        return all(each.pid is not None for each in self._found.values())

    def pid(self, name: str) -> int | None:
        """The PID of the daemon that a place had at the last look."""
        found = self._found.get(name)
        return None if found is None else found.pid

    def _lives(self, pid: int, start_ticks: int | None) -> bool:
        return self._proc.start_ticks(pid) == start_ticks

    def _nobody(self, place: Place) -> DaemonProcess:
        return DaemonProcess(at=self._clock.now(), daemon=place.name, pid=None, left=is_left_in(place.pipe))

    def _daemon_of(self, place: Place) -> ControlDaemon | None:
        """Whom the pid file names, else who was found running there, if it still does."""
        number = pid_in(place.pipe)
        named = None if number is None else self._named(number, place)
        if named is not None or place.process is None or not self._lives(*place.process):
            return named
        return owned(place.pipe, filter(None, [self._daemons.at(place.process[0])]))

    def _named(self, number: int, place: Place) -> ControlDaemon | None:
        pid: int | None = number
        if place.namespace is not None:
            place.namespace.meet([number])
            pid = place.namespace.outer([number]).get(number)
        daemon = None if pid is None else self._daemons.at(pid)
        if daemon is None or daemon.own_pid != number:
            return None
        return owned(place.pipe, [daemon])


def _news_of(found: DaemonProcess) -> tuple[int | None, int | None, bool | None]:
    return found.pid, found.start_ticks, found.left


def owned(pipe: Directory, daemons: Iterable[ControlDaemon]) -> ControlDaemon | None:
    """The one among these whose pipe directory this can be: nobody else's process can have made the socket in it."""
    owner = pipe.owner(SOCKET)
    mine = [each for each in daemons if owner is not None and each.facts.uid == owner]
    return mine[0] if len(mine) == 1 else None


def is_left_in(pipe: Directory) -> bool | None:
    """Whether there is a pid file; None where that cannot be seen, as below the root of a process that has gone."""
    try:
        with pipe.opened() as directory:
            os.stat(PID_FILE, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False if pipe.root is None else None
    except OSError:
        return None
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
