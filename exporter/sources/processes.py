"""Reads /proc: who a process is, and, through pidfd, when it has gone.

All of it is data that a workload may have chosen. Of an environment, only the daemon's CUDA_VISIBLE_DEVICES is kept.
"""

import contextlib
import os
import select
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from exporter.clock import Clock
from exporter.model.observation import DaemonProcess, Observation, ProcessExit, ProcessReading
from exporter.parse import process_stat
from exporter.sources.reading import Reading

PID_FILE = "nvidia-cuda-mps-control.pid"
PID_FILES_SECONDS = 1.0
RECHECK_SECONDS = 5.0

_DAEMON_COMMAND = "nvidia-cuda-mps"
_MOST_TEXT = 4096


class Processes:
    """Watches the processes that the core asks for, and the control daemons behind their pid files."""

    def __init__(self, pipe_directories: Mapping[str, Path], *, proc: Path, clock: Clock, wait: float = 0.2) -> None:
        """`pipe_directories` has the pipe directory of each daemon, by its name; `wait` bounds one look, in seconds."""
        self._pid_files = {daemon: directory / PID_FILE for daemon, directory in pipe_directories.items()}
        self._proc = proc
        self._clock = clock
        self._wait = wait
        self._wanted: frozenset[int] = frozenset()
        self._known: dict[int, int] = {}
        self._pidfds: dict[int, int] = {}
        self._unseen: dict[int, float] = {}
        self._daemons: dict[str, DaemonProcess] = {}
        self._pid_files_due = 0.0
        self._recheck_due = 0.0

    def watch(self, pids: frozenset[int]) -> None:
        """Say whose facts are wanted and whose exit is news, from the next look on."""
        self._wanted = pids

    def look(self) -> Reading:
        """What is new since the last look. Waits up to `wait` seconds for an exit."""
        wanted = self._wanted
        for pid in [pid for pid in self._known if pid not in wanted]:
            self._forget(pid)
        now = self._clock.monotonic()
        seen: list[Observation] = [reading for pid in self._unmet(wanted, now) if (reading := self._meet(pid, now))]
        if now >= self._pid_files_due:
            self._pid_files_due = now + PID_FILES_SECONDS
            seen.extend(self._changed_daemons())
        if now >= self._recheck_due:
            self._recheck_due = now + RECHECK_SECONDS
            seen.extend(self._exits(pid for pid, ticks in self._known.items() if self._start_ticks(pid) != ticks))
        seen.extend(self._exits(self._ended(0.0 if seen else self._wait)))
        return Reading(tuple(seen))

    def close(self) -> None:
        """Let go of all processes."""
        for pid in list(self._known):
            self._forget(pid)

    def _unmet(self, wanted: frozenset[int], now: float) -> list[int]:
        self._unseen = {pid: due for pid, due in self._unseen.items() if pid in wanted}
        return [pid for pid in wanted if pid not in self._known and self._unseen.get(pid, now) <= now]

    def _meet(self, pid: int, now: float) -> ProcessReading | None:
        """Take hold of a process first, then read who it is: what is read is then of the process that is held.

        A PID that is not in this /proc has not therefore exited: it may be another PID namespace's.
        """
        with contextlib.suppress(OSError):
            self._pidfds[pid] = os.pidfd_open(pid)
        reading = self._facts(pid)
        if reading is None:
            self._forget(pid)
            self._unseen[pid] = now + RECHECK_SECONDS
            return None
        self._known[pid] = reading.start_ticks
        return reading

    def _facts(self, pid: int) -> ProcessReading | None:
        start_ticks = self._start_ticks(pid)
        if start_ticks is None:
            return None
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                return ProcessReading(
                    at=self._clock.now(),
                    pid=pid,
                    start_ticks=start_ticks,
                    started=process.create_time(),
                    uid=process.uids().real,
                    user=process.username()[:_MOST_TEXT],
                    command=process.name()[:_MOST_TEXT],
                    executable=self._executable(process),
                    cgroup=self._text(pid, "cgroup"),
                )
        except (psutil.Error, OSError):
            return None

    def _executable(self, process: psutil.Process) -> str | None:
        """The path of the program; None where the exporter's user may not see it."""
        try:
            return process.exe()[:_MOST_TEXT] or None
        except (psutil.Error, OSError):
            return None

    def _ended(self, timeout: float) -> list[int]:
        """The watched processes that have exited, waiting for one if none has."""
        poll = select.poll()
        by_descriptor = {descriptor: pid for pid, descriptor in self._pidfds.items()}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        return [by_descriptor[descriptor] for descriptor, _ in poll.poll(timeout * 1000)]

    def _exits(self, pids: Iterable[int]) -> list[ProcessExit]:
        """Tell of processes that have gone, and watch them no more."""
        exits: list[ProcessExit] = []
        for pid in list(pids):
            exits.append(ProcessExit(at=self._clock.now(), pid=pid, start_ticks=self._known[pid]))
            self._forget(pid)
        return exits

    def _changed_daemons(self) -> list[DaemonProcess]:
        """The processes behind the pid files, where they are others than at the last look."""
        changed: list[DaemonProcess] = []
        for daemon, pid_file in self._pid_files.items():
            before = self._daemons.get(daemon)
            found = self._daemon(daemon, pid_file, before)
            if before is None or (before.pid, before.start_ticks) != (found.pid, found.start_ticks):
                self._daemons[daemon] = found
                changed.append(found)
        return changed

    def _daemon(self, daemon: str, pid_file: Path, before: DaemonProcess | None) -> DaemonProcess:
        """The daemon behind a pid file; or the one that was there, if it lives on without its pid file."""
        pid = _pid_in(pid_file)
        if (
            before is not None
            and before.pid == pid
            and pid is not None
            and self._start_ticks(pid) == before.start_ticks
        ):
            return before
        named = self._daemon_process(daemon, pid)
        if named is None and before is not None:
            named = self._daemon_process(daemon, before.pid)
        return named or DaemonProcess(at=self._clock.now(), daemon=daemon, pid=None)

    def _daemon_process(self, daemon: str, pid: int | None) -> DaemonProcess | None:
        """A process, if it is a control daemon: a PID in a file may by now be anybody's."""
        facts = None if pid is None else self._facts(pid)
        if facts is None or not _is_control_daemon(facts):
            return None
        visible = self._visible_devices(facts.pid)
        return DaemonProcess(
            at=facts.at,
            daemon=daemon,
            pid=facts.pid,
            start_ticks=facts.start_ticks,
            started=facts.started,
            uid=facts.uid,
            environment={} if visible is None else {"CUDA_VISIBLE_DEVICES": visible},
        )

    def _visible_devices(self, pid: int) -> str | None:
        """The one variable of the daemon's environment that is needed; None where it is not set or may not be read."""
        try:
            with open(self._proc / str(pid) / "environ", "rb") as file:
                variables = file.read(1 << 20).split(b"\0")
        except OSError:
            return None
        key = b"CUDA_VISIBLE_DEVICES="
        found = next((variable for variable in variables if variable.startswith(key)), None)
        return None if found is None else found[len(key) :][:_MOST_TEXT].decode(errors="replace")

    def _forget(self, pid: int) -> None:
        self._known.pop(pid, None)
        descriptor = self._pidfds.pop(pid, None)
        if descriptor is not None:
            os.close(descriptor)

    def _start_ticks(self, pid: int) -> int | None:
        """The start time of a process that lives; None where there is none, or only its remains."""
        text = self._text(pid, "stat")
        return None if text is None or process_stat.is_zombie(text) else process_stat.start_ticks(text)

    def _text(self, pid: int, name: str) -> str | None:
        try:
            with open(self._proc / str(pid) / name, "rb") as file:
                return file.read(_MOST_TEXT).decode(errors="replace")
        except OSError:
            return None


def _pid_in(pid_file: Path) -> int | None:
    """The PID in a pid file; None where there is none. The directory may be another user's: nothing is followed."""
    try:
        descriptor = os.open(pid_file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        text = file.read(16).strip()
    return int(text) if text.isdigit() and 0 < int(text) <= 2**22 else None


def _is_control_daemon(facts: ProcessReading) -> bool:
    """Both MPS binaries have the same name, cut to 15 characters (measured); the program's path tells them apart."""
    names = [name.rpartition("/")[2] for name in (facts.executable, facts.command) if name]
    return any(name.startswith(_DAEMON_COMMAND) for name in names) and not any(
        name.endswith("-server") for name in names
    )
