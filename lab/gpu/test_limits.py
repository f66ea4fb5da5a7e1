"""Limits in force are those that the server reports. A change by an operator appears soon."""

import pytest

from tests.eventually import eventually

from .clients import Clients
from .device import Device
from .mps import ControlDaemon
from .program import Exporter

pytestmark = pytest.mark.gpu

GIB = 2**30
# The log shows an operator's command. The exporter then queries the daemon.
SOON = 20


@pytest.fixture(scope="class")
def limited(exporter: Exporter, daemon: ControlDaemon, clients: Clients) -> ControlDaemon:
    """Return a daemon with default limits and a server that started with them."""
    daemon.command("set_default_active_thread_percentage 40")
    daemon.command("set_default_device_pinned_mem_limit 0 2G")
    clients.start_ready("limited", mib=64, seconds=300)
    return daemon


class TestLimits:
    """40 % of the threads and 2 GiB, as defaults and in the server."""

    def test_a_server_has_the_limits_it_was_started_with(
        self, exporter: Exporter, gpu: Device, limited: ControlDaemon
    ) -> None:
        """The server logs them at its start."""
        server = str(limited.server())

        def shown() -> None:
            scrape = exporter.scrape()
            assert scrape.value("cuda_mps_server_active_thread_ratio", server=server) == pytest.approx(0.4)
            limit = scrape.value("cuda_mps_server_pinned_memory_limit_bytes", server=server, gpu=gpu.uuid)
            assert limit == 2 * GIB

        eventually(shown, within=SOON)

    def test_defaults_are_separate_from_limits_of_the_server(self, exporter: Exporter, limited: ControlDaemon) -> None:
        """A default applies only to later servers."""
        limited.command("set_default_active_thread_percentage 70")

        def shown() -> None:
            scrape = exporter.scrape()
            assert scrape.value("cuda_mps_daemon_default_active_thread_ratio") == pytest.approx(0.7)
            assert scrape.value("cuda_mps_server_active_thread_ratio") == pytest.approx(0.4)

        eventually(shown, within=SOON)

    def test_shows_an_operators_change_of_the_server(self, exporter: Exporter, limited: ControlDaemon) -> None:
        """It applies to later clients."""
        limited.command(f"set_active_thread_percentage {limited.server()} 30")

        def shown() -> None:
            assert exporter.scrape().value("cuda_mps_server_active_thread_ratio") == pytest.approx(0.3)

        eventually(shown, within=SOON)
