"""The state file: an SQLite database that one exporter writes and other processes may read.

A row has the JSON of one value; its other columns only select rows.
"""

import contextlib
import errno
import fcntl
import json
import os
import sqlite3
import stat
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, field
from pathlib import Path
from typing import Any

from exporter.clock import Clock
from exporter.errors import HistoryError
from exporter.history import MAX_SAMPLES, SAMPLE_SECONDS, Sample
from exporter.logger import logger
from exporter.model.event import TIMELINE, Event, EventName
from exporter.model.identity import Workload, WorkloadIdentity
from exporter.model.incident import Clues, Incident
from exporter.model.node import Gpu, Node, select_fairly
from exporter.model.observation import DaemonName, GpuReading, GpuUuid
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import Retention
from exporter.model.usage import Account, GpuUsage, Method, Usage, UsageTotals
from exporter.model.values import Built, build, frozen, plain, replace
from exporter.model.watchdog import WatchdogState, with_stop_remembered

FILE, LOCK = "history.sqlite", "history.lock"

SCHEMA_VERSION = 3  # the version of `SCHEMA` and of the values in it

LOADED_INCIDENTS, LOADED_EVENTS = 256, 1000
"""How many of each a start loads; the file may have more. The start waits for them."""

BUSY_SECONDS = 1.0  # how long to wait for another process that reads or writes
MAX_SET_ASIDE = 16  # a disk that damages every file is not filled with them

MAX_VALUE_BYTES = 8 << 20
MAX_STEPS, STEPS_AT_ONCE = 10_000, 10_000
"""Limits on the values and the work of SQLite for a reader: an attacker may have written the file."""

_CREATE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_SUFFIXES = ("-wal", "-shm", "")
"""SQLite's companions of a file are moved before the file: an old one beside a new file would damage that."""

MAX_BYTES = 64 << 20  # How much is read of one table. A thousand faults with 48 clients each have 12 MB.
MAX_ROWS = 100_000  # how many rows are read of one table: ten times as many as the retention allows
MAX_WATCHDOG_STATES = 256  # four times as many daemons as can be configured
PACE_NUMBERS = (5, 7)  # A pace has so many numbers. Earlier versions wrote five.
LEAST_PACE = 1e-9  # Least count, and least time, in a stored pace. A smaller one is damaged, and dividing by it fails.

SCHEMA = """
CREATE TABLE incidents (id TEXT PRIMARY KEY, at REAL NOT NULL, daemon TEXT, expected INTEGER, open INTEGER, json TEXT);
CREATE TABLE events (
    number INTEGER PRIMARY KEY, at REAL NOT NULL, daemon TEXT, expected INTEGER, timeline INTEGER, json TEXT
);
CREATE INDEX incidents_at ON incidents (at);
CREATE INDEX events_at ON events (at);
CREATE TABLE watchdog_states (daemon TEXT PRIMARY KEY, json TEXT);
CREATE TABLE usage_totals (key TEXT PRIMARY KEY, json TEXT);
CREATE TABLE samples (slot INTEGER PRIMARY KEY, json TEXT);
"""

_INVALID = (ValueError, TypeError, OverflowError, RecursionError, sqlite3.IntegrityError, sqlite3.DataError)
"""Errors of a value, not of the disk. Another try would fail too."""


@frozen
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

    def restore(self, node: Node, booted_at: float = 0.0) -> Node:
        """Return the node with this state. Incidents are in the order in which they began.

        A GPU that was lost is lost until NVML lists it again, or the machine is rebooted. If an operator has removed
        it, a restart of the exporter while it is paused forgets it.
        """
        states, gpus = self.watchdog_states, dict(node.gpus)
        for event in self.events:
            if event.at < booted_at or event.event is EventName.EXPORTER_PAUSED:
                break
            if event.event is EventName.GPU_LOST and event.gpu is not None:
                lost = GpuReading(at=event.at, gpu=event.gpu, problem=Reason(ReasonCode.GPU_NOT_REPORTED))
                gpus.setdefault(event.gpu, Gpu(reading=lost, failing_since=event.at))
        return replace(
            node,
            gpus=gpus,
            daemons={name: with_stop_remembered(daemon, states.get(name)) for name, daemon in node.daemons.items()},
            incidents={incident.id: incident for incident in reversed(self.incidents)},
            watches={**node.watches, **states},
            usage_totals=self.usage_totals,
        )


@frozen
class WatchdogRow:
    """The watchdog's state of a daemon."""

    daemon: DaemonName
    state: WatchdogState


@frozen
class UsageRow:
    """What an account used of a GPU by one method.

    Without a method, it has the account's memory (may exceed 64 bits), quiet paces and identity.
    """

    gpu: GpuUuid
    account: Account
    method: Method | None = None
    used: Usage | None = None
    memory_byte_ms: str = "0"
    paces: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    last_used_at: float = 0.0
    identity: WorkloadIdentity | None = None

    def check(self) -> None:
        """Raise ValueError if an amount is not a number of 0 or more, or a pace is not one."""
        if int(self.memory_byte_ms) < 0 or (self.used is not None and min(astuple(self.used)) < 0):
            raise ValueError("an amount is negative")
        if any(
            len(pace) not in PACE_NUMBERS or min(pace[:4]) < LEAST_PACE or min(pace[4:]) < 0
            for pace in self.paces.values()
        ):
            raise ValueError("a pace is invalid")


Storable = Incident | Event | WatchdogRow | UsageRow | Sample
Refused = list[tuple[Storable, Exception]]


def save(connection: sqlite3.Connection, values: Iterable[Storable], expected: Collection[DaemonName]) -> Refused:
    """Write a row for each value. Return those that cannot be written, and why: a defect costs no other value."""
    refused: Refused = []
    replaced = list[tuple[str]]()
    for value in values:
        try:
            table, row = _row(value, expected)
            places = ", ".join("?" * len(row))
            connection.execute(f"INSERT OR REPLACE INTO {table} VALUES ({places})", row)  # noqa: S608
            if isinstance(value, Incident):
                replaced.extend((_json(name),) for name in value.replaces)
        except _INVALID as error:
            refused.append((value, error))
    connection.executemany("DELETE FROM incidents WHERE id = ?", replaced)
    return refused


def _row(value: Storable, expected: Collection[DaemonName]) -> tuple[str, tuple[object, ...]]:
    match value:
        case Incident():
            key, daemon, is_expected = _json(value.id), _json(value.daemon), value.daemon in expected
            return "incidents", (key, value.started_at, daemon, is_expected, value.open, _json(value))
        case Event():
            # The details of the clients and the clues are stored with the incident only.
            incident = None if value.incident is None else replace(value.incident, client_details={}, clues=Clues())
            text, daemon = _json(replace(value, incident=incident)), _json(value.daemon)
            is_expected = value.daemon is None or value.daemon in expected
            return "events", (None, value.at, daemon, is_expected, value.event in TIMELINE, text)
        case WatchdogRow():
            return "watchdog_states", (_json(value.daemon), _json(value))
        case UsageRow():
            has_content = value.used is not None or value.memory_byte_ms != "0" or value.paces
            content = _json(value) if has_content else None
            return "usage_totals", (_json((value.gpu, value.account, value.method)), content)
        case Sample():
            return "samples", (value.slot, _json(value))


def _json(value: object) -> str:
    """Return the JSON of a value. Columns have it too: SQLite cannot store lone surrogates."""
    return json.dumps(plain(value))


def trim(connection: sqlite3.Connection, retention: Retention, now: float) -> None:
    """Delete what exceeds the retention. Each daemon has a share: its log cannot displace those of other daemons.

    Open incidents have no age, and are deleted last. A watchdog state has no age either: a circuit breaker stays open.
    Samples of the future are from before the clock was set back.
    """
    oldest, slot = now - retention.max_age, Sample(at=now).slot
    connection.execute("DELETE FROM incidents WHERE at < ? AND NOT open", (oldest,))
    connection.execute("DELETE FROM events WHERE at < ?", (oldest,))
    connection.execute("DELETE FROM samples WHERE slot NOT BETWEEN ? AND ?", (slot - MAX_SAMPLES, slot))
    last = "SELECT rowid FROM watchdog_states ORDER BY rowid DESC LIMIT ?"
    connection.execute(f"DELETE FROM watchdog_states WHERE rowid NOT IN ({last})", (MAX_WATCHDOG_STATES,))  # noqa: S608
    connection.execute("DELETE FROM usage_totals WHERE json IS NULL")
    for table, most in (("incidents", retention.max_incidents), ("events", retention.max_events)):
        (count,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608
        if count > most:
            # One tenth more is deleted, so that they are not counted again at each new one.
            rows = _select(connection, table, "rowid, daemon, expected").fetchall()
            others = {number for number, *_ in rows} - _shares(rows, most - most // 10)
            connection.executemany(f"DELETE FROM {table} WHERE rowid = ?", ((number,) for number in others))  # noqa: S608


def _select(connection: sqlite3.Connection, table: str, columns: str, most: int = MAX_ROWS) -> sqlite3.Cursor:
    order = "open DESC, at DESC, rowid DESC" if table == "incidents" else "rowid DESC"
    return connection.execute(f"SELECT {columns} FROM {table} ORDER BY {order} LIMIT ?", (most,))  # noqa: S608


def _shares(rows: Sequence[tuple[Any, ...]], most: int) -> frozenset[int]:
    """Return the numbers of at most `most` rows: each begins with a number, a daemon, and whether that was expected."""
    expected = {row[1] for row in rows if row[2]}
    return frozenset(row[0] for row in select_fairly(rows, most, lambda row: row[1], expected))


def _read(kind: type[Built], rows: Iterable[tuple[bytes]], unreadable: Counter[type]) -> tuple[Built, ...]:
    """Return the values of these rows, within `MAX_BYTES`, and count the rows that cannot be read."""
    values, size = list[Built](), 0
    for (row,) in rows:
        size += len(row) if isinstance(row, bytes) else 0
        if size > MAX_BYTES:
            break
        try:
            value = build(kind, json.loads(row))
            if isinstance(value, UsageRow):
                value.check()
            values.append(value)
        except (ValueError, TypeError, RecursionError):
            unreadable[kind] += 1
    return tuple(values)


def load(connection: sqlite3.Connection, now: float, max_incidents: int, max_events: int) -> StoredState:
    """Return the content. The events are each daemon's share of `max_events`, and as many of the page's timeline."""
    unreadable: Counter[type] = Counter()
    begin, slot = now - MAX_SAMPLES * SAMPLE_SECONDS, Sample(at=now).slot
    incidents = _read(Incident, _select(connection, "incidents", "json", max_incidents), unreadable)
    rows = _select(connection, "events", f"rowid, daemon, expected, timeline AND at >= {begin}").fetchall()
    selected = _shares(rows, max_events).union([row[0] for row in rows if row[3]][:max_events])
    events = ((text,) for number, text in _select(connection, "events", "rowid, json") if number in selected)
    states = _read(WatchdogRow, _select(connection, "watchdog_states", "json"), unreadable)
    samples = _read(Sample, _select(connection, "samples", "json"), unreadable)
    return StoredState(
        incidents=tuple(sorted(incidents, key=lambda incident: -incident.started_at)),
        events=_read(Event, events, unreadable),
        watchdog_states={row.daemon: row.state for row in reversed(states)},
        usage_totals=_totals_of(_read(UsageRow, _select(connection, "usage_totals", "json"), unreadable)),
        samples=tuple(sample for sample in reversed(samples) if slot - MAX_SAMPLES <= sample.slot <= slot),
        unreadable=unreadable.total(),
        complete=not unreadable[WatchdogRow],
    )


def usage_rows(before: UsageTotals, after: UsageTotals) -> Iterator[UsageRow]:
    """Yield the rows that differ. One without an amount is to be deleted."""
    last_used_at = {**after.closed, **after.last_used_at}
    for gpu in before.gpus.keys() | after.gpus.keys():
        old, new = (totals.gpus.get(gpu, GpuUsage()) for totals in (before, after))
        others = {(account, None) for each in (old, new) for account in (*each.memory_byte_ms, *each.paces)}
        for account, method in others.union(old.by_account, new.by_account):
            used_before, used = old.by_account.get((account, method)), new.by_account.get((account, method))
            memory_before, memory = old.memory_byte_ms.get(account, 0), new.memory_byte_ms.get(account, 0)
            paces_before, paces = old.paces.get(account, {}), new.paces.get(account, {})
            changed = memory != memory_before or paces != paces_before
            if used != used_before or (method is None and changed):
                workload = account if isinstance(account, Workload) else None
                yield UsageRow(
                    gpu=gpu,
                    account=account,
                    method=method,
                    used=used,
                    memory_byte_ms=str(memory if method is None else 0),
                    paces=paces if method is None else {},
                    last_used_at=0.0 if workload is None else last_used_at.get(workload, 0.0),
                    identity=None if workload is None or method is not None else after.identities.get(workload),
                )


def _totals_of(rows: Iterable[UsageRow]) -> UsageTotals:
    used: defaultdict[GpuUuid, dict[tuple[Account, Method | None], Usage]] = defaultdict(dict)
    memory: defaultdict[GpuUuid, dict[Account, int]] = defaultdict(dict)
    paces: defaultdict[GpuUuid, dict[Account, Mapping[str, tuple[float, ...]]]] = defaultdict(dict)
    last_used_at: dict[Workload, float] = {}
    identities: dict[Workload, WorkloadIdentity] = {}
    for row in rows:
        used[row.gpu].update({} if row.used is None else {(row.account, row.method): row.used})
        memory[row.gpu].update({} if row.memory_byte_ms == "0" else {row.account: int(row.memory_byte_ms)})
        paces[row.gpu].update({row.account: row.paces} if row.paces else {})
        if isinstance(row.account, Workload):
            last_used_at[row.account] = max(row.last_used_at, last_used_at.get(row.account, row.last_used_at))
            if row.identity is not None:
                identities[row.account] = identities.get(row.account, row.identity).merged(row.identity)
    gpus = {
        gpu: GpuUsage(
            total=sum(by_account.values(), Usage()), by_account=by_account, memory_byte_ms=memory[gpu], paces=paces[gpu]
        )
        for gpu, by_account in used.items()
    }
    return UsageTotals(gpus=gpus, last_used_at=last_used_at, identities=identities)


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
            problem = _problem(self._path)
            if problem is not None:
                _set_aside(self._path, problem)
            if not os.path.lexists(self._path):
                _create(self._path)
            self._connection = connection = _connect(self._path)
            connection.execute("PRAGMA journal_mode = WAL")
            self._status = self._path.stat()
            stored = load(connection, self._clock.now(), LOADED_INCIDENTS, LOADED_EVENTS)
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
                refused = save(connection, values, expected)
                trim(connection, self._retention, self._clock.now())
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


def _create(path: Path) -> None:
    """Create the file with its schema, or none, as on a full disk. A file without schema has lost its content."""
    new = path.with_name(f"{path.name}.new")
    # What is left of a file that was removed would become part of this one.
    for left in (new, *(path.with_name(path.name + suffix) for suffix in _SUFFIXES)):
        left.unlink(missing_ok=True)
    with contextlib.closing(_connect(new)) as connection:
        connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
    new.rename(path)


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


def _problem(path: Path) -> str | None:
    if not os.path.lexists(path):
        return None
    try:
        with contextlib.closing(_connect(path)) as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        if _is_damage(error):
            return str(error)
        raise
    if version == 0:
        return "it is empty"  # Its content, such as an open circuit breaker, was lost.
    if version != SCHEMA_VERSION:
        return f"it has schema version {version}, and this version of the program uses {SCHEMA_VERSION}"
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
    logger().warning("file_set_aside", path=str(path), problem=problem, new_path=str(aside))


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
            stored = load(connection, 0.0, MAX_ROWS, MAX_ROWS) if version else StoredState()
            return stored.incidents, stored.events
    except OSError as error:
        raise HistoryError(f"{file}: {error.strerror}") from error
    except sqlite3.Error as error:
        raise HistoryError(f"{file}: the history cannot be read: {error}") from error
