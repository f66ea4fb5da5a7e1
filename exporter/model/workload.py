"""Whose work a process is: what outlives it, and what people ask about."""

from dataclasses import dataclass
from enum import StrEnum


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
class Account:
    """What an owner's clients have done so far. `used_at` is when it was last known to have one.

    `faults_affected` are the faults that hit a client of it, `faults_suspected` those of which one was the likeliest
    cause.
    """

    used_at: float
    connected: int = 0
    faults_affected: int = 0
    faults_suspected: int = 0
