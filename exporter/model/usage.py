"""SM time: how it is divided among the clients of a GPU, and the estimates by which it is divided."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from operator import mul

from exporter.model.identity import Workload, WorkloadIdentity
from exporter.model.launches import OPEN_COUNTS, ProcessWork, WorkReading
from exporter.model.observation import GpuUuid
from exporter.model.values import replace


class Method(StrEnum):
    """How a process' part of the SM time was found."""

    MEASURED = "measured"
    FLIGHT = "flight"
    LAUNCHES = "launches"


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one process used: `sm` is the mean fraction of the GPU's SMs, 0 to 1; `error` is one standard error."""

    method: Method
    sm: float
    error: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How the SM time of the `seconds` until `at` was divided. `sm` is the busy fraction of all SMs, 0 to 1.

    `shares` has the part of each process by PID, `unattributed` the rest. `withheld` has estimates that are too
    uncertain to be reported, and `unknown` the processes without any estimate; what both used is in `unattributed`.
    `dram` is the used fraction of the memory's bandwidth; None: unknown. If `sm` is not `measured` by GPM, it is the
    sum of the shares.
    """

    at: float
    seconds: float
    sm: float
    shares: Mapping[int, Share] = field(default_factory=dict)
    unattributed: float = 0.0
    dram: float | None = None
    withheld: Mapping[int, Share] = field(default_factory=dict)
    unknown: frozenset[int] = frozenset()
    measured: bool = True

    @property
    def estimates(self) -> Mapping[int, Share]:
        """The shares, with those that are too uncertain to be reported."""
        return {**self.withheld, **self.shares}


NEGLIGIBLE = 0.02
"""GPM's windows differ from those of the launches by less than this fraction, and its error is larger."""

MAX_DELTA = 1 << 53
"""A float is exact up to here, and no process does more in a window. A client can claim any width for a kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkDelta:
    """What one process did in a window: the difference of two readings of the libcuda probes.

    The fields are those of ProcessWork. `flight_ns`, `area` and `bound` include open spans. `idle_ns` is the time since
    the last launch. Recordings of earlier versions have no gaps: then `gap_ns` is -1, and `busy_ns` that in flight.
    """

    kernels: int = 0
    graphs: int = 0
    graph_kernels: int = 0
    uploads: int = 0
    spans: int = 0
    flight_ns: int = 0
    widths: int = 0
    area: int = 0
    bound: int = 0
    sure_area: int = 0
    sure_widths: int = 0
    sure_gaps: int = 0
    sure_heights: int = 0
    sure_event_heights: int = 0
    busy_ns: int = 0
    gap_ns: int = 0
    idle_ns: int = 0

    def scaled(self, factor: float) -> "WorkDelta":
        """Return this work times a factor. It is the same if the factor is hardly different from 1."""
        if abs(factor - 1) < NEGLIGIBLE:
            return self
        return replace(self, **{name: int(getattr(self, name) * factor) for name in _COUNTS})


_COUNTS = tuple(count.name for count in fields(WorkDelta) if count.name != "idle_ns")


def _count(work: ProcessWork, name: str) -> int:
    return int(getattr(work, name) + (getattr(work, OPEN_COUNTS[name]) if name in OPEN_COUNTS else 0))


def work_delta(before: ProcessWork | None, now: ProcessWork, at_ns: int) -> WorkDelta:
    """Return what a process did after the reading `before`; all of it if it is new or its counts began anew."""
    same = before is not None and before.first_ns == now.first_ns
    growth = {name: _count(now, name) - (_count(before, name) if before and same else 0) for name in _COUNTS}
    growth = {name: min(MAX_DELTA, max(0, count)) for name, count in growth.items()}
    if now.spans and not now.busy_ns:
        growth |= {"busy_ns": growth["flight_ns"], "gap_ns": -1}
    return WorkDelta(**growth, idle_ns=max(0, at_ns - now.launched_ns))


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRate:
    """What each client did in some seconds with attached probes."""

    seconds: float
    deltas: Mapping[int, WorkDelta]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuBusy:
    """What a GPU reports of a window.

    `capacity` is the time of all its SMs and `busy` the used part, both in nanoseconds of one SM. If it is not
    `measured` by GPM, `busy` is that of all SMs while any kernel ran, so it is only an upper bound. `watched` is the
    fraction of the window in which the probes were attached.
    """

    seconds: float
    capacity: float
    busy: float
    measured: bool = True
    watched: float = 1.0


PROCESS_NOISE = 0.002
"""Standard deviation of the change of a kernel time in one second, as a fraction of the kernel time. A change of 20 %
has no effect on the recorded mixes (usage/kernel_times.py has the other constants)."""

CREDIBLE_ERRORS = 1.1
"""A measurement further from the expectation, in standard errors, probably shows that a client does something else now.
With 3, standard errors were too small on full GPUs with changing clients (simulated). If it is 20 % smaller or larger,
the mean error of the recorded mixes with GPM is 0.06 or 0.08 points larger."""

LEAST_RELATIVE_ERROR = 3e-5
"""Least standard error of a measurement, as a fraction of the sum of the estimates' deviations in it. With less,
rounding errors exceed the remaining variance, and a correlation could be more than 1."""


SLOWDOWN = -(1 << 31)
"""The key, among PIDs, of the estimate that is not a kernel time: the fraction by which kernels take longer on a
contended GPU. No process has this PID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTimeEstimates:
    """The state of a Kalman filter: mean kernel time of each client, in nanoseconds, and the covariances.

    `indices` has the position of each client by PID, and that of SLOWDOWN while it is estimated. Every window is a
    measurement: the sum of the widths that each client launched, times its kernel time, is the SM time that the GPU
    measured.
    """

    means: tuple[float, ...] = ()
    covariances: tuple[tuple[float, ...], ...] = ()
    indices: Mapping[int, int] = field(default_factory=dict)

    def mean(self, pid: int) -> float | None:
        """Return a client's mean kernel time, or the slowdown; None without an estimate."""
        index = self.indices.get(pid)
        return None if index is None else self.means[index]

    def standard_deviation(self, pid: int) -> float:
        """Return the standard deviation of a client's estimate."""
        return self._deviation(self.indices[pid])

    def covariance_with_sum(self, weights: Mapping[int, float]) -> dict[int, float]:
        """Return the covariance of each client's kernel time with the weighted sum of all."""
        gains = self._gains(self._vector(weights))
        return {pid: gains[index] for pid, index in self.indices.items()}

    def with_client(self, pid: int, mean: float, deviation: float) -> "KernelTimeEstimates":
        """Add a client, or the slowdown, with an estimate that is independent of the others."""
        rows = (*((*row, 0.0) for row in self.covariances), (*(0.0,) * len(self.means), deviation**2))
        indices = {**self.indices, pid: len(self.means)}
        return KernelTimeEstimates(means=(*self.means, mean), covariances=rows, indices=indices)

    def without(self, pids: Collection[int]) -> "KernelTimeEstimates":
        """Drop the estimates of clients that left, or the slowdown."""
        dropped = {self.indices[pid] for pid in pids if pid in self.indices}
        if not dropped:
            return self
        rest = [index for index in range(len(self.means)) if index not in dropped]
        moved = {old: new for new, old in enumerate(rest)}
        return KernelTimeEstimates(
            means=tuple(self.means[index] for index in rest),
            covariances=tuple(tuple(self.covariances[row][index] for index in rest) for row in rest),
            indices={pid: moved[index] for pid, index in self.indices.items() if index in moved},
        )

    def predicted(self, seconds: float) -> "KernelTimeEstimates":
        """Prediction step after `seconds`: a random walk with PROCESS_NOISE."""
        noise, old = PROCESS_NOISE**2 * seconds, self.covariances
        rows = ((*row[:i], row[i] + noise * self.means[i] ** 2, *row[i + 1 :]) for i, row in enumerate(old))
        return replace(self, covariances=tuple(rows))

    def with_least_deviation(self, pid: int, deviation: float) -> "KernelTimeEstimates":
        """Raise a client's standard deviation to at least `deviation`: its behaviour has changed."""
        index = self.indices[pid]
        row = self.covariances[index]
        row = (*row[:index], max(row[index], deviation**2), *row[index + 1 :])
        return replace(self, covariances=(*self.covariances[:index], row, *self.covariances[index + 1 :]))

    def inflated(self, weights: Mapping[int, float], value: float, deviation: float) -> "KernelTimeEstimates":
        """Scale all covariances up until a measurement, as in `updated`, is just credible."""
        vector = self._vector(weights)
        innovation = value - sum(map(mul, self.means, vector))
        variance = sum(map(mul, vector, self._gains(vector)))
        credible = (innovation / CREDIBLE_ERRORS) ** 2 - deviation**2
        if not 0 < variance < credible:
            return self
        rows = (tuple(covariance * (credible / variance) for covariance in row) for row in self.covariances)
        return replace(self, covariances=tuple(rows))

    def updated(self, weights: Mapping[int, float], value: float, deviation: float) -> "KernelTimeEstimates":
        """Update step: the weighted sum of all estimates was measured as `value`, with this standard error."""
        vector = self._vector(weights)
        gains = self._gains(vector)
        deviations = sum(weight * self._deviation(index) for index, weight in enumerate(vector))
        variance = sum(map(mul, gains, vector)) + max(deviation, LEAST_RELATIVE_ERROR * deviations) ** 2
        if not any(vector) or variance <= 0:
            return self
        innovation = (value - sum(map(mul, self.means, vector))) / variance
        scale = math.sqrt(variance)
        scaled = [gain / scale for gain in gains]
        # The products are the same in both directions, so that the matrix stays symmetric.
        covariances = tuple(
            tuple(old - own * other for old, other in zip(row, scaled, strict=True)) if own else row
            for row, own in zip(self.covariances, scaled, strict=True)
        )
        means = [mean + gain * innovation for mean, gain in zip(self.means, gains, strict=True)]
        return replace(self, means=_without_negative(means, covariances), covariances=covariances)

    def _deviation(self, index: int) -> float:
        return math.sqrt(max(0.0, self.covariances[index][index]))

    def _vector(self, weights: Mapping[int, float]) -> list[float]:
        vector = [0.0] * len(self.means)
        for pid, index in self.indices.items():
            vector[index] = weights.get(pid, 0.0)
        return vector

    def _gains(self, vector: list[float]) -> list[float]:
        return [sum(map(mul, row, vector)) for row in self.covariances]


def _without_negative(means: list[float], covariances: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Raise negative means to 0, and change the others by the covariances: so the sum stays what was measured."""
    for _ in covariances:
        index = min(range(len(means)), key=means.__getitem__)
        lowest, row = means[index], covariances[index]
        if lowest >= 0 or row[index] <= 0:
            break
        means = [mean - lowest * covariance / row[index] for mean, covariance in zip(means, row, strict=True)]
    return tuple(max(0.0, mean) for mean in means)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAttribution:
    """The state by which one GPU's SM time is divided.

    `windows` are those of the last minute, the oldest first. `clients` were connected at the end of the last window.
    `work` is the last reading with attributed launches. `rates` are the last two known launch rates. The clients are
    `settled` if watching them for a small part of the time is enough. `gpm_read_at` is when GPM was last read for
    attribution alone, and `read_at` when the GPU was last read without GPM.
    """

    windows: tuple[Split, ...] = ()
    estimates: KernelTimeEstimates = field(default_factory=KernelTimeEstimates)
    clients: frozenset[int] = frozenset()
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


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageTotals:
    """The usage of all GPUs, and when each workload with an account last used one.

    `closed` has the same of closed accounts, as long as their paces are remembered. `identities` also has those of
    workloads that have only counts.
    """

    gpus: Mapping[GpuUuid, GpuUsage] = field(default_factory=dict)
    last_used_at: Mapping[Workload, float] = field(default_factory=dict)
    closed: Mapping[Workload, float] = field(default_factory=dict)
    identities: Mapping[Workload, WorkloadIdentity] = field(default_factory=dict)


SAMPLE_SECONDS = 30.0  # Interval of samples.
MAX_SAMPLES = 120  # So many samples are remembered: those of an hour.


def slot_of(at: float) -> int:
    """Return the interval of a time; each has at most one sample."""
    return int(at // SAMPLE_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The number of clients and the used fractions of all GPUs at a moment. None: unknown."""

    at: float
    clients: int | None = None
    memory_ratio: float | None = None
    sm_ratio: float | None = None

    @property
    def slot(self) -> int:
        """The interval to which the sample belongs."""
        return slot_of(self.at)
