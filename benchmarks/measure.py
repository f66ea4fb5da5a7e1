"""CPU time and memory of a process, measured from outside."""

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

MEBIBYTE = 1 << 20

_SCHEDULED_TIME = 2
"""CPUCLOCK_SCHED of linux/posix-timers.h: nanoseconds of all threads of a process, ended ones included."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU seconds of a process and of its ended children."""

    own: float
    children: float

    @property
    def all(self) -> float:
        """The sum of both."""
        return self.own + self.children

    def since(self, before: "Cpu") -> "Cpu":
        """Return the use since `before`."""
        return Cpu(self.own - before.own, self.children - before.children)


def cpu(pid: int) -> Cpu:
    """Return the CPU time of a process. That of children has the resolution of kernel ticks (10 ms as a rule)."""
    own = time.clock_gettime((~pid << 3) | _SCHEDULED_TIME)
    ticks = [int(field) for field in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[13:15]]
    return Cpu(own, sum(ticks) / os.sysconf("SC_CLK_TCK"))


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB, shared memory included."""
    found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    if found is None:
        raise ProcessLookupError(f"process {pid} has no memory any more")
    return int(found[1]) * 1024 / MEBIBYTE
