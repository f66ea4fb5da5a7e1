"""GPUs, as NVML tells of them and as they are remembered."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from exporter.model.observation import GpuReading


class SharingMode(StrEnum):
    """How the processes on a GPU share it."""

    IDLE = "idle"
    EXCLUSIVE = "exclusive"
    TIME_SLICING = "time_slicing"
    MPS = "mps"
    MIG = "mig"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranger:
    """A process on a GPU that is no client of a known daemon; `told` once it was called a bypassing one."""

    first_seen: float
    told: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """A counter that begins anew when the driver does: what it last said, and a total that only grows."""

    last: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as NVML last read it. `reading` holds its problem where the last attempt failed.

    `meters` are its counters, and `supported` says of each kind of reading whether this GPU and driver give it, both by
    name.

    `judged` says whether it could be told which of its processes run beside MPS.

    `mps_since` says since when each PID has been in NVML's MPS list, which shows refused clients too; `mps_left` when
    it was first missing there.
    """

    reading: GpuReading
    mps_since: Mapping[int, float] = field(default_factory=dict)
    mps_left: Mapping[int, float] = field(default_factory=dict)
    strangers: Mapping[int, Stranger] = field(default_factory=dict)
    judged: bool = False
    meters: Mapping[str, Meter] = field(default_factory=dict)
    supported: Mapping[str, bool] = field(default_factory=dict)

    @property
    def bypassing(self) -> tuple[int, ...]:
        """PIDs that use this GPU beside MPS; none can be told where it was not read."""
        told = (pid for pid, stranger in self.strangers.items() if stranger.told)
        return tuple(told) if self.reading.problem is None else ()
