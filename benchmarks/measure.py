"""What a process has cost so far, from outside."""

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

MEBIBYTE = 1 << 20

_SCHEDULED_TIME = 2
"""CPUCLOCK_SCHED of linux/posix-timers.h: all threads of a process, those that have ended included, in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU seconds of a process, and of those of its children that have ended."""

    own: float
    children: float

    @property
    def all(self) -> float:
        """Both."""
        return self.own + self.children

    def since(self, before: "Cpu") -> "Cpu":
        """What was used since."""
        return Cpu(self.own - before.own, self.children - before.children)


def cpu(pid: int) -> Cpu:
    """What a process has used since it began; its children by the kernel's ticks, of 10 ms as a rule."""
    own = time.clock_gettime((~pid << 3) | _SCHEDULED_TIME)
    ticks = [int(field) for field in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[13:15]]
    return Cpu(own, sum(ticks) / os.sysconf("SC_CLK_TCK"))


def resident_mib(pid: int) -> float:
    """Memory of a process that is in RAM, that which it shares included, in MiB."""
    found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    if found is None:
        raise ProcessLookupError(f"process {pid} has no memory any more")
    return int(found[1]) * 1024 / MEBIBYTE
