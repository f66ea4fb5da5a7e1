"""SM time: how it is divided among the clients of a GPU, and the estimates by which it is divided."""

from collections.abc import Mapping
from dataclasses import field, fields
from enum import StrEnum
from typing import Any

from exporter.model.estimates import ClientEstimates
from exporter.model.identity import Workload, WorkloadIdentity
from exporter.model.launches import OPEN_COUNTS, ProcessWork, WorkCounts, WorkReading
from exporter.model.observation import GpuUuid
from exporter.model.values import frozen, replace


class Method(StrEnum):
    """How a process' part of the SM time was found."""

    MEASURED = "measured"
    FLIGHT = "flight"
    LAUNCHES = "launches"


@frozen
class Share:
    """What one process used: `sm` is the mean fraction of the GPU's SMs, 0 to 1; `error` is one standard error."""

    method: Method
    sm: float
    error: float = 0.0


@frozen
class Split:
    """How the SM time of the `seconds` until `at` was divided. `sm` is the busy fraction of all SMs, 0 to 1.

    `shares` has the part of each process by PID, `unattributed` the rest. `withheld` has estimates that are too
    uncertain to be reported, and `unknown` the processes without any estimate; what both used is in `unattributed`.
    `dram` is the used fraction of the memory's bandwidth; None: unknown. If `sm` is not `measured` by GPM, it is the
    sum of the shares. `lasted` has the seconds since a process first used the GPU, of those that came later.
    `widths` has the sums of the widths of what the clients launched, as fractions of all SMs for a nanosecond, if these
    explain the window. `areas` has the mean fraction of all SMs for which each client had work in flight.
    """

    at: float
    seconds: float
    sm: float
    shares: Mapping[int, Share] = field(default_factory=dict)
    unattributed: float = 0.0
    dram: float | None = None
    lasted: Mapping[int, float] = field(default_factory=dict)
    widths: Mapping[int, float] = field(default_factory=dict)
    areas: Mapping[int, float] = field(default_factory=dict)
    withheld: Mapping[int, Share] = field(default_factory=dict)
    unknown: frozenset[int] = frozenset()
    measured: bool = True

    @property
    def estimates(self) -> Mapping[int, Share]:
        """The shares, with those that are too uncertain to be reported."""
        return {**self.withheld, **self.shares}

    def since_begin(self, pid: int) -> Share | None:
        """Return the mean share of a process since it first used the GPU; None: unknown."""
        share, factor = self.shares.get(pid), self.seconds / self.lasted.get(pid, self.seconds)
        return None if share is None else replace(share, sm=min(1.0, factor * share.sm), error=factor * share.error)


NEGLIGIBLE = 0.02
"""GPM's windows differ from those of the launches by less than this fraction, and its error is larger."""

MAX_DELTA = 1 << 53
"""A float is exact up to here, and no process does more in a window. A client can claim any width for a kernel."""


@frozen
class WorkDelta(WorkCounts):
    """What one process did in a window: the difference of two readings of the libcuda probes.

    The fields are those of ProcessWork. `flight_ns`, `area` and `bound` include open spans. `idle_ns` is the time since
    the last launch. `awaited` is whether a thread waits for open spans, `asks` whether queries end spans, and `unsure`
    whether open ones may have ended. The first launches of a `late` process may have been missed, and it has not
    launched since. The work is on `scattered` GPUs, of which this one may have any part; 0: it is all here. Recordings
    of earlier versions have no gaps: then `gap_ns` is -1, and `busy_ns` that in flight.
    """

    idle_ns: int = 0
    awaited: bool = False
    asks: bool = False
    unsure: bool = False
    late: bool = False
    scattered: int = 0

    def scaled(self, factor: float) -> "WorkDelta":
        """Return this work times a factor. It is the same if the factor is hardly different from 1."""
        if abs(factor - 1) < NEGLIGIBLE:
            return self
        counts: dict[str, Any] = {name: int(getattr(self, name) * factor) for name in _COUNTS}
        return replace(self, **counts)


_COUNTS = tuple(count.name for count in fields(WorkCounts))


def _count(work: ProcessWork, name: str) -> int:
    return int(getattr(work, name) + (getattr(work, OPEN_COUNTS[name]) if name in OPEN_COUNTS else 0))


def work_delta(before: ProcessWork | None, now: ProcessWork, at_ns: int) -> WorkDelta:
    """Return what a process did after the reading `before`; all of it if it is new or its counts began anew."""
    same = before is not None and before.first_ns == now.first_ns
    growth = {name: _count(now, name) - (_count(before, name) if before and same else 0) for name in _COUNTS}
    growth = {name: min(MAX_DELTA, max(0, count)) for name, count in growth.items()}
    if now.spans and not now.busy_ns:
        growth |= {"busy_ns": growth["flight_ns"], "gap_ns": -1}
    if now.graph_kernels == now.graphs > now.kernels == 0 and growth["area"]:
        # A graph of one kernel is as wide as that. Readings of earlier versions do not show it.
        growth["bound"] = growth["area"]
    idle_ns = max(0, at_ns - now.launched_ns)
    # Without a wait, work counts as done soon. A wait of which no end was seen lasts.
    awaited = now.open_busy_ns > 0 or (now.open_ns > 0 and now.syncs > 0 == now.spans)
    late = not (now.initialized_ns or now.kernels or now.graphs)
    unsure = now.open_unsure_ns > 0
    return WorkDelta(
        **growth, idle_ns=idle_ns, awaited=awaited, asks=now.answered_ns > 0, unsure=unsure, late=late, scattered=0
    )


def carried_on(before: WorkReading, now: WorkReading) -> WorkReading:
    """Return a reading with work in flight that was so before a pause of the probes, unless a call was seen since."""
    earlier = {(work.pid, work.device): work for work in (*before.processes, *before.on_devices)}
    lasted_ns = now.boot_ns - before.boot_ns
    processes, on_devices = (
        tuple(_carried_on(earlier.get((work.pid, work.device)), work, lasted_ns) for work in works)
        for works in (now.processes, now.on_devices)
    )
    return replace(now, processes=processes, on_devices=on_devices)


_CALLS = ("first_ns", "launched_ns", "syncs", "records", "uploads", "context_calls", "spans", "failed_ns")


def _carried_on(before: ProcessWork | None, now: ProcessWork, lasted_ns: int) -> ProcessWork:
    if before is None or not before.open_ns or now.open_ns:
        return now
    if any(getattr(before, name) != getattr(now, name) for name in _CALLS):
        return now
    factor = 1 + lasted_ns / before.open_ns
    ended = {name: getattr(before, name) for name in OPEN_COUNTS}
    grown = {name: int(factor * getattr(before, name)) for name in OPEN_COUNTS.values()}
    unsure = grown["open_ns"]
    return replace(now, **ended, **grown, open_since_ns=before.open_since_ns, open_unsure_ns=unsure)


@frozen
class LaunchRate:
    """What each client did in some seconds with attached probes. `bandwidth` is the memory's, in bytes a second."""

    seconds: float
    deltas: Mapping[int, WorkDelta]
    bandwidth: int = 0


@frozen
class GpuBusy:
    """What a GPU reports of a window.

    `capacity` is the time of all its SMs and `busy` the used part, both in nanoseconds of one SM. If it is not
    `measured` by GPM, `busy` is that of all SMs while any kernel ran, so it is only an upper bound. `watched` is the
    fraction of the window in which the probes were attached. `bandwidth` is that of the memory in bytes a second; 0:
    unknown.
    """

    seconds: float
    capacity: float
    busy: float
    measured: bool = True
    watched: float = 1.0
    bandwidth: int = 0


@frozen
class GpuAttribution:
    """The state by which one GPU's SM time is divided.

    `windows` are those of the last minute, the oldest first. `clients` were connected at the end of the last window,
    and `began` is when each first used the GPU.
    `work` is the last reading with attributed launches. `rates` are the last two known launch rates. The clients are
    `settled` if watching them for a small part of the time is enough. `gpm_read_at` is when GPM was last read for
    attribution alone, and `read_at` when the GPU was last read without GPM.
    """

    windows: tuple[Split, ...] = ()
    estimates: ClientEstimates = field(default_factory=ClientEstimates)
    clients: frozenset[int] = frozenset()
    began: Mapping[int, float] = field(default_factory=dict)
    work: WorkReading | None = None
    rates: tuple[LaunchRate, ...] = ()
    settled: bool = False
    gpm_read_at: float | None = None
    read_at: float | None = None


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


@frozen
class Usage:
    """SM time in microseconds of the whole GPU, and energy in millijoules.

    `lost_us` is the time that clients lost to their neighbours, and `caused_us` that which they cost their neighbours,
    in microseconds of a client.
    """

    sm_us: int = 0
    energy_mj: int = 0
    lost_us: int = 0
    caused_us: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        """Add all amounts."""
        return Usage(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(Usage)})


@frozen
class HeldMemory:
    """The memory that a process has held on a GPU since a time; `bytes` is 0 after the process has left.

    `account` is the process' last known one. `start_ticks` distinguishes the process from others with its PID.
    """

    bytes: int
    since: float
    account: Account = SharedAccount.UNATTRIBUTED
    start_ticks: int | None = None


@frozen
class GpuUsage:
    """The usage of one GPU. `total` is what the GPU itself measured, and exactly the sum of `by_account`.

    `memory_byte_ms` is memory times how long it was held, in bytes times milliseconds. `paces` has the pace of each
    workload's processes on a quiet GPU, by command (see model/contention.py).

    The other fields are not stored. `sm_us_without_energy` is the SM time since the last posting of energy.
    `held_memory` is by PID, and `read_at` is when it was last read.
    """

    total: Usage = field(default_factory=Usage)
    by_account: Mapping[UsageKey, Usage] = field(default_factory=dict)
    memory_byte_ms: Mapping[Account, int] = field(default_factory=dict)
    paces: Mapping[Account, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    sm_us_without_energy: Mapping[UsageKey, int] = field(default_factory=dict)
    held_memory: Mapping[int, HeldMemory] = field(default_factory=dict)
    read_at: float | None = None


@frozen
class UsageTotals:
    """The usage of all GPUs, and when each workload with an account last used one.

    `closed` has the same of closed accounts, as long as their paces are remembered. `identities` also has those of
    workloads that have only counts.
    """

    gpus: Mapping[GpuUuid, GpuUsage] = field(default_factory=dict)
    last_used_at: Mapping[Workload, float] = field(default_factory=dict)
    closed: Mapping[Workload, float] = field(default_factory=dict)
    identities: Mapping[Workload, WorkloadIdentity] = field(default_factory=dict)
