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
    """A process on a GPU that is no client of a known daemon; `told` once it was called a bypassing one."""

    first_seen: float
    confirmed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MonotonicCounter:
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
    bypassing_processes: Mapping[int, BypassingProcess] = field(default_factory=dict)
    bypassing_known: bool = False
    counters: Mapping[str, MonotonicCounter] = field(default_factory=dict)
    supported: Mapping[str, bool] = field(default_factory=dict)

    @property
    def bypassing(self) -> tuple[int, ...]:
        """PIDs that use this GPU beside MPS; none can be told where it was not read."""
        told = (pid for pid, stranger in self.bypassing_processes.items() if stranger.confirmed)
        return tuple(told) if self.reading.problem is None else ()


class XidSource(StrEnum):
    """Who tells of an Xid."""

    KERNEL = "kernel"
    NVML = "nvml"


@dataclass(frozen=True, slots=True, kw_only=True)
class XidCount:
    """How often an Xid was told of, and when last."""

    total: int = 0
    last_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAccess:
    """Which part of a GPU wanted which address and failed: GCC for GPCCLIENT_GCC, T1 for any GPCCLIENT_T1_n."""

    unit: str
    address: int


@dataclass(frozen=True, slots=True, kw_only=True)
class XidReport:
    """One witness's word of one Xid; `gpu` is None where it cannot be told whose it is.

    `place` is the GPU's bus id, where the witness gave it; `pid` and `name` are as in a sighting.
    """

    at: float
    source: XidSource
    number: int
    gpu: GpuUuid | None
    bus_id: str = ""
    pid: int | None = None
    name: str | None = None
    access: FailedAccess | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentXid:
    """One Xid, by whoever told of it; what the second witness knows is added to what the first one said.

    `pid` and `name` are of a process that had to do with it, as the kernel's log says: not always the culprit. `at` is
    when it was first told of. It is `settled` once a fault has claimed it, or none can any more.
    """

    at: float
    number: int
    gpu: GpuUuid | None = None
    bus_id: str = ""
    pid: int | None = None
    name: str | None = None
    access: FailedAccess | None = None
    settled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class XidBurst:
    """How many of one number on one GPU had an event of their own, since the first one's time."""

    since: float
    reported: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryAction:
    """What the driver says that a GPU needs, in the words of NVIDIA's catalogue: RESET_GPU, RESTART_BM."""

    at: float
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Xids:
    """Xids since the exporter started. Counts only grow, and stay when their GPU has gone.

    `counts` are by GPU and number: by its UUID, else by where it is (`PCI:0000:00:06`), else by an empty name.
    `addresses` has the GPUs by bus id; `unpaired` the tellings of which the other witness has yet to speak: those
    that have a GPU are counted.

    `recent` are those of the last seconds, the eldest first, of which it may yet turn out that they belong to a fault.
    `bursts` has, by GPU and number, those that lately belonged to none. `demands` has the GPUs that need something.
    """

    counts: Mapping[tuple[str, str], XidCount] = field(default_factory=dict)
    addresses: Mapping[str, GpuUuid] = field(default_factory=dict)
    unmatched: tuple[XidReport, ...] = ()
    recent: tuple[IncidentXid, ...] = ()
    bursts: Mapping[tuple[str | None, int], XidBurst] = field(default_factory=dict)
    recovery_actions: Mapping[GpuUuid, RecoveryAction] = field(default_factory=dict)
