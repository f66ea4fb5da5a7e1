"""Writes the state file in a thread of its own, so that a slow disk delays no other thread."""

import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from exporter.clock import Clock
from exporter.model.event import Event
from exporter.model.incident import Incident
from exporter.model.node import Node, expected_daemons, select_fairly
from exporter.model.observation import DaemonName
from exporter.model.usage import MAX_SAMPLES, Sample, UsageTotals
from exporter.model.watchdog import RecoveredState, WatchdogState
from exporter.store.database import StateFile, StoredState
from exporter.view import HistoryStatus

MAX_WAITING = 1000
TRIMMED = 900
"""If more than `MAX_WAITING` wait, this number remains. So they are not counted again at each new one."""

RETRY_SECONDS = 5.0
LOAD_SECONDS = 5.0
"""How long a start waits for the content of the file."""

STATES_SECONDS = 1.0
"""How long a changed watchdog state may wait if there is no event. Every action has an event."""

TOTALS_SECONDS = 2.0
"""How long changed usage totals may wait, and so what a crash may lose."""

CLOSE_SECONDS = 2.0
HANG_SECONDS = 10.0

_DEFECTS = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.DataError)
"""Errors of the values, not of the disk. Another try would fail too."""

NumberedTotals = tuple[int, UsageTotals]


class DurableTotals:
    """Usage totals that one thread updates and another one writes. Those on the disk are shown."""

    def __init__(self) -> None:
        self._shown: NumberedTotals = (0, UsageTotals())
        self.latest: NumberedTotals = (0, UsageTotals())
        """The data to write. The number identifies it."""
        self.stored: NumberedTotals | None = None
        """The data on the disk; None if the file could not be read and nothing was written yet."""

    def load(self, totals: UsageTotals) -> None:
        """Take the totals of the file, which was read at the start."""
        self.latest = self.stored = (0, totals)

    def update(self, totals: UsageTotals) -> None:
        """Take the latest totals."""
        number, known = self.latest
        if totals.gpus is not known.gpus and (totals.gpus or known.gpus):
            self.latest = (number + 1, totals)

    @property
    def changed(self) -> bool:
        """Whether the totals differ from those that were loaded."""
        return self.latest[0] > 0

    @property
    def all_stored(self) -> bool:
        """Whether the latest totals are on the disk."""
        return not self.changed or (self.stored is not None and self.stored[0] == self.latest[0])

    def shown(self) -> UsageTotals:
        """Return the totals to show now. They never decrease: not even if a file appears that has less."""
        stored = self.stored
        if stored is None:
            self._shown = self.latest
        elif stored[0] >= self._shown[0]:
            self._shown = stored
        return self._shown[1]


@dataclass(slots=True)
class _Batch:
    """What waits to be written."""

    incidents: dict[str, Incident] = field(default_factory=dict)
    events: deque[Event] = field(default_factory=deque)
    states: dict[DaemonName, WatchdogState] = field(default_factory=dict)
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    totals_due: bool = False

    def __bool__(self) -> bool:
        return bool(self.incidents or self.events or self.states or self.samples or self.totals_due)

    def add_older(self, older: "_Batch") -> None:
        """Add a batch that could not be written."""
        self.incidents = {**older.incidents, **self.incidents}
        self.events.extendleft(reversed(older.events))
        self.states = {**older.states, **self.states}
        self.samples = deque((*older.samples, *self.samples), maxlen=MAX_SAMPLES)
        self.totals_due = self.totals_due or older.totals_due

    def trim(self, expected: Collection[DaemonName]) -> int:
        """Limit the size, and return the number of dropped events."""
        dropped = 0
        if len(self.events) > MAX_WAITING:
            before, newest = len(self.events), tuple(reversed(self.events))
            self.events = deque(reversed(select_fairly(newest, TRIMMED, lambda each: each.daemon, expected)))
            dropped = before - len(self.events)
        if len(self.incidents) > MAX_WAITING:
            last = tuple(reversed(self.incidents.values()))
            selected = select_fairly(last, TRIMMED, lambda each: each.daemon, expected)
            self.incidents = {each.id: each for each in reversed(selected)}
        while len(self.states) > MAX_WAITING:
            del self.states[next(iter(self.states))]
        return dropped


class Writer:
    """Writes to a state file. If that fails, it tries again, and logs the failure and the recovery once."""

    def __init__(self, file: StateFile, clock: Clock, *, retry: float = RETRY_SECONDS) -> None:
        """`retry` is the time between two tries, in seconds."""
        self._file = file
        self._clock = clock
        self._retry = retry
        self._log = structlog.get_logger()
        self._condition = threading.Condition()
        """Protects the batch, and wakes the thread that writes it."""
        self._batch = _Batch()
        self._expected: Collection[DaemonName] = ()
        self._incidents: Mapping[str, Incident] = {}
        self._states: Mapping[DaemonName, WatchdogState] = {}
        self._queued_states: Mapping[DaemonName, WatchdogState] = {}
        self._states_at = self._totals_at = clock.monotonic()
        self._totals = DurableTotals()
        self._dropped = 0
        self._problem: str | None = None
        self._write_began_at: float | None = None
        self._closing = False
        self._loaded: StoredState | None = None
        self._writable = self._unavailable = False
        self._start_result: queue.SimpleQueue[StoredState | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def open(self) -> StoredState:
        """Return the content of the file; nothing if it cannot be read, or not in time."""
        self._unavailable = True
        self._thread.start()
        try:
            stored = self._start_result.get(timeout=LOAD_SECONDS)
        except queue.Empty:
            self._report_hang(after=0.0)
            return StoredState()
        if stored is None:
            return StoredState()
        self._unavailable = not self._writable
        if stored.unreadable:
            self._log.warning("history_rows_unreadable", rows=stored.unreadable)
        self._incidents = stored.restore(Node()).incidents
        self._queued_states = self._states = stored.watchdog_states
        self._totals.load(stored.usage_totals)
        return stored

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
        self._unavailable = False
        self._queued_states = self._states = self._loaded.watchdog_states
        return RecoveredState(self._loaded.watchdog_states, self._loaded.complete)

    def add(self, node: Node, events: Sequence[Event], samples: Sequence[Sample] = ()) -> None:
        """Queue events, samples, and what has changed of the node's incidents, watchdog states and usage totals."""
        self._report_hang(after=HANG_SECONDS)
        before, self._incidents = self._incidents, node.incidents
        incidents = {}
        if before is not node.incidents:
            incidents = {name: each for name, each in node.incidents.items() if before.get(name) is not each}
        self._states = node.watches
        states = self._changed_states(at_once=bool(events))
        totals_due = self._are_totals_due(node.usage_totals)
        if incidents or events or states or samples or totals_due:
            with self._condition:
                self._expected = expected_daemons(node)
                self._batch.incidents.update(incidents)
                self._batch.events.extend(events)
                self._batch.states.update(states)
                self._batch.samples.extend(samples)
                self._batch.totals_due = self._batch.totals_due or totals_due
                self._dropped += self._batch.trim(self._expected)
                self._condition.notify()

    def _changed_states(self, *, at_once: bool) -> dict[DaemonName, WatchdogState]:
        """Return the changed states to write now. They must not replace states that could not be read yet."""
        before, after, now = self._queued_states, self._states, self._clock.monotonic()
        if self._unavailable or before is after or not (at_once or now - self._states_at >= STATES_SECONDS):
            return {}
        self._queued_states, self._states_at = after, now
        return {name: each for name, each in after.items() if before.get(name) != each}

    def _are_totals_due(self, totals: UsageTotals) -> bool:
        self._totals.update(totals)
        now = self._clock.monotonic()
        if self._totals.all_stored or now - self._totals_at < TOTALS_SECONDS:
            return False
        self._totals_at = now
        return True

    def close(self) -> None:
        """Write what waits, for at most `CLOSE_SECONDS`, and end the thread."""
        states = self._changed_states(at_once=True)
        with self._condition:
            self._batch.states.update(states)
            self._batch.totals_due = not self._totals.all_stored
            self._closing = True
            self._condition.notify()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)
        lost = {
            "incidents": len(self._batch.incidents),
            "events": len(self._batch.events),
            "watchdog_states": len(self._batch.states),
            "usage_totals": int(not self._totals.all_stored),
        }
        if self._thread.is_alive() or any(lost.values()):
            self._log.warning("history_incomplete", **lost, problem=self._problem or "the disk does not answer")

    @property
    def status(self) -> HistoryStatus:
        """Whether the file can be written, and how many events were dropped."""
        return HistoryStatus(writable=self._problem is None, events_dropped=self._dropped)

    @property
    def usage_totals(self) -> UsageTotals:
        """The usage totals to show."""
        return self._totals.shown()

    def _run(self) -> None:
        self._write()
        self._start_result.put(self._loaded)
        closing = False
        while not closing:
            closing = self._wait()
            self._write()
        self._file.close()

    def _wait(self) -> bool:
        """Wait for a batch, or until the next try. Return whether it is the last."""
        with self._condition:
            if self._problem is None:
                self._condition.wait_for(lambda: self._closing or self._batch)
            else:
                self._condition.wait_for(lambda: self._closing, timeout=self._retry)
            return self._closing

    def _write(self) -> None:
        with self._condition:
            batch, self._batch = self._batch, _Batch()
        self._write_began_at = self._clock.monotonic()
        try:
            if not self._file.is_open:
                loaded = self._file.open()
                self._loaded = self._loaded if self._writable else loaded
                # The file may be a new one.
                batch.incidents = {**self._incidents, **batch.incidents}
                batch.states = {**self._queued_states, **batch.states}
                batch.totals_due = self._totals.changed
            if not self._writable:
                self._file.check_writable()
                self._writable = True
            if batch:
                totals = self._totals.latest if batch.totals_due else None
                self._file.expected = self._expected
                self._file.write(
                    batch.incidents.values(),
                    batch.events,
                    batch.states,
                    None if totals is None else totals[1],
                    batch.samples,
                )
                if totals is not None:
                    self._totals.stored = totals
        except Exception as error:  # noqa: BLE001 (a defect costs the events of this batch, not all later ones)
            if not isinstance(error, (OSError, sqlite3.Error)) or isinstance(error, _DEFECTS):
                self._log.exception("history_batch_dropped", events=len(batch.events), samples=len(batch.samples))
                dropped, batch = len(batch.events), _Batch(incidents=batch.incidents, states=batch.states)
            else:
                dropped = 0
            with self._condition:
                self._batch.add_older(batch)
                self._dropped += dropped + self._batch.trim(self._expected)
            self._report(_error_text(error))
        else:
            self._report(None)
        finally:
            self._write_began_at = None

    def _report_hang(self, *, after: float) -> None:
        began_at = self._write_began_at
        if began_at is not None and self._clock.monotonic() - began_at >= after:
            self._report("the disk does not answer")

    def _report(self, problem: str | None) -> None:
        before, self._problem = self._problem, problem
        if problem is None and before is not None:
            self._log.info("history_write_recovered")
        elif problem != before:
            stalled = "; usage totals do not grow" if self._totals.stored is not None else ""
            self._log.warning(
                "history_write_failed", problem=problem, consequence=f"a restart loses what happens now{stalled}"
            )


def _error_text(error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)
    text = error.strerror or str(error)
    return text if error.filename is None else f"{error.filename}: {text}"
