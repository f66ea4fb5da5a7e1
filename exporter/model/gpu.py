"""GPUs and their Xids, as the reducer remembers them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from exporter.model.observation import GpuReading, GpuUuid


class SharingMode(StrEnum):
    """How the processes on a GPU share it."""

    IDLE = "idle"
    EXCLUSIVE = "exclusive"
    TIME_SLICING = "time_slicing"
    MPS = "mps"
    MIG = "mig"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class BypassingProcess:
    """A process on a GPU that is not a client of a known daemon; it is `confirmed` after a second reading."""

    first_seen: float
    confirmed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MonotonicCounter:
    """A counter of the driver, which a restart resets: its last value, and a total that never decreases."""

    last: int
    total: int
    at: float = 0.0
    """When it was last read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as NVML last read it."""

    reading: GpuReading
    """The last reading; if it failed, this has only the problem."""
    mps_since: Mapping[int, float] = field(default_factory=dict)
    """Since when each PID is in NVML's MPS list, which also shows refused clients."""
    mps_left: Mapping[int, float] = field(default_factory=dict)
    """When each PID was first missing from that list."""
    bypassing_processes: Mapping[int, BypassingProcess] = field(default_factory=dict)
    bypassing_known: bool = False
    """Whether the last reading showed which processes bypass MPS."""
    energy: MonotonicCounter | None = None
    """In millijoules."""
    rejected_energy: MonotonicCounter | None = None
    """The energy counter of the last reading, if that could not be true."""
    discarded: int = 0
    """How many values could not be true."""
    has_gpm: bool | None = None
    """Whether GPM measures its SM time; None: not known yet."""

    @property
    def bypassing(self) -> tuple[int, ...]:
        """PIDs of the confirmed bypassing processes; none if the last reading lacks a list of processes."""
        if self.reading.compute_processes is None or self.reading.mps_processes is None:
            return ()
        return tuple(pid for pid, each in self.bypassing_processes.items() if each.confirmed)


class XidSource(StrEnum):
    """Source that reports Xids."""

    KERNEL = "kernel"
    NVML = "nvml"


@dataclass(frozen=True, slots=True, kw_only=True)
class XidCount:
    """How often an Xid occurred, and when it did so last."""

    total: int = 0
    last_at: float = 0.0


INSTRUCTIONS = "GCC"
"""The GPU's cache of instructions and constants, which fetches the instructions of kernels."""


class AccessKind(StrEnum):
    """What an access does."""

    READ = "read"
    WRITE = "write"
    ATOMIC = "atomic"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAccess:
    """A memory access that failed.

    `unit` is the GPU's unit: GCC for GPCCLIENT_GCC, T1 for any GPCCLIENT_T1_n, HUB_CE0 for HUBCLIENT_CE0. `address` is
    the first one of its page. `fault` is the driver's kind, such as FAULT_PDE.
    """

    unit: str
    address: int
    engine: str | None = None
    fault: str | None = None
    kind: AccessKind | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class XidReport:
    """One Xid as one source reports it."""

    at: float
    source: XidSource
    number: int
    gpu: GpuUuid | None
    """None if the GPU is unknown. It is a MIG instance if the source names one."""
    parent: GpuUuid | None = None
    """The whole GPU, also if `gpu` is a MIG instance."""
    bus_id: str = ""
    pid: int | None = None
    name: str | None = None
    access: FailedAccess | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentXid:
    """One Xid, with what all sources report about it."""

    at: float
    """When the first source reported it."""
    number: int
    gpu: GpuUuid | None = None
    bus_id: str = ""
    pid: int | None = None
    """The process that the kernel log names. It did not always cause the Xid."""
    name: str | None = None
    access: FailedAccess | None = None
    settled: bool = False
    """Whether it belongs to a fault, or is too old to do so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class XidBurst:
    """How many Xids of one number on one GPU were events of their own since the first one."""

    since: float
    reported: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryAction:
    """What the driver demands for a GPU, in the words of NVIDIA's catalogue: RESET_GPU, RESTART_BM."""

    at: float
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Xids:
    """Xids since the exporter started."""

    counts: Mapping[tuple[str, str], XidCount] = field(default_factory=dict)
    """By GPU and number. The GPU is its UUID, else its bus id (`PCI:0000:00:06`), else empty. Counts never decrease."""
    addresses: Mapping[str, GpuUuid] = field(default_factory=dict)
    """GPUs by bus id."""
    unmatched: tuple[XidReport, ...] = ()
    """Reports that the other source has not confirmed yet. Those with a GPU are counted."""
    recent: tuple[IncidentXid, ...] = ()
    """Xids of the last seconds, the oldest first, which may still belong to a fault."""
    bursts: Mapping[tuple[str | None, int], XidBurst] = field(default_factory=dict)
    """Recent Xids of no fault, by GPU and number."""
    addresses_unrecognized: int = 0
    """Xids 31 whose text has no faulting address in a known form."""
    recovery_actions: Mapping[GpuUuid, RecoveryAction] = field(default_factory=dict)
