"""A count over time, told now and then."""

import bisect
from collections.abc import Sequence


class Series:
    """Between two tellings it grows evenly; before the first and after the last it does not."""

    def __init__(self, told: Sequence[tuple[float, float]]) -> None:
        self._times = [time for time, _ in told]
        self._values = [value for _, value in told]

    @property
    def span(self) -> tuple[float, float]:
        """From the first telling to the last."""
        return (self._times[0], self._times[-1]) if self._times else (0.0, 0.0)

    def between(self, begin: float, end: float) -> float:
        """How much it grew."""
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
