"""The state file: an SQLite database that one exporter writes and other processes may read."""

import contextlib
import errno
import fcntl
import os
import sqlite3
import stat
from collections.abc import Collection, Iterable
from pathlib import Path

import structlog

from exporter.clock import Clock
from exporter.errors import HistoryError
from exporter.model.event import Event
from exporter.model.incident import Incident
from exporter.model.settings import Retention
from exporter.model.usage import UsageTotals
from exporter.model.values import replace
from exporter.store import tables
from exporter.store.tables import MAX_ROWS, Refused, Storable, StoredState, usage_rows

FILE, LOCK = "history.sqlite", "history.lock"

SCHEMA_VERSION = 2
"""The version of `tables.SCHEMA`."""

LOADED_INCIDENTS, LOADED_EVENTS = 256, 1000
"""How many of each a start loads; the file may have more. The start waits for them."""

BUSY_SECONDS = 1.0
"""How long to wait for another process that reads or writes."""

MAX_SET_ASIDE = 16
"""A disk that damages every file is not filled with them."""

MAX_VALUE_BYTES = 8 << 20
MAX_STEPS, STEPS_AT_ONCE = 10_000, 10_000
"""Limits on the values and the work of SQLite for a reader: an attacker may have written the file."""

_CREATE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_SUFFIXES = ("-wal", "-shm", "")
"""SQLite's companions of a file are moved before the file: an old one beside a new file would damage that."""


class StateFile:
    """The file of a directory, open for writing. Methods raise OSError or sqlite3.Error."""

    def __init__(self, directory: Path, retention: Retention, clock: Clock) -> None:
        self._path = directory / FILE
        self._retention = retention
        self._clock = clock
        self._connection: sqlite3.Connection | None = None
        self._lock: int | None = None
        self._status: os.stat_result | None = None
        self._totals = UsageTotals()
        self.is_open = False

    def open(self) -> StoredState:
        """Lock the directory against other exporters, and open or create the file. Set an unusable one aside."""
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            self._lock = os.open(self._path.with_name(LOCK), _CREATE, 0o600)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise OSError(error.errno, "another exporter uses this state directory") from error
            self._connection = connection = _connect(self._path)
            problem = _problem(connection)
            if problem is not None:
                connection.close()
                _set_aside(self._path, problem)
                self._connection = connection = _connect(self._path)
            connection.execute("PRAGMA journal_mode = WAL")
            if connection.execute("PRAGMA user_version").fetchone() == (0,):
                script = f"BEGIN IMMEDIATE; {tables.SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
                connection.executescript(script)
            self._status = self._path.stat()
            stored = tables.load(connection, self._clock.now(), LOADED_INCIDENTS, LOADED_EVENTS)
        except BaseException:
            self.close()
            raise
        self._totals, self.is_open = stored.usage_totals, True
        return replace(stored, complete=stored.complete and problem is None)

    def write(
        self, values: Iterable[Storable] = (), totals: UsageTotals | None = None, *, expected: Collection[str] = ()
    ) -> Refused:
        """Write all of these or none, and delete what exceeds the retention. Return invalid values, and why they are.

        A defect may produce those; they cost no other value. If the file is missing or damaged, it is closed. Usage
        totals are on the disk when this returns, since metrics show them then. To write nothing fails on a full disk.
        """
        connection, status = self._connection, self._status
        if connection is None or status is None:
            raise OSError(errno.EBADF, "the file is not open")
        values = (*values, *(() if totals is None else usage_rows(self._totals, totals)))
        try:
            if not os.path.samestat(self._path.stat(), status):
                raise FileNotFoundError(errno.ENOENT, "the file was removed or replaced")
            # NORMAL survives a crash of this process, FULL also one of the machine; NORMAL is faster.
            connection.execute(f"PRAGMA synchronous = {'NORMAL' if totals is None else 'FULL'}")
            if not values:
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            with connection:
                refused = tables.save(connection, values, expected)
                tables.trim(connection, self._retention, self._clock.now())
        except (OSError, sqlite3.Error) as error:
            if isinstance(error, OSError) or _is_damage(error):
                self.close()
            raise
        self._totals = totals or self._totals
        return refused

    def close(self) -> None:
        """Close the file and release the lock."""
        if self._connection is not None:
            self._connection.close()
        if self._lock is not None:
            os.close(self._lock)
        self._connection = self._lock = self._status = None
        self.is_open = False


def _connect(path: Path) -> sqlite3.Connection:
    """Open the file with access for its owner only; SQLite gives its companions the same mode."""
    os.close(os.open(path, _CREATE, 0o600))
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level="IMMEDIATE")
    connection.text_factory = bytes
    return connection


def _is_damage(error: Exception) -> bool:
    """Return whether the file itself is damaged, instead of temporarily unavailable."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return isinstance(error, sqlite3.DatabaseError) and code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _problem(connection: sqlite3.Connection) -> str | None:
    """Return why the file cannot be used; None if it can."""
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, SCHEMA_VERSION):
            return f"it has schema version {version}, and this version of the program uses {SCHEMA_VERSION}"
        (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        if _is_damage(error):
            return str(error)
        raise
    return None if result == b"ok" else result.decode(errors="replace")


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

    Its author is not trusted: only regular files are opened, and the work is limited. Raises HistoryError if the file
    cannot be read.
    """
    file = path
    try:
        file = path / FILE if path.is_dir() else path
        file.lstat()
        for companion in (file.with_name(file.name + suffix) for suffix in (*_SUFFIXES, "-journal")):
            if os.path.lexists(companion) and not stat.S_ISREG(companion.lstat().st_mode):
                raise OSError(errno.EINVAL, f"{companion.name} is not a regular file")
        uri, steps = f"{file.absolute().as_uri()}?mode=ro", iter(range(MAX_STEPS))
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS)) as connection:
            connection.text_factory = bytes
            connection.set_progress_handler(lambda: next(steps, None) is None, STEPS_AT_ONCE)
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
            connection.execute("PRAGMA trusted_schema = OFF")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version not in (0, SCHEMA_VERSION):
                raise HistoryError(f"{file}: another version of this program wrote it: read it with that version")
            stored = tables.load(connection, 0.0, MAX_ROWS, MAX_ROWS) if version else StoredState()
            return stored.incidents, stored.events
    except OSError as error:
        raise HistoryError(f"{file}: {error.strerror}") from error
    except sqlite3.Error as error:
        raise HistoryError(f"{file}: the history cannot be read: {error}") from error
