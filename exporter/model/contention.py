"""How the clients of a GPU share it, and how much they slow each other down: what is known of it."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field
from enum import StrEnum
from typing import NamedTuple

from exporter.model.estimates import ClientEstimates
from exporter.model.values import frozen


class Resource(StrEnum):
    """What the clients of a GPU compete for; `OTHER`: neither is known to be used up."""

    MEMORY = "memory_bandwidth"
    SMS = "sms"
    OTHER = "other"


class Bandwidth(NamedTuple):
    """The fraction of the memory's bandwidth that a client uses, with its standard error."""

    part: float
    error: float


class Pace(NamedTuple):
    """What a client did in some time: its launches, spans and the widths of its kernels.

    `busy_ns` is the time with work in flight, and `gap_ns` the short time between, in which it worked on the CPU.
    `sm_ns` and `dram_ns` are its use of the SMs and of the memory's bandwidth, as time of the whole GPU; 0: unknown.
    """

    launches: float = 0.0
    spans: float = 0.0
    widths: float = 0.0
    busy_ns: float = 0.0
    gap_ns: float = 0.0
    sm_ns: float = 0.0
    dram_ns: float = 0.0

    @property
    def latency(self) -> float:
        """The time in flight of a launch, in nanoseconds; there must be launches."""
        return self.busy_ns / self.launches

    def scaled(self, factor: float) -> "Pace":
        """Return the pace of so many times as much work."""
        return Pace(*(factor * count for count in self))

    @staticmethod
    def total(paces: "Iterable[Pace]") -> "Pace":
        """Return what was done in all of these times together."""
        return Pace(*map(sum, zip(*paces, strict=True)))


@frozen
class Baseline:
    """The pace of a client on a quiet GPU, over so many windows, with the variance of the logarithm of its latency.

    `others` is the mean fraction of the SMs that others used then. `is_bound`: the GPU was never quiet, and these
    are the client's fastest windows. Since then its own work takes `longer` by this factor, as far as is known. Before
    `since`, its own work took another time.
    """

    pace: Pace
    windows: int = 1
    variance: float = 0.0
    others: float = 0.0
    is_bound: bool = False
    longer: float = 1.0
    since: float = -math.inf

    def lost(self, pace: Pace) -> float:
        """Return how much longer work was in flight than on a quiet GPU, in nanoseconds; negative if shorter."""
        return pace.busy_ns - pace.launches * self.pace.latency * self.longer

    def wanted(self, pace: Pace) -> float:
        """Return the time that a client's work took: in flight, and on the CPU, as on a quiet GPU."""
        return pace.busy_ns + pace.launches * self.pace.gap_ns / self.pace.launches


@frozen
class ContentionWindow:
    """What the clients did in the `seconds` until `at`.

    For the clients in `quiet` the GPU was quiet. If it was so in the window before, too, `others` has the fraction
    of the SMs that others used. `traffic` has each client's part of the memory's bandwidth, and `copying` the fraction
    of the time for which it copied within the GPU. `parts` are those of the clients in the use of the `resource` that
    was used up. `doubted` clients may have changed their own work.
    """

    at: float
    seconds: float
    paces: Mapping[int, Pace] = field(default_factory=dict)
    quiet: frozenset[int] = frozenset()
    others: Mapping[int, float] = field(default_factory=dict)
    traffic: Mapping[int, Bandwidth] = field(default_factory=dict)
    copying: Mapping[int, float] = field(default_factory=dict)
    resource: Resource = Resource.OTHER
    parts: Mapping[int, float] = field(default_factory=dict)
    doubted: Collection[int] = ()


@frozen
class GpuContention:
    """The state by which the slowdown of a GPU's clients is estimated; `windows` are those of the last minute.

    `traffic` estimates what a kernel moves: for each SM of its width, the nanoseconds that it needs the whole bandwidth
    of the memory. What a client copies has its negative PID, and the part of it that does not stay in the cache.
    `contradictions` counts the windows in a row that contradict a baseline. `starved_since` has the clients that are
    much slower without a break, as of `examined_at`. `ahead_ns` has the time by which clients seemed faster than on a
    quiet GPU: they lose time only beyond that.
    """

    windows: tuple[ContentionWindow, ...] = ()
    baselines: Mapping[int, Baseline] = field(default_factory=dict)
    traffic: ClientEstimates = field(default_factory=lambda: ClientEstimates(scaled=False))
    contradictions: Mapping[int, int] = field(default_factory=dict)
    starved_since: Mapping[int, float] = field(default_factory=dict)
    examined_at: float = -math.inf
    ahead_ns: Mapping[int, float] = field(default_factory=dict)


@frozen
class Slowdown:
    """By what factor a client was slower in the last minute than on a quiet GPU, with its standard error.

    If `at_least`, that is a lower bound. `resource` is what it waited for most, None if it never waited,
    and `neighbours` are the others with their fractions of that, the largest first. `apparent` is the whole factor, of
    which a part may be by a change of its own work.
    """

    ratio: float
    error_ratio: float
    apparent: float
    at_least: bool = False
    resource: Resource | None = None
    neighbours: tuple[tuple[int, float], ...] = ()
