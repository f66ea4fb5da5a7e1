"""What is remembered: the node as the core last understood it. Immutable, so a snapshot is a reference to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from exporter.model.accounting import UsageTotals
from exporter.model.daemon import Daemon
from exporter.model.death import Death
from exporter.model.gpu import Gpu
from exporter.model.incident import Incident
from exporter.model.launches import LaunchHistory, WorkReading
from exporter.model.observation import DaemonName, GpuUuid, PodFound, ProcessReading, SourceReading
from exporter.model.problem import Problem
from exporter.model.usage import AttributionState, Split
from exporter.model.watch import Watch
from exporter.model.witnesses import ProcessState, UnitState
from exporter.model.workload import Account, Workload
from exporter.model.xids import Xids


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
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
    sources: Mapping[str, Source] = field(default_factory=dict)
    xids: Xids = field(default_factory=Xids)
    pods: Mapping[str, PodFound] = field(default_factory=dict)
    accounts: Mapping[Workload, Account] = field(default_factory=dict)
    unattributed: frozenset[int] = frozenset()
    incidents: Mapping[str, Incident] = field(default_factory=dict)
    deaths: Mapping[int, Death] = field(default_factory=dict)
    states: Mapping[int, ProcessState] = field(default_factory=dict)
    units: Mapping[str, UnitState] = field(default_factory=dict)
    watches: Mapping[DaemonName, Watch] = field(default_factory=dict)
    work: WorkReading | None = None
    launch_history: LaunchHistory = field(default_factory=LaunchHistory)
    attribution: AttributionState = field(default_factory=AttributionState)
    splits: Mapping[GpuUuid, Split] = field(default_factory=dict)
    usage_totals: UsageTotals = field(default_factory=UsageTotals)
