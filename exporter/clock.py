"""Time, behind a Protocol, so that nothing else reads a clock."""

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for what is told to people, monotonic time for deadlines."""

    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""
        return time.monotonic()
