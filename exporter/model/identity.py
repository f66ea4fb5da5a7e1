"""Which process is meant: a PID comes again, the same PID with the same start time never does."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """A process. `start_ticks` is when it started, in clock ticks since boot (proc_pid_stat(5))."""

    pid: int
    start_ticks: int
