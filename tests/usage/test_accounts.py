"""Accounts: whose they are, how many there are, and the energy that is posted to them."""

from dataclasses import replace

import pytest

from exporter.model.identity import Workload, WorkloadKind
from exporter.model.node import Node
from exporter.model.observation import GpuReading
from exporter.model.usage import Account, Method, SharedAccount, Usage, UsageKey, UsageTotals
from exporter.usage import accounting
from exporter.usage.accounting import UNATTRIBUTED, account_of, close_idle_accounts, post_energy, post_memory, post_time
from tests.builders import (
    AT,
    CLIENT,
    GPU,
    OTHER_GPU,
    POD,
    SERVER,
    USER_ALICE,
    USER_BOB,
    at_work,
    exited,
    gpu_reading,
    owned,
    process,
    reduced,
)

# The tests state these values, so that they notice a change of the program's constants.
FORGOTTEN_SECONDS = 1200.0
LONGEST_GAP_SECONDS = 600.0

ALICE: UsageKey = (USER_ALICE, Method.FLIGHT)
BOB: UsageKey = (USER_BOB, Method.FLIGHT)
IN_POD, IN_JOB, IN_UNIT = 600, 602, 605


@pytest.mark.parametrize(
    ("pid", "kind", "name"),
    [
        (IN_POD, WorkloadKind.POD, POD),
        (IN_JOB, WorkloadKind.JOB, "42"),
        (IN_UNIT, WorkloadKind.UNIT, "vllm@llama\\x2d70b.service"),
    ],
)
def test_the_account_is_the_most_specific_workload(pid: int, kind: WorkloadKind, name: str) -> None:
    assert account_of(owned(), pid) == Workload(kind=kind, name=name)


def test_servers_and_unknown_processes_have_shared_accounts() -> None:
    assert account_of(owned(), SERVER) is SharedAccount.SERVER
    assert account_of(owned(), 99) is SharedAccount.UNATTRIBUTED


def test_a_client_that_just_exited_still_has_its_account() -> None:
    assert account_of(reduced(*at_work(CLIENT), process(), exited(at=AT + 5)).node, CLIENT) == USER_ALICE


def test_two_processes_with_one_pid_have_their_own_accounts() -> None:
    bobs = replace(process(ticks=7, at=AT + 6, user="bob"), started=AT + 6)
    node = reduced(*at_work(CLIENT), process(), exited(at=AT + 5), bobs).node
    assert account_of(node, CLIENT, at=AT + 4) == USER_ALICE
    assert account_of(node, CLIENT) == USER_BOB


# -- The number of accounts is bounded, and an account that is closed loses nothing


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
    assert seconds(ran(a_and_b(), owner("c"), FORGOTTEN_SECONDS)) == {
        owner("a"): 1,
        owner("b"): 1,
        SharedAccount.OTHERS: 1,
    }


def test_an_unused_account_is_closed_after_20_minutes() -> None:
    assert close_idle_accounts(a_and_b(), AT + FORGOTTEN_SECONDS) == a_and_b()
    assert seconds(close_idle_accounts(a_and_b(), AT + FORGOTTEN_SECONDS + 5)) == {
        SharedAccount.CLOSED: 1,
        owner("b"): 1,
    }


def test_the_account_of_a_process_remains_while_its_gpu_cannot_be_read() -> None:
    read = gpu_reading({CLIENT: 1000}), gpu_reading({CLIENT: 1000}, at=AT + 10)
    later = [gpu_reading({}, at=AT + number * FORGOTTEN_SECONDS, gpu=OTHER_GPU) for number in (1, 2)]
    present = reduced(*at_work(CLIENT), process(), *read, *later).node
    assert set(present.usage_totals.last_used_at) == {USER_ALICE}
    left = exited(CLIENT, at=present.at + 1), gpu_reading({}, at=present.at + 2, gpu=OTHER_GPU)
    assert not reduced(*left, start=present).node.usage_totals.last_used_at


def test_a_reopened_account_starts_at_0() -> None:
    closed = close_idle_accounts(a_and_b(), AT + FORGOTTEN_SECONDS + 5)
    assert seconds(ran(closed, owner("a"), FORGOTTEN_SECONDS + 6))[owner("a")] == 1


def test_an_account_is_closed_on_every_gpu() -> None:
    totals = ran(a_and_b(), owner("a"), 0, gpu=OTHER_GPU)
    closed = close_idle_accounts(totals, AT + FORGOTTEN_SECONDS + 5)
    assert seconds(closed, OTHER_GPU) == {SharedAccount.CLOSED: 1}


def test_memory_counts_as_use() -> None:
    totals = post_memory(a_and_b(), GPU, {owner("a"): 5}, at=AT + FORGOTTEN_SECONDS)
    assert set(close_idle_accounts(totals, AT + FORGOTTEN_SECONDS + 20).last_used_at) == {owner("a")}


def test_closed_memory_and_energy_are_not_lost() -> None:
    totals = post_energy(post_memory(a_and_b(), GPU, {owner("a"): 5}, at=AT), GPU, 1000, at=AT)
    (usage,) = close_idle_accounts(totals, AT + 2 * FORGOTTEN_SECONDS).gpus.values()
    assert usage.by_account == {(SharedAccount.CLOSED, Method.FLIGHT): Usage(sm_us=2_000_000, energy_mj=1000)}
    assert usage.memory_byte_ms == {SharedAccount.CLOSED: 5}


def test_pending_energy_of_a_closed_account_is_posted() -> None:
    closed = close_idle_accounts(a_and_b(), AT + 2 * FORGOTTEN_SECONDS)
    (usage,) = post_energy(closed, GPU, 1000, at=AT + 2 * FORGOTTEN_SECONDS).gpus.values()
    assert usage.by_account[SharedAccount.OTHERS, Method.FLIGHT].energy_mj == 1000


# -- Energy is posted by the GPU's counter, in proportion to the SM time since its last reading


def reading(millijoules: int, at: float = 0.0) -> GpuReading:
    return gpu_reading(energy_millijoules=millijoules, at=AT + at)


def with_time(node: Node, parts: dict[UsageKey, float], busy_us: int = 1000) -> Node:
    return replace(node, usage_totals=post_time(node.usage_totals, GPU, busy_us, parts, at=node.at))


def posted(node: Node) -> dict[UsageKey, int]:
    return {key: used.energy_mj for key, used in node.usage_totals.gpus[GPU].by_account.items() if used.energy_mj}


def test_energy_without_sm_time_is_unattributed(subtests: pytest.Subtests) -> None:
    """Energy before the first reading, as while the exporter was down, is not posted."""
    for case, readings, millijoules in [
        ("two readings", ((100, 0), (1100, 10)), 1000),
        ("the driver resets the counter", ((1000, 0), (1500, 10), (200, 20), (300, 30)), 800),
        ("repeated and late readings", ((1000, 0), (1500, 10), (1500, 10), (1200, 5), (1600, 20)), 600),
    ]:
        with subtests.test(case=case):
            assert posted(reduced(*(reading(*each) for each in readings)).node) == {UNATTRIBUTED: millijoules}
    assert posted(reduced(reading(10**9)).node) == {}


def test_energy_is_divided_in_proportion_to_sm_time() -> None:
    node = with_time(reduced(reading(100)).node, {ALICE: 0.6, BOB: 0.2})
    assert posted(reduced(reading(1100, 10), start=node).node) == {ALICE: 600, BOB: 200, UNATTRIBUTED: 200}


def test_energy_is_divided_by_the_sm_time_since_the_last_reading() -> None:
    node = reduced(reading(200, 10), start=with_time(reduced(reading(100)).node, {ALICE: 1.0})).node
    node = reduced(reading(300, 20), start=with_time(node, {BOB: 1.0})).node
    assert posted(reduced(reading(400, 30), start=node).node) == {ALICE: 100, BOB: 100, UNATTRIBUTED: 100}


def test_energy_of_a_long_gap_is_unattributed() -> None:
    node = with_time(reduced(reading(100)).node, {ALICE: 1.0})
    assert posted(reduced(reading(900, LONGEST_GAP_SECONDS + 1), start=node).node) == {UNATTRIBUTED: 800}


def test_parts_below_a_millijoule_are_not_lost() -> None:
    node = with_time(reduced(reading(0)).node, {ALICE: 0.5, BOB: 0.5})
    node = reduced(reading(1, 1), start=node).node
    assert sum(posted(node).values()) == 1
