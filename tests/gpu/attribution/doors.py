"""What clients ask of libcuda, by the program under test; without it, nothing: the only place that knows how to ask."""

import ctypes
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from exporter.model.work import ProcessWork
from exporter.parse.elf_symbols import exported_functions
from exporter.sources.doors.doors import DOORS
from exporter.sources.doors.loader import Kernel
from exporter.sources.doors.watcher import Watcher

SMS = 132
"""Of an H200."""


class NoDoors:
    """Where the doors can not be watched: why."""

    def __init__(self, problem: str) -> None:
        self.problem = problem

    def read(self) -> tuple[ProcessWork, ...]:
        """Nothing seen."""
        return ()

    def widths(self, sms: Mapping[int, int]) -> None:
        """Nobody to tell."""

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

    def widths(self, sms: Mapping[int, int]) -> None:
        """How many SMs each of these processes may use."""
        with suppress(Exception):
            self._doors.widths(sms)

    def close(self) -> None:
        """Take the probes away."""
        close: Callable[[], object] = getattr(self._doors, "close", lambda: None)
        with suppress(Exception):
            close()


def open_doors() -> WatchedDoors | NoDoors:
    """Watch libcuda's doors, if that can be."""
    try:
        ctypes.CDLL("libcuda.so.1")
        path = next(
            line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libcuda.so" in line
        )
        with Path(path).open("rb") as file:
            found = exported_functions(
                lambda at, size: os.pread(file.fileno(), size, at), [door.name for door in DOORS]
            )
        print(f"doors of {path}: {', '.join(found.offsets)}", flush=True)
        watcher = Watcher(Kernel(), lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME), SMS)
        watcher.begin()
        watcher.attach(path, found.offsets)
        return WatchedDoors(watcher)
    except Exception as problem:  # whatever it is, the rest is measured without
        return NoDoors(repr(problem))
