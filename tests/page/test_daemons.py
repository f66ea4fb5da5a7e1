"""Daemons, servers, clients."""

import pytest

from exporter.model.daemon import DaemonState
from exporter.model.values import replace
from exporter.model.watchdog import WatchdogPhase
from exporter.page.cards import daemons, gpus, headline, watchdog
from exporter.page.page import Page
from exporter.report.problem import Severity
from exporter.report.status_text import counts_text
from exporter.report.status_view import StatusInput, status_view, view_of
from exporter.watchdog.context import Policy
from tests.builders import (
    AT,
    DAEMON,
    circuit_open,
    daemon_dead,
    daemon_process,
    drifted,
    faulted,
    idle,
    limited,
    mig,
    partitioned,
    quarantined,
    reduced,
    silence,
    suspended,
    three_clients,
    watched,
)
from tests.page.inputs import busy, dead, status_input


def test_daemons_have_servers_and_clients() -> None:
    (card,) = daemons(status_view(busy()))
    (server,) = card.servers
    assert (card.severity, card.state, card.facts[0]) == (Severity.WELL, "up", "PID 441")
    assert (server.state, server.clients, server.share, server.user) == ("active", "3 of 48 clients", 6.2, "root")
    assert [(row.process.pid, row.memory, row.gpus) for row in server.rows] == [
        ("600", "2240 MiB", "0, 1"),
        ("601", "2564 MiB", "0"),
        ("602", "4612 MiB", "1"),
    ]
    assert (server.has_domains, server.has_workloads) == (True, False)


def test_a_server_for_all_users_is_not_that_of_its_own_user() -> None:
    present = reduced(replace(daemon_process(), options=("-M",)), start=three_clients()).node
    (card,) = daemons(status_view(status_input(present)))
    (server,) = card.servers
    assert server.user == "all users"
    assert {row.process.user for row in server.rows} == {"alice", "bob"}
    assert 'for <bdi class="name">all users</bdi>' in Page({}).node(status_input(present)).decode()


def test_shows_limits_of_servers_and_of_the_next_server() -> None:
    (card,) = daemons(status_view(status_input(limited())))
    assert card.servers[0].limits == ("50 % of threads", "2048 MiB on GPU 1")
    assert card.facts[-2:] == ("next server: 25 % of threads", "next server: 3072 MiB on GPU 0")


def test_shows_the_name_of_a_server_with_protocol_3() -> None:
    (card,) = daemons(status_view(status_input(partitioned())))
    assert [(server.pid, server.name) for server in card.servers] == [(513, "training")]
    assert "Server 513 (<bdi>training</bdi>)" in Page({}).node(status_input(partitioned())).decode()


def test_counts_mig_instances_apart_from_gpus() -> None:
    assert counts_text(mig()) == "1 of 1 daemons up, 2 clients, 1 GPU, 2 MIG instances"
    assert counts_text(idle()) == "1 of 1 daemons up, 0 clients, 1 GPU"


def test_a_crashed_daemon_has_the_indications() -> None:
    (card,) = daemons(status_view(dead()))
    assert (card.severity, card.state) == (Severity.CRITICAL, "absent")
    assert card.problems == (
        f"MPS daemon {DAEMON} has been down for 11 s",
        "Indications: process 441 has exited; nvidia-cuda-mps-control finds no daemon",
    )
    assert card.counts == ("died 1 time",)


def test_servers_of_an_unresponsive_daemon_are_not_active() -> None:
    hangs = reduced(silence(at=AT + 10), silence(at=AT + 20), start=busy().node).node
    assert hangs.daemons[DAEMON].state is DaemonState.UNRESPONSIVE
    (card,) = daemons(status_view(status_input(hangs)))
    assert card.severity is Severity.CRITICAL
    assert {(server.severity, server.state) for server in card.servers} == {(Severity.UNKNOWN, "unknown; last active")}


def test_a_card_agrees_with_the_headline(subtests: pytest.Subtests) -> None:
    for present, level, word, matter in [
        (idle(), Severity.WELL, "up", ""),
        (quarantined(), Severity.CRITICAL, "quarantined", "quarantined for 0 ms: Xid 79 (GPU fell off the bus): GPU 0"),
        (
            watched(idle(), phase=WatchdogPhase.CIRCUIT_OPEN, circuit_opened_at=AT),
            Severity.CRITICAL,
            "circuit open",
            "have been suspended",
        ),
        (suspended(), Severity.CRITICAL, "server stopped by a signal", "has been stopped by a signal"),
        (faulted(), Severity.CRITICAL, "server in FAULT", "has been in FAULT"),
        (drifted(), Severity.WARNING, "limits drifted", "differ from the configured"),
        (circuit_open(), Severity.CRITICAL, "absent", "circuit open"),
    ]:
        with subtests.test(present=present, level=level, word=word, matter=matter):
            seen = StatusInput(node=present, at=present.at, policy=Policy())
            (card,) = daemons(status_view(seen))

            assert (card.severity, card.state) == (level, word)
            assert matter in " ".join(card.problems)
            assert "well" not in card.problems
            assert level.rank <= headline(status_view(seen)).severity.rank


def test_a_quarantine_marks_the_gpu_too() -> None:
    present = quarantined()
    card, *_ = gpus(status_view(StatusInput(node=present, at=present.at)))

    assert (card.severity, card.sharing) == (Severity.CRITICAL, "quarantined")


def test_an_idle_watchdog_of_a_failed_daemon_is_not_well() -> None:
    views = [view_of(each, Policy()) for each in (idle(), daemon_dead())]

    assert [watchdog(each).rows[0].severity for each in views] == [Severity.WELL, Severity.UNKNOWN]
