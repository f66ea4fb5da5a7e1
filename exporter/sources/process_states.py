"""Tells how processes of MPS stand with the scheduler, where that changes."""

from collections.abc import Iterable

from exporter.clock import Clock
from exporter.model.witnesses import ProcessState
from exporter.sources.proc import Proc

_AT_EASE = frozenset("RSI")
"""A sound process goes from one of these to the other with every breath: that is no news."""


class ProcessStates:
    """What /proc/PID/stat says of each, as it was last told."""

    def __init__(self, proc: Proc, clock: Clock) -> None:
        self._proc = proc
        self._clock = clock
        self._told: dict[int, tuple[int, str]] = {}

    def changed(self, pids: Iterable[int]) -> list[ProcessState]:
        """Those that stand otherwise than at the last look, or are new. One that has gone is not told of."""
        now = {pid: standing for pid in pids if (standing := self._proc.standing(pid)) is not None}
        news = [pid for pid, standing in now.items() if _class_of(self._told.get(pid)) != _class_of(standing)]
        self._told = now
        at = self._clock.now()
        return [ProcessState(at=at, pid=pid, start_ticks=now[pid][0], state=now[pid][1]) for pid in news]


def _class_of(standing: tuple[int, str] | None) -> tuple[int, str] | None:
    if standing is None:
        return None
    start_ticks, state = standing
    return start_ticks, "S" if state in _AT_EASE else state
