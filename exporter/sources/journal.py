"""Follows the journals of all units whose daemon runs in the foreground. Each has a `journalctl` of its own."""

import os
import threading
from collections.abc import Mapping, Sequence

from exporter.clock import Clock
from exporter.model.observation import LogFile
from exporter.sources.reading import Reading
from exporter.sources.unit_journal import FILE, UnitJournal


class Journal:
    """The journals of all foreground daemons' units."""

    def __init__(self, clock: Clock, *, executable: str = "journalctl", path: str = os.defpath) -> None:
        """`path` is where `executable` is looked for."""
        self._clock = clock
        self._executable = executable
        self._path = path
        self._wanted: Mapping[str, str] = {}
        self._journals: dict[str, UnitJournal] = {}
        self._lock = threading.Lock()
        self._closed = False

    def follow(self, units: Mapping[str, str]) -> None:
        """Say which daemon's log is in which unit's journal, from the next look on; from any thread."""
        self._wanted = dict(units)

    @property
    def awaits_look(self) -> bool:
        """Whether other journals are to be followed than are."""
        return self._wanted.keys() != self._journals.keys()

    def look(self) -> Reading:
        """All new lines."""
        with self._lock:
            if self._closed:
                return Reading()
            left = self._reconcile(self._wanted)
            readings = [journal.look() for journal in self._journals.values()]
        seen = [*left, *(observation for reading in readings for observation in reading.observations)]
        return Reading(tuple(seen), _problem(readings), idle=not readings)

    def close(self) -> None:
        """Follow no more, and leave no child behind; from any thread."""
        with self._lock:
            self._closed = True
            for journal in self._journals.values():
                journal.close()
            self._journals.clear()

    def _reconcile(self, wanted: Mapping[str, str]) -> list[LogFile]:
        left: list[LogFile] = []
        for daemon, journal in list(self._journals.items()):
            if wanted.get(daemon) != journal.unit:
                journal.close()
                del self._journals[daemon]
                problem = f"the journal of {journal.unit} is followed no more"
                left.append(LogFile(at=self._clock.now(), daemon=daemon, file=FILE, problem=problem))
        for daemon, unit in wanted.items():
            if daemon not in self._journals:
                self._journals[daemon] = UnitJournal(
                    daemon, unit, self._clock, executable=self._executable, path=self._path
                )
        return left


def _problem(readings: Sequence[Reading]) -> str | None:
    return "; ".join(each.problem for each in readings if each.problem is not None) or None
