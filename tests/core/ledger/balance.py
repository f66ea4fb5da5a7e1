"""What holds of the books whatever was posted, in whatever order."""

from collections import Counter
from collections.abc import Iterable, Iterator

from exporter.core.ledger import pages
from exporter.model.ledger import Book, Entry, Ledger, Purse, Used
from exporter.model.workload import Workload

Sum = tuple[str, ...]


def assert_balanced(ledger: Ledger) -> None:
    """The parts are the whole, in whole numbers, and those who have pages are no more than there may be."""
    for book in ledger.books.values():
        assert whole(book.used.values()) == book.whole
        numbers = [n for used in book.used.values() for n in (used.sm_us, used.energy_mj)]
        assert all(type(n) is int and n >= 0 for n in (*numbers, *book.memory_byte_ms.values()))
        owners = {payer for payer, _ in book.used} | book.memory_byte_ms.keys()
        assert {each for each in owners if isinstance(each, Workload)} <= ledger.paid_at.keys()
    assert len(ledger.paid_at) <= pages.MOST_PAGES


def whole(used: Iterable[Used]) -> Used:
    parts = tuple(used)
    return Used(sm_us=sum(each.sm_us for each in parts), energy_mj=sum(each.energy_mj for each in parts))


def assert_only_grown(before: Ledger, after: Ledger) -> None:
    """No sum has fallen, but that of an owner whose page was closed; then the closed ones have it."""
    for gpu, book in before.books.items():
        now = after.books[gpu]
        assert now.whole.sm_us >= book.whole.sm_us
        assert now.whole.energy_mj >= book.whole.energy_mj
        assert sum(now.memory_byte_ms.values()) >= sum(book.memory_byte_ms.values())
        closed = before.paid_at.keys() - after.paid_at.keys()
        then, later = Counter(dict(_sums(book))), Counter(dict(_sums(now)))
        fallen = {entry for entry, amount in then.items() if later[entry] < amount}
        assert all(payer in closed or reborn(before, after, payer) for (payer, _), _ in fallen)
        assert not any(isinstance(payer, Purse) for (payer, _), _ in fallen)


def reborn(before: Ledger, after: Ledger, payer: object) -> bool:
    """Whether its page was closed and it came again in between."""
    gone = Counter(dict(_closed(before)))
    return payer in after.paid_at and any(amount > gone[key] for key, amount in _closed(after))


def _closed(ledger: Ledger) -> Iterator[tuple[Sum, int]]:
    for gpu, book in ledger.books.items():
        for (payer, method), used in book.used.items():
            if payer is Purse.CLOSED:
                yield (gpu, method or "", "sm"), used.sm_us
                yield (gpu, method or "", "energy"), used.energy_mj
        yield (gpu, "", "memory"), book.memory_byte_ms.get(Purse.CLOSED, 0)


def _sums(book: Book) -> Iterator[tuple[tuple[Entry, str], int]]:
    for entry, used in book.used.items():
        yield (entry, "sm"), used.sm_us
        yield (entry, "energy"), used.energy_mj
    for payer, held in book.memory_byte_ms.items():
        yield ((payer, None), "memory"), held
