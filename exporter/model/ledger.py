"""The books: what each owner has used of each GPU, in integers, so that the parts are exactly the whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from exporter.model.observation import GpuUuid
from exporter.model.split import Method
from exporter.model.workload import Workload


class Purse(StrEnum):
    """Who pays where no owner does.

    These are the MPS server itself, the owners beyond those that have pages of their own, and nobody known. `CLOSED`
    has what was used by owners whose pages were closed since: it grows by nothing else, so that the whole stays whole.
    """

    SERVER = "server"
    OTHERS = "others"
    UNATTRIBUTED = "unattributed"
    CLOSED = "closed"


Payer = Workload | Purse

Entry = tuple[Payer, Method | None]
"""A line of a book: who pays, and how it was found out what; None where nobody did, or nothing had to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What was used: SM time in microseconds of the whole GPU, energy in millijoules."""

    sm_us: int = 0
    energy_mj: int = 0

    def plus(self, other: "Used") -> "Used":
        """Both together."""
        return Used(sm_us=self.sm_us + other.sm_us, energy_mj=self.energy_mj + other.energy_mj)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """The memory that a process holds on a GPU, since this time; `bytes` is 0 once it was seen to have left.

    `payer` is who paid for it when it was last known; `start_ticks` tells the process from others of its PID.
    """

    bytes: int
    since: float
    payer: Payer = Purse.UNATTRIBUTED
    start_ticks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """The book of one GPU. `whole` is what the GPU itself says, and exactly the sum of `used`.

    `memory_byte_ms` is memory held times how long, in bytes times milliseconds.

    What follows is of this run alone. `unpowered` has the SM time for which no energy was posted yet; `holdings` who
    holds memory, by PID, and `read_at` is when that was last read.
    """

    whole: Used = field(default_factory=Used)
    used: Mapping[Entry, Used] = field(default_factory=dict)
    memory_byte_ms: Mapping[Payer, int] = field(default_factory=dict)
    unpowered: Mapping[Entry, int] = field(default_factory=dict)
    holdings: Mapping[int, Holding] = field(default_factory=dict)
    read_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The books of all GPUs, and when each owner that has a page last paid."""

    books: Mapping[GpuUuid, Book] = field(default_factory=dict)
    paid_at: Mapping[Workload, float] = field(default_factory=dict)
