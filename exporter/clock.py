"""Clocks. No other module reads the system's time."""

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Wall time to show, and monotonic time for deadlines. Both are in seconds and never go back."""

    def now(self) -> float:
        """Return the seconds since the epoch."""

    def monotonic(self) -> float:
        """Return the seconds of a monotonic clock."""

    def step(self) -> float:
        """Return by how many seconds the system's wall clock was set since this clock was created."""


class SystemClock:
    """The system's wall time when it was created, plus the time since then.

    If the wall clock is set by an hour, nothing becomes due an hour early or late.
    """

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._offset = wall() - monotonic()

    def now(self) -> float:
        """Return the seconds since the epoch."""
        return self._offset + self._monotonic()

    def monotonic(self) -> float:
        """Return the seconds of a monotonic clock."""
        return self._monotonic()

    def step(self) -> float:
        """Return by how many seconds the system's wall clock was set since this clock was created."""
        return self._wall() - self.now()


def boot_ns() -> int:
    """Return the nanoseconds since boot with suspended time, as BPF programs and start times in /proc count them."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
