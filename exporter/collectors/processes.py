"""Watches processes: identity, state, exit, exit status and address ranges."""

import contextlib
import fcntl
import os
import resource
import select
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from exporter.clock import Clock
from exporter.collectors.proc import Presence, Proc
from exporter.collectors.thread import Reading
from exporter.collectors.workload_processes import SEARCH_SECONDS, WorkloadProcesses
from exporter.model import observation as kinds
from exporter.model.identity import ProcessIdentity
from exporter.model.observation import AddressWant, ProcessExit, ProcessReading, ProcessState
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import CLIENT_LIMITS
from exporter.parse.mps_variables import CORE_DUMPS
from exporter.parse.proc import is_exiting

_INFO = struct.Struct("=QQ11Ii")
"""The first version of struct pidfd_info (include/uapi/linux/pidfd.h): first `mask`, last `exit_code`."""

_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11  # PIDFD_GET_INFO: _IOWR(0xFF, 11, struct pidfd_info)
_EXIT = 1 << 3  # PIDFD_INFO_EXIT


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


STATES_SECONDS = 0.4  # least time between two readings of the states of processes

_STUCK = "D"
_NORMAL = frozenset("RSI")
"""A healthy process alternates between these states all the time, so they count as one."""

RECHECK_SECONDS = 5.0
"""How often identities are compared if there is no pidfd, and processes that were not found are searched again."""

EXEC_SECONDS = 2.0
"""A process that is younger may be read before or during execve(2), so it is read again after this time."""

MAX_PIDFDS = 512  # How many processes have a pidfd by default. The identities of the others are compared.


MOST_FILES = 8192
"""To this number the soft limit of open files is raised. Children get it too, which NVIDIA recommends for daemons."""


def raise_open_file_limit() -> None:
    """Raise the soft limit of open files as far as the hard limit permits, up to `MOST_FILES`."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if most == resource.RLIM_INFINITY else min(MOST_FILES, most)
    if resource.RLIM_INFINITY != allowed < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def affordable_pidfds() -> int:
    """Return half of the allowed descriptors (RLIMIT_NOFILE)."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_PIDFDS if allowed == resource.RLIM_INFINITY else allowed // 2


def affordable_connections() -> int:
    """Return a quarter of the allowed descriptors: whatever users open, another is left for files and listeners."""
    return max(1, affordable_pidfds() // 2)


def wait_channel(proc: Proc, pid: int) -> str | None:
    """Return the kernel function in which a process sleeps; None if the exporter may not read it (as with ptrace)."""
    channel = proc.text(pid, "wchan")
    return None if channel in ("", "0") else channel


class Processes:
    """Watches the wanted processes. All daemons need it, so it opens nothing that another user can make hang."""

    def __init__(
        self,
        *,
        proc: Path,
        clock: Clock,
        wait: float = 0.2,
        max_pidfds: int = MAX_PIDFDS,
        workloads: WorkloadProcesses | None = None,
    ) -> None:
        """`wait` limits one collection, in seconds."""
        self._proc = Proc(proc, clock)
        self._workloads = workloads or WorkloadProcesses(self._proc, clock)
        self._clock = clock
        self._wait = wait
        self._max_pidfds = max_pidfds
        self._wanted: frozenset[int] = frozenset()
        self._started: Mapping[int, int] = {}
        self._known: dict[int, int] = {}
        """The start time of each watched process."""
        self._parents: dict[int, ProcessIdentity | None] = {}
        self._pidfds: dict[int, int] = {}
        self._poll = select.epoll()
        self._retry_at: dict[int, float] = {}
        """When each process that was not found is searched again."""
        self._again: dict[int, tuple[float, ProcessReading]] = {}
        """When each process is read again, as far as it may have changed, and its last reading."""
        self._recheck_due = 0.0
        self._unknown: frozenset[int] = frozenset()
        """Processes of which it is unknown whether they run."""
        self._wanted_states: frozenset[int] = frozenset()
        self._read_states: frozenset[int] = frozenset()
        self._states_due = 0.0
        self._states: dict[int, ProcessState] = {}

    def watch(
        self, pids: frozenset[int], states: frozenset[int] = frozenset(), started: Mapping[int, int] | None = None
    ) -> None:
        """Set the processes to identify and whose exit to report, and those with a wanted state.

        `started` has the start times of those that another collector has identified in this PID namespace.
        """
        self._wanted, self._wanted_states, self._started = pids, states, started or {}

    def collect(self) -> Reading:
        """Return what is new since the last collection. Wait up to `wait` seconds for an exit."""
        wanted = self._wanted
        for pid in self._known.keys() - wanted:
            self._forget(pid)
        now = self._clock.monotonic()
        observations: list[kinds.Observation] = [*self._executed(now), *self._new_processes(wanted, now)]
        observations += self._changed_states(now)
        problem = None
        if now >= self._recheck_due:
            self._recheck_due = now + RECHECK_SECONDS
            without_pidfd = [pid for pid in self._known if pid not in self._pidfds]
            presences = {pid: self._proc.presence(pid, self._known[pid]) for pid in without_pidfd}
            observations += self._exits(pid for pid, presence in presences.items() if presence is Presence.ENDED)
            for pid, presence in presences.items():
                # There may be a free descriptor by now.
                if presence is Presence.RUNNING and len(self._pidfds) < self._max_pidfds:
                    with contextlib.suppress(OSError):
                        descriptor = os.pidfd_open(pid)
                        if self._proc.presence(pid, self._known[pid]) is Presence.RUNNING:
                            self._pidfds[pid] = descriptor
                            self._poll.register(descriptor, select.EPOLLIN)
                        else:
                            os.close(descriptor)
            self._unknown = frozenset(pid for pid, presence in presences.items() if presence is Presence.UNKNOWN)
        if self._unknown:
            problem = Reason(ReasonCode.PROCESSES_NOT_READABLE, pid=min(self._unknown))
        ended = {descriptor for descriptor, _ in self._poll.poll(0.0 if observations else self._wait)}
        pids = {pid for pid, descriptor in self._pidfds.items() if descriptor in ended}
        observations += self._exits(pids | set(self._ending_parents(pids)))
        return Reading(tuple(observations), problem)

    def close(self) -> None:
        """Close all pidfds."""
        for pid in list(self._known):
            self._forget(pid)
        self._poll.close()

    def _changed_states(self, now: float) -> list[ProcessState]:
        """Return the wanted states that are new or have changed. Newly wanted ones are read at once."""
        wanted = self._wanted_states
        if now < self._states_due and wanted == self._read_states:
            return []
        self._states_due, self._read_states = now + STATES_SECONDS, wanted
        before, self._states = self._states, {}
        for pid in wanted:
            standing = self._proc.standing(pid)
            if standing is not None:
                start_ticks, state, faults = standing
                self._states[pid] = ProcessState(
                    at=self._clock.now(),
                    pid=pid,
                    start_ticks=start_ticks,
                    state=state,
                    wait_channel=wait_channel(self._proc, pid) if state == _STUCK else None,
                    children_page_faults=faults,
                )
        return [
            state
            for pid, state in self._states.items()
            if pid not in before or _condition(before[pid]) != _condition(state)
        ]

    def _new_processes(self, wanted: frozenset[int], now: float) -> Iterator[ProcessReading | ProcessExit]:
        """Identify the wanted processes that are not known.

        A PID that is not in this /proc may be of another PID namespace. It is an exit if the process was there before.
        """
        self._retry_at = {pid: due for pid, due in self._retry_at.items() if pid in wanted}
        for pid in [pid for pid in wanted if pid not in self._known and self._retry_at.get(pid, now) <= now]:
            # The pidfd is opened first: what is read then is of the process of the pidfd.
            if len(self._pidfds) < self._max_pidfds:
                with contextlib.suppress(OSError, OverflowError):
                    self._pidfds[pid] = os.pidfd_open(pid)
                    self._poll.register(self._pidfds[pid], select.EPOLLIN)
            reading = self._read(pid)
            if reading is None:
                self._forget(pid)
                self._retry_at[pid] = now + RECHECK_SECONDS
                started = self._started.get(pid)
                if started is not None and self._proc.presence(pid, started) is Presence.ENDED:
                    yield ProcessExit(at=self._clock.now(), pid=pid, start_ticks=started)
            else:
                self._known[pid], self._parents[pid] = reading.start_ticks, reading.parent
                is_young = reading.at - reading.started < EXEC_SECONDS
                self._again[pid] = (now + (EXEC_SECONDS if is_young else SEARCH_SECONDS), reading)
                yield reading

    def _executed(self, now: float) -> Iterator[ProcessReading]:
        """Read some processes again, and report those that run another program, or have other known values."""
        for pid in [pid for pid, (due, _) in self._again.items() if due <= now]:
            _, before = self._again.pop(pid)
            if before.at - before.started < EXEC_SECONDS or self._workloads.may_know_more(before):
                after = self._read(pid)
            else:
                users, at = self._workloads.unit_users(before), self._clock.now()
                after = None if users == before.unit_users else replace(before, at=at, unit_users=users)
            if after is None:  # It cannot be read now, or has not changed.
                self._again[pid] = (now + SEARCH_SECONDS, before)
            elif after.start_ticks == before.start_ticks:
                after = replace(after, started=before.started, parent=before.parent)
                self._again[pid] = (now + SEARCH_SECONDS, after)
                if after != replace(before, at=after.at):
                    yield after

    def _read(self, pid: int) -> ProcessReading | None:
        reading = None
        with contextlib.suppress(OSError):
            reading = self._proc.facts(pid)
        if reading is None:
            return None
        return replace(
            reading,
            environment=self._proc.variables(pid, (*CLIENT_LIMITS, *CORE_DUMPS)),
            job_source=self._workloads.job_source(reading.cgroup, pid),
            unit_users=self._workloads.unit_users(reading),
        )

    def _ending_parents(self, pids: Iterable[int]) -> Iterator[int]:
        """Wait for parents that are ending too.

        The kernel closes a daemon's connections before the daemon has ended, so its server can be seen to end first.
        """
        parents = {identity.pid for pid in pids if (identity := self._parents.get(pid)) is not None}
        for parent in parents & self._pidfds.keys():
            if is_exiting(self._proc.text(parent, "stat") or ""):
                end = select.poll()
                end.register(self._pidfds[parent], select.POLLIN)
                if end.poll(self._wait * 1000):
                    yield parent

    def _exits(self, pids: Iterable[int]) -> Iterator[ProcessExit]:
        """Report exits, the oldest process first: a daemon before its servers, and these before their clients."""
        for pid in sorted(pids, key=lambda pid: (self._known[pid], pid)):
            ticks = self._known[pid]
            status = wait_status(self._proc, pid, ticks, self._pidfds.get(pid))
            yield ProcessExit(at=self._clock.now(), pid=pid, start_ticks=ticks, wait_status=status)
            self._forget(pid)

    def _forget(self, pid: int) -> None:
        self._known.pop(pid, None)
        self._parents.pop(pid, None)
        self._again.pop(pid, None)
        descriptor = self._pidfds.pop(pid, None)
        if descriptor is not None:
            self._poll.unregister(descriptor)
            os.close(descriptor)


def _condition(state: ProcessState) -> tuple[int, str, int | None]:
    return state.start_ticks, "S" if state.state in _NORMAL else state.state, state.children_page_faults


# -- Address ranges of clients, which show whose pointer an illegal access used ----------------------------------------

READ_SECONDS = 60.0  # ranges that did not seem to change are read so often
CHANGED_SECONDS = 5.0  # ranges of a client whose GPU memory changed are read at most so often

FAULT_SECONDS = 1.0
"""After a reading for a fault, that for the next fault waits so long: a process beside MPS can cause many."""


class _Read(NamedTuple):
    """For what a process was last read, when, and whether a fault was the reason."""

    want: AddressWant
    at: float
    for_fault: bool


class AddressRangesCollector:
    """Reads a client when it appears, when its GPU memory changes, after a fault on its GPU, and every minute."""

    def __init__(self, proc: Proc, clock: Clock, wanted: Callable[[], Mapping[int, AddressWant]]) -> None:
        """`wanted` returns what to read, by PID."""
        self._proc = proc
        self._clock = clock
        self._wanted = wanted
        self._read: dict[int, _Read] = {}

    def collect(self) -> Reading:
        """Return the ranges that are due. A process that cannot be read is no problem: its ranges stay unknown."""
        wanted, now = self._wanted(), self._clock.monotonic()
        self._read = {pid: read for pid, read in self._read.items() if pid in wanted}
        found: list[kinds.AddressRanges] = []
        for pid, want in wanted.items():
            read = self._read.get(pid)
            for_fault = read is not None and want.fault_at > read.want.fault_at
            if read is None or self._is_due(read, want, now, for_fault=for_fault):
                self._read[pid] = _Read(want, now, for_fault)
                ranges = self._proc.address_ranges(pid, want.start_ticks)
                found += [] if ranges is None else [ranges]
        return Reading(tuple(found), routine=not any(each.for_fault for each in self._read.values()))

    @staticmethod
    def _is_due(read: _Read, want: AddressWant, now: float, *, for_fault: bool) -> bool:
        if read.want.start_ticks != want.start_ticks:
            return True
        if for_fault:
            return not read.for_fault or now - read.at >= FAULT_SECONDS
        return now - read.at >= (READ_SECONDS if read.want.memory == want.memory else CHANGED_SECONDS)
