"""Usage totals outlive the exporter, and the shown totals never decrease, whatever the disk does."""

import sqlite3
import threading
from collections.abc import Collection, Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from exporter.model.contention import Pace
from exporter.model.identity import Workload, WorkloadIdentity, WorkloadKind
from exporter.model.node import Node
from exporter.model.settings import Retention
from exporter.model.usage import Account, GpuUsage, Method, SharedAccount, Usage, UsageTotals
from exporter.store import database
from exporter.store.database import Refused, StateFile, Storable
from exporter.store.writer import Writer
from exporter.usage.accounting import close_idle_accounts, post_memory, post_time, post_use, remember_pace
from tests.builders import AT, GPU, OTHER_GPU, USER_ALICE
from tests.clocks import HandClock
from tests.eventually import PATIENCE_SECONDS, eventually
from tests.store.values import HOSTILE, Disk, assert_equal, event, loaded, query, reopened, texts

# The tests state these values, so that they notice a change of the program's constants.
FORGOTTEN_SECONDS = 1200.0
TOTALS_SECONDS = 2.0
PACES_SECONDS = 86400.0

accounts: st.SearchStrategy[Account] = st.one_of(
    st.sampled_from(SharedAccount),
    st.builds(Workload, kind=st.sampled_from(WorkloadKind), name=texts.filter(bool)),
)
postings = st.tuples(texts, accounts, st.none() | st.sampled_from(Method), st.integers(0, 2**70), st.floats(0, 2e9))


def post(totals: UsageTotals, seconds: int, account: Account = USER_ALICE, *, gpu: str = GPU) -> UsageTotals:
    return post_time(totals, gpu, seconds * 1_000_000, {(account, Method.FLIGHT): 1.0}, at=AT)


def seconds(totals: UsageTotals) -> float:
    """Return the SM seconds of the first GPU."""
    return totals.gpus[GPU].total.sm_us / 1e6 if GPU in totals.gpus else 0.0


# -- what is written, and read ----------------------------------------------------------------------------------------


@given(st.lists(st.lists(postings, max_size=5), max_size=4))
@settings(max_examples=50)
def test_any_totals_are_read_as_written(batches: list[list[tuple[object, ...]]]) -> None:
    before = totals = UsageTotals()
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.text_factory = bytes
        connection.executescript(database.SCHEMA)
        for batch in batches:
            for gpu, account, method, amount, at in batch:
                totals = post_time(totals, gpu, min(amount, 2**58), {(account, method): 0.7}, at=at)  # type: ignore[arg-type,call-overload]
                totals = post_memory(totals, gpu, {account: amount}, at=at)  # type: ignore[arg-type,dict-item]
                lost = Usage(lost_us=min(amount, 2**58), caused_us=min(amount, 2**58))
                totals = post_use(totals, gpu, {(account, method): lost}, at=at)  # type: ignore[arg-type]
                totals = remember_pace(totals, gpu, account, str(method), (1.0, 2.0, 3.5, 1e9, 0.0))  # type: ignore[arg-type]
            assert database.save(connection, database.usage_rows(before, totals), ()) == []
            before = totals
        stored = database.load(connection, AT, 1, 1)
    assert (stored.usage_totals, stored.unreadable) == (without_values_of_one_run(totals), 0)


def without_values_of_one_run(totals: UsageTotals) -> UsageTotals:
    gpus = {
        gpu: replace(usage, sm_us_without_energy={}, held_memory={}, read_at=None) for gpu, usage in totals.gpus.items()
    }
    return replace(totals, gpus={gpu: usage for gpu, usage in gpus.items() if usage != GpuUsage()})


HOSTILE_OWNER = Workload(kind=WorkloadKind.POD, name=HOSTILE)


def test_writes_only_changed_accounts(state_file: StateFile, tmp_path: Path) -> None:
    first = post(post(UsageTotals(), 1), 1, HOSTILE_OWNER)
    state_file.write(totals=first)
    query(tmp_path, "UPDATE usage_totals SET json = 'untouched' WHERE key LIKE '%user%'")
    state_file.write(totals=post(first, 1, HOSTILE_OWNER))
    ((changed,),) = query(tmp_path, "SELECT json FROM usage_totals WHERE json != 'untouched'")
    assert '"sm_us": 2000000' in str(changed)


def test_a_closed_account_moves_to_the_remainder(state_file: StateFile, tmp_path: Path) -> None:
    opened = post(UsageTotals(), 3)
    state_file.write(totals=opened)
    state_file.write(totals=close_idle_accounts(opened, AT + 2 * FORGOTTEN_SECONDS))
    ((count,),) = query(tmp_path, "SELECT count(*) FROM usage_totals")
    stored = reopened(state_file).usage_totals
    assert count == 1
    assert {account for account, _ in stored.gpus[GPU].by_account} == {SharedAccount.CLOSED}
    assert seconds(stored) == 3


def test_memory_is_that_of_the_last_write(state_file: StateFile) -> None:
    """Between the two writes, the account used no SM time by the method that it has."""
    totals = post_memory(post(UsageTotals(), 1), GPU, {USER_ALICE: 5}, at=AT)
    state_file.write(totals=totals)
    state_file.write(totals=post_memory(totals, GPU, {USER_ALICE: 5}, at=AT))
    assert reopened(state_file).usage_totals.gpus[GPU].memory_byte_ms == {USER_ALICE: 10}


def test_identities_are_stored_with_the_memory_of_the_account(state_file: StateFile) -> None:
    first = WorkloadIdentity(namespace="a", pod="b", user="alice", labels={"team": HOSTILE})
    totals = post_memory(post(UsageTotals(), 1, HOSTILE_OWNER), GPU, {HOSTILE_OWNER: 5}, at=AT)
    state_file.write(totals=replace(totals, identities={HOSTILE_OWNER: first}))
    assert reopened(state_file).usage_totals.identities == {HOSTILE_OWNER: first}
    totals = post_memory(totals, OTHER_GPU, {HOSTILE_OWNER: 5}, at=AT)
    second = replace(first, user="", unit="c.service")
    state_file.write(totals=replace(totals, identities={HOSTILE_OWNER: second}))
    assert reopened(state_file).usage_totals.identities == {HOSTILE_OWNER: second}


def test_an_account_was_last_used_when_it_last_used_any_gpu(state_file: StateFile) -> None:
    state_file.write(totals=(totals := post(post(UsageTotals(), 1), 1, gpu=OTHER_GPU)))
    state_file.write(totals=post_time(totals, GPU, 1, {(USER_ALICE, Method.FLIGHT): 1.0}, at=AT + 600))
    assert reopened(state_file).usage_totals.last_used_at == {USER_ALICE: AT + 600}


def test_the_paces_of_a_closed_account_are_remembered_for_a_day(state_file: StateFile) -> None:
    totals = remember_pace(post(UsageTotals(), 3), GPU, USER_ALICE, "train", Pace(1.0, 2.0, 3.5, 1e9, 0.0, 1e8, 0.0))
    state_file.write(totals=totals)
    state_file.write(totals=(closed := close_idle_accounts(totals, AT + 2 * FORGOTTEN_SECONDS)))
    again = close_idle_accounts(reopened(state_file).usage_totals, AT + PACES_SECONDS)
    assert again.gpus[GPU].paces == closed.gpus[GPU].paces == totals.gpus[GPU].paces
    assert (again.last_used_at, again.closed) == ({}, {USER_ALICE: AT})
    running = close_idle_accounts(post_time(again, GPU, 1, {(USER_ALICE, None): 1.0}, at=AT + PACES_SECONDS), AT + 87e3)
    assert (running.gpus[GPU].paces, running.closed) == (totals.gpus[GPU].paces, {})
    last = close_idle_accounts(again, AT + PACES_SECONDS + 1)
    assert (last.gpus[GPU].paces, last.closed) == ({}, {})
    state_file.write(totals=last)
    assert {account for account, _ in reopened(state_file).usage_totals.gpus[GPU].by_account} == {SharedAccount.CLOSED}
    assert not reopened(state_file).usage_totals.last_used_at


def test_skips_an_unreadable_account(state_file: StateFile, tmp_path: Path, subtests: pytest.Subtests) -> None:
    account = '"gpu": "g", "account": {"kind": "user", "name": "a"}'
    state_file.write(totals=post(post(UsageTotals(), 1), 2, HOSTILE_OWNER))
    for row in [
        "{",
        b"\xff",
        7,
        f'{{{account}, "memory_byte_ms": "-5"}}',
        f'{{{account}, "memory_byte_ms": "many"}}',
        f'{{{account}, "memory_byte_ms": "{"9" * 5000}"}}',
        f'{{{account}, "used": {{"sm_us": -1}}}}',
        f'{{{account}, "used": {{"lost_us": -1}}}}',
        f'{{{account}, "paces": {{"a": [1, 2]}}}}',
        f'{{{account}, "paces": {{"a": [0, 1, 1, 1, 1]}}}}',
        f'{{{account}, "paces": {{"a": [1, 0, 1, 1, 1]}}}}',
        f'{{{account}, "paces": {{"a": [9e18, 1e-300, 1, 1, 1]}}}}',
        f'{{{account}, "paces": {{"a": [1, 1, 1, 0, 1]}}}}',
        f'{{{account}, "paces": {{"a": [1, 1, 1, -1, 1]}}}}',
        f'{{{account}, "paces": {{"a": [1, 1, 1, NaN, 1]}}}}',
        f'{{{account}, "paces": {{"a": [1, 1, 1, 1, 1, 1]}}}}',
        f'{{{account}, "paces": {{"a": [1, 1, 1, 1, 1, 1, -1]}}}}',
        f'{{{account}, "method": "guess"}}',
        '{"gpu": "g", "account": {"kind": "king", "name": "a"}}',
        '{"gpu": "g", "account": "king"}',
    ]:
        with subtests.test(row=str(row)[:90]):
            state_file.close()
            query(tmp_path, "UPDATE usage_totals SET json = ? WHERE key LIKE '%user%'", row)
            stored = state_file.open()
            assert stored.unreadable == 1
            assert seconds(stored.usage_totals) == 2
            assert {account for account, _ in stored.usage_totals.gpus[GPU].by_account} == {HOSTILE_OWNER}


def test_totals_are_synchronized_to_the_disk(state_file: StateFile) -> None:
    """A crash of the machine must not decrease them."""
    connection = state_file._connection
    assert connection is not None
    levels = []
    connection.set_trace_callback(levels.append)
    state_file.write(totals=post(UsageTotals(), 1))
    state_file.write([event()])
    assert [each for each in levels if "synchronous" in each] == [
        "PRAGMA synchronous = FULL",
        "PRAGMA synchronous = NORMAL",
    ]


# -- the writer --------------------------------------------------------------------------------------------------------


def test_writes_totals_after_an_interval_and_at_the_end(tmp_path: Path, clock: HandClock) -> None:
    disk = Disk(tmp_path, clock)
    writer = Writer(disk, clock)
    writer.open()
    writer.add(Node(usage_totals=post(UsageTotals(), 1)), [])
    clock.time += TOTALS_SECONDS
    writer.add(Node(usage_totals=post(UsageTotals(), 2)), [])
    writer.add(Node(usage_totals=post(UsageTotals(), 3)), [])
    writer.close()
    assert seconds(writer.usage_totals) == 3
    assert len(disk.totals) in (1, 2)
    assert seconds(loaded(tmp_path).usage_totals) == 3


def test_does_not_write_unchanged_totals(tmp_path: Path, clock: HandClock) -> None:
    disk = Disk(tmp_path, clock)
    writer = Writer(disk, clock)
    present, totals = writer.open().restore(Node()), post(UsageTotals(), 1)
    for _ in range(4):
        clock.time += TOTALS_SECONDS
        # Each is another object with the same amounts.
        writer.add(replace(present, usage_totals=replace(totals)), [])
        eventually(lambda: assert_equal(writer.usage_totals.gpus, totals.gpus))
    writer.close()
    assert len(disk.totals) == 1


def test_a_full_disk_stalls_the_shown_totals(tmp_path: Path, clock: HandClock) -> None:
    disk = Disk(tmp_path, clock)
    first = Writer(disk, clock)
    first.open()
    first.add(Node(usage_totals=post(UsageTotals(), 1)), [])
    first.close()
    second = Writer(disk, clock)
    present = second.open().restore(Node())
    disk.problem = OSError(28, "No space left on device")
    clock.time += TOTALS_SECONDS
    with capture_logs() as logs:
        second.add(Node(usage_totals=post(present.usage_totals, 4)), [])
        second.close()
    assert seconds(second.usage_totals) == 1
    assert "usage totals do not grow" in logs[0]["consequence"]
    disk.close()
    assert seconds(loaded(tmp_path).usage_totals) == 1


def test_a_file_that_appears_after_the_start_adds_nothing(tmp_path: Path, clock: HandClock) -> None:
    """The shown totals began at 0. Prometheus would count the totals of the file again."""
    state_file = StateFile(tmp_path, Retention(), clock)
    state_file.open()
    state_file.write(totals=post(post(UsageTotals(), 900), 900, gpu=OTHER_GPU))
    state_file.close()
    disk = Disk(tmp_path, clock)
    disk.absent = True
    writer = Writer(disk, clock)
    present = writer.open().restore(Node())
    writer.add(Node(usage_totals=post(present.usage_totals, 1)), [])
    assert seconds(writer.usage_totals) == 1
    disk.absent = False
    clock.time += TOTALS_SECONDS
    writer.add(Node(usage_totals=post(present.usage_totals, 2)), [])
    writer.close()
    assert seconds(writer.usage_totals) in (1, 2)
    found = loaded(tmp_path).usage_totals
    assert seconds(found) == 2
    assert OTHER_GPU not in found.gpus


def test_shown_totals_do_not_decrease_by_a_late_write(tmp_path: Path, clock: HandClock, patience: None) -> None:
    """Without a file, those in memory are shown. The first write may have older ones."""
    disk, writes, answers = Disk(tmp_path, clock), threading.Event(), threading.Event()

    def hang(values: Iterable[Storable], totals: UsageTotals | None = None, *, expected: Collection[str]) -> Refused:
        if totals is not None:
            writes.set()
            answers.wait(PATIENCE_SECONDS)
        return Disk.write(disk, values, totals, expected=expected)

    disk.write = hang  # type: ignore[method-assign, assignment]
    disk.absent = True
    writer = Writer(disk, clock, retry=0.01)
    writer.open()
    clock.time += TOTALS_SECONDS
    writer.add(Node(usage_totals=(first := post(UsageTotals(), 1))), [])
    disk.absent = False
    assert writes.wait(PATIENCE_SECONDS)
    writer.add(Node(usage_totals=(second := post(first, 1))), [])
    assert seconds(writer.usage_totals) == 2
    answers.set()
    eventually(lambda: assert_equal(len(disk.totals), 1))
    assert (seconds(disk.totals[0]), seconds(writer.usage_totals)) == (1, 2)
    clock.time += TOTALS_SECONDS
    writer.add(Node(usage_totals=second), [event()])
    writer.close()
    assert seconds(writer.usage_totals) == seconds(loaded(tmp_path).usage_totals) == 2


def test_shown_totals_are_those_on_the_disk(tmp_path: Path, clock: HandClock, patience: None) -> None:
    """Later ones, which were posted during a write, are shown after the next one."""
    disk = Disk(tmp_path, clock)
    writer = Writer(disk, clock, retry=0.01)
    writer.open()
    first = post(UsageTotals(), 1)
    disk.asked.clear()
    disk.answers.clear()
    clock.time += TOTALS_SECONDS
    writer.add(Node(usage_totals=first), [])
    assert disk.asked.wait(PATIENCE_SECONDS)
    writer.add(Node(usage_totals=post(first, 1)), [])
    assert seconds(writer.usage_totals) == 0
    disk.answers.set()
    eventually(lambda: assert_equal(seconds(writer.usage_totals), 1))
    clock.time += TOTALS_SECONDS - 1
    writer.add(Node(usage_totals=post(first, 1)), [])
    writer.close()
    assert [seconds(totals) for totals in disk.totals] == [1, 2]
    assert seconds(writer.usage_totals) == 2


def test_writes_all_totals_to_a_new_file(tmp_path: Path, clock: HandClock, patience: None) -> None:
    disk = Disk(tmp_path, clock)
    writer = Writer(disk, clock, retry=0.01)
    present = writer.open().restore(Node())
    clock.time += TOTALS_SECONDS
    totals = post(post(present.usage_totals, 1), 1, HOSTILE_OWNER)
    writer.add(Node(usage_totals=totals), [])
    eventually(lambda: assert_equal(len(disk.totals), 1))
    for file in tmp_path.glob("*.sqlite*"):
        file.unlink()
    clock.time += TOTALS_SECONDS
    writer.add(Node(usage_totals=totals), [event()])
    eventually(lambda: assert_equal(len(disk.totals), 2))
    writer.close()
    assert seconds(loaded(tmp_path).usage_totals) == 2
