"""A fatal fault: FAULT lasts until the last affected client exits. Then the server is active again."""

import pytest

from tests.eventually import eventually

from .clients import Clients
from .mps import ControlDaemon
from .program import Exporter
from .scrape import Scrape

pytestmark = pytest.mark.gpu

ILLEGAL_ADDRESS = 700
SERVER_NOT_READY = 807


def test_a_fault_lasts_until_the_last_affected_client_exits(
    exporter: Exporter, daemon: ControlDaemon, clients: Clients
) -> None:
    victim = clients.start_ready("victim", seconds=120, busy_ms=1, every_ms=20, hold=120)
    server = str(daemon.server())
    eventually(lambda: _server_is(exporter, server, "active"))

    cause = clients.start_ready("cause", fault="oob", fault_after=1)
    assert victim.fails() == [ILLEGAL_ADDRESS]
    assert cause.fails() == [ILLEGAL_ADDRESS]
    eventually(lambda: _server_is(exporter, server, "fault"))

    latecomer = clients.start("latecomer", seconds=1)
    assert latecomer.fails() == [SERVER_NOT_READY]
    eventually(lambda: _refused_for_the_fault(exporter, 1))

    victim.leave()
    eventually(lambda: _server_is(exporter, server, "active"), within=45)
    assert daemon.server() == int(server), "the server outlives its fault"

    after = clients.start_ready("after", seconds=60)
    eventually(lambda: _lists(exporter, after.pid))
    scrape = exporter.scrape()
    assert scrape.total("cuda_mps_clients_refused_total", reason="fault") == 1
    assert scrape.total("cuda_mps_daemon_losses_total") == 0


def _server_is(exporter: Exporter, server: str, state: str) -> Scrape:
    scrape = exporter.scrape()
    assert scrape.state("cuda_mps_server_state", server=server) == state
    return scrape


def _refused_for_the_fault(exporter: Exporter, count: int) -> None:
    assert exporter.scrape().total("cuda_mps_clients_refused_total", reason="fault") == count


def _lists(exporter: Exporter, pid: int) -> None:
    assert exporter.scrape().listed_pids() == [pid]
