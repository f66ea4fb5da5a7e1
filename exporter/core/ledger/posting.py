"""Puts what a GPU did to those for whom it did it. What is posted is exactly what there was, whoever pays."""

from collections.abc import Mapping

from exporter.core.ledger.apportion import added, apportioned, fractions
from exporter.core.ledger.pages import admitted
from exporter.model.ledger import Book, Entry, Ledger, Payer, Purse, Used
from exporter.model.observation import GpuUuid
from exporter.model.replace import replace

NOBODY: Entry = (Purse.UNATTRIBUTED, None)


def post_time(ledger: Ledger, gpu: GpuUuid, busy_us: int, parts: Mapping[Entry, float], *, at: float) -> Ledger:
    """SM time of a window, in microseconds of the whole GPU, to those who had these parts of it; the rest to nobody."""
    ledger, posted = _admitted(ledger, apportioned(busy_us, fractions(parts, NOBODY)), at)
    book = _grown(ledger.books.get(gpu, Book()), {entry: Used(sm_us=us) for entry, us in posted.items()})
    return _with(ledger, gpu, replace(book, unpowered=added(book.unpowered, posted.items())))


def post_energy(ledger: Ledger, gpu: GpuUuid, millijoules: int, *, at: float, known: bool = True) -> Ledger:
    """Energy since the last posting, in proportion to the SM time since then; to nobody where nobody ran.

    So it is too where it is not `known` who ran all that time.
    """
    book = ledger.books.get(gpu, Book())
    weights = book.unpowered if known and any(book.unpowered.values()) else {NOBODY: 1}
    ledger, posted = _admitted(ledger, apportioned(millijoules, weights), at)
    book = _grown(ledger.books.get(gpu, Book()), {entry: Used(energy_mj=mj) for entry, mj in posted.items()})
    return _with(ledger, gpu, replace(book, unpowered={}))


def post_memory(ledger: Ledger, gpu: GpuUuid, held: Mapping[Payer, int], *, at: float) -> Ledger:
    """Memory that was held, in bytes times milliseconds, to those who held it."""
    ledger, posted = _admitted(ledger, {(payer, None): each for payer, each in held.items() if each > 0}, at)
    if not posted:
        return ledger
    book = ledger.books.get(gpu, Book())
    by_payer = [(payer, each) for (payer, _), each in posted.items()]
    return _with(ledger, gpu, replace(book, memory_byte_ms=added(book.memory_byte_ms, by_payer)))


def _admitted(ledger: Ledger, amounts: Mapping[Entry, int], at: float) -> tuple[Ledger, dict[Entry, int]]:
    """These amounts, to those who have a page; who else there is shares one."""
    posted: dict[Entry, int] = {}
    for (wanted, method), amount in amounts.items():
        ledger, payer = admitted(ledger, wanted, at)
        posted[payer, method] = posted.get((payer, method), 0) + amount
    return ledger, posted


def _with(ledger: Ledger, gpu: GpuUuid, book: Book) -> Ledger:
    return replace(ledger, books={**ledger.books, gpu: book})


def _grown(book: Book, posted: Mapping[Entry, Used]) -> Book:
    """With this on top, of each entry and so of the whole."""
    used, whole = dict(book.used), book.whole
    for entry, each in posted.items():
        used[entry] = used.get(entry, Used()).plus(each)
        whole = whole.plus(each)
    return replace(book, used=used, whole=whole)
