"""Time, behind a Protocol, so that nothing else reads a clock."""

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Time for what is told to people, and monotonic time for deadlines."""

    def now(self) -> float:
        """Seconds since the epoch, on a clock that never goes back."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""
        ...

    def step(self) -> float:
        """By how many seconds the wall clock was set since this one began: what to add for others' clocks."""
        ...


class SystemClock:
    """The machine's wall time when this clock began, and the time that has passed since.

    So an hour set back, or forward, is no hour in which nothing is due, or all is overdue.
    """

    def __init__(self, wall: Callable[[], float] = time.time, passed: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._passed = passed
        self._began = wall() - passed()

    def now(self) -> float:
        """Seconds since the epoch, on a clock that never goes back."""
        return self._began + self._passed()

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""
        return self._passed()

    def step(self) -> float:
        """By how many seconds the wall clock was set since this one began."""
        return self._wall() - self.now()


def boot_ns() -> int:
    """Nanoseconds since boot, suspended time included: the clock of BPF programs, and of a process' start in /proc."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
