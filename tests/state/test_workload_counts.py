"""Accounts of workloads: each client counts once, and an account without clients is removed."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.state import processes
from exporter.state.processes import FORGOTTEN_SECONDS
from tests.builders import (
    AT,
    CLIENT,
    active,
    at_work,
    clients,
    exited,
    look,
    node,
    process,
    reduced,
    server_log,
    tenant,
)
from tests.state.strategies import timelines

JOB_CGROUP = "0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0\n"

MINUTE = 60.0


def connected(present: Node) -> dict[str, int]:
    return {workload.name: each.connected for workload, each in present.accounts.items()}


def connects_and_exits(pid: int, *, at: float = AT, user: str = "alice", stays: float = 1.0) -> tuple[Observation, ...]:
    """A client connects, its process is read, and it exits."""
    return (
        *server_log(active(pid), at=at),
        process(pid, at=at + 0.1, user=user),
        exited(pid, at=at + stays),
    )


@pytest.mark.parametrize("known_first", [True, False])
def test_client_counts_once_in_either_order_of_connection_and_process(known_first: bool) -> None:
    reading, connects = process(cgroup=JOB_CGROUP), server_log(active())[0]
    seen = (reading, connects) if known_first else (connects, reading)
    present = reduced(*at_work(), *seen, reading, connects, clients(CLIENT, at=AT + 1)).node
    assert connected(present) == {"42": 1}


def test_client_with_an_unknown_workload_has_no_account() -> None:
    assert connected(reduced(*at_work(CLIENT)).node) == {}


def test_client_of_unknown_workload_is_not_counted_for_a_process_that_reuses_its_pid() -> None:
    present = reduced(*at_work(CLIENT), clients(at=AT + 5), clients(at=AT + 7), process(at=AT + 8, user="bob")).node
    assert connected(present) == {}
    assert not present.unattributed


def test_account_outlives_its_clients() -> None:
    present = reduced(
        *at_work(), *connects_and_exits(600), *connects_and_exits(601, at=AT + 5), look(at=AT + MINUTE)
    ).node
    assert connected(present) == {"alice": 2}


def test_reused_pid_counts_for_its_own_workload() -> None:
    again = process(ticks=2, at=AT + 5, user="bob")
    present = reduced(*at_work(CLIENT), process(ticks=1), again, *server_log(active(), at=AT + 6)).node
    assert connected(present) == {"alice": 1, "bob": 1}


def test_account_without_clients_is_removed_after_an_hour() -> None:
    left = reduced(*at_work(), *connects_and_exits(CLIENT, stays=10 * MINUTE)).node
    ended = AT + 10 * MINUTE
    assert connected(reduced(look(at=ended + FORGOTTEN_SECONDS), start=left).node) == {"alice": 1}
    assert connected(reduced(look(at=ended + FORGOTTEN_SECONDS + 1), start=left).node) == {}


def test_account_with_a_client_is_not_removed() -> None:
    present = reduced(*at_work(CLIENT), process()).node
    for hour in range(1, 5):
        present = reduced(look(at=AT + hour * FORGOTTEN_SECONDS + hour), start=present).node
    assert connected(present) == {"alice": 1}


def test_newest_accounts_remain_if_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MAX_WORKLOADS", 3)
    sequences = (connects_and_exits(600 + number, at=AT + 10 * number, user=f"user{number}") for number in range(5))
    present = reduced(*at_work(), *(seen for sequence in sequences for seen in sequence)).node
    assert set(connected(present)) == {"user2", "user3", "user4"}


def faults(present: Node) -> dict[str, tuple[int, int]]:
    """Return for each workload how many faults affected it, and for how many it is suspected."""
    return {workload.name: (each.faults_affected, each.faults_suspected) for workload, each in present.accounts.items()}


def test_fault_counts_once_for_each_affected_workload_and_the_suspect() -> None:
    alices, bobs = (tenant(600, "alice"), tenant(601, "alice")), tenant(602, "bob")
    once = processes.count_fault(reduced(*at_work(), *connects_and_exits(600)).node, (*alices, bobs), bobs)
    assert faults(once) == {"alice": (1, 0), "bob": (1, 1)}
    assert faults(processes.count_fault(once, (bobs,), alices[0])) == {"alice": (1, 1), "bob": (2, 1)}
    assert connected(once) == {"alice": 1, "bob": 0}


def test_fault_without_known_workloads_has_no_account() -> None:
    unknown = tenant(600, None)
    assert processes.count_fault(node(), (unknown,), None) == processes.count_fault(node(), (), unknown) == node()


def test_account_with_only_faults_is_removed_after_an_hour() -> None:
    present = processes.count_fault(reduced(look()).node, (tenant(),), None)
    assert faults(reduced(look(at=AT + FORGOTTEN_SECONDS), start=present).node) == {"alice": (1, 0)}
    assert faults(reduced(look(at=AT + FORGOTTEN_SECONDS + 1), start=present).node) == {}


def test_account_with_only_faults_remains_while_its_workload_has_a_client() -> None:
    at_work_without_account = replace(reduced(*at_work(CLIENT), process()).node, accounts={})
    present = processes.count_fault(at_work_without_account, (tenant(),), None)
    for hour in range(1, 4):
        present = reduced(look(at=AT + hour * FORGOTTEN_SECONDS + hour), start=present).node
    assert faults(present) == {"alice": (1, 0)}


def test_faults_of_too_many_workloads_are_limited_to_the_maximum_of_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MAX_WORKLOADS", 3)
    hit = [tenant(600 + number, f"user{number}") for number in range(5)]
    assert set(faults(processes.count_fault(node(), hit, hit[0]))) == {"user3", "user4", "user0"}


@given(timelines)
@settings(max_examples=50)
def test_accounts_have_no_more_clients_than_connected(observations: list[Observation]) -> None:
    present = reduced(*observations).node
    total = sum(daemon.totals.connected for daemon in present.daemons.values())
    assert sum(connected(present).values()) + len(present.unattributed) <= total
    assert present.unattributed <= {pid for daemon in present.daemons.values() for pid in daemon.clients}
