"""How a GPU's SM time was split among those who used it, in a second or in a minute."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Method(StrEnum):
    """How it was found out how much of a GPU's SM time was somebody's; never mixed in one number."""

    MEASURED = "measured"
    FLIGHT = "flight"
    EQUAL = "equal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one process used: `sm` of the GPU's SMs, 0 to 1, on the average, and one standard error of that."""

    method: Method
    sm: float
    error: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The `seconds` until `at`: of all SMs, `sm` were busy, 0 to 1; by PID, whose they were; and whose is not known.

    `dram` is the part of the memory's bandwidth that was used, None where that cannot be told.
    """

    at: float
    seconds: float
    sm: float
    shares: Mapping[int, Share] = field(default_factory=dict)
    unattributed: float = 0.0
    dram: float | None = None
