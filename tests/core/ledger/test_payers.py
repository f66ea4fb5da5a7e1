"""Who pays for a process: as it was set, and its user where it has no owner of that kind."""

from dataclasses import replace

import pytest

from exporter.core.ledger.payers import payer_of
from exporter.model.ledger import Ledger, Purse
from exporter.model.node import Node
from exporter.model.settings import Accounting
from exporter.model.workload import Workload, WorkloadKind
from tests.builders import (
    AT,
    CLIENT,
    CONTAINER,
    POD,
    SERVER,
    USER_ALICE,
    USER_BOB,
    at_work,
    exited,
    owned,
    process,
    told,
)

IN_POD, IN_JOB, IN_UNIT = 600, 602, 605


def paying(by: Accounting) -> Node:
    return replace(owned(), ledger=Ledger(by=by))


@pytest.mark.parametrize(
    ("by", "pid", "kind", "name"),
    [
        (Accounting.WORKLOAD, IN_POD, WorkloadKind.POD, POD),
        (Accounting.WORKLOAD, IN_JOB, WorkloadKind.SLURM_JOB, "42"),
        (Accounting.USER, IN_POD, WorkloadKind.USER, "alice"),
        (Accounting.USER, IN_JOB, WorkloadKind.USER, "alice"),
        (Accounting.POD, IN_POD, WorkloadKind.POD, POD),
        (Accounting.POD, IN_JOB, WorkloadKind.USER, "alice"),
        (Accounting.CONTAINER, IN_POD, WorkloadKind.CONTAINER, CONTAINER),
        (Accounting.CONTAINER, IN_UNIT, WorkloadKind.USER, "alice"),
        (Accounting.UNIT, IN_UNIT, WorkloadKind.UNIT, "vllm@llama\\x2d70b.service"),
        (Accounting.SLURM_JOB, IN_JOB, WorkloadKind.SLURM_JOB, "42"),
        (Accounting.SLURM_JOB, IN_UNIT, WorkloadKind.USER, "alice"),
    ],
)
def test_who_pays_is_as_it_was_set(by: Accounting, pid: int, kind: WorkloadKind, name: str) -> None:
    assert payer_of(paying(by), pid) == Workload(kind=kind, name=name)


@pytest.mark.parametrize("by", Accounting)
def test_a_server_is_nobodys_and_who_is_unknown_nobody(by: Accounting) -> None:
    assert payer_of(paying(by), SERVER) is Purse.SERVER
    assert payer_of(paying(by), 99) is Purse.UNATTRIBUTED


def test_one_who_has_just_left_still_pays() -> None:
    assert payer_of(told(*at_work(CLIENT), process(), exited(at=AT + 5)).node, CLIENT) == USER_ALICE


def test_of_two_who_had_a_pid_each_pays_for_its_own_time() -> None:
    bobs = replace(process(ticks=7, at=AT + 6, user="bob"), started=AT + 6)
    node = told(*at_work(CLIENT), process(), exited(at=AT + 5), bobs).node
    assert payer_of(node, CLIENT, at=AT + 4) == USER_ALICE
    assert payer_of(node, CLIENT) == USER_BOB
