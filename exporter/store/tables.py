"""Tables of the state file: incidents, events, watchdog states, usage totals."""

import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from exporter.model.accounting import Account, GpuUsage, SharedAccount, Usage, UsageKey, UsageTotals
from exporter.model.event import Event
from exporter.model.identity import Workload, WorkloadKind
from exporter.model.incident import Incident
from exporter.model.observation import GpuUuid
from exporter.model.usage import Method
from exporter.model.watchdog import WatchdogState
from exporter.store.database import Translate, key, read, written

INCIDENTS = """
CREATE TABLE incidents (
    id TEXT PRIMARY KEY, daemon TEXT NOT NULL, open INTEGER NOT NULL, started_at REAL NOT NULL, incident TEXT NOT NULL
);
CREATE INDEX incidents_started_at ON incidents (started_at);
"""


def save_incidents(connection: sqlite3.Connection, incidents: Iterable[Incident]) -> None:
    """Their last state; what was known of them before is replaced."""
    rows = ((key(each.id), key(each.daemon), each.open, each.started_at, written(each)) for each in incidents)
    connection.executemany("INSERT OR REPLACE INTO incidents VALUES (?, ?, ?, ?, ?)", rows)


def trim_incidents(connection: sqlite3.Connection, *, oldest: float, most: int) -> None:
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


def load_incidents(
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


EVENTS = """
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


def add_events(connection: sqlite3.Connection, events: Iterable[Event], expected: Collection[str]) -> None:
    """One more row each; these daemons are `expected`."""
    rows = (
        (each.at, written(_briefly(each)), key(each.daemon or ""), each.daemon is None or each.daemon in expected)
        for each in events
    )
    connection.executemany("INSERT INTO events (at, event, daemon, expected) VALUES (?, ?, ?, ?)", rows)


def trim_events(connection: sqlite3.Connection, *, oldest: float, most: int) -> None:
    """Forget what happened before `oldest`, and what exceeds each daemon's share of `most`."""
    connection.execute("DELETE FROM events WHERE at < ?", (oldest,))
    (count,) = connection.execute("SELECT count(*) FROM events").fetchone()
    if count > most:
        connection.execute(_TRIM, (most - most // SPARE,))


def load_event_shares(connection: sqlite3.Connection, most: int) -> tuple[tuple[Event, ...], int]:
    """Each daemon's share of `most`, the newest first, and how many rows could not be read."""
    rows = connection.execute(_LOAD, (most,))
    return read(Event, rows)


def load_events(
    connection: sqlite3.Connection, most: int, translate: Translate | None = None
) -> tuple[tuple[Event, ...], int]:
    """The last `most`, the newest first, and how many rows could not be read."""
    rows = connection.execute("SELECT CAST(event AS BLOB) FROM events ORDER BY number DESC LIMIT ?", (most,))
    return read(Event, rows, translate)


def _briefly(event: Event) -> Event:
    """Without all that is known of those whom a fault hit: that stands with the incident, once."""
    return event if event.incident is None else replace(event, incident=replace(event.incident, client_details={}))


WATCHES = """
CREATE TABLE watches (daemon TEXT PRIMARY KEY, at REAL NOT NULL, watch TEXT NOT NULL);
"""

MOST_WATCHES = 256
"""Four times as many daemons as can be configured; those of which nothing was said for longest go first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """What a row has: the name as it is, which a key need not be."""

    daemon: str
    watch: WatchdogState


def save_watches(connection: sqlite3.Connection, watches: Mapping[str, WatchdogState], *, at: float) -> None:
    """What is known of these daemons `at` this time; what was known of them before is replaced."""
    rows = ((key(daemon), at, written(_Kept(daemon=daemon, watch=watch))) for daemon, watch in watches.items())
    connection.executemany("INSERT OR REPLACE INTO watches VALUES (?, ?, ?)", rows)


def trim_watches(connection: sqlite3.Connection) -> None:
    """Forget all but the last `MOST`, however old they are: a breaker stays open as long as nobody closes it."""
    connection.execute(
        "DELETE FROM watches WHERE rowid IN (SELECT rowid FROM watches ORDER BY at DESC, rowid DESC LIMIT -1 OFFSET ?)",
        (MOST_WATCHES,),
    )


def load_watches(connection: sqlite3.Connection) -> tuple[dict[str, WatchdogState], int]:
    """What is known, by the daemons' names, and how many rows could not be read."""
    rows = connection.execute(
        "SELECT CAST(watch AS BLOB) FROM watches ORDER BY at DESC, rowid DESC LIMIT ?", (MOST_WATCHES,)
    )
    kept, unreadable = read(_Kept, rows)
    return {each.daemon: each.watch for each in reversed(kept)}, unreadable


PAGES = """
CREATE TABLE pages (
    gpu TEXT NOT NULL, kind TEXT NOT NULL, payer TEXT NOT NULL, page TEXT NOT NULL, PRIMARY KEY (gpu, kind, payer)
) WITHOUT ROWID;
"""

MOST_PAGES = 65_536
"""More than there can be: as many GPUs as fit into a machine, each with all who may have pages."""

Place = tuple[GpuUuid, Account]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """What was used, as far as it was found out in one way."""

    method: Method | None = None
    sm_us: int = 0
    energy_mj: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    """What a row has: the names as they are, which a key need not be; and the memory in digits, since it grows long."""

    gpu: GpuUuid
    kind: str
    name: str
    paid_at: float
    memory_byte_ms: str = "0"
    lines: tuple[_Line, ...] = ()


def save_totals(connection: sqlite3.Connection, before: UsageTotals, after: UsageTotals) -> None:
    """Write what has changed between the books that the file has, and these."""
    changed = frozenset(_changed(before, after))
    kept = {place for place in changed if _is_there(after, place)}
    connection.executemany("DELETE FROM pages WHERE gpu = ? AND kind = ? AND payer = ?", map(_row, changed - kept))
    rows = ((*_row(place), written(_page(after, place))) for place in kept)
    connection.executemany("INSERT OR REPLACE INTO pages VALUES (?, ?, ?, ?)", rows)


def load_totals(connection: sqlite3.Connection) -> tuple[UsageTotals, int]:
    """The books, and how many rows could not be read."""
    pages, unreadable = read(_Page, connection.execute("SELECT CAST(page AS BLOB) FROM pages LIMIT ?", (MOST_PAGES,)))
    used: defaultdict[GpuUuid, dict[UsageKey, Usage]] = defaultdict(dict)
    memory: defaultdict[GpuUuid, dict[Account, int]] = defaultdict(dict)
    paid_at: dict[Workload, float] = {}
    for page in pages:
        try:
            payer, held, lines = _payer(page), _memory(page), _lines(page)
        except ValueError:
            unreadable += 1
            continue
        used[page.gpu].update({(payer, method): each for method, each in lines.items()})
        memory[page.gpu].update({payer: held} if held else {})
        if isinstance(payer, Workload):
            paid_at[payer] = max(page.paid_at, paid_at.get(payer, page.paid_at))
    gpus = {
        gpu: GpuUsage(total=sum(used[gpu].values(), Usage()), by_account=used[gpu], memory_byte_ms=memory[gpu])
        for gpu in used
    }
    return UsageTotals(gpus=gpus, last_used_at=paid_at), unreadable


def _changed(before: UsageTotals, after: UsageTotals) -> Iterator[Place]:
    """Whose pages differ. What has not changed is mostly the same object, and seen at a glance."""
    for gpu in before.gpus.keys() | after.gpus.keys():
        old, new = before.gpus.get(gpu, GpuUsage()), after.gpus.get(gpu, GpuUsage())
        if old.by_account is not new.by_account:
            for entry in old.by_account.keys() | new.by_account.keys():
                if old.by_account.get(entry) != new.by_account.get(entry):
                    yield gpu, entry[0]
        if old.memory_byte_ms is not new.memory_byte_ms:
            for payer in old.memory_byte_ms.keys() | new.memory_byte_ms.keys():
                if old.memory_byte_ms.get(payer) != new.memory_byte_ms.get(payer):
                    yield gpu, payer


def _is_there(ledger: UsageTotals, place: Place) -> bool:
    gpu, payer = place
    book = ledger.gpus.get(gpu, GpuUsage())
    return payer in book.memory_byte_ms or any((payer, method) in book.by_account for method in (None, *Method))


def _row(place: Place) -> tuple[str, str, str]:
    gpu, payer = place
    return key(gpu), *((payer.value, "") if isinstance(payer, SharedAccount) else (payer.kind.value, key(payer.name)))


def _page(ledger: UsageTotals, place: Place) -> _Page:
    gpu, payer = place
    book = ledger.gpus[gpu]
    kind, name, paid_at = (payer.value, "", 0.0) if isinstance(payer, SharedAccount) else _owner(ledger, payer)
    used = ((method, book.by_account.get((payer, method))) for method in (None, *Method))
    return _Page(
        gpu=gpu,
        kind=kind,
        name=name,
        paid_at=paid_at,
        memory_byte_ms=str(book.memory_byte_ms.get(payer, 0)),
        lines=tuple(_Line(method=how, sm_us=u.sm_us, energy_mj=u.energy_mj) for how, u in used if u is not None),
    )


def _owner(ledger: UsageTotals, owner: Workload) -> tuple[str, str, float]:
    return owner.kind.value, owner.name, ledger.last_used_at.get(owner, 0.0)


def _payer(page: _Page) -> Account:
    return Workload(kind=WorkloadKind(page.kind), name=page.name) if page.name else SharedAccount(page.kind)


def _memory(page: _Page) -> int:
    if not (page.memory_byte_ms.isascii() and page.memory_byte_ms.isdigit() and len(page.memory_byte_ms) <= 100):
        raise ValueError("no digits")
    return int(page.memory_byte_ms)


def _lines(page: _Page) -> dict[Method | None, Usage]:
    if any(min(line.sm_us, line.energy_mj) < 0 for line in page.lines):
        raise ValueError("less than nothing was used")
    return {line.method: Usage(sm_us=line.sm_us, energy_mj=line.energy_mj) for line in page.lines}
