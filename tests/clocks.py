"""Clocks that stand still until a test advances them."""

import time
from dataclasses import dataclass


@dataclass(slots=True)
class HandClock:
    """A clock that a test advances."""

    time: float = 1000.0

    def now(self) -> float:
        """Seconds since the epoch."""
        return self.time

    def monotonic(self) -> float:
        """The same."""
        return self.time

    def step(self) -> float:
        """It is never set."""
        return 0.0


class FrozenClock:
    """Nothing becomes due, however slow the machine is; deadlines run in real time."""

    def now(self) -> float:
        """Return the same seconds since the epoch, always."""
        return 1_000_000.0

    def monotonic(self) -> float:
        """Return the machine's monotonic time."""
        return time.monotonic()

    def step(self) -> float:
        """Return 0: the clock is not set."""
        return 0.0
