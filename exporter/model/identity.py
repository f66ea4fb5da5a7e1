"""Processes and workloads: what identifies them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """A process. `start_ticks` is when it started, in clock ticks since boot (proc_pid_stat(5))."""

    pid: int
    start_ticks: int


class Seen(Protocol):
    """What was seen of a process; None is what was not."""

    @property
    def pid(self) -> int | None:
        """Its PID."""

    @property
    def start_ticks(self) -> int | None:
        """When it started, in clock ticks since boot."""


def identity_of(process: Seen | None) -> ProcessIdentity | None:
    """Which process that is; None where it is not known."""
    if process is None or process.pid is None or process.start_ticks is None:
        return None
    return ProcessIdentity(pid=process.pid, start_ticks=process.start_ticks)


class WorkloadKind(StrEnum):
    """Kinds of owners."""

    UNIT = "unit"
    CONTAINER = "container"
    POD = "pod"
    SLURM_JOB = "slurm_job"
    USER = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """An owner of processes: `name` is the unit's or the user's name, or the ID of the container, pod or job."""

    kind: WorkloadKind
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadCounts:
    """What an owner's clients have done so far. `used_at` is when it was last known to have one.

    `faults_affected` are the faults that hit a client of it, `faults_suspected` those of which one was the likeliest
    cause.
    """

    used_at: float
    connected: int = 0
    faults_affected: int = 0
    faults_suspected: int = 0
