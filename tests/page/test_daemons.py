"""Daemons, servers, clients."""

import pytest

from exporter.model.daemon import DaemonState
from exporter.model.values import replace
from exporter.model.watchdog import WatchdogPhase
from exporter.page.page import Page
from exporter.report.document_parts import Severity
from exporter.report.node_status import status_document
from exporter.view import StatusInput
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


def shown(data: StatusInput, name: str = "daemons") -> str:
    return section(Page({}).node(data), name).replace("\N{NO-BREAK SPACE}", " ")


def test_daemons_have_servers_and_clients() -> None:
    text = shown(busy())
    assert f"{DAEMON} up " in text
    assert f"513 {DAEMON} active root 3 " in text
    clients = shown(busy(), "clients")
    assert "Process PID User GPUs Memory A fault also ends For" in clients
    for row in (
        "train.py 600 alice 0, 1 2.19 GiB 2 (A)",
        "vllm 601 bob 0 2.5 GiB 2 (A)",
        "eval.py 602 alice 1 4.5 GiB 2 (A)",
    ):
        assert row in clients


def test_a_server_for_all_users_is_not_that_of_its_own_user() -> None:
    present = reduced(replace(daemon_process(), options=("-M",)), start=three_clients()).node
    assert f"{DAEMON} active all users" in shown(status_input(present))


def test_shows_limits_of_servers_and_of_the_next_server() -> None:
    text = shown(status_input(limited()))
    assert "50 % of threads; 2 GiB on GPU 1" in text
    assert "25 % of threads; 3 GiB on GPU 0" in text


def test_shows_the_name_of_a_server_with_protocol_3() -> None:
    assert f"513 training {DAEMON}" in shown(status_input(partitioned()))


def test_a_daemon_that_is_down_has_the_indications() -> None:
    text = shown(dead())
    assert f"{DAEMON} down" in text
    assert "Died" in text
    indications = "process 441 has exited; nvidia-cuda-mps-control finds no daemon"
    assert indications in shown(dead(), "problems")


def test_servers_of_an_unresponsive_daemon_are_not_active() -> None:
    hangs = reduced(silence(at=AT + 10), silence(at=AT + 20), start=busy().node).node
    assert hangs.daemons[DAEMON].state is DaemonState.UNRESPONSIVE
    assert '<b class="state unknown">unknown; last active</b>' in Page({}).node(status_input(hangs)).decode()


def test_a_row_agrees_with_the_headline(subtests: pytest.Subtests) -> None:
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
            assert matter in shown(seen, "headline") + shown(seen, "problems")
            assert level.rank <= document.severity.rank


def test_a_quarantine_marks_the_gpu_too() -> None:
    present = quarantined()
    gpu, *_ = status_document(StatusInput(node=present, at=present.at)).gpus

    assert (gpu.severity, gpu.label) == (Severity.CRITICAL, "quarantined")
