"""The exporter's unit with a real systemd: it restarts, restores its state, and stops in order."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.eventually import eventually

from .machine import ROOT
from .node import CLIENT, CONFIGURATION, EXPORTER, NAME, Node

NEWEST = 10
"""How many of the newest events are compared. A page has room for these and for those of a restart."""

pytestmark = [pytest.mark.systems, pytest.mark.usefixtures("at_work")]


def test_systemd_shows_the_status(node: Node) -> None:
    assert re.search(r"watchdog observes; \d of \d daemons up", node.machine.show(EXPORTER, "StatusText"))


def test_restores_an_open_incident_after_a_kill(node: Node) -> None:
    node.mps.connect_and_wait(CLIENT)
    node.shows(1, "cuda_mps_daemon_clients", daemon=NAME)
    node.mps.fault(CLIENT)
    (incident,) = eventually(lambda: _open_incidents(node))
    before, restarts = node.pid(EXPORTER), node.restarts(EXPORTER)

    node.machine.signal(EXPORTER, "SIGKILL")
    eventually(lambda: node.is_another(EXPORTER, before))
    again = eventually(lambda: _open_incidents(node))

    assert node.restarts(EXPORTER) == restarts + 1
    assert node.machine.show(EXPORTER, "RestartUSec") == "5s"
    assert [each["id"] for each in again] == [incident["id"]]
    node.mps.disconnect(CLIENT)
    eventually(lambda: _assert_over(node))


def _open_incidents(node: Node) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = node.page("/api/v1/incidents?open=true")["data"]
    assert found
    return found


def _assert_over(node: Node) -> None:
    assert node.page("/api/v1/incidents?open=true")["data"] == []


@pytest.fixture
def impatient(node: Node) -> Iterator[None]:
    """Systemd kills the exporter without a notification for 3 s instead of 30 s, and restarts it after 1 s."""
    assert node.machine.show(EXPORTER, "WatchdogUSec") == "30s"
    file = f"/etc/systemd/system/{EXPORTER}.d/impatient.conf"
    node.machine.write(file, "[Service]\nWatchdogSec=3s\nRestartSec=1s\n")
    node.machine.do("systemctl", "daemon-reload")
    node.machine.do("systemctl", "restart", EXPORTER)
    yield
    (node.machine.root / file.lstrip("/")).unlink()
    node.machine.do("systemctl", "daemon-reload")


@pytest.mark.usefixtures("impatient")
def test_a_hung_exporter_logs_its_stack_and_is_restarted(node: Node) -> None:
    before = node.pid(EXPORTER)

    node.machine.signal(EXPORTER, "SIGSTOP")
    eventually(lambda: node.is_another(EXPORTER, before))

    assert "Failed with result 'watchdog'" in node.journal(EXPORTER)
    said = node.machine.do("journalctl", "--no-pager", f"--unit={EXPORTER}", f"_PID={before}", "--output=cat")
    assert "Fatal Python error: Aborted" in said
    assert "in run" in said
    node.shows(1, "cuda_mps_daemon_up", daemon=NAME)


def test_reloads_its_configuration(node: Node) -> None:
    before = node.pid(EXPORTER)
    name = "cuda_mps_exporter_config_last_reload_successful"
    node.machine.write(CONFIGURATION, f"{node.settings}[clients]\nmni_age_seconds = 3\n")
    node.machine.do("systemctl", "reload", EXPORTER)
    node.shows(0, name)

    node.machine.write(CONFIGURATION, node.settings)
    node.machine.do("systemctl", "reload", EXPORTER)
    node.shows(1, name)

    assert (node.pid(EXPORTER), node.machine.show(EXPORTER, "ActiveState")) == (before, "active")


def test_stops_in_order_and_loses_nothing(node: Node) -> None:
    node.mps.connect_and_wait(CLIENT)
    node.shows(1, "cuda_mps_daemon_clients", daemon=NAME)
    node.mps.disconnect(CLIENT)
    node.shows(0, "cuda_mps_daemon_clients", daemon=NAME)
    newest = node.page("/api/v1/events")["data"][:NEWEST]

    node.machine.do("systemctl", "stop", EXPORTER)

    assert node.machine.show(EXPORTER, "Result") == "success", "neither killed nor late"
    node.settles()
    after = node.page("/api/v1/events")["data"]
    assert [each for each in newest if each not in after] == []


VISITED = """
import socket
from exporter.web.pages import user_of_peer

with socket.create_server(("127.0.0.1", 0)) as listener:
    print("port", listener.getsockname()[1], flush=True)
    print("visitor", user_of_peer(*listener.accept()), flush=True)
"""
VISIT = "import socket, sys; socket.create_connection((b'127.0.0.1', int(sys.argv[1])), 30).recv(1)"


def test_the_sandbox_shows_the_user_of_a_visitor(node: Node) -> None:
    """Another program runs in the exporter's sandbox, because no client of this machine has kernels to show."""
    python, unit = "/opt/cuda-mps-exporter/bin/python", (ROOT / "systemd" / EXPORTER).read_text()
    unit = re.sub("(?m)^(Type|ExecReload|Restart|WatchdogSec|RuntimeDirectory|StateDirectory).*\n", "", unit)
    unit = re.sub("(?m)^ExecStart=.*$", f"ExecStart={python} /opt/visited.py", unit)
    node.machine.write("/opt/visited.py", VISITED)
    node.machine.write("/etc/systemd/system/visited.service", unit)

    def printed(word: str) -> str:
        found = re.findall(f"(?m)^{word} (.+)$", node.journal("visited"))
        assert found
        return str(found[0])

    node.machine.do("systemctl", "start", "visited")
    node.machine.do(
        "setpriv", "--reuid=1234", "--clear-groups", python, "-c", VISIT, eventually(lambda: printed("port"))
    )
    assert eventually(lambda: printed("visitor")) == "1234"
