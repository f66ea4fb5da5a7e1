"""The books: what each owner has used of each GPU, in integers, so that the parts are exactly the whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from exporter.model.observation import GpuUuid
from exporter.model.split import Method
from exporter.model.workload import Workload


class Purse(StrEnum):
    """Who pays where no owner does: the MPS server itself, owners beyond those that have books, and nobody known."""

    SERVER = "server"
    OTHERS = "others"
    UNATTRIBUTED = "unattributed"


Payer = Workload | Purse


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What was used: SM time in microseconds of the whole GPU, energy in millijoules."""

    sm_us: int = 0
    energy_mj: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """The book of one GPU. `whole` is what the GPU itself says, and exactly the sum of `used`.

    `memory_byte_ms` is memory held times how long, in bytes times milliseconds.
    """

    whole: Used = field(default_factory=Used)
    used: Mapping[tuple[Payer, Method | None], Used] = field(default_factory=dict)
    memory_byte_ms: Mapping[Payer, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The books of all GPUs."""

    books: Mapping[GpuUuid, Book] = field(default_factory=dict)
