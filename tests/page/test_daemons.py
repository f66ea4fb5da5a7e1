"""Daemons, servers, clients."""

import pytest

from exporter.model.daemon import DaemonState
from exporter.model.values import replace
from exporter.model.watchdog import WatchdogPhase
from exporter.page.page import Page
from exporter.report.node_status import StatusInput, status_document
from exporter.report.problem import Severity
from exporter.watchdog.context import Policy
from tests.builders import (
    AT,
    DAEMON,
    circuit_open,
    daemon_process,
    drifted,
    faulted,
    idle,
    limited,
    partitioned,
    quarantined,
    reduced,
    silence,
    suspended,
    three_clients,
    watched,
)
from tests.page.html_reader import section
from tests.page.inputs import busy, dead, status_input


def shown(data: StatusInput) -> str:
    return section(Page({}).node(data), "daemons")


def test_daemons_have_servers_and_clients() -> None:
    text = shown(busy())
    assert f"{DAEMON} up PID 441 · up for" in text
    assert "Server 513 active for root · 3 of 48 clients · up " in text
    assert "Process User Memory GPU Domain Since" in text
    for row in (
        "train.py PID 600 alice 2240 MiB 0, 1 A",
        "vllm PID 601 bob 2564 MiB 0 A",
        "eval.py PID 602 alice 4612 MiB 1 A",
    ):
        assert row in text
    assert '<rect class="filled" width="6.2%"' in Page({}).node(busy()).decode()


def test_a_server_for_all_users_is_not_that_of_its_own_user() -> None:
    present = reduced(replace(daemon_process(), options=("-M",)), start=three_clients()).node
    assert 'for <bdi class="name">all users</bdi>' in Page({}).node(status_input(present)).decode()


def test_shows_limits_of_servers_and_of_the_next_server() -> None:
    text = shown(status_input(limited()))
    assert "limits: 50 % of threads; 2048 MiB on GPU 1" in text
    assert "next server: 25 % of threads · next server: 3072 MiB on GPU 0" in text


def test_shows_the_name_of_a_server_with_protocol_3() -> None:
    assert "Server 513 (<bdi>training</bdi>)" in Page({}).node(status_input(partitioned())).decode()


def test_a_daemon_that_is_down_has_the_indications() -> None:
    text = shown(dead())
    assert f"{DAEMON} down" in text
    assert f"MPS daemon {DAEMON} has been down for 11 s" in text
    headline = section(Page({}).node(dead()), "headline").replace("\N{NO-BREAK SPACE}", " ")
    assert "indications: process 441 has exited; nvidia-cuda-mps-control finds no daemon" in headline
    assert "So far: died 1 time" in text


def test_servers_of_an_unresponsive_daemon_are_not_active() -> None:
    hangs = reduced(silence(at=AT + 10), silence(at=AT + 20), start=busy().node).node
    assert hangs.daemons[DAEMON].state is DaemonState.UNRESPONSIVE
    assert '<b class="state unknown">unknown; last active</b>' in Page({}).node(status_input(hangs)).decode()


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
        (circuit_open(), Severity.CRITICAL, "down", "circuit open"),
    ]:
        with subtests.test(present=present, level=level, word=word, matter=matter):
            seen = StatusInput(node=present, at=present.at, policy=Policy())
            document = status_document(seen)
            (daemon,) = document.daemons

            assert (daemon.severity, daemon.label) == (level, word)
            assert matter in shown(seen)
            assert level.rank <= document.severity.rank


def test_a_quarantine_marks_the_gpu_too() -> None:
    present = quarantined()
    gpu, *_ = status_document(StatusInput(node=present, at=present.at)).gpus

    assert (gpu.severity, gpu.label) == (Severity.CRITICAL, "quarantined")
