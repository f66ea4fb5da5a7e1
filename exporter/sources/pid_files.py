"""Finds the control daemons behind their pid files.

The daemon makes that file writable for everybody (measured, R580, umask 022): what it says is checked, and never
outweighs a daemon that is known to live.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from exporter.clock import Clock
from exporter.model.observation import DaemonProcess, ProcessReading
from exporter.sources.proc import Proc

PID_FILE = "nvidia-cuda-mps-control.pid"
SOCKET = "control_privileged"
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"

_DAEMON_COMMAND = "nvidia-cuda-mps"


class PidFiles:
    """The control daemon of each pipe directory, as a process."""

    def __init__(self, pipe_directories: Mapping[str, Path], proc: Proc, clock: Clock) -> None:
        """`pipe_directories` has the pipe directory of each daemon, by its name."""
        self._directories = pipe_directories
        self._proc = proc
        self._clock = clock
        self._found: dict[str, DaemonProcess] = {}

    def changed(self) -> list[DaemonProcess]:
        """The daemons that are others than at the last look, or not there any more."""
        changed: list[DaemonProcess] = []
        for daemon, directory in self._directories.items():
            before = self._found.get(daemon)
            if before is not None and before.pid is not None and self._lives(before.pid, before.start_ticks):
                continue
            now = self._daemon_in(daemon, directory)
            if before is None or (before.pid, before.start_ticks) != (now.pid, now.start_ticks):
                self._found[daemon] = now
                changed.append(now)
        return changed

    def _lives(self, pid: int, start_ticks: int | None) -> bool:
        return self._proc.start_ticks(pid) == start_ticks

    def _daemon_in(self, daemon: str, directory: Path) -> DaemonProcess:
        pid = _pid_in(directory / PID_FILE)
        facts = None if pid is None else self._proc.facts(pid)
        if facts is None or not _is_control_daemon(facts) or facts.uid != _owner(directory / SOCKET):
            return DaemonProcess(at=self._clock.now(), daemon=daemon, pid=None)
        visible = self._proc.variable(facts.pid, VISIBLE_DEVICES)
        return DaemonProcess(
            at=facts.at,
            daemon=daemon,
            pid=facts.pid,
            start_ticks=facts.start_ticks,
            started=facts.started,
            uid=facts.uid,
            environment={} if visible is None else {VISIBLE_DEVICES: visible},
        )


def _pid_in(pid_file: Path) -> int | None:
    """The PID in a pid file; None where there is none. Nothing is followed that somebody may have put in its place."""
    try:
        descriptor = os.open(pid_file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.read(descriptor, 16).strip()
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return int(text) if text.isdigit() and 0 < int(text) <= 2**22 else None


def _owner(socket: Path) -> int | None:
    """Whose daemon it is: nobody else can have made this socket."""
    try:
        return os.stat(socket, follow_symlinks=False).st_uid
    except OSError:
        return None


def _is_control_daemon(facts: ProcessReading) -> bool:
    """Both MPS binaries have the same name, cut to 15 characters (measured); path and arguments tell them apart."""
    names = [name.rpartition("/")[2] for name in (facts.executable, facts.command) if name]
    return any(name.startswith(_DAEMON_COMMAND) for name in names) and not any(
        name.endswith("-server") for name in names
    )
