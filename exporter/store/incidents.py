"""The table of incidents: a row each, which is replaced as the incident changes."""

import sqlite3
from collections.abc import Iterable

from exporter.model.incident import Incident
from exporter.store.row import Translate, key, read, written

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
    """Forget what began before `oldest`, and all but the newest `most`. Those that are open go last.

    Of too many, those of the daemons that have the most go first: what one says, true or not, puts out no other's.
    """
    connection.execute("DELETE FROM incidents WHERE started_at < ? AND NOT open", (oldest,))
    connection.execute(
        "DELETE FROM incidents WHERE (SELECT count(*) FROM incidents) > :most AND id IN (SELECT id FROM ("
        " SELECT id, open, started_at, row_number() OVER"
        "  (PARTITION BY daemon ORDER BY open DESC, started_at DESC) AS place FROM incidents"
        ") ORDER BY place, open DESC, started_at DESC LIMIT -1 OFFSET :most)",
        {"most": most},
    )


def load(
    connection: sqlite3.Connection, most: int, translate: Translate | None = None
) -> tuple[tuple[Incident, ...], int]:
    """`most` of them, the newest first, and how many rows could not be read. Those that are open are left out last."""
    rows = connection.execute(
        "SELECT incident FROM (SELECT CAST(incident AS BLOB) AS incident, open, started_at, rowid AS number"
        " FROM incidents ORDER BY open DESC, started_at DESC, number DESC LIMIT ?)"
        " ORDER BY started_at DESC, number DESC",
        (most,),
    )
    return read(Incident, rows, translate)
