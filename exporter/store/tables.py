"""Tables of the state file: incidents, events, watchdog states, usage totals, samples.

A row has the JSON of a value.
"""

import json
import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from exporter.model.event import Event
from exporter.model.identity import Workload, WorkloadKind
from exporter.model.incident import Incident
from exporter.model.observation import GpuUuid
from exporter.model.usage import (
    MAX_SAMPLES,
    Account,
    GpuUsage,
    Method,
    Sample,
    SharedAccount,
    Usage,
    UsageKey,
    UsageTotals,
    slot_of,
)
from exporter.model.values import build, plain
from exporter.model.watchdog import WatchdogState

Value = TypeVar("Value")

MAX_BYTES = 64 << 20
"""How much is read of one table. A thousand faults with 48 clients each have 12 MB."""

SCHEMA = """
CREATE TABLE incidents (
    id TEXT PRIMARY KEY, daemon TEXT NOT NULL, open INTEGER NOT NULL, started_at REAL NOT NULL, incident TEXT NOT NULL
);
CREATE INDEX incidents_started_at ON incidents (started_at);
CREATE TABLE events (
    number INTEGER PRIMARY KEY, at REAL NOT NULL, event TEXT NOT NULL, daemon TEXT NOT NULL, expected INTEGER NOT NULL
);
CREATE INDEX events_at ON events (at);
CREATE TABLE watchdog_states (daemon TEXT PRIMARY KEY, at REAL NOT NULL, state TEXT NOT NULL);
CREATE TABLE accounts (
    gpu TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, usage TEXT NOT NULL, PRIMARY KEY (gpu, kind, name)
) WITHOUT ROWID;
CREATE TABLE samples (slot INTEGER PRIMARY KEY, sample TEXT NOT NULL);
"""


def _json(value: object) -> str:
    return json.dumps(plain(value))


def _column(text: str) -> str:
    """Return a text as SQLite can store it: it refuses lone surrogates."""
    return text.encode("unicode_escape").decode("ascii")


def _read(kind: type[Value], rows: Iterable[tuple[object]]) -> tuple[tuple[Value, ...], int]:
    """Return the values of these rows, within `MAX_BYTES`, and the number of rows that cannot be read."""
    found: list[Value] = []
    unreadable = size = 0
    for (row,) in rows:
        size += len(row) if isinstance(row, bytes) else 0
        if size > MAX_BYTES:
            break
        try:
            found.append(build(kind, json.loads(row)))  # type: ignore[arg-type]
        except (ValueError, TypeError, RecursionError):
            unreadable += 1
    return tuple(found), unreadable


def save_incidents(connection: sqlite3.Connection, incidents: Iterable[Incident]) -> None:
    """Write incidents; an earlier state of one is replaced."""
    rows = ((_column(each.id), _column(each.daemon), each.open, each.started_at, _json(each)) for each in incidents)
    connection.executemany("INSERT OR REPLACE INTO incidents VALUES (?, ?, ?, ?, ?)", rows)


def trim_incidents(connection: sqlite3.Connection, *, oldest: float, most: int) -> None:
    """Delete incidents that began before `oldest`, and all but the newest `most`. Open ones are deleted last.

    The daemons with the most incidents lose theirs first: one daemon's log cannot displace those of another daemon.
    """
    connection.execute("DELETE FROM incidents WHERE started_at < ? AND NOT open", (oldest,))
    connection.execute(
        "DELETE FROM incidents WHERE (SELECT count(*) FROM incidents) > :most AND id IN (SELECT id FROM ("
        " SELECT id, open, started_at, row_number() OVER"
        "  (PARTITION BY daemon ORDER BY open DESC, started_at DESC) AS place FROM incidents"
        ") ORDER BY place, open DESC, started_at DESC LIMIT -1 OFFSET :most)",
        {"most": most},
    )


def load_incidents(connection: sqlite3.Connection, most: int) -> tuple[tuple[Incident, ...], int]:
    """Return at most `most` incidents, newest first, and the number of unreadable rows. Open ones have precedence."""
    rows = connection.execute(
        "SELECT incident FROM (SELECT CAST(incident AS BLOB) AS incident, open, started_at, rowid AS number"
        " FROM incidents ORDER BY open DESC, started_at DESC, number DESC LIMIT ?)"
        " ORDER BY started_at DESC, number DESC",
        (most,),
    )
    return _read(Incident, rows)


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
SELECT CAST(event AS BLOB) FROM events WHERE number IN (
    SELECT number FROM (SELECT number FROM {_RANKED} ORDER BY rank, number DESC LIMIT ?)
) OR number IN (
    SELECT number FROM events
    WHERE at >= ? AND CASE WHEN json_valid(event) THEN json_extract(event, '$.event') END
        IN (SELECT value FROM json_each(?))
    ORDER BY number DESC LIMIT ?
)
ORDER BY number DESC
"""  # noqa: S608 (of constants)

SPARE = 10
"""If there are too many events, one tenth more is deleted. So they are not counted again at each new one."""


def add_events(connection: sqlite3.Connection, events: Iterable[Event], expected: Collection[str]) -> None:
    """Add events; `expected` are the expected daemons."""
    rows = (
        (
            each.at,
            # The details of the clients are stored with the incident only.
            _json(each if each.incident is None else replace(each, incident=replace(each.incident, client_details={}))),
            _column(each.daemon or ""),
            each.daemon is None or each.daemon in expected,
        )
        for each in events
    )
    connection.executemany("INSERT INTO events (at, event, daemon, expected) VALUES (?, ?, ?, ?)", rows)


def trim_events(connection: sqlite3.Connection, *, oldest: float, most: int) -> None:
    """Delete events from before `oldest`, and those that exceed each daemon's share of `most`."""
    connection.execute("DELETE FROM events WHERE at < ?", (oldest,))
    (count,) = connection.execute("SELECT count(*) FROM events").fetchone()
    if count > most:
        connection.execute(_TRIM, (most - most // SPARE,))


def load_event_shares(
    connection: sqlite3.Connection, most: int, *, oldest: float = float("inf"), names: Collection[str] = ()
) -> tuple[tuple[Event, ...], int]:
    """Return events, newest first, and the number of unreadable rows.

    These are each daemon's share of `most` events, and as many since `oldest` that have one of these `names`.
    """
    return _read(Event, connection.execute(_LOAD, (most, oldest, json.dumps(list(names)), most)))


def load_events(connection: sqlite3.Connection, most: int) -> tuple[tuple[Event, ...], int]:
    """Return the last `most` events, newest first, and the number of unreadable rows."""
    rows = connection.execute("SELECT CAST(event AS BLOB) FROM events ORDER BY number DESC LIMIT ?", (most,))
    return _read(Event, rows)


MAX_WATCHDOG_STATES = 256
"""Four times as many daemons as can be configured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _WatchdogRow:
    """The JSON of a row. It has the daemon's name because the column has it escaped."""

    daemon: str
    state: WatchdogState


def save_watchdog_states(connection: sqlite3.Connection, states: Mapping[str, WatchdogState], *, at: float) -> None:
    """Write the watchdog's states of these daemons."""
    rows = ((_column(name), at, _json(_WatchdogRow(daemon=name, state=state))) for name, state in states.items())
    connection.executemany("INSERT OR REPLACE INTO watchdog_states VALUES (?, ?, ?)", rows)


def trim_watchdog_states(connection: sqlite3.Connection) -> None:
    """Delete all but the last `MAX_WATCHDOG_STATES`. Their age does not matter: a circuit breaker stays open."""
    connection.execute(
        "DELETE FROM watchdog_states WHERE rowid IN"
        " (SELECT rowid FROM watchdog_states ORDER BY at DESC, rowid DESC LIMIT -1 OFFSET ?)",
        (MAX_WATCHDOG_STATES,),
    )


def load_watchdog_states(connection: sqlite3.Connection) -> tuple[dict[str, WatchdogState], int]:
    """Return the watchdog's states by daemon, and the number of unreadable rows."""
    rows = connection.execute(
        "SELECT CAST(state AS BLOB) FROM watchdog_states ORDER BY at DESC, rowid DESC LIMIT ?", (MAX_WATCHDOG_STATES,)
    )
    found, unreadable = _read(_WatchdogRow, rows)
    return {each.daemon: each.state for each in reversed(found)}, unreadable


MAX_ACCOUNTS = 65_536
"""More than there can be on the GPUs of one machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """The use that one method measured."""

    method: Method | None = None
    sm_us: int = 0
    energy_mj: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _AccountRow:
    """The JSON of an account's row. The memory is text, because it may exceed 64 bits."""

    gpu: GpuUuid
    kind: str
    name: str
    last_used_at: float
    memory_byte_ms: str = "0"
    lines: tuple[_Line, ...] = ()

    @property
    def account(self) -> Account:
        return Workload(kind=WorkloadKind(self.kind), name=self.name) if self.name else SharedAccount(self.kind)

    @property
    def memory(self) -> int:
        if not (self.memory_byte_ms.isascii() and self.memory_byte_ms.isdigit() and len(self.memory_byte_ms) <= 100):
            raise ValueError("memory_byte_ms is not a number")
        return int(self.memory_byte_ms)

    @property
    def usage(self) -> dict[Method | None, Usage]:
        if any(min(line.sm_us, line.energy_mj) < 0 for line in self.lines):
            raise ValueError("a usage is negative")
        return {line.method: Usage(sm_us=line.sm_us, energy_mj=line.energy_mj) for line in self.lines}


def save_totals(connection: sqlite3.Connection, before: UsageTotals, after: UsageTotals) -> None:
    """Write the accounts that differ between the stored totals and these."""
    removed, changed = [], []
    for gpu, account in frozenset(_changed_accounts(before, after)):
        kind, name = (account.value, "") if isinstance(account, SharedAccount) else (account.kind.value, account.name)
        key = _column(gpu), kind, _column(name)
        usage = after.gpus.get(gpu, GpuUsage())
        used = ((method, usage.by_account.get((account, method))) for method in (None, *Method))
        lines = tuple(_Line(method=how, sm_us=u.sm_us, energy_mj=u.energy_mj) for how, u in used if u is not None)
        if not lines and account not in usage.memory_byte_ms:
            removed.append(key)
            continue
        row = _AccountRow(
            gpu=gpu,
            kind=kind,
            name=name,
            last_used_at=0.0 if isinstance(account, SharedAccount) else after.last_used_at.get(account, 0.0),
            memory_byte_ms=str(usage.memory_byte_ms.get(account, 0)),
            lines=lines,
        )
        changed.append((*key, _json(row)))
    connection.executemany("DELETE FROM accounts WHERE gpu = ? AND kind = ? AND name = ?", removed)
    connection.executemany("INSERT OR REPLACE INTO accounts VALUES (?, ?, ?, ?)", changed)


def _changed_accounts(before: UsageTotals, after: UsageTotals) -> Iterator[tuple[GpuUuid, Account]]:
    """Yield the accounts that differ. Unchanged mappings are mostly the same object, which is quickly compared."""
    for gpu in before.gpus.keys() | after.gpus.keys():
        old, new = before.gpus.get(gpu, GpuUsage()), after.gpus.get(gpu, GpuUsage())
        if old.by_account is not new.by_account:
            for key in old.by_account.keys() | new.by_account.keys():
                if old.by_account.get(key) != new.by_account.get(key):
                    yield gpu, key[0]
        if old.memory_byte_ms is not new.memory_byte_ms:
            for account in old.memory_byte_ms.keys() | new.memory_byte_ms.keys():
                if old.memory_byte_ms.get(account) != new.memory_byte_ms.get(account):
                    yield gpu, account


def load_totals(connection: sqlite3.Connection) -> tuple[UsageTotals, int]:
    """Return the usage totals, and the number of unreadable rows."""
    select = "SELECT CAST(usage AS BLOB) FROM accounts LIMIT ?"
    rows, unreadable = _read(_AccountRow, connection.execute(select, (MAX_ACCOUNTS,)))
    used: defaultdict[GpuUuid, dict[UsageKey, Usage]] = defaultdict(dict)
    memory: defaultdict[GpuUuid, dict[Account, int]] = defaultdict(dict)
    last_used_at: dict[Workload, float] = {}
    for row in rows:
        try:
            account, byte_ms, usage = row.account, row.memory, row.usage
        except ValueError:
            unreadable += 1
            continue
        used[row.gpu].update({(account, method): each for method, each in usage.items()})
        memory[row.gpu].update({account: byte_ms} if byte_ms else {})
        if isinstance(account, Workload):
            last_used_at[account] = max(row.last_used_at, last_used_at.get(account, row.last_used_at))
    gpus = {
        gpu: GpuUsage(total=sum(used[gpu].values(), Usage()), by_account=used[gpu], memory_byte_ms=memory[gpu])
        for gpu in used
    }
    return UsageTotals(gpus=gpus, last_used_at=last_used_at), unreadable


def save_samples(connection: sqlite3.Connection, samples: Iterable[Sample]) -> None:
    """Write samples, and delete those that are too old, or later than these because the clock was set back."""
    for each in samples:
        connection.execute("DELETE FROM samples WHERE slot NOT BETWEEN ? AND ?", (each.slot - MAX_SAMPLES, each.slot))
        connection.execute("INSERT OR REPLACE INTO samples VALUES (?, ?)", (each.slot, _json(each)))


def load_samples(connection: sqlite3.Connection, at: float) -> tuple[tuple[Sample, ...], int]:
    """Return the samples of the hour until `at`, the oldest first, and the number of unreadable rows."""
    last = slot_of(at)
    select = "SELECT CAST(sample AS BLOB) FROM samples WHERE slot BETWEEN ? AND ? ORDER BY slot"
    return _read(Sample, connection.execute(select, (last - MAX_SAMPLES, last)))
