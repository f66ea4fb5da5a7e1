"""PIDs of another PID namespace, translated to this one."""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from exporter.clock import Clock
from exporter.collectors.proc import Proc

REMEMBERED_SECONDS = 600.0
"""How long a process that has gone is remembered: a log tells of its end when it is no more."""

MOST_REMEMBERED = 4096

DISREGARDED_SECONDS = 10.0
"""How long a PID that was another namespace's is passed over; somebody else may have it by then."""


@dataclass(frozen=True, slots=True)
class _Member:
    """A process of the namespace; not `sure` where it may be of another one as deep."""

    pid: int
    start_ticks: int
    inner: int
    sure: bool


class PidNamespace:
    """The processes of the namespace that a daemon lives in. May be asked from several threads."""

    def __init__(self, proc: Proc, daemon_pid: int, clock: Clock) -> None:
        self._proc = proc
        self._clock = clock
        self._depth = len(proc.namespaced_pids(daemon_pid))
        self._inode = proc.pid_namespace(daemon_pid)
        self._lock = threading.Lock()
        self._living: dict[int, _Member | None] = {}
        """All processes of this /proc, by PID; None for those that are not of the namespace."""
        self._disregarded_since = clock.monotonic()
        self._dead: dict[_Member, float] = {}
        self._outer: Mapping[int, int] = {}
        self._inner: Mapping[int, int] = {}
        with self._lock:
            self._scan()

    def meet(self, numbers: Iterable[int]) -> None:
        """Look for those of these PIDs there that are not known yet."""
        with self._lock:
            if any(number not in self._outer for number in numbers):
                self._scan()

    def outer(self, numbers: Iterable[int]) -> Mapping[int, int]:
        """The PIDs here of those numbers that are known to be PIDs there."""
        known = self._outer
        return {number: known[number] for number in numbers if number in known}

    def inner(self, pid: int) -> int | None:
        """The PID there of a process here that lives; None where it has none. A negative one is not known here."""
        if pid < 0:
            return -pid
        return self._inner.get(pid)

    def is_of(self, pid: int) -> bool:
        """Whether a process lives in this namespace itself, not in one below it."""
        numbers = self._proc.namespaced_pids(pid)
        return len(numbers) == self._depth and self._proc.pid_namespace(pid) == self._inode

    def _scan(self) -> None:
        """Meet who is new, part with who has gone. Only who is new costs more than a name in a list."""
        now = self._clock.monotonic()
        if now - self._disregarded_since > DISREGARDED_SECONDS:
            self._disregarded_since = now
            self._living = {pid: member for pid, member in self._living.items() if member is not None}
        present = set(self._proc.pids())
        for pid, member in list(self._living.items()):
            if pid not in present or (member and self._proc.start_ticks(pid) != member.start_ticks):
                del self._living[pid]
                if member:
                    self._dead[member] = now
        for pid in present - self._living.keys():
            self._living[pid] = self._meet(pid)
        self._dead = {each: at for each, at in self._dead.items() if now - at < REMEMBERED_SECONDS}
        for eldest in list(self._dead)[:-MOST_REMEMBERED]:
            del self._dead[eldest]
        known = self._by_inner()
        self._outer = {inner: member.pid for inner, member in known.items()}
        self._inner = {member.pid: inner for inner, member in known.items() if self._living.get(member.pid) == member}

    def _meet(self, pid: int) -> _Member | None:
        numbers = self._proc.namespaced_pids(pid)
        start_ticks = self._proc.start_ticks(pid)
        if len(numbers) < self._depth or start_ticks is None:
            return None
        inode = self._proc.pid_namespace(pid, above=len(numbers) - self._depth)
        if inode is not None and self._inode is not None and inode != self._inode:
            return None
        sure = inode is not None and inode == self._inode
        return _Member(pid, start_ticks, numbers[self._depth - 1], sure)

    def _by_inner(self) -> Mapping[int, _Member]:
        """Of several with one number, the youngest that is surely of the namespace; an unsure one only if alone."""
        chosen: dict[int, _Member | None] = {}
        for member in (*self._dead, *filter(None, self._living.values())):
            rival = chosen.get(member.inner, member)
            if rival is member or (member.sure and not (rival and rival.sure)):
                chosen[member.inner] = member
            elif member.sure and rival is not None:
                chosen[member.inner] = max(rival, member, key=lambda each: each.start_ticks)
            elif not (rival and rival.sure):
                chosen[member.inner] = None
        return {inner: member for inner, member in chosen.items() if member is not None}
