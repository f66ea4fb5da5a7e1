"""Launch counts, read from the libcuda probes, and their history.

Points in time are in nanoseconds of CLOCK_BOOTTIME, the clock of a process' start time in /proc.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field, fields, replace
from operator import add
from typing import NamedTuple

from exporter.model.values import frozen

_TICK_NS = 10_000_000  # A clock tick of /proc: USER_HZ is 100 on x86-64 and arm64.


def began_ns(start_ticks: int) -> int:
    """Return when a process started, by its start time in clock ticks after boot."""
    return start_ticks * _TICK_NS


@frozen
class WorkCounts:
    """What a process has done, since it began or in some time. ProcessWork describes the fields."""

    kernels: int = 0
    graphs: int = 0
    graph_kernels: int = 0
    uploads: int = 0
    copies: int = 0
    copied: int = 0
    transferred: int = 0
    syncs: int = 0
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


@frozen
class ProcessWork(WorkCounts):
    """What one process has launched since `first_ns`. All but the fields from `open_ns` on only increase.

    `kernels` and `graphs` are launches, and `graph_kernels` the kernels in the graphs. `syncs` are synchronisations and
    copies to the host; `context_syncs` are those of a whole context, and ends of contexts and streams. `uploads` are
    asynchronous copies to the GPU, and `records` recorded events. `queries` ask whether work is done, while they are
    probed. `lookups` are calls that some programs make often, while they are probed, and `unnamed` lost names.
    `copies` are copies within the GPU and memsets (`graph_copies`: in graphs), and `copied` the bytes of its memory
    that these read and write. `transfers` are copies between host and GPU, and `transferred` their bytes.
    `widths` is the sum of the widths of all kernels, in SMs. A span is the time from a launch or copy on an idle stream
    until a synchronisation with that stream returns, or until a repeated query succeeds: `spans` counts the ended ones,
    and `flight_ns` is their length. `area` is their length times the mean width of their kernels, and `bound` times the
    greatest width, in nanoseconds of one SM: copies have none.

    A burst is a series of launches without a pause. `sure_` fields count bursts only if the GPU was behind at their
    end, and so was busy all the time: `sure_area` is their area, `sure_widths` the sum of their kernels' widths.
    `sure_gaps` is that sum in units of the gaps before each kernel. `sure_heights` adds the mean width of each burst,
    `sure_event_heights` of each burst that an event waited for.

    `open_ns`, `open_area` and `open_bound` are those of the spans that are still open, up to now. `open_since_ns` is
    when the first of them began, and `open_streams` how many streams have work. `open_unsure_ns` is the part of
    `open_ns` of spans that may have ended while probes were detached: those of queries if a query has ended one.

    `launched_ns` is the last launch. `failed_ns` is when a synchronisation first returned an error; 0: never.
    `initialized_ns` is the first CUDA call, if the probes were attached before the process began and ever since.
    `synced_ns` is when the last successful synchronisation of a whole context was called; 0: none since the probes are
    attached. Both are 0 if a context or stream was destroyed with work in flight. `answered_ns` is the last query that
    ended a span. Its answer is inferred, and may be an error. `hidden_ns` is the last launch whose end may be missed.

    `busy_ns` is the time with work in flight on any stream, `open_busy_ns` since the last such time began. `gap_ns` is
    the time between two of them, if at most 10 ms: after that a client had nothing to do. Readings of earlier versions
    have none of these.

    `device` is the CUDA ordinal of the GPU that the work is of, as the client counts them; -1: unknown, or of all.
    `context_calls` are first calls, begins and ends of captures, and on nodes with several GPUs changes of the current
    context.
    """

    pid: int
    first_ns: int
    device: int = -1
    records: int = 0
    context_calls: int = 0
    context_syncs: int = 0
    queries: int = 0
    lookups: int = 0
    unnamed: int = 0
    transfers: int = 0
    graph_copies: int = 0
    open_ns: int = 0
    open_busy_ns: int = 0
    open_area: int = 0
    open_bound: int = 0
    open_unsure_ns: int = 0
    open_since_ns: int = 0
    open_streams: int = 0
    launched_ns: int = 0
    failed_ns: int = 0
    initialized_ns: int = 0
    synced_ns: int = 0
    answered_ns: int = 0
    hidden_ns: int = 0


OPEN_COUNTS = {"flight_ns": "open_ns"} | {name: f"open_{name}" for name in ("area", "bound", "busy_ns")}
"""The counts of ended spans, with those of open ones."""

_LATEST = ("launched_ns", "synced_ns", "answered_ns", "hidden_ns")
_FIRST = ("first_ns", "open_since_ns", "failed_ns", "initialized_ns")


def sums(parts: Iterable[ProcessWork]) -> dict[int, ProcessWork]:
    """Return the work of each process by PID, on all devices together. The first of two times counts, if not 0."""
    found: dict[int, ProcessWork] = {}
    for part in parts:
        known = found.get(part.pid)
        if known is None:
            found[part.pid] = replace(part, device=-1) if part.device >= 0 else part
            continue
        amounts = {each.name: getattr(known, each.name) + getattr(part, each.name) for each in fields(ProcessWork)}
        latest = {name: max(getattr(known, name), getattr(part, name)) for name in _LATEST}
        first = {name: min(filter(None, (getattr(known, name), getattr(part, name))), default=0) for name in _FIRST}
        found[part.pid] = ProcessWork(**{**amounts, **latest, **first, "pid": part.pid, "device": -1})
    return found


@frozen
class WorkReading:
    """What every process that uses CUDA has launched so far, as the libcuda probes count it.

    `boot_ns` is `at` by CLOCK_BOOTTIME. `seconds` is how long the probes were attached since the reading before.
    `processes` has the sum over all devices, and `on_devices` the parts on nodes with several GPUs. `watched` are the
    probed PIDs; what other processes did is unknown. `sms` is how many SMs a GPU has, and `bandwidth` the bytes that
    its memory can move in a second, as GPM counts them. `gpus` is how many GPUs the node has, with those that a
    container hides from NVML. 0: unknown. `lost` are launches that did not fit into a BPF map.
    """

    at: float
    boot_ns: int
    seconds: float
    sms: int = 0
    bandwidth: int = 0
    gpus: int = 0
    lost: int = 0
    processes: tuple[ProcessWork, ...] = ()
    on_devices: tuple[ProcessWork, ...] = ()
    watched: tuple[int, ...] = ()


class LaunchCounts(NamedTuple):
    """How much a process has launched, and how long it had work in flight."""

    kernels: int = 0
    graphs: int = 0
    flight_ns: int = 0


@frozen
class ProcessLaunches:
    """One process' counts, which never decrease.

    A process is counted anew if the probes were detached from it in between. `current` began at `first_ns`; `earlier`
    has the counts before, the first of which began at `started_ns`.
    """

    started_ns: int
    first_ns: int
    current: LaunchCounts
    earlier: LaunchCounts = field(default_factory=LaunchCounts)

    @property
    def total(self) -> LaunchCounts:
        """All counts of the process."""
        return LaunchCounts(*map(add, self.earlier, self.current))


@frozen
class LaunchHistory:
    """The last readings, the oldest first, the counts of each process, and all lost launches.

    `watched` has the `boot_ns`, the `seconds` and the `watched` PIDs of each reading of the last minute. `begun` is
    when each process was first known to launch on each of its devices, by their numbers; -1: on any.
    """

    readings: tuple[WorkReading, ...] = ()
    counts: Mapping[int, ProcessLaunches] = field(default_factory=dict)
    lost: int = 0
    watched: tuple[tuple[int, float, tuple[int, ...]], ...] = ()
    begun: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
