"""What nvitop would show of each process: NVML's samples by process."""

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Nvitop:
    """When it looked, and what each process then had, in percent."""

    looks: Sequence[tuple[float, dict[int, float]]]

    def mean(self, pid: int, begin: float, end: float) -> float:
        """Of a process in this time; one that it had no sample of had nothing."""
        seen = [by_pid.get(pid, 0.0) for at, by_pid in self.looks if begin < at <= end]
        return sum(seen) / len(seen) if seen else 0.0


def read_rows(file: Path) -> Nvitop:
    """As they were written down."""
    with gzip.open(file, "rt") as stream:
        told = [json.loads(line) for line in stream if line.endswith("\n")]
    return Nvitop([(look["at"], {row["pid"]: float(row["sm"]) for row in look["rows"]}) for look in told])
