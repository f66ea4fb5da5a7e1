"""Usage totals of each workload on each GPU, in integers, so that the parts add up exactly."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from exporter.model.identity import Workload
from exporter.model.observation import GpuUuid
from exporter.model.usage import Method


class SharedAccount(StrEnum):
    """An account that is not a workload's.

    These are the MPS server itself, the workloads beyond those that have accounts of their own, and use of unknown
    origin. `CLOSED` has what closed accounts had; it grows by nothing else.
    """

    SERVER = "server"
    OTHERS = "others"
    UNATTRIBUTED = "unattributed"
    CLOSED = "closed"


Account = Workload | SharedAccount

UsageKey = tuple[Account, Method | None]
"""An account, and how its part was found; None: no process used it, or no method was needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """SM time in microseconds of the whole GPU, and energy in millijoules."""

    sm_us: int = 0
    energy_mj: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        """Add both amounts."""
        return Usage(sm_us=self.sm_us + other.sm_us, energy_mj=self.energy_mj + other.energy_mj)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMemory:
    """The memory that a process has held on a GPU since a time; `bytes` is 0 after the process has left.

    `account` is the process' last known one. `start_ticks` distinguishes the process from others with its PID.
    """

    bytes: int
    since: float
    account: Account = SharedAccount.UNATTRIBUTED
    start_ticks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUsage:
    """The usage of one GPU. `total` is what the GPU itself measured, and exactly the sum of `by_account`.

    `memory_byte_ms` is memory times how long it was held, in bytes times milliseconds.

    The other fields are not stored. `sm_us_without_energy` is the SM time since the last posting of energy.
    `held_memory` is by PID, and `read_at` is when it was last read.
    """

    total: Usage = field(default_factory=Usage)
    by_account: Mapping[UsageKey, Usage] = field(default_factory=dict)
    memory_byte_ms: Mapping[Account, int] = field(default_factory=dict)
    sm_us_without_energy: Mapping[UsageKey, int] = field(default_factory=dict)
    held_memory: Mapping[int, HeldMemory] = field(default_factory=dict)
    read_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageTotals:
    """The usage of all GPUs, and when each workload with an account last used one."""

    gpus: Mapping[GpuUuid, GpuUsage] = field(default_factory=dict)
    last_used_at: Mapping[Workload, float] = field(default_factory=dict)
