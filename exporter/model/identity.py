"""Which process is meant: a PID comes again, the same PID with the same start time never does."""

from dataclasses import dataclass
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
