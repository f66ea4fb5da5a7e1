"""Processes and workloads: what identifies them."""

from collections.abc import Mapping
from dataclasses import field, fields
from enum import StrEnum
from typing import Protocol

from exporter.model.values import frozen


@frozen
class ProcessIdentity:
    """A process. `start_ticks` is when it started, in clock ticks since boot (proc_pid_stat(5))."""

    pid: int
    start_ticks: int


class _Process(Protocol):
    @property
    def pid(self) -> int | None: ...

    @property
    def start_ticks(self) -> int | None: ...


def identity_of(process: _Process | None) -> ProcessIdentity | None:
    """Return the identity of a process; None if its PID or start time is unknown."""
    if process is None or process.pid is None or process.start_ticks is None:
        return None
    return ProcessIdentity(pid=process.pid, start_ticks=process.start_ticks)


@frozen
class ConnectionHolders:
    """The processes that hold the connection of a daemon's client that has exited; None if they are not certain."""

    at: float
    daemon: str
    pid: int
    holders: tuple[ProcessIdentity, ...] | None


class WorkloadRole(StrEnum):
    """What a process is for the job or pod of a daemon."""

    TASK = "task"
    """A task of the job, or the first process of another container of the pod. It does not depend on the daemon."""
    CONTAINER = "container"
    """The first process of the daemon's own container. It also ends if only that container ends."""
    SANDBOX = "sandbox"  # The process that holds the namespaces of the pod. It ends last.


@frozen
class WorkloadProcess:
    """A process whose end is a sign of the end of a daemon's job or pod, with the others of that job or pod."""

    pid: int
    start_ticks: int
    role: WorkloadRole


class WorkloadKind(StrEnum):
    """Kinds of workloads."""

    UNIT = "unit"
    CONTAINER = "container"
    POD = "pod"
    TASK = "task"
    JOB = "job"
    USER = "user"


class JobManager(StrEnum):
    """Batch systems whose jobs are known."""

    SLURM = "slurm"
    PBS = "pbs"
    TORQUE = "torque"
    HTCONDOR = "htcondor"
    FLUX = "flux"
    LSF = "lsf"
    GRID_ENGINE = "grid_engine"


@frozen
class Workload:
    """A workload: `name` is the name of the unit or user, or the ID of the container, pod, task or job."""

    kind: WorkloadKind
    name: str


@frozen
class WorkloadIdentity:
    """What is known of the clients of a workload, with those that have ended.

    None: unknown. If clients have different values, the value is empty, and stays so. `labels` are those of the pod.
    """

    namespace: str | None = None
    pod: str | None = None
    container: str | None = None
    user: str | None = None
    unit: str | None = None
    job_manager: str | None = None
    job_id: str | None = None
    labels: Mapping[str, str] | None = None

    def merged(self, other: "WorkloadIdentity") -> "WorkloadIdentity":
        """Return what is known of the clients of both."""
        both = ((each.name, getattr(self, each.name), getattr(other, each.name)) for each in fields(self))
        return WorkloadIdentity(
            **{name: b if a is None else a if b is None or a == b else type(a)() for name, a, b in both}
        )


class Confidence(StrEnum):
    """Levels of the confidence that the main suspect has caused a fault."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    NONE = "none"  # There is no main suspect.


@frozen
class WorkloadCounts:
    """Counts of the clients of one workload."""

    used_at: float  # When it last had a client.
    connected: int = 0
    faults_affected: int = 0  # Faults that affected a client.
    faults_suspected: int = 0  # Faults with its client as the main suspect, which another client may have arranged.
    faulted_clients: Mapping[tuple[str, Confidence], int] = field(default_factory=dict)
    """Clients that faults ended, by the workload of the main suspect (`ClientDetails.workload_label`; empty: none)."""
