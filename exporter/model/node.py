"""The node: all that the reducer remembers. Immutable, so that a snapshot is a reference."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from exporter.model.accounting import UsageTotals
from exporter.model.daemon import Daemon
from exporter.model.gpu import Gpu, Xids
from exporter.model.identity import Workload, WorkloadCounts
from exporter.model.incident import Death, Incident
from exporter.model.launches import LaunchHistory, WorkReading
from exporter.model.observation import (
    DaemonName,
    GpuUuid,
    PodFound,
    ProcessReading,
    ProcessState,
    SourceReading,
    UnitState,
)
from exporter.model.problem import Problem
from exporter.model.usage import AttributionState, Split
from exporter.model.watchdog import WatchdogState


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorState:
    """One of the exporter's own eyes: its last look, when it last succeeded, and how often it failed.

    `problems` has those that stand, by daemon where each has an eye of its own, else under "".
    """

    last: SourceReading
    problems: Mapping[DaemonName, Problem] = field(default_factory=dict)
    last_success: float | None = None
    failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Everything remembered between two observations.

    `began_at` is the time of the first observation; None before it.

    `incidents` has the faults by id, in the order in which they were found: those that are open, and the last ones.
    `deaths` has, by PID, the processes that have exited in the last minute. `states` has, by PID, how the processes of
    MPS stand with the scheduler, `units` the systemd units that were looked at, `watches` what the watchdog knows.

    `unattributed` are the clients of whom it is not known yet who they are, so that no account has them.

    `work` is the last reading of the libcuda probes, `launch_history` the readings before it. `attribution` is the
    state by which SM time is divided, `splits` how that of the last minute was divided, and `usage_totals` what each
    workload has used so far.
    """

    at: float = 0.0
    began_at: float | None = None
    daemons: Mapping[DaemonName, Daemon] = field(default_factory=dict)
    gpus: Mapping[GpuUuid, Gpu] = field(default_factory=dict)
    processes: Mapping[int, ProcessReading] = field(default_factory=dict)
    sources: Mapping[str, CollectorState] = field(default_factory=dict)
    xids: Xids = field(default_factory=Xids)
    pods: Mapping[str, PodFound] = field(default_factory=dict)
    accounts: Mapping[Workload, WorkloadCounts] = field(default_factory=dict)
    unattributed: frozenset[int] = frozenset()
    incidents: Mapping[str, Incident] = field(default_factory=dict)
    deaths: Mapping[int, Death] = field(default_factory=dict)
    states: Mapping[int, ProcessState] = field(default_factory=dict)
    units: Mapping[str, UnitState] = field(default_factory=dict)
    watches: Mapping[DaemonName, WatchdogState] = field(default_factory=dict)
    work: WorkReading | None = None
    launch_history: LaunchHistory = field(default_factory=LaunchHistory)
    attribution: AttributionState = field(default_factory=AttributionState)
    splits: Mapping[GpuUuid, Split] = field(default_factory=dict)
    usage_totals: UsageTotals = field(default_factory=UsageTotals)


Kept = TypeVar("Kept")


def select_fairly(
    newest_first: Sequence[Kept],
    most: int,
    daemon_of: Callable[[Kept], str | None],
    expected: Collection[str],
) -> tuple[Kept, ...]:
    """Keep `most` of these, in their order.

    Half is for the expected daemons and for what is of no daemon, half for all other daemons. In each half, every
    daemon has the same share, of which it keeps the newest. What a half or a share does not need is left to the others.
    """
    if len(newest_first) <= most:
        return tuple(newest_first)
    places: Counter[str | None] = Counter()
    halves: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    for number, each in enumerate(newest_first):
        daemon = daemon_of(each)
        halves[daemon is None or daemon in expected].append((places[daemon], number))
        places[daemon] += 1
    ranked = sorted((rank, number) for half in halves.values() for rank, (_, number) in enumerate(sorted(half)))
    return tuple(newest_first[number] for number in sorted(number for _, number in ranked[:most]))


def expected_daemons(node: Node) -> frozenset[str]:
    """Return the names of the daemons that are expected."""
    return frozenset(name for name, daemon in node.daemons.items() if daemon.declared.expected)
