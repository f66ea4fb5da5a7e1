"""Time that stands still until a test says otherwise."""

from dataclasses import dataclass


@dataclass(slots=True)
class HandClock:
    """Time that passes when a test says so."""

    time: float = 1000.0

    def now(self) -> float:
        """Seconds since the epoch."""
        return self.time

    def monotonic(self) -> float:
        """The same."""
        return self.time

    def step(self) -> float:
        """Nobody sets it."""
        return 0.0
