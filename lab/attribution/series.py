"""Samples of a counter."""

import bisect
from collections.abc import Sequence


class Series:
    """A counter that grows linearly between samples and is constant outside."""

    def __init__(self, samples: Sequence[tuple[float, float]]) -> None:
        self._times = [time for time, _ in samples]
        self._values = [value for _, value in samples]

    @property
    def span(self) -> tuple[float, float]:
        """Times of the first and last sample."""
        return (self._times[0], self._times[-1]) if self._times else (0.0, 0.0)

    def between(self, begin: float, end: float) -> float:
        """Return the growth between two times."""
        return self._at(end) - self._at(begin)

    def _at(self, time: float) -> float:
        if not self._times:
            return 0.0
        place = bisect.bisect_left(self._times, time)
        if place == 0:
            return self._values[0]
        if place == len(self._times):
            return self._values[-1]
        earlier, later = self._times[place - 1], self._times[place]
        part = (time - earlier) / (later - earlier)
        return self._values[place - 1] + part * (self._values[place] - self._values[place - 1])
