"""What clients were seen to ask of their GPUs, from outside: counted at the doors of libcuda, by process.

Times are in nanoseconds, of CLOCK_BOOTTIME where they are points in time: the clock of a process' start in /proc.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessWork:
    """What one process has launched since `first_ns`; all but the last four only grow.

    `kernels` and `graphs` are launches of each. A span is the time from a launch on an idle stream until a
    synchronisation with that stream has returned: `spans` are those that ended, `flight_ns` how long they were, and
    `area` their length times the width of their kernels, in nanoseconds of one SM; `heights` is the sum of their widths
    in SMs. `sure_ns` and `sure_area` are of that what lay after the synchronisation was called, or in spans where the
    GPU was then behind: there something surely ran. `lost` are launches for which there was no room.

    `open_ns` and `open_area` are those of the spans that last still, up to now; `launched_ns` is when it launched last.
    `failed_ns` is when a synchronisation first returned an error, 0 where none did.
    """

    pid: int
    first_ns: int
    kernels: int = 0
    graphs: int = 0
    spans: int = 0
    flight_ns: int = 0
    area: int = 0
    heights: int = 0
    sure_ns: int = 0
    sure_area: int = 0
    lost: int = 0
    open_ns: int = 0
    open_area: int = 0
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

    `seconds` is for how long, of the time since the reading before, the doors were watched. `watched` are the PIDs
    whose libcuda is watched: of another, nothing is known, and not that it did nothing.
    """

    at: float
    boot_ns: int
    seconds: float
    processes: tuple[ProcessWork, ...] = ()
    watched: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How much a process has launched, how long it had work in flight, and how many launches were not seen."""

    kernels: int = 0
    graphs: int = 0
    flight_ns: int = 0
    lost: int = 0

    def plus(self, other: "Counts") -> "Counts":
        """Both together."""
        return Counts(
            kernels=self.kernels + other.kernels,
            graphs=self.graphs + other.graphs,
            flight_ns=self.flight_ns + other.flight_ns,
            lost=self.lost + other.lost,
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
class Doors:
    """What libcuda's doors have told so far: the last readings, the eldest first; each process' counts; all losses."""

    readings: tuple[WorkReading, ...] = ()
    worked: Mapping[int, Worked] = field(default_factory=dict)
    lost: int = 0
