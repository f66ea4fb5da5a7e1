"""The daemon starts, is killed, starts again and is stopped. Only SIGKILL is a loss."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.eventually import eventually

from . import figures
from .clients import Client, Clients
from .device import Device
from .mps import ControlDaemon
from .program import Exporter
from .scrape import Scrape

pytestmark = pytest.mark.gpu

# Without other sources, the liveness query every 30 s decides.
LIVENESS_WITHIN = 50


def test_a_killed_daemon_is_one_loss_and_is_up_after_its_restart(
    exporter: Exporter, daemon: ControlDaemon, clients: Clients
) -> None:
    client = clients.start_ready("before", seconds=200)
    eventually(lambda: _names(exporter, client))

    killed_at = time.time()
    daemon.kill()
    down = eventually(lambda: _daemon_is(exporter, up=0), within=LIVENESS_WITHIN, every=0.02)
    figures.note(kill_to_daemon_down_seconds=round(down.at - killed_at, 3))
    lost = eventually(lambda: _has_lost(exporter, 1))
    assert killed_at - 1 <= lost.value("cuda_mps_daemon_last_loss_timestamp_seconds") <= lost.at + 1
    eventually(lambda: _lists(exporter, []))

    started_at = time.time()
    daemon.start()
    up = eventually(lambda: _daemon_is(exporter, up=1), within=LIVENESS_WITHIN, every=0.02)
    figures.note(start_to_daemon_up_seconds=round(up.at - started_at, 3))
    newcomer = clients.start_ready("newcomer", seconds=200)
    back = eventually(lambda: _lists(exporter, [newcomer]))
    assert back.state("cuda_mps_server_state", server=str(daemon.server())) == "active"
    assert back.state("cuda_mps_daemon_state") == "up"
    assert back.total("cuda_mps_daemon_losses_total") == 1
    _names_the_dead(exporter, "daemon_died", client.pid)


def test_the_clients_of_a_server_that_is_killed_are_named(
    exporter: Exporter, daemon: ControlDaemon, clients: Clients
) -> None:
    client = clients.start_ready("before", seconds=200)
    eventually(lambda: _names(exporter, client))
    os.kill(daemon.server(), signal.SIGKILL)
    eventually(lambda: _names_the_dead(exporter, "server_died", client.pid), within=LIVENESS_WITHIN)
    client.fails()


def test_clients_that_leave_one_by_one_have_no_record_of_a_death(
    exporter: Exporter, daemon: ControlDaemon, clients: Clients
) -> None:
    leaving = [clients.start_ready(name, seconds=60) for name in ("first", "second")]
    eventually(lambda: _lists(exporter, leaving))
    for client in leaving:
        client.leave()
    daemon.quit()
    eventually(lambda: _lists(exporter, []))
    assert exporter.scrape().select("cuda_mps_death_timestamp_seconds") == []


def test_a_process_that_starts_without_a_daemon_bypasses_mps(
    exporter: Exporter, daemon: ControlDaemon, gpu: Device, clients: Clients
) -> None:
    """CUDA then starts without MPS, without limits and without an error."""
    first = clients.start_ready("first", seconds=200)
    eventually(lambda: _lists(exporter, [first]))
    daemon.kill()
    eventually(lambda: _daemon_is(exporter, up=0), within=LIVENESS_WITHIN)
    first.fails()
    clients.start_ready("stray", mib=64, seconds=200)

    def bypassing() -> None:
        assert exporter.scrape().value("cuda_mps_bypassing_processes", gpu=gpu.uuid) == 1

    eventually(bypassing, within=45)


def test_a_quit_is_no_loss(exporter: Exporter, daemon: ControlDaemon, clients: Clients) -> None:
    client = clients.start_ready("before", seconds=60)
    eventually(lambda: _lists(exporter, [client]))
    client.leave()
    daemon.quit()

    def stopped() -> None:
        scrape = _daemon_is(exporter, up=0)
        assert scrape.state("cuda_mps_daemon_state") == "stopped"

    eventually(stopped, within=LIVENESS_WITHIN)
    assert exporter.scrape().total("cuda_mps_daemon_losses_total") == 0
    eventually(lambda: _lists(exporter, []))


def _names(exporter: Exporter, client: Client) -> None:
    """A client that ends before its process was read has no name."""
    assert [
        each.labels["command"] for each in exporter.scrape().select("cuda_mps_client_info", pid=str(client.pid))
    ] == ["load"]


def _names_the_dead(exporter: Exporter, kind: str, pid: int) -> None:
    found = exporter.scrape().select("cuda_mps_death_timestamp_seconds", kind=kind)
    assert len(found) == 1, found
    shown = exporter.command("incidents", found[0].labels["incident"])
    assert "1 client ended" in shown, shown
    assert f"PID {pid} (" in shown, shown


@pytest.fixture(scope="class")
def early_exporter(unstarted_daemon: ControlDaemon) -> Iterator[Exporter]:
    """Yield an exporter that starts before its daemon."""
    exporter = Exporter(unstarted_daemon, "--client-min-age=0s")
    try:
        exporter.wait()
        yield exporter
    finally:
        exporter.end()


def test_finds_a_daemon_that_starts_later(early_exporter: Exporter, unstarted_daemon: ControlDaemon) -> None:
    eventually(lambda: _daemon_is(early_exporter, up=0))
    unstarted_daemon.start()
    eventually(lambda: _daemon_is(early_exporter, up=1), within=LIVENESS_WITHIN)
    scrape = early_exporter.scrape()
    assert scrape.state("cuda_mps_daemon_state") == "up"
    assert scrape.total("cuda_mps_daemon_losses_total") == 0


def _daemon_is(exporter: Exporter, *, up: int) -> Scrape:
    scrape = exporter.scrape()
    assert scrape.value("cuda_mps_daemon_up") == up
    return scrape


def _has_lost(exporter: Exporter, count: int) -> Scrape:
    scrape = exporter.scrape()
    assert scrape.total("cuda_mps_daemon_losses_total") == count
    return scrape


def _lists(exporter: Exporter, clients: list[Client]) -> Scrape:
    scrape = exporter.scrape()
    assert scrape.listed_pids() == sorted(client.pid for client in clients)
    return scrape
