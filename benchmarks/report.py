"""Figures and their targets: a table for people, JSON for programs."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


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
