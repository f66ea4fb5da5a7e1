"""How slow the machine is, measured by a program that does the same each time."""

import subprocess
import sys
import time

from tests.chaos.poller import Poller

REFERENCE = (sys.executable, "-I", "-S", "-c", "pass")
"""A control command of the stand-in is a program of Python too."""

EVERY_SECONDS = 0.5
AT_REST = 5
"""The quickest of so many runs is what the program takes on an idle machine."""


class Slowness(Poller):
    """A thread that runs the reference program twice a second."""

    def __init__(self) -> None:
        super().__init__(EVERY_SECONDS)
        self._quickest = min(_run_once() for _ in range(AT_REST))
        self._samples: list[tuple[float, float]] = []

    def since(self, began: float) -> float:
        """Return how many times longer than the quickest run the slowest took since a time of the monotonic clock."""
        return max((taken / self._quickest for at, taken in list(self._samples) if at >= began), default=1.0)

    def look(self) -> None:
        """Run it once."""
        taken = _run_once()
        self._samples.append((time.monotonic(), taken))
        self._quickest = min(self._quickest, taken)


def _run_once() -> float:
    began = time.monotonic()
    subprocess.run(REFERENCE, check=True)
    return time.monotonic() - began
