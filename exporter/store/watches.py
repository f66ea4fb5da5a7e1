"""The table of watches: a row for each daemon that the watchdog knows, which is replaced as what it knows changes."""

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from exporter.model.watch import Watch
from exporter.store.row import key, read, written

TABLE = """
CREATE TABLE watches (daemon TEXT PRIMARY KEY, at REAL NOT NULL, watch TEXT NOT NULL);
"""

MOST = 256
"""Four times as many daemons as can be configured; those of which nothing was said for longest go first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """What a row has: the name as it is, which a key need not be."""

    daemon: str
    watch: Watch


def save(connection: sqlite3.Connection, watches: Mapping[str, Watch], *, at: float) -> None:
    """What is known of these daemons `at` this time; what was known of them before is replaced."""
    rows = ((key(daemon), at, written(_Kept(daemon=daemon, watch=watch))) for daemon, watch in watches.items())
    connection.executemany("INSERT OR REPLACE INTO watches VALUES (?, ?, ?)", rows)


def trim(connection: sqlite3.Connection) -> None:
    """Forget all but the last `MOST`, however old they are: a breaker stays open as long as nobody closes it."""
    connection.execute(
        "DELETE FROM watches WHERE rowid IN (SELECT rowid FROM watches ORDER BY at DESC, rowid DESC LIMIT -1 OFFSET ?)",
        (MOST,),
    )


def load(connection: sqlite3.Connection) -> tuple[dict[str, Watch], int]:
    """What is known, by the daemons' names, and how many rows could not be read."""
    rows = connection.execute("SELECT CAST(watch AS BLOB) FROM watches ORDER BY at DESC, rowid DESC LIMIT ?", (MOST,))
    kept, unreadable = read(_Kept, rows)
    return {each.daemon: each.watch for each in reversed(kept)}, unreadable
