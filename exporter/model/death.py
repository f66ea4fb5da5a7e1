"""How processes ended."""

from dataclasses import dataclass

from exporter.model.observation import ProcessReading


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A process that has exited lately: who it was, and how it ended, as far as that could be seen.

    `at` is when the first sign of it was seen. `wait_status` is as from waitpid(2), None where nobody could tell;
    `out_of_memory` says that the kernel killed it for want of memory. `start_ticks` tells it from others that had its
    PID; None where only the kernel told of it.
    """

    at: float
    pid: int
    start_ticks: int | None = None
    process: ProcessReading | None = None
    wait_status: int | None = None
    out_of_memory: bool = False
