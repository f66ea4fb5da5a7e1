"""How long each client's kernels last: what is believed, how sure that is, and how it is learned.

A client's SM time in a window is the widths of the kernels that it launched times how long these last on the average.
That length is known in so far as it was seen: in bursts at whose end the GPU was behind, or since all clients together
made up what the device measured. It is what a Kalman filter is for: a belief is a normal distribution, and each window
is a measurement. Lengths are in nanoseconds.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import mul

FORGETTING = 0.002
"""The process noise: by so much of its length a belief becomes unsure in a second, as what a client does changes."""

Rows = tuple[tuple[float, ...], ...]

CREDIBLE = 3.0
"""What is measured is credible within so many standard errors; what is not shows that somebody does something else."""

LEAST_DOUBT = 3e-5
"""A measurement is taken to have at least this part of the deviations of the beliefs in it, added up. With less, what
is left of a variance would be lost in rounding, and a correlation could be more than 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beliefs:
    """The expected lengths, and their covariances, each in the order of `pids`."""

    pids: tuple[int, ...] = ()
    lengths: tuple[float, ...] = ()
    covariances: Rows = ()
    places: Mapping[int, int] = field(default_factory=dict)

    def length(self, pid: int) -> float | None:
        """What is believed of one; None where nothing is."""
        place = self.places.get(pid)
        return None if place is None else self.lengths[place]

    def deviation(self, pid: int) -> float:
        """How unsure that is: one standard deviation."""
        place = self.places[pid]
        return math.sqrt(max(0.0, self.covariances[place][place]))

    def together(self, weights: Mapping[int, float]) -> dict[int, float]:
        """The covariance of each length with the sum of all lengths, weighted so."""
        by_place = self._by_place(weights)
        return {pid: sum(map(mul, row, by_place)) for pid, row in zip(self.pids, self.covariances, strict=True)}

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
        """After so many seconds: each length may have changed by FORGETTING of itself, as in a random walk."""
        part = FORGETTING**2 * seconds
        rows = tuple(
            (*row[:place], row[place] + part * self.lengths[place] ** 2, *row[place + 1 :])
            for place, row in enumerate(self.covariances)
        )
        return Beliefs(pids=self.pids, lengths=self.lengths, covariances=rows, places=self.places)

    def unsure(self, pid: int, deviation: float) -> "Beliefs":
        """As before, but with at least this deviation of this one: what it does has changed."""
        place, least = self.places[pid], deviation**2
        row = self.covariances[place]
        row = (*row[:place], max(row[place], least), *row[place + 1 :])
        rows = (*self.covariances[:place], row, *self.covariances[place + 1 :])
        return Beliefs(pids=self.pids, lengths=self.lengths, covariances=rows, places=self.places)

    def shaken(self, weights: Mapping[int, float], value: float, deviation: float) -> "Beliefs":
        """As before, but with all covariances so much larger that a measurement as in `measured` is just credible."""
        by_place = self._by_place(weights)
        surprise = value - sum(map(mul, self.lengths, by_place))
        believed = sum(own * sum(map(mul, row, by_place)) for own, row in zip(by_place, self.covariances, strict=True))
        credible = (surprise / CREDIBLE) ** 2 - deviation**2
        if not 0 < believed < credible:
            return self
        rows = tuple(tuple(each * (credible / believed) for each in row) for row in self.covariances)
        return Beliefs(pids=self.pids, lengths=self.lengths, covariances=rows, places=self.places)

    def measured(self, weights: Mapping[int, float], value: float, deviation: float) -> "Beliefs":
        """After measuring the sum of all lengths, weighted so, with this deviation: the update of a Kalman filter."""
        by_place = self._by_place(weights)
        spread = [sum(map(mul, row, by_place)) for row in self.covariances]
        unsure = sum(weight * self.deviation(pid) for weight, pid in zip(by_place, self.pids, strict=True))
        total = sum(map(mul, spread, by_place)) + max(deviation, LEAST_DOUBT * unsure) ** 2
        if not any(by_place) or total <= 0:
            return self
        surprise = (value - sum(map(mul, self.lengths, by_place))) / total
        lengths = (length + each * surprise for length, each in zip(self.lengths, spread, strict=True))
        scale = math.sqrt(total)
        learnt = [each / scale for each in spread]
        rows = tuple(_less(row, own, learnt) for row, own in zip(self.covariances, learnt, strict=True))
        return Beliefs(
            pids=self.pids,
            lengths=tuple(max(0.0, length) for length in lengths),
            covariances=rows,
            places=self.places,
        )

    def _by_place(self, weights: Mapping[int, float]) -> list[float]:
        return [weights.get(pid, 0.0) for pid in self.pids]


def _less(row: tuple[float, ...], own: float, learnt: Sequence[float]) -> tuple[float, ...]:
    """A row of covariances after a measurement. The products are the same both ways, so that they stay symmetric."""
    return tuple(old - own * each for old, each in zip(row, learnt, strict=True)) if own else row
