"""PIDs of another PID namespace, translated to this one."""

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from exporter.clock import Clock
from exporter.collectors.proc import Presence, Proc

REMEMBERED_SECONDS = 600.0
"""How long an ended process is remembered: a log reports its end later."""

MOST_REMEMBERED = 4096

IGNORED_SECONDS = 10.0
"""How long a PID of another namespace is ignored. A process of this namespace may have it later."""


@dataclass(frozen=True, slots=True)
class _Member:
    """A process of the namespace. It is not `certain` if it may be in another namespace of the same depth."""

    pid: int
    start_ticks: int
    inner: int
    certain: bool


class PidNamespace:
    """The processes of a daemon's PID namespace. Several threads may use it."""

    def __init__(self, proc: Proc, daemon_pid: int, clock: Clock) -> None:
        self._proc = proc
        self._clock = clock
        self._depth = len(proc.namespaced_pids(daemon_pid))
        self._inode = proc.pid_namespace(daemon_pid)
        self._lock = threading.Lock()
        self._living: dict[int, _Member | None] = {}
        """All processes of /proc by PID; None for those of other namespaces."""
        self._ignored_since = clock.monotonic()
        self._ended: dict[_Member, float] = {}
        self._outer: Mapping[int, int] = {}
        self._inner: Mapping[int, int] = {}
        with self._lock:
            self._scan()

    def update(self, numbers: Iterable[int]) -> None:
        """Look for new processes if one of these PIDs of the namespace is unknown."""
        with self._lock:
            if any(number not in self._outer for number in numbers):
                self._scan()

    def outer(self, numbers: Iterable[int]) -> Mapping[int, int]:
        """Return the PIDs in /proc of those numbers that are known PIDs of the namespace."""
        known = self._outer
        return {number: known[number] for number in numbers if number in known}

    def inner(self, pid: int) -> int | None:
        """Return the PID in the namespace of a living process. A negative `pid` is one of the namespace already."""
        return -pid if pid < 0 else self._inner.get(pid)

    def contains(self, pid: int) -> bool:
        """Return whether a process is in this namespace itself, not in one below it."""
        numbers = self._proc.namespaced_pids(pid)
        return len(numbers) == self._depth and self._proc.pid_namespace(pid) == self._inode

    def _scan(self) -> None:
        """Add new processes and remove ended ones. A process that is known costs only a name in a list."""
        now = self._clock.monotonic()
        if now - self._ignored_since > IGNORED_SECONDS:
            self._ignored_since = now
            self._living = {pid: member for pid, member in self._living.items() if member is not None}
        try:
            present = set(self._proc.pids())
        except OSError:
            return
        for pid, member in list(self._living.items()):
            if self._proc.presence(pid, member.start_ticks) is Presence.ENDED if member else pid not in present:
                del self._living[pid]
                if member:
                    self._ended[member] = now
        for pid in present - self._living.keys():
            self._living[pid] = self._member(pid)
        self._ended = {each: at for each, at in self._ended.items() if now - at < REMEMBERED_SECONDS}
        for oldest in list(self._ended)[:-MOST_REMEMBERED]:
            del self._ended[oldest]
        known = self._by_inner()
        self._outer = {inner: member.pid for inner, member in known.items()}
        self._inner = {member.pid: inner for inner, member in known.items() if self._living.get(member.pid) == member}

    def _member(self, pid: int) -> _Member | None:
        numbers = self._proc.namespaced_pids(pid)
        start_ticks = self._proc.start_ticks(pid)
        if len(numbers) < self._depth or start_ticks is None:
            return None
        inode = self._proc.pid_namespace(pid, above=len(numbers) - self._depth)
        if inode is not None and self._inode is not None and inode != self._inode:
            return None
        certain = inode is not None and inode == self._inode
        return _Member(pid, start_ticks, numbers[self._depth - 1], certain)

    def _by_inner(self) -> Mapping[int, _Member]:
        """Return one process for each PID: the youngest that is certain, or the only one if none is certain."""
        candidates: defaultdict[int, list[_Member]] = defaultdict(list)
        for member in (*self._ended, *filter(None, self._living.values())):
            candidates[member.inner].append(member)
        known: dict[int, _Member] = {}
        for inner, members in candidates.items():
            certain = [each for each in members if each.certain]
            if certain or len(members) == 1:
                known[inner] = max(certain or members, key=lambda each: each.start_ticks)
        return known
