"""The table of the books: a row for each payer on each GPU, which is replaced as it grows.

The whole of a GPU is not written: it is the sum of its rows, so that whatever becomes of one, the parts are the whole.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from exporter.model.accounting import Account, GpuUsage, SharedAccount, Usage, UsageKey, UsageTotals
from exporter.model.observation import GpuUuid
from exporter.model.usage import Method
from exporter.model.workload import Workload, WorkloadKind
from exporter.store.row import key, read, written

TABLE = """
CREATE TABLE pages (
    gpu TEXT NOT NULL, kind TEXT NOT NULL, payer TEXT NOT NULL, page TEXT NOT NULL, PRIMARY KEY (gpu, kind, payer)
) WITHOUT ROWID;
"""

MOST = 65_536
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


def save(connection: sqlite3.Connection, before: UsageTotals, after: UsageTotals) -> None:
    """Write what has changed between the books that the file has, and these."""
    changed = frozenset(_changed(before, after))
    kept = {place for place in changed if _is_there(after, place)}
    connection.executemany("DELETE FROM pages WHERE gpu = ? AND kind = ? AND payer = ?", map(_row, changed - kept))
    rows = ((*_row(place), written(_page(after, place))) for place in kept)
    connection.executemany("INSERT OR REPLACE INTO pages VALUES (?, ?, ?, ?)", rows)


def load(connection: sqlite3.Connection) -> tuple[UsageTotals, int]:
    """The books, and how many rows could not be read."""
    pages, unreadable = read(_Page, connection.execute("SELECT CAST(page AS BLOB) FROM pages LIMIT ?", (MOST,)))
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
