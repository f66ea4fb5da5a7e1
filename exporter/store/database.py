"""The state file: one SQLite database, opened, migrated and written."""

import errno
import json
import os
import sqlite3
import stat
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import structlog

from exporter.serialization import build, plain

Read = TypeVar("Read")
Translate = Callable[[dict[str, Any]], dict[str, Any]]

MOST_BYTES = 64 << 20
"""A thousand faults with 48 clients each have 12 MB."""


def written(value: object) -> str:
    """The value as a row has it."""
    return json.dumps(plain(value))


def read(
    kind: type[Read], rows: Iterable[tuple[object]], translate: Translate | None = None
) -> tuple[tuple[Read, ...], int]:
    """Return the values of these rows, within `MOST_BYTES`, and the number of rows that have no such value.

    `translate` makes an object of today from one of an earlier version.
    """
    found: list[Read] = []
    unreadable = size = 0
    for (row,) in rows:
        size += len(row) if isinstance(row, bytes) else 0
        if size > MOST_BYTES:
            break
        try:
            values = json.loads(row)  # type: ignore[arg-type]
            found.append(build(kind, values if translate is None else translate(values)))
        except (ValueError, TypeError, RecursionError):
            unreadable += 1
    return tuple(found), unreadable


def key(text: str) -> str:
    """A text as a column can have it: SQLite's own takes no lone surrogates."""
    return text.encode("unicode_escape").decode("ascii")


BUSY_SECONDS = 1.0
"""How long to wait for whoever reads or writes just now."""

MOST_SET_ASIDE = 16
"""A disk that spoils every file must not be filled with them."""

LONGEST_READ = 8 << 20
MOST_STEPS, STEPS_AT_ONCE = 10_000, 10_000
"""How long a value, and how much work of SQLite's, whoever only reads will bear with: a file may be made to hurt it."""

_BESIDE = ("-wal", "-shm", "")
"""What SQLite keeps beside a file, and the file: a log without its file is nothing, one beside a new file is poison."""

_SPOILT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


Migration = str | Callable[[sqlite3.Connection], None]
"""One step to the next version: SQL, or a function that runs in a transaction."""


class Sync(StrEnum):
    """Whether what was written outlives a crash of the machine, too, or of this process alone, which is quicker."""

    FULL = "FULL"
    NORMAL = "NORMAL"


def open_database(path: Path, migrations: Sequence[Migration]) -> sqlite3.Connection:
    """Open the file for writing, and create it if there is none.

    A file of version n has been through the first n of the `migrations`. Other processes may read it meanwhile, but
    only one should open it here: the file may be set aside. Raises OSError or sqlite3.Error if it cannot be opened, and
    OSError if a later version of this program wrote it.
    """
    connection = _connect(path)
    try:
        problem = _problem(connection)
        if problem is not None:
            connection.close()
            _set_aside(path, problem)
            connection = _connect(path)
        _refuse_later(path, version_of(connection), len(migrations))
        _migrate(connection, migrations)
    except BaseException:
        connection.close()
        raise
    return connection


def read_database(path: Path) -> sqlite3.Connection:
    """The file as it is, for reading alone, also while another process writes it.

    Whoever wrote it need not be trusted: nothing but files is opened, and what takes too long is an error.
    """
    path.lstat()
    for ending in (*_BESIDE, "-journal"):
        beside = path.with_name(path.name + ending)
        if os.path.lexists(beside) and not stat.S_ISREG(beside.lstat().st_mode):
            raise OSError(errno.EINVAL, f"{beside.name} is no file")
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)
    steps = iter(range(MOST_STEPS))
    connection.set_progress_handler(lambda: next(steps, None) is None, STEPS_AT_ONCE)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_READ)
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def version_of(connection: sqlite3.Connection) -> int:
    """Through how many migrations a file has been."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def synchronous(connection: sqlite3.Connection, sync: Sync) -> None:
    """What is written from now on outlives this."""
    connection.execute(f"PRAGMA synchronous = {sync}")


def is_spoilt(error: Exception) -> bool:
    """Whether an error says that the file itself is bad, and not that it cannot be had now."""
    return isinstance(error, sqlite3.DatabaseError) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _SPOILT


def _connect(path: Path) -> sqlite3.Connection:
    """For the owner alone; SQLite gives what it keeps beside the file the same mode."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    return sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level="IMMEDIATE")


def _problem(connection: sqlite3.Connection) -> str | None:
    """Return why the file is damaged; None if it is not."""
    try:
        version = version_of(connection)
        if version < 0:
            return f"it has version {version}"
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        if is_spoilt(error):
            return str(error)
        raise
    return None if found == "ok" else str(found)


def _refuse_later(path: Path, version: int, newest: int) -> None:
    if version > newest:
        problem = (
            f"a later version of this program wrote it (schema version {version}; this one knows {newest}):"
            " install that version again, or move the file away"
        )
        raise OSError(errno.ENOTSUP, problem, str(path))


def _set_aside(path: Path, problem: str) -> None:
    names = (path.with_name(f"{path.name}.aside-{number}") for number in range(1, MOST_SET_ASIDE + 1))
    aside = next((name for name in names if not os.path.lexists(name)), None)
    if aside is None:
        raise OSError(0, f"{problem}, and {MOST_SET_ASIDE} files were set aside already; look at them, and remove them")
    for ending in _BESIDE:
        beside = path.with_name(path.name + ending)
        if os.path.lexists(beside):
            beside.rename(f"{aside}{ending}")
    structlog.get_logger().warning("file_set_aside", path=str(path), problem=problem, kept_as=str(aside))


def _migrate(connection: sqlite3.Connection, migrations: Sequence[Migration]) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    synchronous(connection, Sync.NORMAL)
    for number, migration in enumerate(migrations[version_of(connection) :], start=version_of(connection) + 1):
        if isinstance(migration, str):
            connection.executescript(f"BEGIN IMMEDIATE; {migration} PRAGMA user_version = {number}; COMMIT;")
            continue
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            migration(connection)
            connection.execute(f"PRAGMA user_version = {number}")
