"""The books outlive the exporter, and what is shown of them never falls: not even where the disk does as it likes."""

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from exporter.model.accounting import Account, GpuUsage, SharedAccount, UsageTotals
from exporter.model.identity import Workload, WorkloadKind
from exporter.model.node import Node
from exporter.model.settings import Retention
from exporter.model.usage import Method
from exporter.store import tables
from exporter.store.database import FILE, StateFile, open_database
from exporter.store.tables import EVENTS
from exporter.store.writer import TOTALS_SECONDS, DurableTotals, Writer
from exporter.usage.accounting import IDLE_SECONDS, close_idle_accounts, post_memory, post_time
from tests.builders import AT, GPU, OTHER_GPU, USER_ALICE
from tests.clocks import HandClock
from tests.store.values import HOSTILE, texts

payers: st.SearchStrategy[Account] = st.one_of(
    st.sampled_from(SharedAccount),
    st.builds(Workload, kind=st.sampled_from(WorkloadKind), name=texts.filter(bool)),
)
postings = st.tuples(texts, payers, st.none() | st.sampled_from(Method), st.integers(0, 2**70), st.floats(0, 2e9))


def ran(
    ledger: UsageTotals, seconds: int, payer: Account = USER_ALICE, *, at: float = AT, gpu: str = GPU
) -> UsageTotals:
    return post_time(ledger, gpu, seconds * 1_000_000, {(payer, Method.FLIGHT): 1.0}, at=at)


def seconds(ledger: UsageTotals) -> float:
    """Of the first GPU."""
    return ledger.gpus[GPU].total.sm_us / 1e6 if GPU in ledger.gpus else 0.0


@pytest.fixture
def clock() -> HandClock:
    return HandClock(AT)


@pytest.fixture
def archive(tmp_path: Path, clock: HandClock) -> Iterator[StateFile]:
    """An archive that is open."""
    made = StateFile(tmp_path, Retention(), clock)
    made.open()
    yield made
    made.close()


def reopened(archive: StateFile) -> UsageTotals:
    archive.close()
    return archive.open().usage_totals


def spoil(directory: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(directory / FILE) as connection:
        connection.execute(statement, values)
    connection.close()


# -- what is written, and read ----------------------------------------------------------------------------------------


@given(st.lists(st.lists(postings, max_size=5), max_size=4))
@settings(max_examples=50)
def test_any_books_are_read_as_they_were_written_at_once_or_bit_by_bit(batches: list[list[tuple[object, ...]]]) -> None:
    connection = sqlite3.connect(":memory:")
    connection.executescript(tables.PAGES)
    before = ledger = UsageTotals()
    for batch in batches:
        for gpu, payer, method, amount, at in batch:
            ledger = post_time(ledger, gpu, min(amount, 2**58), {(payer, method): 0.7}, at=at)  # type: ignore[arg-type,call-overload]
            ledger = post_memory(ledger, gpu, {payer: amount}, at=at)  # type: ignore[arg-type,dict-item]
        tables.save_totals(connection, before, ledger)
        before = ledger
    found, unreadable = tables.load_totals(connection)
    connection.close()
    assert unreadable == 0
    assert found == without_what_is_of_one_run(ledger)


def without_what_is_of_one_run(ledger: UsageTotals) -> UsageTotals:
    books = {
        gpu: replace(book, sm_us_without_energy={}, held_memory={}, read_at=None) for gpu, book in ledger.gpus.items()
    }
    return replace(ledger, gpus={gpu: book for gpu, book in books.items() if book != GpuUsage()})


def test_only_what_has_changed_is_written(archive: StateFile, tmp_path: Path) -> None:
    first = ran(ran(UsageTotals(), 1), 1, HOSTILE_OWNER)
    archive.write([], [], totals=first)
    spoil(tmp_path, "UPDATE pages SET page = 'untouched' WHERE kind = 'user'")
    archive.write([], [], totals=ran(first, 1, HOSTILE_OWNER))
    with sqlite3.connect(tmp_path / FILE) as connection:
        pages = dict(connection.execute("SELECT kind, page FROM pages"))
    connection.close()
    assert pages["user"] == "untouched"
    assert '"sm_us": 2000000' in pages["pod"]


HOSTILE_OWNER = Workload(kind=WorkloadKind.POD, name=HOSTILE)


def test_a_page_that_was_closed_is_gone_and_what_stood_on_it_is_not(archive: StateFile) -> None:
    opened = ran(UsageTotals(), 3)
    archive.write([], [], totals=opened)
    archive.write([], [], totals=close_idle_accounts(opened, AT + 2 * IDLE_SECONDS))
    found = reopened(archive)
    assert {payer for payer, _ in found.gpus[GPU].by_account} == {SharedAccount.CLOSED}
    assert seconds(found) == 3


@pytest.mark.parametrize(
    "page",
    [
        "{",
        b"\xff",
        7,
        '{"gpu": "g", "kind": "user", "name": "a", "paid_at": 1.0, "memory_byte_ms": "-5"}',
        '{"gpu": "g", "kind": "user", "name": "a", "paid_at": 1.0, "memory_byte_ms": "٣"}',
        '{"gpu": "g", "kind": "user", "name": "a", "paid_at": 1.0, "lines": [{"sm_us": -1}]}',
        '{"gpu": "g", "kind": "user", "name": "a", "paid_at": 1.0, "lines": [{"method": "guess"}]}',
        '{"gpu": "g", "kind": "king", "name": "a", "paid_at": 1.0}',
        '{"gpu": "g", "kind": "king", "name": "", "paid_at": 1.0}',
    ],
)
def test_a_row_that_cannot_be_read_is_passed_over_and_the_parts_are_the_whole(
    page: object, archive: StateFile, tmp_path: Path
) -> None:
    archive.write([], [], totals=ran(ran(UsageTotals(), 1), 2, HOSTILE_OWNER))
    archive.close()
    spoil(tmp_path, "UPDATE pages SET page = ? WHERE kind = 'user'", page)
    remembered = archive.open()
    assert remembered.unreadable == 1
    assert seconds(remembered.usage_totals) == 2
    assert {payer for payer, _ in remembered.usage_totals.gpus[GPU].by_account} == {HOSTILE_OWNER}


def test_a_file_of_the_version_before_is_read_and_gets_the_table(tmp_path: Path, clock: HandClock) -> None:
    open_database(tmp_path / FILE, [tables.INCIDENTS + EVENTS, tables.WATCHES]).close()
    archive = StateFile(tmp_path, Retention(), clock)
    assert archive.open().usage_totals == UsageTotals()
    archive.write([], [], totals=ran(UsageTotals(), 1))
    assert seconds(reopened(archive)) == 1
    archive.close()


def test_what_others_are_told_is_on_the_disk_itself(archive: StateFile) -> None:
    """A crash of the machine, too, must not take it back."""
    connection = archive._connection
    assert connection is not None
    levels = []
    connection.set_trace_callback(levels.append)
    archive.write([], [], totals=ran(UsageTotals(), 1))
    archive.write([], [])
    assert [each for each in levels if "synchronous" in each] == [
        "PRAGMA synchronous = FULL",
        "PRAGMA synchronous = NORMAL",
    ]


# -- what is shown ----------------------------------------------------------------------------------------------------


def test_what_is_not_yet_written_is_not_shown() -> None:
    books = DurableTotals()
    books.load(ran(UsageTotals(), 5))
    books.update(ran(UsageTotals(), 6))
    assert seconds(books.shown()) == 5
    books.mark_stored(books.latest)
    assert seconds(books.shown()) == 6


def test_where_there_never_was_a_file_what_is_in_memory_is_shown() -> None:
    books = DurableTotals()
    books.update(ran(UsageTotals(), 6))
    assert seconds(books.shown()) == 6


def test_what_was_shown_from_memory_stands_until_the_file_has_as_much() -> None:
    books = DurableTotals()
    books.update(ran(UsageTotals(), 1))
    written = books.latest
    books.update(ran(UsageTotals(), 2))
    assert seconds(books.shown()) == 2
    books.mark_stored(written)
    books.update(ran(UsageTotals(), 3))
    assert seconds(books.shown()) == 2
    books.mark_stored(books.latest)
    assert seconds(books.shown()) == 3


# -- the writer --------------------------------------------------------------------------------------------------------


class Disk(StateFile):
    """An archive on a disk that may be full, or absent."""

    full = absent = False
    written = 0

    def open(self):  # type: ignore[no-untyped-def]
        """As ever, where it is there."""
        if self.absent:
            raise OSError(5, "no such disk")
        return super().open()

    def write(self, *given: object, **others: object) -> None:
        """As ever, where there is room."""
        if self.full:
            raise OSError(28, "No space left on device")
        super().write(*given, **others)  # type: ignore[arg-type]
        self.written += 1


def closed(directory: Path, clock: HandClock) -> UsageTotals:
    """What the next start finds."""
    archive = StateFile(directory, Retention(), clock)
    found = archive.open().usage_totals
    archive.close()
    return found


def test_what_was_posted_is_written_every_few_seconds_and_at_the_end(tmp_path: Path, clock: HandClock) -> None:
    disk = Disk(tmp_path, Retention(), clock)
    writer = Writer(disk, clock)
    writer.open()
    writer.add(Node(usage_totals=ran(UsageTotals(), 1)), [])
    assert not writer._batch.totals_due, "it waits"
    clock.time += TOTALS_SECONDS
    writer.add(Node(usage_totals=ran(UsageTotals(), 2)), [])
    writer.add(Node(usage_totals=ran(UsageTotals(), 3)), [])
    writer.close()
    assert disk.written in (1, 2)
    assert seconds(closed(tmp_path, clock)) == 3


def test_what_has_not_changed_is_not_written_again(tmp_path: Path, clock: HandClock) -> None:
    disk = Disk(tmp_path, Retention(), clock)
    writer = Writer(disk, clock)
    present = writer.open().restore(Node())
    for _ in range(3):
        clock.time += TOTALS_SECONDS
        writer.add(present, [])
    writer.close()
    assert disk.written == 0


def test_while_the_disk_is_full_the_counters_stand_and_none_falls_at_the_next_start(
    tmp_path: Path, clock: HandClock
) -> None:
    disk = Disk(tmp_path, Retention(), clock)
    first = Writer(disk, clock)
    first.open()
    first.add(Node(usage_totals=ran(UsageTotals(), 1)), [])
    first.close()
    second = Writer(disk, clock)
    present = second.open().restore(Node())
    disk.full = True
    clock.time += TOTALS_SECONDS
    with capture_logs() as logs:
        second.add(Node(usage_totals=ran(present.usage_totals, 4)), [])
        second.close()
    assert seconds(second.usage_totals) == 1
    assert "usage totals do not grow" in logs[0]["consequence"]
    disk.close()
    assert seconds(closed(tmp_path, clock)) == 1


def test_a_file_that_could_not_be_had_at_the_start_gives_nothing_back_later(tmp_path: Path, clock: HandClock) -> None:
    """What is shown has begun at 0: what the file had, Prometheus knows, and would count again."""
    archive = StateFile(tmp_path, Retention(), clock)
    archive.open()
    archive.write([], [], totals=ran(ran(UsageTotals(), 900), 900, gpu=OTHER_GPU))
    archive.close()
    disk = Disk(tmp_path, Retention(), clock)
    disk.absent = True
    writer = Writer(disk, clock)
    present = writer.open().restore(Node())
    writer.add(Node(usage_totals=ran(present.usage_totals, 1)), [])
    assert seconds(writer.usage_totals) == 1
    disk.absent = False
    clock.time += TOTALS_SECONDS
    writer.add(Node(usage_totals=ran(present.usage_totals, 2)), [])
    writer.close()
    assert seconds(writer.usage_totals) in (1, 2)
    found = closed(tmp_path, clock)
    assert seconds(found) == 2
    assert OTHER_GPU not in found.gpus


def test_a_file_that_somebody_has_taken_away_is_written_anew_and_whole(tmp_path: Path, clock: HandClock) -> None:
    disk = Disk(tmp_path, Retention(), clock)
    writer = Writer(disk, clock, retry=0.01)
    present = writer.open().restore(Node())
    writer.add(Node(usage_totals=(known := ran(ran(present.usage_totals, 1), 1, HOSTILE_OWNER))), [])
    clock.time += TOTALS_SECONDS
    writer.add(Node(usage_totals=known), [])
    for file in tmp_path.glob("*.sqlite*"):
        file.unlink()
    clock.time += TOTALS_SECONDS
    writer.add(Node(usage_totals=ran(known, 1)), [])
    writer.close()
    found = closed(tmp_path, clock)
    assert seconds(found) in (0, 3)
