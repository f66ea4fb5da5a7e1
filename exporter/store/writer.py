"""Writes the state file in a thread of its own, so that a slow disk delays no other thread."""

import sqlite3
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from exporter.clock import Clock
from exporter.history import MAX_SAMPLES, HistoryStatus, Sample
from exporter.model.event import Event
from exporter.model.incident import Incident
from exporter.model.node import Node, expected_daemons, select_fairly
from exporter.model.observation import DaemonName
from exporter.model.usage import UsageTotals
from exporter.model.values import replace
from exporter.model.watchdog import RecoveredState, WatchdogState
from exporter.store.database import StateFile, Storable, StoredState, WatchdogRow

MAX_WAITING, TRIMMED = 1000, 900
"""If more than `MAX_WAITING` wait, this number remains. So they are not counted again at each new one."""

RETRY_SECONDS = 5.0
LOAD_SECONDS = 5.0
"""How long a start waits for the content of the file."""

TOTALS_SECONDS = 2.0  # how long changed usage totals may wait, and so what a crash may lose
CLOSE_SECONDS, HANG_SECONDS = 2.0, 10.0


@dataclass(slots=True)
class _Batch:
    """What waits to be written. Of watchdog states and usage totals, only the latest ones are of interest."""

    incidents: dict[str, Incident] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    samples: tuple[Sample, ...] = ()

    def add(self, newer: "_Batch", expected: Collection[DaemonName]) -> int:
        """Add a newer batch, and limit the size. Return the number of dropped events."""
        incidents, events = {**self.incidents, **newer.incidents}, (*self.events, *newer.events)
        self.incidents = {incident.id: incident for incident in _limited(tuple(incidents.values()), expected)}
        self.events = _limited(events, expected)
        self.samples = (*self.samples, *newer.samples)[-MAX_SAMPLES:]
        return len(events) - len(self.events)


def _limited(newest_last: tuple[Any, ...], expected: Collection[DaemonName]) -> tuple[Any, ...]:
    most = MAX_WAITING if len(newest_last) <= MAX_WAITING else TRIMMED
    return select_fairly(newest_last[::-1], most, lambda value: value.daemon, expected)[::-1]


class Writer:
    """Writes to a state file. If that fails, it tries again, and logs the failure and the recovery once."""

    def __init__(self, file: StateFile, clock: Clock, *, retry: float = RETRY_SECONDS) -> None:
        self._file = file
        self._clock = clock
        self._retry = retry
        self._log = structlog.get_logger()
        self._condition = threading.Condition()
        """Protects the batch, and wakes the thread that writes it."""
        self._batch = _Batch()
        self._due = self._closing = False
        self._expected: Collection[DaemonName] = ()
        self._incidents: Mapping[str, Incident] = {}
        self._states: Mapping[DaemonName, WatchdogState] = {}
        self._stored_states: Mapping[DaemonName, WatchdogState] = {}
        self._totals_at = clock.monotonic()
        self._totals = UsageTotals()
        self._stored_totals: UsageTotals | None = None
        """None if the file could not be read, and the latest ones were not written yet."""
        self._dropped = 0
        self._problem: str | None = None
        self._write_began_at: float | None = None
        self._loaded: StoredState | None = None
        self._writable, self._unavailable = False, True
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def open(self) -> StoredState:
        """Return the content of the file; nothing if it cannot be read, or not in time."""
        self._thread.start()
        loaded = self._loaded if self._started.wait(LOAD_SECONDS) else None
        if loaded is None:
            self._report_hang(after=0.0)
            return StoredState()
        if loaded.unreadable:
            self._log.warning("history_rows_unreadable", rows=loaded.unreadable)
        self._incidents, self._states = loaded.restore(Node()).incidents, loaded.watchdog_states
        self._totals = self._stored_totals = loaded.usage_totals
        self._unavailable = not self._writable
        return loaded

    @property
    def available(self) -> bool:
        """Whether the file could be read and written, at the start or since."""
        return not self._unavailable

    @property
    def has_watchdog_states(self) -> bool:
        """Whether it also has all watchdog states that were ever written."""
        return self.available and self._loaded is not None and self._loaded.complete

    def recovered_state(self) -> RecoveredState | None:
        """Return the watchdog states, once, if they were unavailable at the start and are available now."""
        if not (self._unavailable and self._writable and self._loaded is not None):
            return None
        with self._condition:
            self._states, self._unavailable = self._loaded.watchdog_states, False
        return RecoveredState(self._loaded.watchdog_states, self._loaded.complete)

    @property
    def status(self) -> HistoryStatus:
        """Whether the file can be written, and how many events were dropped."""
        return HistoryStatus(writable=self._problem is None, events_dropped=self._dropped)

    @property
    def usage_totals(self) -> UsageTotals:
        """The usage totals to show: those on the disk, so that no restart decreases them."""
        return self._totals if self._stored_totals is None else self._stored_totals

    def add(self, node: Node, events: Sequence[Event], samples: Sequence[Sample] = ()) -> None:
        """Queue events, samples, and what has changed of the node's incidents, watchdog states and usage totals."""
        self._report_hang(after=HANG_SECONDS)
        with self._condition:
            before, self._incidents = self._incidents, node.incidents
            incidents = {name: new for name, new in node.incidents.items() if before.get(name) is not new}
            states_before, self._states = self._states, node.watches
            states_due = node.watches is not states_before and bool(self._changed_states())
            if node.usage_totals.gpus is not self._totals.gpus:
                self._totals = node.usage_totals
            if incidents or events or samples or states_due or self._are_totals_due():
                self._expected = expected_daemons(node)
                self._dropped += self._batch.add(_Batch(incidents, tuple(events), tuple(samples)), self._expected)
                self._due = True
                self._condition.notify()

    def _changed_states(self) -> list[WatchdogRow]:
        """Return the states to write. They must not replace states that could not be read yet."""
        stored, states = self._stored_states, {} if self._unavailable else self._states
        return [WatchdogRow(daemon=name, state=state) for name, state in states.items() if stored.get(name) != state]

    def _are_totals_due(self) -> bool:
        is_time = self._closing or self._clock.monotonic() - self._totals_at >= TOTALS_SECONDS
        return is_time and self._totals is not self._stored_totals and bool(self._totals.gpus)

    def close(self) -> None:
        """Write what waits, for at most `CLOSE_SECONDS`, and end the thread."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)
        lost = {
            "incidents": len(self._batch.incidents),
            "events": len(self._batch.events),
            "watchdog_states": len(self._changed_states()),
            "usage_totals": int(self._are_totals_due()),
        }
        if self._thread.is_alive() or any(lost.values()):
            self._log.warning("history_incomplete", **lost, problem=self._problem or "the disk does not answer")

    def _run(self) -> None:
        self._write()
        self._started.set()
        closing = False
        while not closing:
            with self._condition:
                timeout = None if self._problem is None else self._retry
                self._condition.wait_for(lambda: self._closing or (self._due and self._problem is None), timeout)
                closing = self._closing
            self._write()
        self._file.close()

    def _write(self) -> None:
        self._write_began_at, batch = self._clock.monotonic(), _Batch()
        try:
            if not self._file.is_open:
                self._open_file()
            with self._condition:
                batch, self._batch, self._due = self._batch, batch, False
                states, totals = self._changed_states(), self._totals if self._are_totals_due() else None
            self._store(batch, states, totals)
        except Exception as error:  # noqa: BLE001 (a defect must not end the thread)
            with self._condition:
                self._dropped += batch.add(self._batch, self._expected)
                self._batch = batch
            text, filename = getattr(error, "strerror", None) or str(error), getattr(error, "filename", None)
            text = text if filename is None else f"{filename}: {text}"
            self._report(text, None if isinstance(error, (OSError, sqlite3.Error)) else error)
        finally:
            self._write_began_at = None

    def _open_file(self) -> None:
        """Open the file. It may be a new one, which has nothing of what was written before."""
        loaded = self._file.open()
        with self._condition:
            self._stored_states = loaded.watchdog_states
            self._batch.incidents = {**self._incidents, **self._batch.incidents}
            self._loaded = self._loaded if self._writable else loaded
            # Another object counts as changed, so it is written.
            self._totals = replace(self._totals)

    def _store(self, batch: _Batch, states: Sequence[WatchdogRow], totals: UsageTotals | None) -> None:
        values: tuple[Storable, ...] = (*batch.incidents.values(), *batch.events, *states, *batch.samples)
        refused = self._file.write(values, totals, expected=self._expected)
        self._writable = True
        invalid = [value for value, _ in refused]
        stored = {row.daemon: row.state for row in states if row not in invalid}
        self._dropped += sum(isinstance(value, Event) for value in invalid)
        with self._condition:
            self._stored_states = {**self._stored_states, **stored}
            if totals is not None:
                self._totals_at = self._clock.monotonic()
                # If later ones were shown without a file, older ones do not replace them.
                if self._stored_totals is not None or totals is self._totals:
                    self._stored_totals = totals
        error = refused[-1][1] if refused else None
        self._report(f"{len(refused)} invalid values were not stored: {error}" if refused else None, error)

    def _report_hang(self, *, after: float) -> None:
        began_at = self._write_began_at
        if began_at is not None and self._clock.monotonic() - began_at >= after:
            self._report("the disk does not answer")

    def _report(self, problem: str | None, defect: Exception | None = None) -> None:
        before, self._problem = self._problem, problem
        if problem is None and before is not None:
            self._log.info("history_write_recovered")
        elif problem is not None and problem != before:
            stalled = "; usage totals do not grow" if self._stored_totals is not None else ""
            consequence = f"a restart loses what happens now{stalled}"
            self._log.warning("history_write_failed", problem=problem, consequence=consequence, exc_info=defect)
