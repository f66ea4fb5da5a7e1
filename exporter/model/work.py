"""What clients were seen to ask of their GPUs, from outside: counted at the doors of libcuda, by process.

Times are in nanoseconds, of CLOCK_BOOTTIME where they are points in time: the clock of a process' start in /proc.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

_TICK_NS = 10_000_000
"""Of a clock tick of /proc: USER_HZ is 100 on x86-64 and arm64."""


def began_ns(start_ticks: int) -> int:
    """When a process began that started so many clock ticks after boot."""
    return start_ticks * _TICK_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessWork:
    """What one process has launched since `first_ns`; all but the last five only grow.

    `kernels` and `graphs` are launches of each, `syncs` synchronisations, `records` events recorded. `widths` is the
    sum of the widths of all kernels, in SMs, those of a graph included. A span is the time from a launch on an idle
    stream until a synchronisation with that stream has returned: `spans` are those that ended, `flight_ns` how long
    they were, and `area` their length times the mean width of their kernels, in nanoseconds of one SM.

    A burst is what was launched without a pause. Of those at whose end the GPU was behind, and which so were busy all
    along, `sure_area` is the area, and `sure_widths` the sum of their kernels' widths. `sure_gaps` is that sum in units
    of the gaps before each kernel; `sure_heights` has the mean width of each burst, `sure_event_heights` of those
    whose end was waited for by an event.

    `open_ns` and `open_area` are those of the spans that last still, up to now, and `open_since_ns` when the first of
    them began; `launched_ns` is when it launched last. `failed_ns` is when a synchronisation first returned an error, 0
    where none did.
    """

    pid: int
    first_ns: int
    kernels: int = 0
    graphs: int = 0
    syncs: int = 0
    records: int = 0
    spans: int = 0
    flight_ns: int = 0
    area: int = 0
    widths: int = 0
    sure_area: int = 0
    sure_widths: int = 0
    sure_gaps: int = 0
    sure_heights: int = 0
    sure_event_heights: int = 0
    open_ns: int = 0
    open_area: int = 0
    open_since_ns: int = 0
    launched_ns: int = 0
    failed_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """How busy a GPU was in the last `seconds`, by GPM: its SMs, and its memory's bandwidth, each 0 to 1.

    Read far oftener than a `GpuReading`, with the `WorkReading` that explains it.
    """

    at: float
    gpu: str
    seconds: float
    sm_utilization: float
    dram_bandwidth: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkReading:
    """What every process that uses CUDA has launched so far, seen at the doors of libcuda.

    `boot_ns` is `at` by CLOCK_BOOTTIME. `seconds` is for how long, of the time since the reading before, the doors were
    watched. `watched` are the PIDs whose libcuda is watched, if not all the time: of another, nothing is known, and not
    that it did nothing. `sms` is how many SMs a GPU has, `narrowed` how many of them a process may use where that is
    not all. `lost` are launches for which there was no room, of any process.
    """

    at: float
    boot_ns: int
    seconds: float
    sms: int = 0
    lost: int = 0
    narrowed: Mapping[int, int] = field(default_factory=dict)
    processes: tuple[ProcessWork, ...] = ()
    watched: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How much a process has launched, and how long it had work in flight."""

    kernels: int = 0
    graphs: int = 0
    flight_ns: int = 0

    def plus(self, other: "Counts") -> "Counts":
        """Both together."""
        return Counts(
            kernels=self.kernels + other.kernels,
            graphs=self.graphs + other.graphs,
            flight_ns=self.flight_ns + other.flight_ns,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked:
    """One process' counts, which never fall.

    `last` is of the counting that began at `first_ns`, `past` of those before; `began_ns` is when the first did.
    """

    began_ns: int
    first_ns: int
    last: Counts
    past: Counts = field(default_factory=Counts)

    @property
    def total(self) -> Counts:
        """Of all of them."""
        return self.past.plus(self.last)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkHistory:
    """What WorkReadings have told so far: the last of them, the eldest first; each process' counts; all that was lost.

    `watched` has, of each reading of the last minute, its `boot_ns` and `seconds`.
    """

    readings: tuple[WorkReading, ...] = ()
    worked: Mapping[int, Worked] = field(default_factory=dict)
    lost: int = 0
    watched: tuple[tuple[int, float], ...] = ()
