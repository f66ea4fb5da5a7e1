"""The table of incidents: a row each, which is replaced as the incident changes."""

import sqlite3
from collections.abc import Iterable

from exporter.model.incident import Incident
from exporter.store.row import key, read, written

TABLE = """
CREATE TABLE incidents (
    id TEXT PRIMARY KEY, daemon TEXT NOT NULL, open INTEGER NOT NULL, started_at REAL NOT NULL, incident TEXT NOT NULL
);
CREATE INDEX incidents_started_at ON incidents (started_at);
"""


def save(connection: sqlite3.Connection, incidents: Iterable[Incident]) -> None:
    """Their last state; what was known of them before is replaced."""
    rows = ((key(each.id), key(each.daemon), each.open, each.started_at, written(each)) for each in incidents)
    connection.executemany("INSERT OR REPLACE INTO incidents VALUES (?, ?, ?, ?, ?)", rows)


def trim(connection: sqlite3.Connection, *, oldest: float, most: int) -> None:
    """Forget what began before `oldest`, and all but the newest `most`. Those that are open go last."""
    connection.execute("DELETE FROM incidents WHERE started_at < ? AND NOT open", (oldest,))
    connection.execute(
        "DELETE FROM incidents WHERE id IN"
        " (SELECT id FROM incidents ORDER BY open DESC, started_at DESC LIMIT -1 OFFSET ?)",
        (most,),
    )


def load(connection: sqlite3.Connection) -> tuple[tuple[Incident, ...], int]:
    """All, the newest first, and how many rows could not be read."""
    rows = connection.execute("SELECT CAST(incident AS BLOB) FROM incidents ORDER BY started_at DESC, rowid DESC")
    return read(Incident, rows)
