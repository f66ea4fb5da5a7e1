"""Watches processes: identity, exit and exit status; names of pods."""

import contextlib
import fcntl
import os
import resource
import select
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

from exporter.clock import Clock
from exporter.collectors.daemon_health import DaemonHealth
from exporter.collectors.pid_files import PidFiles
from exporter.collectors.pipe_dir import DaemonLocation, on_host
from exporter.collectors.proc import Proc
from exporter.collectors.thread import Reading
from exporter.model.observation import DaemonProcess, Observation, PodFound, ProcessExit, ProcessReading
from exporter.model.problem import of_error
from exporter.model.settings import CLIENT_LIMITS
from exporter.parse.cgroup import parse_pod_directory

_INFO = struct.Struct("=QQ11Ii")
"""The first version of struct pidfd_info (include/uapi/linux/pidfd.h): first `mask`, last `exit_code`."""

_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
"""PIDFD_GET_INFO: _IOWR(0xFF, 11, struct pidfd_info)."""

_EXIT = 1 << 3
"""PIDFD_INFO_EXIT."""


def wait_status(proc: Proc, pid: int, start_ticks: int, pidfd: int | None) -> int | None:
    """Return the wait status of a process that has exited, or None if it is unknown."""
    # The process may be reaped at any moment. Before that, only /proc has the status, and after it only the pidfd.
    status = _exit_code(pidfd)
    if status is None:
        status = proc.wait_status(pid, start_ticks)
    return _exit_code(pidfd) if status is None else status


def _exit_code(pidfd: int | None) -> int | None:
    if pidfd is None:
        return None
    info = bytearray(_INFO.pack(_EXIT, *(0,) * 13))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, info)
    except OSError:
        return None
    mask, *_, exit_code = _INFO.unpack(info)
    return int(exit_code) if mask & _EXIT else None


MAX_DIRECTORIES = 4096
"""The kubelet runs 110 pods by default, and removes the directories of dead ones."""


class Pods:
    """The pods of this node that have logs."""

    def __init__(self, directory: Path, *, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._wanted: frozenset[str] = frozenset()

    def watch(self, uids: frozenset[str]) -> None:
        """Set the pods whose names are wanted."""
        self._wanted = uids

    def collect(self) -> Reading:
        """Return the known names of the wanted pods. If none is wanted, the directory is not read."""
        wanted = self._wanted
        if not wanted:
            return Reading()
        try:
            with os.scandir(self._directory) as entries:
                names = [entry.name for entry in islice(entries, MAX_DIRECTORIES)]
        except (FileNotFoundError, NotADirectoryError):
            return Reading()
        except OSError as error:
            return Reading(problem=of_error(self._directory, error))
        return Reading(
            tuple(
                PodFound(at=self._clock.now(), uid=pod.uid, name=pod.name, namespace=pod.namespace)
                for pod in map(parse_pod_directory, sorted(names))
                if pod is not None and pod.uid in wanted
            )
        )


PID_FILES_SECONDS = 1.0
MISSING_SECONDS = 0.2
"""How often pid files are read, and while a daemon is missing: its return has many consequences."""

RECHECK_SECONDS = 5.0
"""How often identities are compared if there is no pidfd, and processes that were not found are searched again."""

EXEC_SECONDS = 2.0
"""A process that is younger may be read before or during execve(2), so it is read again after this time."""

MAX_PIDFDS = 512
"""How many processes have a pidfd by default. The identities of the others are compared."""


def affordable_pidfds() -> int:
    """Return half of the allowed descriptors (RLIMIT_NOFILE). The rest is for files, sockets and pipes."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_PIDFDS if allowed == resource.RLIM_INFINITY else allowed // 2


class Processes:
    """Watches the wanted processes, and the control daemons by their pid files."""

    def __init__(
        self,
        pipe_directories: Mapping[str, Path],
        *,
        proc: Path,
        clock: Clock,
        wait: float = 0.2,
        max_pidfds: int = MAX_PIDFDS,
    ) -> None:
        """`pipe_directories` has the pipe directory of each daemon. `wait` limits one collection, in seconds."""
        self._proc = Proc(proc, clock)
        self._pid_files = PidFiles(self._proc, clock)
        self.daemon_health = DaemonHealth(self._proc, self._pid_files, clock)
        """Further facts about the daemons, collected with the rest."""
        self._locations: Mapping[str, DaemonLocation] = {
            name: on_host(name, directory, directory) for name, directory in pipe_directories.items()
        }
        self._clock = clock
        self._wait = wait
        self._max_pidfds = max_pidfds
        self._wanted: frozenset[int] = frozenset()
        self._known: dict[int, int] = {}
        """The start time of each watched process."""
        self._pidfds: dict[int, int] = {}
        self._poll = select.poll()
        self._retry_at: dict[int, float] = {}
        """When each process that was not found is searched again."""
        self._young: dict[int, tuple[float, ProcessReading]] = {}
        """When each young process is read again, and its first reading."""
        self._pid_files_due = 0.0
        self._collected_locations: Mapping[str, DaemonLocation] = {}
        self._recheck_due = 0.0

    def watch(self, pids: frozenset[int]) -> None:
        """Set the processes to identify and whose exit to report."""
        self._wanted = pids

    def set_locations(self, locations: Mapping[str, DaemonLocation]) -> None:
        """Set the daemons by name."""
        self._locations = locations

    def collect(self) -> Reading:
        """Return what is new since the last collection. Wait up to `wait` seconds for an exit."""
        wanted, locations = self._wanted, self._locations
        for pid in self._known.keys() - wanted:
            self._forget(pid)
        now = self._clock.monotonic()
        observations: list[Observation] = [*self._executed(now), *self._new_processes(wanted, now)]
        if now >= self._pid_files_due or locations != self._collected_locations:
            self._collected_locations = locations
            observations += self._daemon_changes(locations)
        observations += self.daemon_health.changed(locations)
        if now >= self._recheck_due:
            self._recheck_due = now + RECHECK_SECONDS
            without_pidfd = [pid for pid in self._known if pid not in self._pidfds]
            observations += self._exits(pid for pid in without_pidfd if self._proc.start_ticks(pid) != self._known[pid])
        ended = self._ended(0.0 if observations else min(self._wait, self._pid_files_interval))
        if ended:
            # The pipe directory shows whether a daemon was quit. Report that before its exit.
            observations += self._daemon_changes(locations)
            observations += self._exits(ended)
        return Reading(tuple(observations), self._pid_files.problem)

    def close(self) -> None:
        """Close all pidfds."""
        for pid in list(self._known):
            self._forget(pid)

    def _daemon_changes(self, locations: Mapping[str, DaemonLocation]) -> list[DaemonProcess]:
        changes = self._pid_files.changed(locations)
        self._pid_files_due = self._clock.monotonic() + self._pid_files_interval
        return changes

    @property
    def _pid_files_interval(self) -> float:
        return PID_FILES_SECONDS if self._pid_files.all_found else MISSING_SECONDS

    def _new_processes(self, wanted: frozenset[int], now: float) -> Iterator[ProcessReading]:
        """Identify the wanted processes that are not known.

        A PID that is not in this /proc may be of another PID namespace, so this is no exit.
        """
        self._retry_at = {pid: due for pid, due in self._retry_at.items() if pid in wanted}
        for pid in [pid for pid in wanted if pid not in self._known and self._retry_at.get(pid, now) <= now]:
            # The pidfd is opened first: what is read then is of the process of the pidfd.
            if len(self._pidfds) < self._max_pidfds:
                with contextlib.suppress(OSError, OverflowError):
                    self._pidfds[pid] = os.pidfd_open(pid)
                    self._poll.register(self._pidfds[pid], select.POLLIN)
            reading = self._read(pid)
            if reading is None:
                self._forget(pid)
                self._retry_at[pid] = now + RECHECK_SECONDS
            else:
                self._known[pid] = reading.start_ticks
                if reading.at - reading.started < EXEC_SECONDS:
                    self._young[pid] = (now + EXEC_SECONDS, reading)
                yield reading

    def _executed(self, now: float) -> Iterator[ProcessReading]:
        """Read young processes again, and report those that run another program, or have another environment."""
        for pid in [pid for pid, (due, _) in self._young.items() if due <= now]:
            _, before = self._young.pop(pid)
            after = self._read(pid)
            if after is not None and after.start_ticks == before.start_ticks:
                after = replace(after, started=before.started, parent=before.parent)
                if after != replace(before, at=after.at):
                    yield after

    def _read(self, pid: int) -> ProcessReading | None:
        reading = self._proc.facts(pid)
        if reading is None:
            return None
        return replace(reading, environment=self._proc.variables(pid, CLIENT_LIMITS, intact=True))

    def _ended(self, timeout: float) -> list[int]:
        """Return the processes that have exited. If there is none, wait for one."""
        ended = {descriptor for descriptor, _ in self._poll.poll(timeout * 1000)}
        return [pid for pid, descriptor in self._pidfds.items() if descriptor in ended] if ended else []

    def _exits(self, pids: Iterable[int]) -> Iterator[ProcessExit]:
        """Report exits, the oldest process first: a daemon before its servers, and these before their clients."""
        for pid in sorted(pids, key=lambda pid: (self._known[pid], pid)):
            ticks = self._known[pid]
            status = wait_status(self._proc, pid, ticks, self._pidfds.get(pid))
            yield ProcessExit(at=self._clock.now(), pid=pid, start_ticks=ticks, wait_status=status)
            self._forget(pid)

    def _forget(self, pid: int) -> None:
        self._known.pop(pid, None)
        self._young.pop(pid, None)
        descriptor = self._pidfds.pop(pid, None)
        if descriptor is not None:
            self._poll.unregister(descriptor)
            os.close(descriptor)
