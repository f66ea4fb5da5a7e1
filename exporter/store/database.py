"""The state file: an SQLite database that one exporter writes and other processes may read."""

import errno
import fcntl
import os
import sqlite3
import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from exporter.clock import Clock
from exporter.errors import HistoryError
from exporter.model.event import TOPICS, Event
from exporter.model.incident import Incident
from exporter.model.node import Node
from exporter.model.observation import DaemonName
from exporter.model.settings import Retention
from exporter.model.usage import MAX_SAMPLES, SAMPLE_SECONDS, Sample, UsageTotals
from exporter.model.watchdog import WatchdogState, with_stop_remembered
from exporter.store import tables

FILE, LOCK = "history.sqlite", "history.lock"

SCHEMA_VERSION = 1
"""The version of `tables.SCHEMA`."""

LOADED_INCIDENTS, LOADED_EVENTS = 256, 1000
"""How many of each a start loads; the file may have more. The start waits for them."""

TIMELINE_SECONDS = MAX_SAMPLES * SAMPLE_SECONDS
"""A start also loads as many events of the timeline, if they are not older."""

READ_INCIDENTS, READ_EVENTS = 10_000, 100_000
"""How many of each another process reads: as many as the retention allows."""

BUSY_SECONDS = 1.0
"""How long to wait for another process that reads or writes."""

MAX_SET_ASIDE = 16
"""A disk that damages every file is not filled with them."""

MAX_VALUE_BYTES = 8 << 20
MAX_STEPS, STEPS_AT_ONCE = 10_000, 10_000
"""Limits on the values and the work of SQLite for a reader: an attacker may have written the file."""

_SUFFIXES = ("-wal", "-shm", "")
"""SQLite's companions of a file are moved before the file: an old one beside a new file would damage that."""

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """The content of a file, newest first (samples: oldest first), and the number of unreadable rows.

    It is `complete` if it has all watchdog states that were ever written: no file was set aside, and no row is damaged.
    """

    incidents: tuple[Incident, ...] = ()
    events: tuple[Event, ...] = ()
    watchdog_states: Mapping[DaemonName, WatchdogState] = field(default_factory=dict)
    usage_totals: UsageTotals = field(default_factory=UsageTotals)
    samples: tuple[Sample, ...] = ()
    unreadable: int = 0
    complete: bool = True

    def restore(self, node: Node) -> Node:
        """Return the node with this state. Incidents are in the order in which they began."""
        return replace(
            node,
            daemons={
                name: with_stop_remembered(daemon, self.watchdog_states.get(name))
                for name, daemon in node.daemons.items()
            },
            incidents={each.id: each for each in reversed(self.incidents)},
            watches={**node.watches, **self.watchdog_states},
            usage_totals=self.usage_totals,
        )


class StateFile:
    """The file of a directory, open for writing. Methods raise OSError or sqlite3.Error."""

    def __init__(self, directory: Path, retention: Retention, clock: Clock) -> None:
        self._directory = directory
        self._path = directory / FILE
        self._retention = retention
        self._clock = clock
        self._connection: sqlite3.Connection | None = None
        self._lock: int | None = None
        self._identity: tuple[int, int] | None = None
        self._totals = UsageTotals()
        self.expected: Collection[str] = ()
        """The expected daemons: other daemons' events do not displace theirs."""

    @property
    def is_open(self) -> bool:
        """Whether the file is open."""
        return self._connection is not None

    def open(self) -> StoredState:
        """Lock the directory against other exporters, open the file and load it."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        try:
            self._lock = _lock(self._directory / LOCK)
            before = _identity(self._path) if self._path.exists() else None
            self._connection = open_database(self._path)
            self._identity = _identity(self._path)
            states, bad_states = tables.load_watchdog_states(self._connection)
            self._totals, bad_totals = tables.load_totals(self._connection)
            incidents, bad_incidents = tables.load_incidents(self._connection, LOADED_INCIDENTS)
            now = self._clock.now()
            events, bad_events = tables.load_event_shares(
                self._connection, LOADED_EVENTS, oldest=now - TIMELINE_SECONDS, names=TOPICS
            )
            samples, bad_samples = tables.load_samples(self._connection, now)
        except BaseException:
            self.close()
            raise
        return StoredState(
            incidents=incidents,
            events=events,
            watchdog_states=states,
            usage_totals=self._totals,
            samples=samples,
            unreadable=bad_incidents + bad_events + bad_states + bad_totals + bad_samples,
            complete=before in (None, self._identity) and not bad_states,
        )

    def check_writable(self) -> None:
        """Write something that changes nothing. It raises an error on a full disk, for example."""
        connection = self._connected()
        connection.execute(f"PRAGMA user_version = {version_of(connection)}")

    def write(
        self,
        incidents: Iterable[Incident],
        events: Iterable[Event],
        states: Mapping[DaemonName, WatchdogState] | None = None,
        totals: UsageTotals | None = None,
        samples: Iterable[Sample] = (),
    ) -> None:
        """Write all of these or none, and delete what exceeds the retention.

        If the file is missing or damaged, it is closed. Usage totals are on the disk when this returns, since metrics
        show them then.
        """
        connection = self._connected()
        now = self._clock.now()
        oldest = now - self._retention.max_age
        try:
            if _identity(self._path) != self._identity:
                raise FileNotFoundError(errno.ENOENT, "the file was removed or replaced")
            # NORMAL survives a crash of this process, FULL also one of the machine; NORMAL is faster.
            connection.execute(f"PRAGMA synchronous = {'NORMAL' if totals is None else 'FULL'}")
            with connection:
                tables.save_incidents(connection, incidents)
                tables.add_events(connection, events, self.expected)
                tables.trim_incidents(connection, oldest=oldest, most=self._retention.max_incidents)
                tables.save_samples(connection, samples)
                tables.trim_events(connection, oldest=oldest, most=self._retention.max_events)
                if states:
                    tables.save_watchdog_states(connection, states, at=now)
                    tables.trim_watchdog_states(connection)
                if totals is not None:
                    tables.save_totals(connection, self._totals, totals)
        except (OSError, sqlite3.Error) as error:
            if isinstance(error, OSError) or _is_damage(error):
                self.close()
            raise
        self._totals = self._totals if totals is None else totals

    def close(self) -> None:
        """Close the file and release the lock."""
        if self._connection is not None:
            self._connection.close()
        if self._lock is not None:
            os.close(self._lock)
        self._connection = self._lock = self._identity = None

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            raise OSError(errno.EBADF, "the file is not open")
        return self._connection


def _lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise OSError(error.errno, "another exporter uses this state directory") from error
        raise
    return descriptor


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def open_database(path: Path) -> sqlite3.Connection:
    """Open the file for writing, and create it if it does not exist. A damaged file or another schema is set aside.

    Only one process may open it so. Raises OSError or sqlite3.Error if it cannot be opened.
    """
    connection = _connect(path)
    try:
        problem = _damage(connection)
        if problem is not None:
            connection.close()
            _set_aside(path, problem)
            connection = _connect(path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        if version_of(connection) == 0:
            script = f"BEGIN IMMEDIATE; {tables.SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
            connection.executescript(script)
    except BaseException:
        connection.close()
        raise
    return connection


def version_of(connection: sqlite3.Connection) -> int:
    """Return the schema version of a file."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _connect(path: Path) -> sqlite3.Connection:
    """Open the file with access for its owner only; SQLite gives its companions the same mode."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    return sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level="IMMEDIATE")


def _is_damage(error: Exception) -> bool:
    """Return whether the file itself is damaged, instead of temporarily unavailable."""
    return isinstance(error, sqlite3.DatabaseError) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


def _damage(connection: sqlite3.Connection) -> str | None:
    """Return why the file is damaged; None if it is not."""
    try:
        version = version_of(connection)
        if version not in (0, SCHEMA_VERSION):
            return f"it has schema version {version}, and this version of the program uses {SCHEMA_VERSION}"
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        if _is_damage(error):
            return str(error)
        raise
    return None if found == "ok" else str(found)


def _set_aside(path: Path, problem: str) -> None:
    names = (path.with_name(f"{path.name}.aside-{number}") for number in range(1, MAX_SET_ASIDE + 1))
    aside = next((name for name in names if not os.path.lexists(name)), None)
    if aside is None:
        raise OSError(0, f"{problem}, and {MAX_SET_ASIDE} files were set aside already: examine and remove them")
    for suffix in _SUFFIXES:
        companion = path.with_name(path.name + suffix)
        if os.path.lexists(companion):
            companion.rename(f"{aside}{suffix}")
    structlog.get_logger().warning("file_set_aside", path=str(path), problem=problem, new_path=str(aside))


def read_history(path: Path) -> tuple[tuple[Incident, ...], tuple[Event, ...]]:
    """Return the incidents and events of a state directory or file, newest first, also while an exporter writes it.

    Raises HistoryError if the file cannot be read.
    """
    file = path
    try:
        file = path / FILE if path.is_dir() else path
        connection = _read_only(file)
        try:
            version = version_of(connection)
            if version == 0:
                return (), ()
            if version != SCHEMA_VERSION:
                raise HistoryError(f"{file}: another version of this program wrote it: read it with that version")
            incidents, _ = tables.load_incidents(connection, READ_INCIDENTS)
            events, _ = tables.load_events(connection, READ_EVENTS)
        finally:
            connection.close()
    except OSError as error:
        raise HistoryError(f"{file}: {error.strerror}") from error
    except sqlite3.Error as error:
        raise HistoryError(f"{file}: the history cannot be read: {error}") from error
    return incidents, events


def _read_only(path: Path) -> sqlite3.Connection:
    """Open a file for reading. Its author is not trusted: only regular files are opened, and the work is limited."""
    path.lstat()
    for suffix in (*_SUFFIXES, "-journal"):
        companion = path.with_name(path.name + suffix)
        if os.path.lexists(companion) and not stat.S_ISREG(companion.lstat().st_mode):
            raise OSError(errno.EINVAL, f"{companion.name} is not a regular file")
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)
    steps = iter(range(MAX_STEPS))
    try:
        connection.set_progress_handler(lambda: next(steps, None) is None, STEPS_AT_ONCE)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        connection.execute("PRAGMA trusted_schema = OFF")
    except sqlite3.Error:
        connection.close()
        raise
    return connection
