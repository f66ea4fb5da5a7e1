"""One recording out of two of the same time."""

import heapq
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def merge(node: Path, work: Path, merged: Path) -> None:
    """The node's, whose header it has, with what was seen of work, in the order of time."""
    with node.open() as first, work.open() as second, merged.open("w") as out:
        out.write(first.readline())
        for _, line in heapq.merge(_timed(first), _timed(second), key=lambda each: each[0]):
            out.write(line)


def _timed(lines: Any) -> Iterator[tuple[float, str]]:
    """A last line that was cut short is none."""
    latest = 0.0
    for line in lines:
        if line.endswith("\n"):
            latest = max(latest, float(json.loads(line).get("at", latest)))
            yield latest, line
