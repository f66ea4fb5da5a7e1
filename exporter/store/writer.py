"""Gives the archive what is new, in a thread of its own: a disk that is slow, full or hangs keeps nobody waiting.

What waits is bounded. Events that are too many are dropped, the oldest first; of an incident, the last state waits.
"""

import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Mapping, Sequence

import structlog

from exporter.clock import Clock
from exporter.model.event import Event
from exporter.model.incident import Incident
from exporter.model.node import Node
from exporter.store.archive import Archive, Remembered
from exporter.view import HistoryStatus

MOST_WAITING = 1000
RETRY_SECONDS = 5.0
LOAD_SECONDS = 5.0
"""How long a start waits for what the file has."""

CLOSE_SECONDS = 2.0
HANGS_SECONDS = 10.0

_OURS = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.DataError)
"""What is wrong with what was to be written, and will be at every try."""


class Writer:
    """Writes to an archive, and tries again where that fails; says so once when that changes."""

    def __init__(self, archive: Archive, clock: Clock, *, retry: float = RETRY_SECONDS) -> None:
        """`retry` is how long to wait before another try, in seconds."""
        self._archive = archive
        self._clock = clock
        self._retry = retry
        self._log = structlog.get_logger()
        self._news = threading.Condition()
        self._incidents: dict[str, Incident] = {}
        self._events: deque[Event] = deque()
        self._known: Mapping[str, Incident] = {}
        self._dropped = 0
        self._problem: str | None = None
        self._began: float | None = None
        self._closing = False
        self._found = Remembered()
        self._remembered: queue.SimpleQueue[Remembered] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def open(self) -> Remembered:
        """What was kept so far; nothing where that cannot be read, or not in time."""
        self._thread.start()
        try:
            remembered = self._remembered.get(timeout=LOAD_SECONDS)
        except queue.Empty:
            self._tell_if_it_hangs(after=0.0)
            return Remembered()
        if remembered.unreadable:
            self._log.warning("history_passed_over", rows=remembered.unreadable, problem="they cannot be read")
        self._known = remembered.into(Node()).incidents
        return remembered

    def take(self, node: Node, events: Sequence[Event]) -> None:
        """Keep these events, and those of the node's incidents that have changed."""
        self._tell_if_it_hangs(after=HANGS_SECONDS)
        before, self._known = self._known, node.incidents
        changed = {} if before is node.incidents else _changed(before, node.incidents)
        if changed or events:
            with self._news:
                self._incidents.update(changed)
                self._events.extend(events)
                self._bound()
                self._news.notify()

    def close(self) -> None:
        """Write what waits, if that can be done in time, and end."""
        with self._news:
            self._closing = True
            self._news.notify()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)
        left = {"incidents": len(self._incidents), "events": len(self._events)}
        if self._thread.is_alive() or any(left.values()):
            self._log.warning("history_not_whole", **left, problem=self._problem or "the disk does not answer")

    @property
    def status(self) -> HistoryStatus:
        """Whether what happens is kept, and how many events were not."""
        return HistoryStatus(writable=self._problem is None, events_dropped=self._dropped)

    def _run(self) -> None:
        self._write()
        self._remembered.put(self._found)
        closing = False
        while not closing:
            closing = self._wait()
            self._write()
        self._archive.close()

    def _wait(self) -> bool:
        """Wait for something to be written, or for the next try. Returns whether it is the last."""
        with self._news:
            if self._problem is None:
                self._news.wait_for(lambda: self._closing or self._incidents or self._events)
            else:
                self._news.wait_for(lambda: self._closing, timeout=self._retry)
            return self._closing

    def _write(self) -> None:
        incidents, events = self._taken()
        self._began = self._clock.monotonic()
        try:
            if not self._archive.is_open:
                self._found = self._archive.open()
                incidents = {**self._known, **incidents}
            if incidents or events:
                self._archive.write(incidents.values(), events)
        except Exception as error:  # noqa: BLE001 (a defect of ours must cost this batch, not all later ones)
            if not isinstance(error, (OSError, sqlite3.Error)) or isinstance(error, _OURS):
                self._log.exception("history_refused", incidents=len(incidents), events=len(events))
                return
            self._put_back(incidents, events)
            self._tell(_said(error))
        else:
            self._tell(None)
        finally:
            self._began = None

    def _taken(self) -> tuple[dict[str, Incident], Sequence[Event]]:
        with self._news:
            incidents, self._incidents = self._incidents, {}
            events, self._events = self._events, deque()
        return incidents, events

    def _put_back(self, incidents: dict[str, Incident], events: Sequence[Event]) -> None:
        with self._news:
            self._incidents = {**incidents, **self._incidents}
            self._events.extendleft(reversed(events))
            self._bound()

    def _bound(self) -> None:
        while len(self._events) > MOST_WAITING:
            self._events.popleft()
            self._dropped += 1
        while len(self._incidents) > MOST_WAITING:
            del self._incidents[next(iter(self._incidents))]

    def _tell_if_it_hangs(self, *, after: float) -> None:
        began = self._began
        if began is not None and self._clock.monotonic() - began >= after:
            self._tell("the disk does not answer")

    def _tell(self, problem: str | None) -> None:
        before, self._problem = self._problem, problem
        if problem is None and before is not None:
            self._log.info("history_kept_again")
        elif problem != before:
            self._log.warning("history_not_kept", problem=problem, consequence="a restart forgets what happens now")


def _changed(before: Mapping[str, Incident], after: Mapping[str, Incident]) -> dict[str, Incident]:
    return {name: each for name, each in after.items() if before.get(name) is not each}


def _said(error: Exception) -> str:
    """What went wrong; where it is a file, which."""
    if not isinstance(error, OSError):
        return str(error)
    said = error.strerror or str(error)
    return said if error.filename is None else f"{error.filename}: {said}"
