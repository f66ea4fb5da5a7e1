"""The state file of a directory, which one exporter at a time writes and others may read."""

import errno
import fcntl
import os
import sqlite3
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from exporter.clock import Clock
from exporter.errors import HistoryError
from exporter.model.accounting import UsageTotals
from exporter.model.event import Event
from exporter.model.incident import Incident
from exporter.model.node import Node
from exporter.model.observation import DaemonName
from exporter.model.settings import Retention
from exporter.model.watchdog import WatchdogState, with_stop_remembered
from exporter.store import tables, version4
from exporter.store.database import Migration, Sync, is_spoilt, open_database, read_database, synchronous, version_of

FILE, LOCK = "history.sqlite", "history.lock"

MIGRATIONS: tuple[Migration, ...] = (
    tables.INCIDENTS + tables.EVENTS,
    tables.WATCHES,
    tables.PAGES,
    tables.SHARES,
    version4.migrate,
)
"""What each version added or changed. A migration that was released is never changed."""

CODES_VERSION = 5
"""The first version whose rows have codes for reasons."""

LOADED_INCIDENTS, LOADED_EVENTS = 256, 1000
"""How many of each a start takes into memory; the file may have more. A start waits for them."""

READ_INCIDENTS, READ_EVENTS = 10_000, 100_000
"""How many of each somebody else reads: as many as may be kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """What a file has, the newest first, and how many of its rows could not be read.

    `whole` says that it has all watches that were ever written there: no file was set aside and no row is bad.
    """

    incidents: tuple[Incident, ...] = ()
    events: tuple[Event, ...] = ()
    watches: Mapping[DaemonName, WatchdogState] = field(default_factory=dict)
    ledger: UsageTotals = field(default_factory=UsageTotals)
    unreadable: int = 0
    whole: bool = True

    def into(self, node: Node) -> Node:
        """A node that knows these incidents, in the order in which they began; the core forgets those that are old.

        It knows what the watchdog knew, too, and goes on with the books; who pays in them from now on, it says itself.
        """
        return replace(
            node,
            daemons={
                name: with_stop_remembered(daemon, self.watches.get(name)) for name, daemon in node.daemons.items()
            },
            incidents={each.id: each for each in reversed(self.incidents)},
            watches={**node.watches, **self.watches},
            usage_totals=self.ledger,
        )


class StateFile:
    """Writes the file in a directory; OSError or sqlite3.Error where that does not go."""

    def __init__(self, directory: Path, retention: Retention, clock: Clock) -> None:
        self._directory = directory
        self._retention = retention
        self._clock = clock
        self._connection: sqlite3.Connection | None = None
        self._lock: int | None = None
        self._identity: tuple[int, int] | None = None
        self._ledger = UsageTotals()
        self.expected: Collection[str] = ()
        """The daemons whose events are not displaced by those of any other daemons."""

    @property
    def is_open(self) -> bool:
        """Whether it can be written to, as far as is known."""
        return self._connection is not None

    def open(self) -> StoredState:
        """Make the file ours, and read it."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        try:
            self._lock = _locked(self._directory / LOCK)
            before = _identity(self._file) if self._file.exists() else None
            self._connection = open_database(self._file, MIGRATIONS)
            self._identity = _identity(self._file)
            watches, unread = tables.load_watches(self._connection)
            self._ledger, unread_too = tables.load_totals(self._connection)
            incidents, unread_incidents = tables.load_incidents(self._connection, LOADED_INCIDENTS)
            events, unread_events = tables.load_event_shares(self._connection, LOADED_EVENTS)
            found = StoredState(incidents=incidents, events=events)
            unreadable = unread_incidents + unread_events + unread + unread_too
            whole = before in (None, self._identity) and not unread
            return replace(found, watches=watches, ledger=self._ledger, unreadable=unreadable, whole=whole)
        except BaseException:
            self.close()
            raise

    def prove_writable(self) -> None:
        """Write something that changes nothing; OSError or sqlite3.Error if that fails, as on a full disk."""
        if self._connection is None:
            raise OSError(errno.EBADF, "the file is not open")
        self._connection.execute(f"PRAGMA user_version = {version_of(self._connection)}")

    def write(
        self,
        incidents: Iterable[Incident],
        events: Iterable[Event],
        watches: Mapping[DaemonName, WatchdogState] | None = None,
        ledger: UsageTotals | None = None,
    ) -> None:
        """Keep these, all or none, and forget what is too old or too much. A file that has gone or is bad is let go.

        Of the books, what they have is told to others at once: they are on the disk when this returns.
        """
        if self._connection is None:
            raise OSError(errno.EBADF, "the file is not open")
        now = self._clock.now()
        oldest = now - self._retention.max_age
        try:
            if _identity(self._file) != self._identity:
                raise FileNotFoundError(errno.ENOENT, "somebody has taken the file away")
            synchronous(self._connection, Sync.NORMAL if ledger is None else Sync.FULL)
            with self._connection as connection:
                tables.save_incidents(connection, incidents)
                tables.add_events(connection, events, self.expected)
                tables.trim_incidents(connection, oldest=oldest, most=self._retention.max_incidents)
                tables.trim_events(connection, oldest=oldest, most=self._retention.max_events)
                if watches:
                    tables.save_watches(connection, watches, at=now)
                    tables.trim_watches(connection)
                if ledger is not None:
                    tables.save_totals(connection, self._ledger, ledger)
            self._ledger = self._ledger if ledger is None else ledger
        except (OSError, sqlite3.Error) as error:
            if isinstance(error, OSError) or is_spoilt(error):
                self.close()
            raise

    def close(self) -> None:
        """Let go of the file; another exporter may have it."""
        if self._connection is not None:
            self._connection.close()
        if self._lock is not None:
            os.close(self._lock)
        self._connection = self._lock = self._identity = None

    @property
    def _file(self) -> Path:
        return self._directory / FILE


def read_history(path: Path) -> tuple[tuple[Incident, ...], tuple[Event, ...]]:
    """Incidents and events of a state directory, or of a file of one, the newest first, also while it is written.

    Whoever wrote it may have less rights than who reads it. HistoryError where there are none to be read.
    """
    file = path
    try:
        file = path / FILE if path.is_dir() else path
        connection = read_database(file)
        try:
            version = version_of(connection)
            if version > len(MIGRATIONS):
                raise HistoryError(f"{file}: a later version of this program wrote it: read it with that version")
            remembered = _read(connection, version) if version > 0 else StoredState()
        finally:
            connection.close()
    except OSError as error:
        raise HistoryError(f"{file}: {error.strerror}") from error
    except sqlite3.Error as error:
        raise HistoryError(f"{file}: no history can be read there, or not by you: {error}") from error
    return remembered.incidents, remembered.events


def _read(connection: sqlite3.Connection, version: int) -> StoredState:
    """Read a file that is not to be changed: rows of an earlier version are translated in memory.

    An earlier version has no shares of events: all events are read.
    """
    old = version < CODES_VERSION
    incidents, unread = tables.load_incidents(connection, READ_INCIDENTS, version4.incident if old else None)
    events, unread_too = tables.load_events(connection, READ_EVENTS, version4.event if old else None)
    return StoredState(incidents=incidents, events=events, unreadable=unread + unread_too)


def _locked(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise OSError(error.errno, "another exporter keeps its history there") from error
        raise
    return descriptor


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino
