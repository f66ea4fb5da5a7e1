"""An exporter with default settings that runs during the trials, and its reports of each."""

import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from lab.gpu.child import Child
from lab.gpu.mps import ControlDaemon
from lab.gpu.program import SOURCE, Exporter

FAREWELL_SECONDS = 5


class Live:
    """`serve` for one daemon, with these arguments, and a process that polls it."""

    def __init__(self, daemon: ControlDaemon, *arguments: str) -> None:
        self._exporter = Exporter(daemon, *arguments)
        self._exporter.wait()
        self._poller = Child(
            [
                sys.executable,
                "-m",
                "lab.fault_trials.poll_exporter",
                self._exporter.address,
                str(daemon.pipe_directory),
            ],
            output=daemon.directory / "poll_exporter.jsonl",
            environment={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(SOURCE), *sys.path]))},
            directory=SOURCE,
        )

    def reports(self, begin: float, end: float) -> Mapping[str, Any]:
        """Return its reports of a time: fault counts, and each incident as first and last reported."""
        first: dict[str, Any] = {}
        last: dict[str, Any] = {}
        counts = []
        for line in self._lines():
            if line["event"] == "faults" and line["before"] >= 0 and begin <= line["answered"] <= end:
                counts.append(line)
            if line["event"] == "incident" and begin <= line["incident"]["started_at"] <= end:
                first.setdefault(line["incident"]["id"], line)
                last[line["incident"]["id"]] = line["incident"]
        times = {name: {key: line[key] for key in ("asked", "answered")} for name, line in first.items()}
        return {"faults": counts, "incidents": [{"first": times[name], "last": last[name]} for name in first]}

    def pace(self) -> list[Mapping[str, Any]]:
        """Return how often it was polled."""
        return [line for line in self._lines() if line["event"] == "pace"]

    def evidence(self) -> str:
        """Return the output of both processes, for the report of a failed test."""
        return f"{self._poller.evidence()}\n{self._exporter.evidence()}"

    def end(self) -> None:
        """End both, first the one that polls."""
        self._poller.end(within=FAREWELL_SECONDS)
        self._exporter.end()

    def _lines(self) -> list[Any]:
        return [json.loads(line) for line in self._poller.text().splitlines(keepends=True) if _is_whole(line)]


class Played:
    """A trial that ran beside an exporter, which may still report more of it."""

    def __init__(self, name: str, live: Live) -> None:
        self.name = name
        self.live = live
        self.begin = time.time()
        self.end = float("inf")

    def over(self) -> None:
        """Set its end to now."""
        self.end = time.time()

    def reports(self) -> Mapping[str, Any]:
        """Return all reports of the exporter so far."""
        return self.live.reports(self.begin, self.end)


def _is_whole(line: str) -> bool:
    return line.startswith("{") and line.endswith("}\n")
