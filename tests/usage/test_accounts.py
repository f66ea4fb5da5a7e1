"""Accounts of processes."""

from dataclasses import replace

import pytest

from exporter.model.identity import Workload, WorkloadKind
from exporter.model.usage import SharedAccount
from exporter.usage.accounting import account_of
from tests.builders import AT, CLIENT, POD, SERVER, USER_ALICE, USER_BOB, at_work, exited, owned, process, reduced

IN_POD, IN_JOB, IN_UNIT = 600, 602, 605


@pytest.mark.parametrize(
    ("pid", "kind", "name"),
    [
        (IN_POD, WorkloadKind.POD, POD),
        (IN_JOB, WorkloadKind.SLURM_JOB, "42"),
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
