"""The node, with its GPUs: all that the reducer remembers. Immutable, so that a snapshot is a reference."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import TypeVar

from exporter.model.contention import GpuContention
from exporter.model.daemon import Daemon
from exporter.model.event import Event, EventName
from exporter.model.identity import Workload, WorkloadCounts
from exporter.model.incident import Death, Incident, Xids
from exporter.model.kernels import KernelReading
from exporter.model.launches import LaunchHistory, WorkReading
from exporter.model.observation import (
    AddressRanges,
    DaemonName,
    GpuReading,
    GpuUuid,
    PodFound,
    ProcessReading,
    ProcessState,
    SourceReading,
    UnitState,
)
from exporter.model.reason import Reason
from exporter.model.usage import GpuAttribution, Split, UsageTotals
from exporter.model.values import frozen
from exporter.model.watchdog import WatchdogState


class SharingMode(StrEnum):
    """How the processes on a GPU share it."""

    IDLE = "idle"
    EXCLUSIVE = "exclusive"
    TIME_SLICING = "time_slicing"
    MPS = "mps"
    MIG = "mig"
    MIXED = "mixed"


@frozen
class BypassingProcess:
    """A process on a GPU that is not a client of a known daemon; it is `confirmed` after a second reading.

    It bypasses the `daemon` there that certainly serves its user; None if there is none.
    """

    first_seen: float
    confirmed: bool = False
    daemon: DaemonName | None = None


@frozen
class MonotonicCounter:
    """A counter of the driver, which a restart resets: its last value, and a total that never decreases."""

    last: int
    total: int
    at: float = 0.0  # When it was last read.


@frozen
class Gpu:
    """A GPU as NVML last read it."""

    reading: GpuReading  # The last reading; if it failed, this has only the problem.
    mps_since: Mapping[int, float] = field(default_factory=dict)
    """Since when each PID is in NVML's MPS list, which also shows refused clients."""
    mps_left: Mapping[int, float] = field(default_factory=dict)  # When each PID was first missing from that list.
    bypassing_processes: Mapping[int, BypassingProcess] = field(default_factory=dict)
    bypassing_known: bool = False  # Whether the last reading showed which processes do not use MPS.
    energy: MonotonicCounter | None = None  # In millijoules.
    rejected_energy: MonotonicCounter | None = None
    """The energy counter of the last reading, if that could not be true."""
    discarded: int = 0  # How many values could not be true.
    failing_since: float | None = None  # Since when it could not be read.
    has_gpm: bool | None = None  # Whether GPM measures its SM time; None: not known yet.

    @property
    def bypassing(self) -> tuple[int, ...]:
        """PIDs of those that a daemon of the GPU would serve."""
        return tuple(pid for pid in self.outside if self.bypassing_processes[pid].daemon is not None)

    @property
    def outside(self) -> tuple[int, ...]:
        """PIDs of the confirmed processes outside MPS; none if the last reading lacks a list of processes."""
        if self.reading.compute_processes is None or self.reading.mps_processes is None:
            return ()
        return tuple(pid for pid, each in self.bypassing_processes.items() if each.confirmed)


class CollectorName(StrEnum):
    """Collectors, as in the label `source` and in recordings."""

    ADDRESS_RANGES = "address_ranges"
    CONTROL = "control"
    DISCOVERY = "discovery"
    JOURNAL = "journal"
    KERNEL = "kernel"
    LIBCUDA_PROBES = "libcuda_probes"
    LOGS = "log"
    NVML = "nvml"
    NVML_EVENTS = "nvml_events"
    PIPE_DIRECTORY = "pipe_directory"
    PODS = "pods"
    POD_LABELS = "pod_labels"
    PROCESS = "process"
    UNITS = "units"
    UNIT_STATES = "unit_states"


@frozen
class CollectorState:
    """Results of a collector."""

    last: SourceReading
    problems: Mapping[DaemonName, Reason] = field(default_factory=dict)
    """Current problems by daemon, or under "" if the collector is for the whole node."""
    last_success: float | None = None
    failures: int = 0
    failing_since: float | None = None  # Since when each collection has had a problem.


@frozen
class Node:
    """All that the reducer remembers. The mappings from `int` are by PID."""

    at: float = 0.0
    began_at: float | None = None  # Time of the first observation.
    daemons: Mapping[DaemonName, Daemon] = field(default_factory=dict)
    gpus: Mapping[GpuUuid, Gpu] = field(default_factory=dict)
    processes: Mapping[int, ProcessReading] = field(default_factory=dict)
    sources: Mapping[str, CollectorState] = field(default_factory=dict)
    xids: Xids = field(default_factory=Xids)
    pods: Mapping[str, PodFound] = field(default_factory=dict)
    accounts: Mapping[Workload, WorkloadCounts] = field(default_factory=dict)
    unattributed: frozenset[int] = frozenset()  # Clients of unknown workloads, which have no account.
    incidents: Mapping[str, Incident] = field(default_factory=dict)
    """By id, in order of detection: open incidents and the most recent others."""
    deaths: Mapping[int, Death] = field(default_factory=dict)  # Processes that exited in the last minute.
    lasting: Mapping[tuple[EventName, GpuUuid | None, int | None], Event] = field(default_factory=dict)
    """The events of what began and has not ended (`usage/lasting.py`), by name and GPU."""
    address_ranges: Mapping[int, tuple[AddressRanges, ...]] = field(default_factory=dict)
    """The last different readings of each client, the oldest first."""
    states: Mapping[int, ProcessState] = field(default_factory=dict)
    units: Mapping[str, UnitState] = field(default_factory=dict)
    watches: Mapping[DaemonName, WatchdogState] = field(default_factory=dict)
    work: WorkReading | None = None
    kernels: KernelReading | None = None  # The last one.
    fault_kernels: tuple[KernelReading, ...] = ()  # Those of the last seconds that were read after a fault, in order.
    launch_history: LaunchHistory = field(default_factory=LaunchHistory)
    attribution: Mapping[GpuUuid, GpuAttribution] = field(default_factory=dict)
    contention: Mapping[GpuUuid, GpuContention] = field(default_factory=dict)
    splits: Mapping[GpuUuid, Split] = field(default_factory=dict)
    """SM time of the last minute, divided among the clients."""
    usage_totals: UsageTotals = field(default_factory=UsageTotals)
    pruned_at: float = -math.inf  # When what is out of date was last removed.
    simulated: bool = False  # Whether this is the node of the demo, and not the machine.

    def begun_on(self, pid: int) -> Mapping[int, float]:
        """Return when a process was first known to launch on each of its devices, by its own numbers."""
        return {number: at for number, at in self.launch_history.begun.get(pid, {}).items() if number >= 0}


Item = TypeVar("Item")


def select_fairly(
    newest_first: Sequence[Item],
    most: int,
    daemon_of: Callable[[Item], str | None],
    expected: Collection[str],
    kind_of: Callable[[Item], object] = lambda _: None,
) -> tuple[Item, ...]:
    """Return at most `most` of these items, in their order.

    Half is for expected daemons and for items without a daemon, half for all other daemons. In each half, every daemon
    has the same share for each kind of its items, for the newest ones. Others get what a half or a share does not need.
    """
    if len(newest_first) <= most:
        return tuple(newest_first)
    counts: Counter[object] = Counter()
    halves: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    for number, item in enumerate(newest_first):
        daemon, kind = daemon_of(item), kind_of(item)
        halves[daemon is None or daemon in expected].append((counts[daemon, kind], number))
        counts[daemon, kind] += 1
    ranked = sorted((rank, number) for half in halves.values() for rank, (_, number) in enumerate(sorted(half)))
    return tuple(newest_first[number] for number in sorted(number for _, number in ranked[:most]))


def expected_daemons(node: Node) -> frozenset[str]:
    """Return the names of the daemons that are expected."""
    return frozenset(name for name, daemon in node.daemons.items() if daemon.declared.expected)
