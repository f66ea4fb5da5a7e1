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
    """How the SM time of the `seconds` until `at` was split: `sm` is the part of all SMs that was busy, 0 to 1.

    `shares` has the part of each process by PID, `unattributed` the rest. `withheld` has estimates that are too
    uncertain to be reported, and `unknown` the processes without any estimate; what both used is in `unattributed`.
    `clients` are all clients of the GPU then. `assumed` is set if no client was watched, so that each is assumed to go
    on as before.

    `dram` is the part of the memory's bandwidth that was used, None where that cannot be told.
    """

    at: float
    seconds: float
    sm: float
    shares: Mapping[int, Share] = field(default_factory=dict)
    unattributed: float = 0.0
    dram: float | None = None
    withheld: Mapping[int, Share] = field(default_factory=dict)
    unknown: frozenset[int] = frozenset()
    clients: frozenset[int] = frozenset()
    assumed: bool = False

    @property
    def estimates(self) -> Mapping[int, Share]:
        """The shares, with those that are too uncertain to be reported."""
        return {**self.withheld, **self.shares}
