"""Watches processes: identity, exit and exit status; names of pods."""

import contextlib
import fcntl
import os
import resource
import select
import struct
from collections.abc import Iterable, Mapping
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
"""The first version of struct pidfd_info (include/uapi/linux/pidfd.h): what is told, and last of all `exit_code`."""

_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
"""PIDFD_GET_INFO: _IOWR(0xFF, 11, struct pidfd_info)."""

_EXIT = 1 << 3
"""PIDFD_INFO_EXIT."""


def wait_status(proc: Proc, pid: int, start_ticks: int, pidfd: int | None) -> int | None:
    """How this process ended, None where that cannot be seen; it may be reaped at any moment."""
    told = _by_pidfd(pidfd)
    if told is None:
        told = proc.wait_status(pid, start_ticks)
    return _by_pidfd(pidfd) if told is None else told


def _by_pidfd(pidfd: int | None) -> int | None:
    if pidfd is None:
        return None
    info = bytearray(_INFO.pack(_EXIT, *(0,) * 13))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, info)
    except OSError:
        return None
    mask, *_, exit_code = _INFO.unpack(info)
    return int(exit_code) if mask & _EXIT else None


MOST_DIRECTORIES = 4096
"""How many are looked through. The kubelet runs 110 pods by default, and removes the directories of dead ones."""


class Pods:
    """The pods of this node that have logs."""

    def __init__(self, directory: Path, *, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._wanted: frozenset[str] = frozenset()

    def watch(self, uids: frozenset[str]) -> None:
        """Say which pods' names are wanted, from the next look on."""
        self._wanted = uids

    def collect(self) -> Reading:
        """The names of the pods that are wanted, where they can be had; the directory is left alone where none is."""
        wanted = self._wanted
        if not wanted:
            return Reading()
        try:
            with os.scandir(self._directory) as entries:
                names = [entry.name for entry in islice(entries, MOST_DIRECTORIES)]
        except (FileNotFoundError, NotADirectoryError):
            return Reading()
        except OSError as error:
            return Reading(problem=of_error(self._directory, error))
        return Reading(tuple(self._named(names, wanted)))

    def _named(self, directories: Iterable[str], wanted: frozenset[str]) -> Iterable[PodFound]:
        for found in map(parse_pod_directory, sorted(directories)):
            if found is not None and found.uid in wanted:
                yield PodFound(at=self._clock.now(), uid=found.uid, name=found.name, namespace=found.namespace)


PID_FILES_SECONDS = 1.0
MISSING_SECONDS = 0.2
"""How often pid files are looked at, and while a daemon is missing: for one that comes back much is to be done."""

RECHECK_SECONDS = 5.0
"""How often identities are compared, where a pidfd could not be had, and PIDs that were not found are tried again."""

MOST_HELD = 512
"""How many processes are held by a pidfd where nobody says; the others' identities are compared."""


def affordable_pidfds() -> int:
    """Half of the descriptors that this process may have (RLIMIT_NOFILE): the rest is for files, sockets and pipes."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_HELD if allowed == resource.RLIM_INFINITY else allowed // 2


class Processes:
    """Watches the processes that the core asks for, and the control daemons behind their pid files."""

    def __init__(
        self,
        pipe_directories: Mapping[str, Path],
        *,
        proc: Path,
        clock: Clock,
        wait: float = 0.2,
        most_held: int = MOST_HELD,
    ) -> None:
        """`pipe_directories` has the pipe directory of each daemon, by its name; `wait` bounds one look, in seconds.

        At most `most_held` processes are held by a pidfd at a time.
        """
        self._proc = Proc(proc, clock)
        self._pid_files = PidFiles(self._proc, clock)
        self.witnesses = DaemonHealth(self._proc, self._pid_files, clock)
        """What else tells of the control daemons: it is told what is wanted, and looked at with the rest."""
        self._locations: Mapping[str, DaemonLocation] = {
            name: on_host(name, directory, directory) for name, directory in pipe_directories.items()
        }
        self._clock = clock
        self._wait = wait
        self._most_held = most_held
        self._wanted: frozenset[int] = frozenset()
        self._known: dict[int, int] = {}
        self._pidfds: dict[int, int] = {}
        self._poll = select.poll()
        self._unseen: dict[int, float] = {}
        self._pid_files_due = 0.0
        self._looked_at: Mapping[str, DaemonLocation] = {}
        self._recheck_due = 0.0

    def watch(self, pids: frozenset[int]) -> None:
        """Say whose facts are wanted and whose exit is news, from the next look on."""
        self._wanted = pids

    def set_locations(self, locations: Mapping[str, DaemonLocation]) -> None:
        """Say which daemons there are, by name, from the next look on."""
        self._locations = locations

    def collect(self) -> Reading:
        """What is new since the last look. Waits up to `wait` seconds for an exit."""
        wanted = self._wanted
        for pid in [pid for pid in self._known if pid not in wanted]:
            self._forget(pid)
        now = self._clock.monotonic()
        seen: list[Observation] = [reading for pid in self._unmet(wanted, now) if (reading := self._meet(pid, now))]
        locations = self._locations
        if now >= self._pid_files_due or locations != self._looked_at:
            self._looked_at = locations
            seen.extend(self._daemons_changed(locations, now))
        seen.extend(self.witnesses.changed(locations))
        if now >= self._recheck_due:
            self._recheck_due = now + RECHECK_SECONDS
            seen.extend(self._exits(self._replaced()))
        ended = self._ended(0.0 if seen else min(self._wait, self._pid_files_period))
        if ended:
            # Before the exit of a daemon is reported, its directory shows whether it was a quit.
            seen.extend(self._daemons_changed(locations, self._clock.monotonic()))
            seen.extend(self._exits(ended))
        return Reading(tuple(seen), self._pid_files.problem)

    def _daemons_changed(self, locations: Mapping[str, DaemonLocation], now: float) -> list[DaemonProcess]:
        changed = self._pid_files.changed(locations)
        self._pid_files_due = now + self._pid_files_period
        return changed

    @property
    def _pid_files_period(self) -> float:
        return PID_FILES_SECONDS if self._pid_files.all_found else MISSING_SECONDS

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
        if len(self._pidfds) < self._most_held:
            self._hold(pid)
        reading = self._proc.facts(pid)
        if reading is None:
            self._forget(pid)
            self._unseen[pid] = now + RECHECK_SECONDS
            return None
        self._known[pid] = reading.start_ticks
        return replace(reading, environment=self._proc.variables(pid, CLIENT_LIMITS, intact=True))

    def _hold(self, pid: int) -> None:
        with contextlib.suppress(OSError, OverflowError):
            self._pidfds[pid] = os.pidfd_open(pid)
            self._poll.register(self._pidfds[pid], select.POLLIN)

    def _replaced(self) -> list[int]:
        """The processes that are not held by a pidfd and are no longer who they were."""
        loose = (pid for pid in self._known if pid not in self._pidfds)
        return [pid for pid in loose if self._proc.start_ticks(pid) != self._known[pid]]

    def _ended(self, timeout: float) -> list[int]:
        """The watched processes that have exited, waiting for one if none has."""
        ended = {descriptor for descriptor, _ in self._poll.poll(timeout * 1000)}
        return [pid for pid, descriptor in self._pidfds.items() if descriptor in ended] if ended else []

    def _exits(self, pids: Iterable[int]) -> list[ProcessExit]:
        """Tell of processes that have gone, and watch them no more.

        The eldest first: a daemon before the servers that died with it, and these before their clients.
        """
        exits: list[ProcessExit] = []
        for pid in sorted(pids, key=lambda pid: (self._known[pid], pid)):
            ticks = self._known[pid]
            status = wait_status(self._proc, pid, ticks, self._pidfds.get(pid))
            exits.append(ProcessExit(at=self._clock.now(), pid=pid, start_ticks=ticks, wait_status=status))
            self._forget(pid)
        return exits

    def _forget(self, pid: int) -> None:
        self._known.pop(pid, None)
        descriptor = self._pidfds.pop(pid, None)
        if descriptor is not None:
            self._poll.unregister(descriptor)
            os.close(descriptor)
