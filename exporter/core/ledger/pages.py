"""Who has a page in the books: a bounded number of owners, of whom those go that have used nothing for long.

What is on a page that is closed moves to the closed ones, and an owner who comes again begins at 0: so no sum falls,
and the parts stay the whole. Whoever comes where there is no page left pays from the others' purse.
"""

from collections.abc import Collection

from exporter.core.ledger.apportion import added
from exporter.model.ledger import Book, Entry, Ledger, Payer, Purse, Used
from exporter.model.replace import replace

MOST_PAGES = 1024
"""How many owners have one, on a whole node."""

SPARE_SECONDS = 3600.0
"""An owner who has used nothing for so long makes room for another, where there are too many."""

CLOSED_SECONDS = 86400.0
"""One who has used nothing for so long has none any more."""

NOTED_SECONDS = 60.0
"""How exactly it is noted when somebody last used something: each window brings many, and all is copied each time."""


def admitted(ledger: Ledger, payer: Payer, at: float) -> tuple[Ledger, Payer]:
    """The books in which this payer, or who pays instead, can be posted to."""
    if isinstance(payer, Purse):
        return ledger, payer
    known = ledger.paid_at.get(payer)
    if known is not None and at - known < NOTED_SECONDS:
        return ledger, payer
    if known is None and len(ledger.paid_at) >= MOST_PAGES:
        idlest = min(ledger.paid_at, key=ledger.paid_at.__getitem__)
        if at - ledger.paid_at[idlest] < SPARE_SECONDS:
            return ledger, Purse.OTHERS
        ledger = _closed(ledger, {idlest})
    return replace(ledger, paid_at={**ledger.paid_at, payer: at}), payer


def close_idle(ledger: Ledger, at: float) -> Ledger:
    """Close the pages of those who have used nothing for long."""
    idle = {payer for payer, paid_at in ledger.paid_at.items() if at - paid_at > CLOSED_SECONDS}
    return _closed(ledger, idle) if idle else ledger


def _closed(ledger: Ledger, idle: Collection[Payer]) -> Ledger:
    return replace(
        ledger,
        books={gpu: _without(book, idle) for gpu, book in ledger.books.items()},
        paid_at={payer: at for payer, at in ledger.paid_at.items() if payer not in idle},
    )


def _without(book: Book, idle: Collection[Payer]) -> Book:
    """The book in which theirs stands with the closed pages; what energy they will be due is the others' to pay."""
    used: dict[Entry, Used] = {}
    for (payer, method), each in book.used.items():
        key = (Purse.CLOSED if payer in idle else payer, method)
        used[key] = used.get(key, Used()).plus(each)
    unpowered = [((Purse.OTHERS if who in idle else who, method), us) for (who, method), us in book.unpowered.items()]
    memory = [(Purse.CLOSED if payer in idle else payer, held) for payer, held in book.memory_byte_ms.items()]
    return replace(book, used=used, unpowered=added({}, unpowered), memory_byte_ms=added({}, memory))
