"""Arguments of the scripts; figures and their targets, as a table for people and as JSON for programs."""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


def arguments_parser(script: str, purpose: str, *, gpus: int, clients: int) -> argparse.ArgumentParser:
    """Return a parser with the arguments of all scripts and this script's defaults."""
    found = argparse.ArgumentParser(prog=f"python -m benchmarks.{script}", description=purpose)
    found.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    found.add_argument("--gpus", type=int, default=gpus, help="GPUs of the stand-in node (default: %(default)s)")
    found.add_argument("--clients", type=int, default=clients, help="clients on each GPU (default: %(default)s)")
    found.add_argument(
        "--real", action="store_true", help="on this machine's GPU, with MPS and nvcc, instead of stand-ins; as root"
    )
    found.add_argument(
        "--flag", action="append", default=[], metavar="FLAG", help="one more of the exporter's own; can be given again"
    )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure; `most` is its limit, None if it has none."""

    name: str
    value: float
    unit: str = ""
    most: float | None = None

    @property
    def verdict(self) -> str:
        """Whether the figure is within its limit."""
        if self.most is None:
            return ""
        return "reached" if self.value <= self.most else "FALLS SHORT"

    def row(self) -> tuple[str, str, str, str]:
        """Return its row of the table."""
        most = "" if self.most is None else f"at most {self.most:g} {self.unit}".rstrip()
        return self.name, f"{self.value:.4g} {self.unit}".rstrip(), most, self.verdict


def report(title: str, figures: Sequence[Figure], json_file: Path | None = None) -> int:
    """Print the table, and write the JSON if wanted. Return exit code 0 if all limits hold."""
    rows = [("figure", "value", "target", ""), *(figure.row() for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    sys.stdout.write("\n".join((f"# {title}", *lines)) + "\n")
    if json_file is not None:
        document = {"title": title, "figures": [asdict(each) | {"verdict": each.verdict} for each in figures]}
        json_file.write_text(json.dumps(document, indent=2) + "\n")
    return int(any(figure.verdict == "FALLS SHORT" for figure in figures))


STUDENT_95 = (
    6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753,
    1.746, 1.740, 1.734, 1.729, 1.725, 1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697,
)  # fmt: skip
"""Student's t, 95 % one-sided, by degrees of freedom from 1 to 30."""


def upper_bound(differences: Sequence[float]) -> float:
    """Return the upper 95 % bound of the true difference, for 2 to 31 differences."""
    count = len(differences)
    error: float = statistics.stdev(differences) / count**0.5
    return statistics.fmean(differences) + STUDENT_95[count - 2] * error
