"""What clients ask of libcuda, by the program under test; without it, nothing: the only place that knows how to ask."""

import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from exporter.model.work import ProcessWork


class NoDoors:
    """Where the doors can not be watched: why."""

    def __init__(self, problem: str) -> None:
        self.problem = problem

    def read(self) -> tuple[ProcessWork, ...]:
        """Nothing seen."""
        return ()

    def close(self) -> None:
        """Nothing to let go."""


class WatchedDoors:
    """The real ones."""

    problem = ""

    def __init__(self, doors: Any) -> None:
        self._doors = doors
        self._told = False

    def read(self) -> tuple[ProcessWork, ...]:
        """What each process has done so far. A reading that fails is told of once, and costs that reading alone."""
        try:
            return tuple(self._doors.read())
        except Exception as problem:  # a part that is being measured must not end the measurement
            if not self._told:
                print(f"doors: {problem!r}", file=sys.stderr, flush=True)
            self._told = True
            return ()

    def close(self) -> None:
        """Take the probes away."""
        close: Callable[[], object] = getattr(self._doors, "close", lambda: None)
        with suppress(Exception):
            close()


def open_doors() -> WatchedDoors | NoDoors:
    """Watch libcuda's doors, if the program can."""
    try:
        module: Any = importlib.import_module("exporter.sources.doors")
        return WatchedDoors(module.Doors())
    except Exception as problem:  # whatever it is, the rest is measured without
        return NoDoors(repr(problem))
