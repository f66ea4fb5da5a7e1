"""Pages are bounded: those go that were used for nothing for long, and what stood on them is not lost."""

import pytest

from exporter.core.ledger import pages
from exporter.core.ledger.pages import CLOSED_SECONDS, SPARE_SECONDS, close_idle
from exporter.core.ledger.posting import post_energy, post_memory, post_time
from exporter.model.ledger import Ledger, Payer, Purse, Used
from exporter.model.split import Method
from exporter.model.workload import Workload, WorkloadKind
from tests.builders import AT, GPU, OTHER_GPU


@pytest.fixture(autouse=True)
def two_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_PAGES", 2)


def owner(name: str) -> Workload:
    return Workload(kind=WorkloadKind.USER, name=name)


def ran(ledger: Ledger, payer: Payer, at: float, gpu: str = GPU) -> Ledger:
    """It used all SMs for a second."""
    return post_time(ledger, gpu, 1_000_000, {(payer, Method.FLIGHT): 1.0}, at=AT + at)


def seconds(ledger: Ledger, gpu: str = GPU) -> dict[Payer, int]:
    return {payer: used.sm_us // 1_000_000 for (payer, _), used in ledger.books[gpu].used.items()}


def a_and_b() -> Ledger:
    return ran(ran(Ledger(), owner("a"), 0), owner("b"), 10)


def test_whoever_comes_where_there_is_none_left_is_among_the_others() -> None:
    assert seconds(ran(a_and_b(), owner("c"), 20)) == {owner("a"): 1, owner("b"): 1, Purse.OTHERS: 1}


def test_unless_somebody_has_used_nothing_for_long() -> None:
    after = ran(a_and_b(), owner("c"), SPARE_SECONDS)
    assert seconds(after) == {Purse.CLOSED: 1, owner("b"): 1, owner("c"): 1}
    assert set(after.paid_at) == {owner("b"), owner("c")}


def test_who_has_none_is_closed_after_a_day_though_there_is_room() -> None:
    assert close_idle(a_and_b(), AT + CLOSED_SECONDS) == a_and_b()
    assert seconds(close_idle(a_and_b(), AT + CLOSED_SECONDS + 5)) == {Purse.CLOSED: 1, owner("b"): 1}


def test_who_comes_again_begins_at_nothing() -> None:
    closed = close_idle(a_and_b(), AT + CLOSED_SECONDS + 5)
    assert seconds(ran(closed, owner("a"), CLOSED_SECONDS + 6))[owner("a")] == 1


def test_a_page_is_closed_on_every_gpu() -> None:
    ledger = ran(a_and_b(), owner("a"), 0, gpu=OTHER_GPU)
    closed = close_idle(ledger, AT + CLOSED_SECONDS + 5)
    assert seconds(closed, OTHER_GPU) == {Purse.CLOSED: 1}


def test_memory_counts_as_use() -> None:
    ledger = post_memory(a_and_b(), GPU, {owner("a"): 5}, at=AT + CLOSED_SECONDS)
    assert set(close_idle(ledger, AT + CLOSED_SECONDS + 20).paid_at) == {owner("a")}


def test_closed_memory_and_energy_are_not_lost() -> None:
    ledger = post_energy(post_memory(a_and_b(), GPU, {owner("a"): 5}, at=AT), GPU, 1000, at=AT)
    (book,) = close_idle(ledger, AT + 2 * CLOSED_SECONDS).books.values()
    assert book.used == {(Purse.CLOSED, Method.FLIGHT): Used(sm_us=2_000_000, energy_mj=1000)}
    assert book.memory_byte_ms == {Purse.CLOSED: 5}


def test_the_energy_due_of_one_who_is_closed_is_paid_all_the_same() -> None:
    closed = close_idle(a_and_b(), AT + 2 * CLOSED_SECONDS)
    (book,) = post_energy(closed, GPU, 1000, at=AT + 2 * CLOSED_SECONDS).books.values()
    assert book.used[Purse.OTHERS, Method.FLIGHT].energy_mj == 1000
