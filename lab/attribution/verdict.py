"""Shares of clients compared with the truth."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """A client over one stretch: the true share and those of each method, 0 to 1; `doubt` is the stated error."""

    name: str
    true: float
    flight: float
    doubt: float
    equal: float
    nvitop: float

    def error(self, way: str = "flight") -> float:
        """Return the error of a method in percentage points."""
        share: float = getattr(self, way)
        return 100 * (share - self.true)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some seconds of a mix: `sm` of the SMs were busy (0 to 1), and the part `coverage` of that was attributed."""

    seconds: float
    sm: float
    coverage: float
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """A mix."""

    mix: str
    clients: int
    short: tuple[Stretch, ...]
    long: tuple[Stretch, ...]


def errors(stretches: Iterable[Stretch], way: str = "flight") -> list[float]:
    """Return the errors of all clients in percentage points."""
    return [abs(verdict.error(way)) for stretch in stretches for verdict in stretch.verdicts]


def within(stretches: Iterable[Stretch], times: float) -> float | None:
    """Return how often the error is within a multiple of the stated one; None without stated errors."""
    met = [
        abs(verdict.flight - verdict.true) <= times * verdict.doubt
        for stretch in stretches
        for verdict in stretch.verdicts
        if verdict.doubt > 0
    ]
    return sum(met) / len(met) if met else None
