"""The values that nvitop would show: NVML's samples by process."""

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Nvitop:
    """Times, and the percent of each process."""

    looks: Sequence[tuple[float, dict[int, float]]]

    def mean(self, pid: int, begin: float, end: float) -> float:
        """Return the mean of a process in this time. A missing sample is 0."""
        seen = [by_pid.get(pid, 0.0) for at, by_pid in self.looks if begin < at <= end]
        return sum(seen) / len(seen) if seen else 0.0


def read_rows(file: Path) -> Nvitop:
    """Read the rows of a file."""
    with gzip.open(file, "rt") as stream:
        samples = [json.loads(line) for line in stream if line.endswith("\n")]
    return Nvitop([(sample["at"], {row["pid"]: float(row["sm"]) for row in sample["rows"]}) for sample in samples])
