"""The table of events: a row each, in the order in which they were told."""

import sqlite3
from collections.abc import Iterable
from dataclasses import replace

from exporter.model.event import Event
from exporter.store.row import read, written

TABLE = """
CREATE TABLE events (number INTEGER PRIMARY KEY, at REAL NOT NULL, event TEXT NOT NULL);
CREATE INDEX events_at ON events (at);
"""


def add(connection: sqlite3.Connection, events: Iterable[Event]) -> None:
    """One more row each."""
    rows = ((each.at, written(_briefly(each))) for each in events)
    connection.executemany("INSERT INTO events (at, event) VALUES (?, ?)", rows)


def trim(connection: sqlite3.Connection, *, oldest: float, most: int) -> None:
    """Forget what happened before `oldest`, and all but the last `most`."""
    connection.execute("DELETE FROM events WHERE at < ?", (oldest,))
    connection.execute("DELETE FROM events WHERE number <= (SELECT max(number) FROM events) - ?", (most,))


def load(connection: sqlite3.Connection, most: int) -> tuple[tuple[Event, ...], int]:
    """The last `most`, the newest first, and how many rows could not be read."""
    rows = connection.execute("SELECT CAST(event AS BLOB) FROM events ORDER BY number DESC LIMIT ?", (most,))
    return read(Event, rows)


def _briefly(event: Event) -> Event:
    """Without all that is known of those whom a fault hit: that stands with the incident, once."""
    return event if event.incident is None else replace(event, incident=replace(event.incident, tenants={}))
