"""Writes the state file in a thread of its own, so that a slow disk delays no other thread."""

import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence

import structlog

from exporter.clock import Clock
from exporter.model.accounting import UsageTotals
from exporter.model.event import Event
from exporter.model.incident import Incident
from exporter.model.node import Node, expected_daemons, select_fairly
from exporter.model.observation import DaemonName
from exporter.model.watchdog import RecoveredState, WatchdogState
from exporter.store.archive import StateFile, StoredState
from exporter.view import HistoryStatus

Numbered = tuple[int, UsageTotals]


class DurableTotals:
    """The books as one thread fills them, another writes them, and the first shows them."""

    def __init__(self) -> None:
        self._latest: Numbered = (0, UsageTotals())
        self._shown: Numbered = (0, UsageTotals())
        self._kept: Numbered | None = None

    def begin(self, ledger: UsageTotals) -> None:
        """The file was read, in time: this is what it has."""
        self._latest = self._kept = (0, ledger)

    def fill(self, ledger: UsageTotals) -> None:
        """These are the latest."""
        number, known = self._latest
        if ledger.gpus is not known.gpus and (ledger.gpus or known.gpus):
            self._latest = (number + 1, ledger)

    @property
    def latest(self) -> Numbered:
        """What is to be written; numbered, so that it is known what was."""
        return self._latest

    @property
    def stand(self) -> bool:
        """Whether what is shown grows no more while nothing can be written."""
        return self._kept is not None

    @property
    def filled(self) -> bool:
        """Whether anything came to what the file had."""
        return self._latest[0] > 0

    @property
    def whole(self) -> bool:
        """Whether all that there is was written."""
        return not self.filled or (self._kept is not None and self._kept[0] == self._latest[0])

    def keep(self, written: Numbered) -> None:
        """These are on the disk, whatever happens."""
        self._kept = written

    def shown(self) -> UsageTotals:
        """Those that may be shown now. Once any were, none are that have less."""
        kept = self._kept
        if kept is None:
            self._shown = self._latest
        elif kept[0] >= self._shown[0]:
            self._shown = kept
        return self._shown[1]


MOST_WAITING = 1000
TRIMMED = 900
"""If more wait than `MOST_WAITING`, so many are kept, so that not each new one has them all counted."""

RETRY_SECONDS = 5.0
LOAD_SECONDS = 5.0
"""How long a start waits for what the file has."""

WATCHES_SECONDS = 1.0
"""How long a change of what the watchdog knows may wait, where no event tells of it; what is done has one."""

LEDGER_SECONDS = 2.0
"""How long what is posted to the books may wait, and so what a crash may lose of it."""

CLOSE_SECONDS = 2.0
HANGS_SECONDS = 10.0

_OURS = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.DataError)
"""What is wrong with what was to be written, and will be at every try."""


class Writer:
    """Writes to an archive, and tries again where that fails; says so once when that changes."""

    def __init__(self, archive: StateFile, clock: Clock, *, retry: float = RETRY_SECONDS) -> None:
        """`retry` is how long to wait before another try, in seconds."""
        self._archive = archive
        self._clock = clock
        self._retry = retry
        self._log = structlog.get_logger()
        self._news = threading.Condition()
        self._incidents: dict[str, Incident] = {}
        self._events: deque[Event] = deque()
        self._watches: dict[DaemonName, WatchdogState] = {}
        self._known: Mapping[str, Incident] = {}
        self._last_watches: Mapping[DaemonName, WatchdogState] = {}
        self._known_watches: Mapping[DaemonName, WatchdogState] = {}
        self._watches_at = self._books_at = clock.monotonic()
        self._books = DurableTotals()
        self._books_due = False
        self._expected: Collection[DaemonName] = ()
        self._dropped = 0
        self._problem: str | None = None
        self._began: float | None = None
        self._closing = False
        self._found: StoredState | None = None
        self._proved = self._awaited = False
        self._remembered: queue.SimpleQueue[StoredState | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def open(self) -> StoredState:
        """What was kept so far; nothing where that cannot be read, or not in time."""
        self._awaited = True
        self._thread.start()
        try:
            remembered = self._remembered.get(timeout=LOAD_SECONDS)
        except queue.Empty:
            self._tell_if_it_hangs(after=0.0)
            return StoredState()
        if remembered is None:
            return StoredState()
        self._awaited = not self._proved
        if remembered.unreadable:
            self._log.warning("history_passed_over", rows=remembered.unreadable, problem="they cannot be read")
        self._known = remembered.into(Node()).incidents
        self._known_watches = self._last_watches = remembered.watches
        self._books.begin(remembered.ledger)
        return remembered

    @property
    def available(self) -> bool:
        """Return whether the file could be read, and then written, at the start or since."""
        return not self._awaited

    @property
    def knows_watches(self) -> bool:
        """Return whether it also has all watches that were ever written there."""
        return self.available and self._found is not None and self._found.whole

    def regained(self) -> RecoveredState | None:
        """Return the watches, once, if they could not be read and written at the start and can be now."""
        if not (self._awaited and self._proved and self._found is not None):
            return None
        self._awaited = False
        self._known_watches = self._last_watches = self._found.watches
        return RecoveredState(self._found.watches, self._found.whole)

    def take(self, node: Node, events: Sequence[Event]) -> None:
        """Keep these events, and those of the node's incidents, and of its watches, that have changed."""
        self._tell_if_it_hangs(after=HANGS_SECONDS)
        before, self._known = self._known, node.incidents
        changed = {} if before is node.incidents else _changed(before, node.incidents)
        self._last_watches = node.watches
        watches = self._changed_watches(at_once=bool(events))
        books_due = self._are_books_due(node.usage_totals)
        if changed or events or watches or books_due:
            with self._news:
                self._expected = expected_daemons(node)
                self._books_due = self._books_due or books_due
                self._incidents.update(changed)
                self._events.extend(events)
                self._watches.update(watches)
                self._bound()
                self._news.notify()

    def _changed_watches(self, *, at_once: bool) -> dict[DaemonName, WatchdogState]:
        """None where they can wait for the next time, or would replace watches that could not be read yet."""
        if self._awaited:
            return {}
        before, after, now = self._known_watches, self._last_watches, self._clock.monotonic()
        if before is after or not (at_once or now - self._watches_at >= WATCHES_SECONDS):
            return {}
        self._known_watches, self._watches_at = after, now
        return {name: each for name, each in after.items() if before.get(name) != each}

    def _are_books_due(self, ledger: UsageTotals) -> bool:
        self._books.fill(ledger)
        now = self._clock.monotonic()
        if self._books.whole or now - self._books_at < LEDGER_SECONDS:
            return False
        self._books_at = now
        return True

    def close(self) -> None:
        """Write what waits, if that can be done in time, and end."""
        watches = self._changed_watches(at_once=True)
        with self._news:
            self._watches.update(watches)
            self._books_due = not self._books.whole
            self._closing = True
            self._news.notify()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)
        left = {
            "incidents": len(self._incidents),
            "events": len(self._events),
            "watches": len(self._watches),
            "books": int(not self._books.whole),
        }
        if self._thread.is_alive() or any(left.values()):
            self._log.warning("history_not_whole", **left, problem=self._problem or "the disk does not answer")

    @property
    def status(self) -> HistoryStatus:
        """Whether what happens is kept, and how many events were not."""
        return HistoryStatus(writable=self._problem is None, events_dropped=self._dropped)

    @property
    def ledger(self) -> UsageTotals:
        """The books as they may be shown."""
        return self._books.shown()

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
                self._news.wait_for(lambda: self._closing or self._any())
            else:
                self._news.wait_for(lambda: self._closing, timeout=self._retry)
            return self._closing

    def _any(self) -> bool:
        return bool(self._incidents or self._events or self._watches or self._books_due)

    def _write(self) -> None:
        incidents, events, watches, books = self._taken()
        self._began = self._clock.monotonic()
        try:
            if not self._archive.is_open:
                found = self._archive.open()
                self._found = self._found if self._proved else found
                incidents = {**self._known, **incidents}
                watches = {**self._known_watches, **watches}
                books = self._books.latest if self._books.filled else None
            if not self._proved:
                self._archive.prove_writable()
                self._proved = True
            if incidents or events or watches or books is not None:
                self._archive.expected = self._expected
                self._archive.write(incidents.values(), events, watches, None if books is None else books[1])
                if books is not None:
                    self._books.keep(books)
        except Exception as error:  # noqa: BLE001 (a defect of ours must cost this batch, not all later ones)
            if not isinstance(error, (OSError, sqlite3.Error)) or isinstance(error, _OURS):
                self._log.exception("history_refused", incidents=len(incidents), events=len(events))
                return
            self._put_back(incidents, events, watches, books_due=books is not None)
            self._tell(_said(error))
        else:
            self._tell(None)
        finally:
            self._began = None

    def _taken(self) -> tuple[dict[str, Incident], Sequence[Event], dict[DaemonName, WatchdogState], Numbered | None]:
        with self._news:
            incidents, self._incidents = self._incidents, {}
            events, self._events = self._events, deque()
            watches, self._watches = self._watches, {}
            books, self._books_due = self._books.latest if self._books_due else None, False
        return incidents, events, watches, books

    def _put_back(
        self,
        incidents: dict[str, Incident],
        events: Sequence[Event],
        watches: dict[DaemonName, WatchdogState],
        *,
        books_due: bool,
    ) -> None:
        with self._news:
            self._books_due = self._books_due or books_due
            self._incidents = {**incidents, **self._incidents}
            self._watches = {**watches, **self._watches}
            self._events.extendleft(reversed(events))
            self._bound()

    def _bound(self) -> None:
        if len(self._events) > MOST_WAITING:
            before, newest = len(self._events), tuple(reversed(self._events))
            self._events = deque(reversed(select_fairly(newest, TRIMMED, lambda each: each.daemon, self._expected)))
            self._dropped += before - len(self._events)
        if len(self._incidents) > MOST_WAITING:
            last = tuple(reversed(self._incidents.values()))
            kept = select_fairly(last, TRIMMED, lambda each: each.daemon, self._expected)
            self._incidents = {each.id: each for each in reversed(kept)}
        while len(self._watches) > MOST_WAITING:
            del self._watches[next(iter(self._watches))]

    def _tell_if_it_hangs(self, *, after: float) -> None:
        began = self._began
        if began is not None and self._clock.monotonic() - began >= after:
            self._tell("the disk does not answer")

    def _tell(self, problem: str | None) -> None:
        before, self._problem = self._problem, problem
        if problem is None and before is not None:
            self._log.info("history_kept_again")
        elif problem != before:
            stand = "; the accounts stand still" if self._books.stand else ""
            self._log.warning(
                "history_not_kept", problem=problem, consequence=f"a restart forgets what happens now{stand}"
            )


def _changed(before: Mapping[str, Incident], after: Mapping[str, Incident]) -> dict[str, Incident]:
    return {name: each for name, each in after.items() if before.get(name) is not each}


def _said(error: Exception) -> str:
    """What went wrong; where it is a file, which."""
    if not isinstance(error, OSError):
        return str(error)
    said = error.strerror or str(error)
    return said if error.filename is None else f"{error.filename}: {said}"
