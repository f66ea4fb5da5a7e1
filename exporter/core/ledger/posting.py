"""Puts what a GPU did to those for whom it did it. What is posted is exactly what there was, whoever pays."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from exporter.core.ledger.apportion import apportioned, fractions
from exporter.core.ledger.pages import admitted
from exporter.model.ledger import Book, Entry, Ledger, Payer, Purse, Used
from exporter.model.observation import GpuUuid
from exporter.model.replace import replace

NOBODY: Entry = (Purse.UNATTRIBUTED, None)

Key = TypeVar("Key")


def post_time(ledger: Ledger, gpu: GpuUuid, busy_us: int, parts: Mapping[Entry, float], *, at: float) -> Ledger:
    """SM time of a window, in microseconds of the whole GPU, to those who had these parts of it; the rest to nobody."""
    ledger, posted = _admitted(ledger, apportioned(busy_us, fractions(parts, NOBODY)), at)
    book = ledger.books.get(gpu, Book())
    return _with(
        ledger,
        gpu,
        replace(
            book,
            whole=_more(book.whole, sm_us=sum(posted.values())),
            used={**book.used, **{each: _more(_used(book, each), sm_us=us) for each, us in posted.items()}},
            unpowered=_added(book.unpowered, posted.items()),
        ),
    )


def post_energy(ledger: Ledger, gpu: GpuUuid, millijoules: int, *, at: float, known: bool = True) -> Ledger:
    """Energy since the last posting, in proportion to the SM time since then; to nobody where nobody ran.

    So it is too where it is not `known` who ran all that time.
    """
    book = ledger.books.get(gpu, Book())
    weights = book.unpowered if known and any(book.unpowered.values()) else {NOBODY: 1}
    ledger, posted = _admitted(ledger, apportioned(millijoules, weights), at)
    book = ledger.books.get(gpu, Book())
    return _with(
        ledger,
        gpu,
        replace(
            book,
            whole=_more(book.whole, energy_mj=sum(posted.values())),
            used={**book.used, **{each: _more(_used(book, each), energy_mj=mj) for each, mj in posted.items()}},
            unpowered={},
        ),
    )


def post_memory(ledger: Ledger, gpu: GpuUuid, held: Mapping[Payer, int], *, at: float) -> Ledger:
    """Memory that was held, in bytes times milliseconds, to those who held it."""
    ledger, posted = _admitted(ledger, {(payer, None): each for payer, each in held.items() if each > 0}, at)
    if not posted:
        return ledger
    book = ledger.books.get(gpu, Book())
    by_payer = [(payer, each) for (payer, _), each in posted.items()]
    return _with(ledger, gpu, replace(book, memory_byte_ms=_added(book.memory_byte_ms, by_payer)))


def _admitted(ledger: Ledger, amounts: Mapping[Entry, int], at: float) -> tuple[Ledger, dict[Entry, int]]:
    """These amounts, to those who have a page; who else there is shares one."""
    posted: dict[Entry, int] = {}
    for (wanted, method), amount in amounts.items():
        ledger, payer = admitted(ledger, wanted, at)
        posted[payer, method] = posted.get((payer, method), 0) + amount
    return ledger, posted


def _with(ledger: Ledger, gpu: GpuUuid, book: Book) -> Ledger:
    return replace(ledger, books={**ledger.books, gpu: book})


def _used(book: Book, entry: Entry) -> Used:
    return book.used.get(entry, Used())


def _more(used: Used, *, sm_us: int = 0, energy_mj: int = 0) -> Used:
    return Used(sm_us=used.sm_us + sm_us, energy_mj=used.energy_mj + energy_mj)


def _added(sums: Mapping[Key, int], amounts: Iterable[tuple[Key, int]]) -> Mapping[Key, int]:
    grown = dict(sums)
    for key, amount in amounts:
        grown[key] = grown.get(key, 0) + amount
    return grown
