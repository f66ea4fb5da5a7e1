"""An exporter that runs beside many trials, with its default settings, and what it said of each."""

import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from .child import Child
from .mps import ControlDaemon
from .program import SOURCE, Exporter

FAREWELL_SECONDS = 5


class Live:
    """`serve` for one daemon, and who watches what it says."""

    def __init__(self, daemon: ControlDaemon) -> None:
        self._exporter = Exporter(daemon)
        self._exporter.wait()
        self._onlooker = Child(
            [sys.executable, "-m", "tests.gpu.onlooker", self._exporter.address, str(daemon.pipe_directory)],
            output=daemon.directory / "onlooker.jsonl",
            environment={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(SOURCE), *sys.path]))},
            directory=SOURCE,
        )

    def said(self, begin: float, end: float) -> Mapping[str, Any]:
        """What it said of the time between: each count of faults, each incident as it was first and last told."""
        first: dict[str, Any] = {}
        last: dict[str, Any] = {}
        counts = []
        for told in self._told():
            if told["event"] == "faults" and told["before"] >= 0 and begin <= told["answered"] <= end:
                counts.append(told)
            if told["event"] == "incident" and begin <= told["incident"]["started_at"] <= end:
                first.setdefault(told["incident"]["id"], told)
                last[told["incident"]["id"]] = told["incident"]
        times = {name: {key: told[key] for key in ("asked", "answered")} for name, told in first.items()}
        return {"faults": counts, "incidents": [{"first": times[name], "last": last[name]} for name in first]}

    def pace(self) -> list[Mapping[str, Any]]:
        """How closely it was looked at."""
        return [told for told in self._told() if told["event"] == "pace"]

    def evidence(self) -> str:
        """Of both, for the report of a failure."""
        return f"{self._onlooker.evidence()}\n{self._exporter.evidence()}"

    def end(self) -> None:
        """Both, the one that asks first."""
        self._onlooker.end(within=FAREWELL_SECONDS)
        self._exporter.end()

    def _told(self) -> list[Any]:
        return [json.loads(line) for line in self._onlooker.text().splitlines(keepends=True) if _is_whole(line)]


class Played:
    """A trial that was played beside an exporter, which may yet say more of it."""

    def __init__(self, name: str, live: Live) -> None:
        self.name = name
        self.live = live
        self.begin = time.time()
        self.end = float("inf")

    def over(self) -> None:
        """It ends now."""
        self.end = time.time()

    def said(self) -> Mapping[str, Any]:
        """All that the exporter has said of it so far."""
        return self.live.said(self.begin, self.end)


def _is_whole(line: str) -> bool:
    return line.startswith("{") and line.endswith("}\n")
