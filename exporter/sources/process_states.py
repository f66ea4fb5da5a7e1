"""Tells how processes of MPS stand with the scheduler, where that changes."""

from collections.abc import Iterable

from exporter.clock import Clock
from exporter.model.witnesses import ProcessState
from exporter.parse.proc import children_page_faults
from exporter.sources.proc import Proc

_STUCK = "D"
_AT_EASE = frozenset("RSI")
"""A sound process goes from one of these to the other with every breath: that is no news."""


class ProcessStates:
    """What /proc/PID/stat says of each, as it was last told."""

    def __init__(self, proc: Proc, clock: Clock) -> None:
        self._proc = proc
        self._clock = clock
        self._told: dict[int, tuple[int, str]] = {}
        self._children: dict[int, int | None] = {}

    def changed(self, pids: Iterable[int]) -> list[ProcessState]:
        """Those in another state than at the last look, or with children that have ended since."""
        now = {pid: standing for pid in pids if (standing := self._proc.standing(pid)) is not None}
        children = {pid: children_page_faults(self._proc.text(pid, "stat") or "") for pid in now}
        news = [
            pid
            for pid, standing in now.items()
            if _class_of(self._told.get(pid)) != _class_of(standing) or children[pid] != self._children.get(pid)
        ]
        self._told, self._children = now, children
        at = self._clock.now()
        return [
            ProcessState(
                at=at,
                pid=pid,
                start_ticks=ticks,
                state=state,
                wait_channel=wait_channel(self._proc, pid) if state == _STUCK else None,
                children_page_faults=children[pid],
            )
            for pid, (ticks, state) in ((pid, now[pid]) for pid in news)
        ]


def wait_channel(proc: Proc, pid: int) -> str | None:
    """Return the kernel function in which a process sleeps; None without the right to see it (ptrace's, to read)."""
    channel = proc.text(pid, "wchan")
    return None if channel in ("", "0") else channel


def _class_of(standing: tuple[int, str] | None) -> tuple[int, str] | None:
    if standing is None:
        return None
    start_ticks, state = standing
    return start_ticks, "S" if state in _AT_EASE else state
