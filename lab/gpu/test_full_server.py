"""More clients than a server accepts: refused clients, and the cost of monitoring the others."""

import statistics

import psutil
import pytest

from tests.eventually import eventually

from . import figures
from .clients import Client, Clients
from .mps import ControlDaemon
from .program import Exporter
from .timing import cpu_ratios

pytestmark = pytest.mark.gpu

STARTED = 64
# Maximum number of clients of a server, from Volta on and before CUDA 13.1.
FIT = 48
DEVICES_UNAVAILABLE = 46
SCRAPES = 50
WATCH_SECONDS = 20
# Bounds of CPU and memory of the exporter. They are wide; docs/hardware.md has the figures.
CPU_RATIO_LIMIT = 0.25
RSS_LIMIT_BYTES = 256 * 2**20


@pytest.fixture(scope="class")
def crowd(clients: Clients, exporter: Exporter) -> list[Client]:
    started = [clients.start(f"m{number}", seconds=300, every_ms=200) for number in range(STARTED)]
    for client in started:
        client.settle()
    return started


@pytest.fixture(scope="class")
def accepted(crowd: list[Client]) -> list[Client]:
    """Return the accepted clients. All others have the error of a full server."""
    accepted = [client for client in crowd if client.events("ready")]
    refusals = [client.error_codes for client in crowd if client not in accepted]
    assert len(accepted) == FIT
    assert refusals == [[DEVICES_UNAVAILABLE]] * (STARTED - FIT)
    return accepted


class TestFullServer:
    """64 clients of a server with 48 slots."""

    def test_48_clients_are_connected(self, exporter: Exporter, daemon: ControlDaemon, accepted: list[Client]) -> None:
        """The log of MPS has `connected` for all 64. Only clients that became active count."""

        def connected() -> None:
            scrape = exporter.scrape()
            assert scrape.listed_pids() == sorted(client.pid for client in accepted)
            assert scrape.value("cuda_mps_server_clients", server=str(daemon.server())) == FIT
            assert scrape.value("cuda_mps_server_clients_limit", server=str(daemon.server())) == FIT
            assert scrape.total("cuda_mps_clients_connected_total") == FIT

        eventually(connected)

    def test_16_clients_are_refused_for_the_limit(self, exporter: Exporter, accepted: list[Client]) -> None:
        """Once each, and for no other reason."""

        def refused() -> None:
            scrape = exporter.scrape()
            assert scrape.total("cuda_mps_clients_refused_total", reason="limit") == STARTED - FIT
            assert scrape.total("cuda_mps_clients_refused_total") == STARTED - FIT
            assert scrape.total("cuda_mps_clients_waiting") == 0

        eventually(refused)

    def test_all_connected_clients_have_memory(self, exporter: Exporter, accepted: list[Client]) -> None:
        """All clients can be joined with their memory."""

        def all_have_memory() -> None:
            assert exporter.scrape().memory_by_pid().keys() == {client.pid for client in accepted}

        eventually(all_have_memory)

    def test_a_scrape_is_quick(self, exporter: Exporter, accepted: list[Client]) -> None:
        """A scrape sends rendered bytes and waits for no collector."""
        scrapes = [exporter.scrape() for _ in range(SCRAPES)]
        median = statistics.median(scrape.seconds for scrape in scrapes)
        figures.note(
            scrape_median_ms_48_clients=round(median * 1000, 3),
            scrape_slowest_ms_48_clients=round(max(scrape.seconds for scrape in scrapes) * 1000, 3),
            scrape_bytes_48_clients=len(scrapes[-1].text.encode()),
        )
        assert median < 0.1

    def test_monitoring_costs_little(self, exporter: Exporter, accepted: list[Client]) -> None:
        """CPU time of the exporter and of its control queries."""
        own, queries = cpu_ratios(exporter.pid, WATCH_SECONDS)
        rss = psutil.Process(exporter.pid).memory_info().rss
        figures.note(
            cpu_ratio_48_clients=round(own, 5),
            cpu_ratio_of_control_queries_48_clients=round(queries, 5),
            rss_bytes_48_clients=rss,
        )
        assert own + queries < CPU_RATIO_LIMIT
        assert rss < RSS_LIMIT_BYTES
