"""How long each client's kernels last: what is believed, how sure that is, and how it is learned.

A client's SM time in a window is the widths of the kernels that it launched times how long these last on the average.
That length is known in so far as it was seen: in bursts at whose end the GPU was behind, or since all clients together
made up what the device measured. It is what a Kalman filter is for: a belief is a normal distribution, and each window
is a measurement. Lengths are in nanoseconds.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

FORGETTING = 0.002
"""By how much of its length a belief becomes unsure in a second: what a client does changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beliefs:
    """The expected lengths, and their covariances, each in the order of `pids`."""

    pids: tuple[int, ...] = ()
    lengths: tuple[float, ...] = ()
    covariances: tuple[tuple[float, ...], ...] = ()
    places: Mapping[int, int] = field(default_factory=dict)

    def length(self, pid: int) -> float | None:
        """What is believed of one; None where nothing is."""
        place = self.places.get(pid)
        return None if place is None else self.lengths[place]

    def deviation(self, pid: int) -> float:
        """How unsure that is: one standard deviation."""
        place = self.places[pid]
        return math.sqrt(max(0.0, self.covariances[place][place]))

    def covariance(self, one: int, other: int) -> float:
        """How far the errors of two go together."""
        return self.covariances[self.places[one]][self.places[other]]

    def with_new(self, pid: int, length: float, deviation: float) -> "Beliefs":
        """One more is believed in, independent of the others."""
        count = len(self.pids)
        rows = (*((*row, 0.0) for row in self.covariances), (*(0.0,) * count, deviation**2))
        return Beliefs(
            pids=(*self.pids, pid),
            lengths=(*self.lengths, length),
            covariances=rows,
            places={**self.places, pid: count},
        )

    def without(self, gone: Collection[int]) -> "Beliefs":
        """Those who have gone are forgotten."""
        kept = [place for place, pid in enumerate(self.pids) if pid not in gone]
        if len(kept) == len(self.pids):
            return self
        pids = tuple(self.pids[place] for place in kept)
        return Beliefs(
            pids=pids,
            lengths=tuple(self.lengths[place] for place in kept),
            covariances=tuple(tuple(self.covariances[row][place] for place in kept) for row in kept),
            places={pid: place for place, pid in enumerate(pids)},
        )

    def aged(self, seconds: float) -> "Beliefs":
        """Somewhat less sure than so long ago."""
        part = FORGETTING**2 * seconds
        rows = tuple(
            (*row[:place], row[place] + part * self.lengths[place] ** 2, *row[place + 1 :])
            for place, row in enumerate(self.covariances)
        )
        return Beliefs(pids=self.pids, lengths=self.lengths, covariances=rows, places=self.places)

    def measured(self, weights: Mapping[int, float], value: float, deviation: float) -> "Beliefs":
        """After measuring the sum of the lengths with these weights, with such an error."""
        by_place = [(self.places[pid], weight) for pid, weight in weights.items() if weight and pid in self.places]
        if not by_place:
            return self
        spread = [sum(row[place] * weight for place, weight in by_place) for row in self.covariances]
        total = sum(spread[place] * weight for place, weight in by_place) + deviation**2
        if total <= 0:
            return self
        surprise = value - sum(self.lengths[place] * weight for place, weight in by_place)
        gains = [each / total for each in spread]
        return Beliefs(
            pids=self.pids,
            lengths=tuple(max(0.0, length + gain * surprise) for length, gain in zip(self.lengths, gains, strict=True)),
            covariances=tuple(
                tuple(old - gain * each for old, each in zip(row, spread, strict=True))
                for row, gain in zip(self.covariances, gains, strict=True)
            ),
            places=self.places,
        )
