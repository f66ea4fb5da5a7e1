"""Estimates of a number for each client, by what each did itself and by measured sums over all of them."""

import math
from collections.abc import Collection, KeysView, Mapping, Sequence
from dataclasses import field
from operator import add, mul
from typing import NamedTuple

from exporter.model.values import frozen, replace

HALF_LIFE_SECONDS = 60.0  # An older measurement counts half as much.

CHANGED_ERRORS = 4.0
"""A measurement that is further from the expectation, in standard errors, contradicts the earlier ones and is not used.
If the next one contradicts them too, a client does something else now, and the earlier ones are dropped."""

ERROR_FACTOR, FACTOR_WEIGHT = 3.0, 3.0
"""The standard errors of measurements are multiplied by a factor that their residuals show, at least 1. It starts at
ERROR_FACTOR, which counts as much as FACTOR_WEIGHT measurements."""

LARGEST_QUOTIENT = 1e5
"""Largest quotient of the standard error by what a client did itself and that by the measurements. With a larger one,
rounding errors would exceed the smaller one."""

SOLVED_CLIENTS = 12  # With n times as many clients, n measurements are used together.


NONE: Mapping[int, float] = {}


class Estimate(NamedTuple):
    """A mean, and its standard error."""

    mean: float
    error: float


@frozen
class ClientEstimates:
    """Estimates of a number for each client, such as its mean kernel time in nanoseconds.

    `observed` are those by what each client did itself, by PID. Every window is a measurement as well: the sum of a
    known weight of each client times its number. The sums over all measurements, each divided by its variance, are
    `products` (weight times weight), `sums` (weight times value), `squares` (value times value), and `count`. The
    least-squares solution of both has the `means` and `covariances`, and `pending` measurements are not yet in it.
    The last measurement may have `contradicted` the earlier ones. If not `scaled`, residuals do not change the errors.
    """

    observed: Mapping[int, Estimate] = field(default_factory=dict)
    products: tuple[tuple[float, ...], ...] = ()
    sums: tuple[float, ...] = ()
    squares: float = 0.0
    count: float = 0.0
    means: tuple[float, ...] = ()
    covariances: tuple[tuple[float, ...], ...] = ()
    pending: int = 0
    contradicted: bool = False
    scaled: bool = True

    @property
    def pids(self) -> KeysView[int]:
        """The clients with an estimate."""
        return self.observed.keys()

    def mean(self, pid: int) -> float | None:
        """Return a client's estimate; None without one."""
        return self.means[self._index(pid)] if pid in self.observed else None

    def standard_deviation(self, pid: int) -> float:
        """Return the standard deviation of a client's estimate."""
        index = self._index(pid)
        return math.sqrt(max(0.0, self.covariances[index][index]))

    def covariance_with_sum(self, weights: Mapping[int, float]) -> dict[int, float]:
        """Return the covariance of each client's estimate with the weighted sum of all."""
        return dict(zip(self.observed, _product(self.covariances, self._vector(weights)), strict=True))

    def errors_of_known_sum(self, weights: Mapping[int, float]) -> dict[int, float]:
        """Return the standard error of each client's weighted estimate, if all are scaled to a sum that is known."""
        parts = {pid: weight * (self.mean(pid) or 0.0) for pid, weight in weights.items()}
        total = sum(parts.values()) or 1.0
        covariances = self.covariance_with_sum(weights)
        with_sum = {pid: weight * covariances[pid] for pid, weight in weights.items()}
        of_sum = sum(with_sum.values())
        variances = {
            pid: (weight * self.standard_deviation(pid)) ** 2
            + parts[pid] / total * (parts[pid] / total * of_sum - 2 * with_sum[pid])
            for pid, weight in weights.items()
        }
        return {pid: math.sqrt(max(0.0, variance)) for pid, variance in variances.items()}

    def with_observed(self, pid: int, mean: float, error: float) -> "ClientEstimates":
        """Add a client with an estimate that is independent of the others, or replace what is known by itself."""
        observed = {**self.observed, pid: Estimate(mean, error)}
        if pid in self.observed:
            return replace(self, observed=observed)
        last = (0.0,) * len(self.means)
        return replace(
            self,
            observed=observed,
            products=(*((*row, 0.0) for row in self.products), (*last, 0.0)),
            sums=(*self.sums, 0.0),
            means=(*self.means, mean),
            covariances=(*((*row, 0.0) for row in self.covariances), (*last, error**2)),
        )

    def without(self, pids: Collection[int]) -> "ClientEstimates":
        """Drop clients. What is left of the earlier measurements is what the estimates of these do not explain."""
        kept = {pid: index for index, pid in enumerate(self.observed) if pid not in pids}
        if len(kept) == len(self.observed):
            return self
        rest = tuple(kept.values())
        products, means = _submatrix(self.products, rest), tuple(self.means[index] for index in rest)
        gone = [0.0 if index in rest else mean for index, mean in enumerate(self.means)]
        explained = _product(self.products, gone)
        sums = tuple(self.sums[index] - explained[index] for index in rest)
        changed = ClientEstimates(products=products, sums=sums, means=means)
        return replace(
            self,
            observed={pid: self.observed[pid] for pid in kept},
            products=products,
            sums=sums,
            squares=self.residual - changed.residual,
            means=means,
            covariances=_submatrix(self.covariances, rest),
        )

    def renewed(self, least: Mapping[int, float]) -> "ClientEstimates":
        """Drop the measurements of these clients. What is known of each is its estimate, with at least this error."""
        found = self.without(least.keys())
        for pid, error in least.items():
            found = found.with_observed(pid, self.mean(pid) or 0.0, max(self.standard_deviation(pid), error))
        return replace(found, squares=found.squares - found.residual, count=0.0)

    def measured(
        self,
        weights: Mapping[int, float],
        value: float,
        error: float,
        seconds: float,
        largest: Mapping[int, float] = NONE,
    ) -> "ClientEstimates":
        """Add a measurement of the weighted sum and its standard error, these seconds after the last one."""
        vector = self._vector(weights)
        if not any(vector):
            return self
        innovation = value - sum(map(mul, self.means, vector))
        expected = sum(map(mul, vector, _product(self.covariances, vector))) + self._factor * error**2
        if not self.scaled or innovation**2 <= CHANGED_ERRORS**2 * expected:
            return self.added(weights, value, error, 0.5 ** (seconds / HALF_LIFE_SECONDS))
        if not self.contradicted:
            return replace(self, contradicted=True)
        known = {pid: max(self.mean(pid) or 0.0, self.observed[pid].mean) for pid, weight in weights.items() if weight}
        least = {pid: max(each, largest.get(pid, 0.0) / 2) for pid, each in known.items()}
        changed = self.renewed(least)
        return changed.added(weights, value, error, 1.0)

    def added(self, weights: Mapping[int, float], value: float, error: float, part: float) -> "ClientEstimates":
        """Add a measurement; only this part of the earlier ones counts."""
        vector, weight = self._vector(weights), 1 / error**2
        return replace(
            self,
            products=tuple(
                tuple(part * old + weight * own * other for old, other in zip(row, vector, strict=True))
                for row, own in zip(self.products, vector, strict=True)
            ),
            sums=tuple(part * old + weight * value * own for old, own in zip(self.sums, vector, strict=True)),
            squares=part * self.squares + weight * value**2,
            count=part * self.count + 1,
            contradicted=False,
        )

    def solved(self, largest: Mapping[int, float]) -> "ClientEstimates":
        """Return the least-squares solution in which no estimate is negative, or larger than its `largest`, by PID.

        With many clients, measurements wait for the next one.
        """
        count = len(self.observed)
        if self.pending + 1 < count // SOLVED_CLIENTS:
            return replace(self, pending=self.pending + 1)
        factor = self._factor
        known = [estimate.mean for estimate in self.observed.values()]
        # In units of the errors by which the clients are known, the matrix is well conditioned.
        most = [LARGEST_QUOTIENT * math.sqrt(factor / (row[i] or 1e-300)) for i, row in enumerate(self.products)]
        errors = [min(estimate.error, each) for estimate, each in zip(self.observed.values(), most, strict=True)]
        rows = [
            [own * other * each / factor for other, each in zip(errors, row, strict=True)]
            for own, row in zip(errors, self.products, strict=True)
        ]
        for index in range(count):
            rows[index][index] += 1.0
        inverse = _inverse(rows)
        covariances = tuple(
            tuple(own * other * (one + same) / 2 for other, one, same in zip(errors, row, column, strict=True))
            for own, row, column in zip(errors, inverse, zip(*inverse, strict=True), strict=True)
        )
        explained = _product(self.products, known)
        rest = [(own - other) / factor for own, other in zip(self.sums, explained, strict=True)]
        means = list(map(add, known, _product(covariances, rest)))
        limits = [largest.get(pid, math.inf) for pid in self.observed]
        return replace(self, means=_limited(means, limits, covariances), covariances=covariances, pending=0)

    @property
    def residual(self) -> float:
        """What the means leave of the measurements: a sum of squares, in units of the variances."""
        explained = _product(self.products, self.means)
        rest = [each - 2 * known for each, known in zip(explained, self.sums, strict=True)]
        return self.squares + math.fsum(map(mul, self.means, rest))

    @property
    def _factor(self) -> float:
        """By what the variances of the measurements are multiplied, as their residuals show."""
        if not self.scaled:
            return 1.0
        shown = max(0.0, self.residual) + FACTOR_WEIGHT * ERROR_FACTOR**2
        return max(1.0, shown / (self.count + FACTOR_WEIGHT))

    def _index(self, pid: int) -> int:
        return list(self.observed).index(pid)

    def _vector(self, weights: Mapping[int, float]) -> list[float]:
        return [weights.get(pid, 0.0) for pid in self.observed]


def _product(matrix: Sequence[Sequence[float]], vector: Sequence[float]) -> list[float]:
    return [sum(map(mul, row, vector)) for row in matrix]


def _submatrix(matrix: Sequence[Sequence[float]], indices: Sequence[int]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(matrix[row][column] for column in indices) for row in indices)


def _inverse(rows: list[list[float]]) -> list[list[float]]:
    """Invert a symmetric matrix of which no eigenvalue is below 1, in place. Such a matrix needs no pivoting."""
    for index, pivot_row in enumerate(rows):
        pivot = pivot_row[index]
        scaled = [each / pivot for each in pivot_row]
        for other, row in enumerate(rows):
            if other != index:
                factor = row[index]
                rows[other] = [each - factor * part for each, part in zip(row, scaled, strict=True)]
                rows[other][index] = -factor / pivot
        scaled[index] = 1.0 / pivot
        rows[index] = scaled
    return rows


def _limited(means: list[float], limits: Sequence[float], covariances: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Move means that are below 0 or above their limits there, and change the others by the covariances."""
    for _ in range(2 * len(means)):
        wrong = [min(limit, max(0.0, mean)) - mean for mean, limit in zip(means, limits, strict=True)]
        by_error = [
            change**2 / (row[i] or math.inf) for i, (change, row) in enumerate(zip(wrong, covariances, strict=True))
        ]
        index = max(range(len(means)), key=by_error.__getitem__)
        row = covariances[index]
        if by_error[index] <= 0:
            break
        means = [mean + wrong[index] * each / row[index] for mean, each in zip(means, row, strict=True)]
    return tuple(min(limit, max(0.0, mean)) for mean, limit in zip(means, limits, strict=True))
