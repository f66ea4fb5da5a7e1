"""The table of events: a row each, in the order in which they were told.

Each daemon has a share, as `keep_shares` gives it. A row has the daemon, and whether it was expected or there is none.
"""

import sqlite3
from collections.abc import Collection, Iterable
from dataclasses import replace

from exporter.model.event import Event
from exporter.store.row import Translate, key, read, written

TABLE = """
CREATE TABLE events (number INTEGER PRIMARY KEY, at REAL NOT NULL, event TEXT NOT NULL);
CREATE INDEX events_at ON events (at);
"""

SHARES = """
ALTER TABLE events ADD COLUMN daemon TEXT NOT NULL DEFAULT '';
ALTER TABLE events ADD COLUMN expected INTEGER NOT NULL DEFAULT 0;
"""

_RANKED = """(
    SELECT number, event, row_number() OVER (PARTITION BY expected ORDER BY place, number DESC) AS rank FROM (
        SELECT number, event, expected, row_number() OVER (PARTITION BY expected, daemon ORDER BY number DESC) AS place
        FROM events
    )
)"""
_TRIM = f"""
DELETE FROM events WHERE number IN (SELECT number FROM {_RANKED} ORDER BY rank, number DESC LIMIT -1 OFFSET ?)
"""  # noqa: S608 (of constants)
_LOAD = f"""
SELECT CAST(event AS BLOB) FROM (SELECT number, event FROM {_RANKED} ORDER BY rank, number DESC LIMIT ?)
ORDER BY number DESC
"""  # noqa: S608 (of constants)

SPARE = 10
"""Of too many, one in so many more is deleted, so that not each new one has them all counted."""


def add(connection: sqlite3.Connection, events: Iterable[Event], expected: Collection[str]) -> None:
    """One more row each; these daemons are `expected`."""
    rows = (
        (each.at, written(_briefly(each)), key(each.daemon or ""), each.daemon is None or each.daemon in expected)
        for each in events
    )
    connection.executemany("INSERT INTO events (at, event, daemon, expected) VALUES (?, ?, ?, ?)", rows)


def trim(connection: sqlite3.Connection, *, oldest: float, most: int) -> None:
    """Forget what happened before `oldest`, and what exceeds each daemon's share of `most`."""
    connection.execute("DELETE FROM events WHERE at < ?", (oldest,))
    (count,) = connection.execute("SELECT count(*) FROM events").fetchone()
    if count > most:
        connection.execute(_TRIM, (most - most // SPARE,))


def load_shares(connection: sqlite3.Connection, most: int) -> tuple[tuple[Event, ...], int]:
    """Each daemon's share of `most`, the newest first, and how many rows could not be read."""
    rows = connection.execute(_LOAD, (most,))
    return read(Event, rows)


def load(
    connection: sqlite3.Connection, most: int, translate: Translate | None = None
) -> tuple[tuple[Event, ...], int]:
    """The last `most`, the newest first, and how many rows could not be read."""
    rows = connection.execute("SELECT CAST(event AS BLOB) FROM events ORDER BY number DESC LIMIT ?", (most,))
    return read(Event, rows, translate)


def _briefly(event: Event) -> Event:
    """Without all that is known of those whom a fault hit: that stands with the incident, once."""
    return event if event.incident is None else replace(event, incident=replace(event.incident, tenants={}))
