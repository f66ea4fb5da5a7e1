"""What was told of clients' shares, beside the truth."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """One client over one stretch: shares from 0 to 1, the true one and those told; `doubt` is the stated error."""

    name: str
    true: float
    flight: float
    doubt: float
    equal: float
    nvitop: float

    def error(self, way: str = "flight") -> float:
        """In percentage points."""
        told: float = getattr(self, way)
        return 100 * (told - self.true)


@dataclass(frozen=True, slots=True)
class Stretch:
    """So many seconds of a mix: `sm` of the SMs were busy, 0 to 1, and a part of that time, `coverage`, was split."""

    seconds: float
    sm: float
    coverage: float
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """A mix, by one way to know the truth."""

    mix: str
    group: str
    way: str
    clients: int
    short: tuple[Stretch, ...]
    long: tuple[Stretch, ...]


def errors(stretches: Iterable[Stretch], way: str = "flight") -> list[float]:
    """Of all clients, in percentage points."""
    return [abs(verdict.error(way)) for stretch in stretches for verdict in stretch.verdicts]


def within(stretches: Iterable[Stretch], times: float) -> float | None:
    """How often the error is no more than so many times the stated one; None where none was stated."""
    met = [
        abs(verdict.flight - verdict.true) <= times * verdict.doubt
        for stretch in stretches
        for verdict in stretch.verdicts
        if verdict.doubt > 0
    ]
    return sum(met) / len(met) if met else None
