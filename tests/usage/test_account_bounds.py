"""The number of accounts is bounded. An account that is closed loses nothing."""

import pytest

from exporter.model.identity import Workload, WorkloadKind
from exporter.model.usage import Account, Method, SharedAccount, Usage, UsageTotals
from exporter.usage import accounting
from exporter.usage.accounting import (
    IDLE_SECONDS,
    REPLACEABLE_SECONDS,
    close_idle_accounts,
    post_energy,
    post_memory,
    post_time,
)
from tests.builders import AT, GPU, OTHER_GPU


@pytest.fixture(autouse=True)
def two_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "MAX_ACCOUNTS", 2)


def owner(name: str) -> Workload:
    return Workload(kind=WorkloadKind.USER, name=name)


def ran(totals: UsageTotals, account: Account, at: float, gpu: str = GPU) -> UsageTotals:
    """Post one second of all SMs."""
    return post_time(totals, gpu, 1_000_000, {(account, Method.FLIGHT): 1.0}, at=AT + at)


def seconds(totals: UsageTotals, gpu: str = GPU) -> dict[Account, int]:
    return {account: used.sm_us // 1_000_000 for (account, _), used in totals.gpus[gpu].by_account.items()}


def a_and_b() -> UsageTotals:
    return ran(ran(UsageTotals(), owner("a"), 0), owner("b"), 10)


def test_a_new_workload_without_a_free_account_counts_as_others() -> None:
    assert seconds(ran(a_and_b(), owner("c"), REPLACEABLE_SECONDS - 1)) == {
        owner("a"): 1,
        owner("b"): 1,
        SharedAccount.OTHERS: 1,
    }


def test_an_account_that_is_unused_for_long_is_replaced() -> None:
    after = ran(a_and_b(), owner("c"), REPLACEABLE_SECONDS)
    assert seconds(after) == {SharedAccount.CLOSED: 1, owner("b"): 1, owner("c"): 1}
    assert set(after.last_used_at) == {owner("b"), owner("c")}


def test_an_unused_account_is_closed_after_a_day() -> None:
    assert close_idle_accounts(a_and_b(), AT + IDLE_SECONDS) == a_and_b()
    assert seconds(close_idle_accounts(a_and_b(), AT + IDLE_SECONDS + 5)) == {SharedAccount.CLOSED: 1, owner("b"): 1}


def test_a_reopened_account_starts_at_0() -> None:
    closed = close_idle_accounts(a_and_b(), AT + IDLE_SECONDS + 5)
    assert seconds(ran(closed, owner("a"), IDLE_SECONDS + 6))[owner("a")] == 1


def test_an_account_is_closed_on_every_gpu() -> None:
    totals = ran(a_and_b(), owner("a"), 0, gpu=OTHER_GPU)
    closed = close_idle_accounts(totals, AT + IDLE_SECONDS + 5)
    assert seconds(closed, OTHER_GPU) == {SharedAccount.CLOSED: 1}


def test_memory_counts_as_use() -> None:
    totals = post_memory(a_and_b(), GPU, {owner("a"): 5}, at=AT + IDLE_SECONDS)
    assert set(close_idle_accounts(totals, AT + IDLE_SECONDS + 20).last_used_at) == {owner("a")}


def test_closed_memory_and_energy_are_not_lost() -> None:
    totals = post_energy(post_memory(a_and_b(), GPU, {owner("a"): 5}, at=AT), GPU, 1000, at=AT)
    (usage,) = close_idle_accounts(totals, AT + 2 * IDLE_SECONDS).gpus.values()
    assert usage.by_account == {(SharedAccount.CLOSED, Method.FLIGHT): Usage(sm_us=2_000_000, energy_mj=1000)}
    assert usage.memory_byte_ms == {SharedAccount.CLOSED: 5}


def test_pending_energy_of_a_closed_account_is_posted() -> None:
    closed = close_idle_accounts(a_and_b(), AT + 2 * IDLE_SECONDS)
    (usage,) = post_energy(closed, GPU, 1000, at=AT + 2 * IDLE_SECONDS).gpus.values()
    assert usage.by_account[SharedAccount.OTHERS, Method.FLIGHT].energy_mj == 1000
