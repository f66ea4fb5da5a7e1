"""Limits in force are those that the server itself tells, and an operator's change is soon known."""

import pytest

from tests.eventually import eventually

from .clients import Clients
from .device import Device
from .mps import ControlDaemon
from .program import Exporter

pytestmark = pytest.mark.gpu

GIB = 2**30
# An operator's command is seen in the log; the daemon is asked what came of it as soon as nobody else asks.
SOON = 20


@pytest.fixture(scope="class")
def limited(exporter: Exporter, daemon: ControlDaemon, clients: Clients) -> ControlDaemon:
    """A daemon with defaults, and a server that was started under them."""
    daemon.command("set_default_active_thread_percentage 40")
    daemon.command("set_default_device_pinned_mem_limit 0 2G")
    clients.start_ready("limited", mib=64, seconds=300)
    return daemon


class TestLimits:
    """40 % of the threads and 2 GiB, as the daemon's defaults and in its server."""

    def test_a_server_has_the_limits_it_was_started_with(
        self, exporter: Exporter, gpu: Device, limited: ControlDaemon
    ) -> None:
        """As its own log tells at its start."""
        server = str(limited.server())

        def told() -> None:
            scrape = exporter.scrape()
            assert scrape.value("cuda_mps_server_active_thread_ratio", server=server) == pytest.approx(0.4)
            limit = scrape.value("cuda_mps_server_pinned_memory_limit_bytes", server=server, gpu=gpu.uuid)
            assert limit == 2 * GIB

        eventually(told, within=SOON)

    def test_the_defaults_are_told_apart_from_them(self, exporter: Exporter, limited: ControlDaemon) -> None:
        """A default reaches only servers that start later."""
        limited.command("set_default_active_thread_percentage 70")

        def told() -> None:
            scrape = exporter.scrape()
            assert scrape.value("cuda_mps_daemon_default_active_thread_ratio") == pytest.approx(0.7)
            assert scrape.value("cuda_mps_server_active_thread_ratio") == pytest.approx(0.4)

        eventually(told, within=SOON)

    def test_an_operators_change_of_the_server_is_told(self, exporter: Exporter, limited: ControlDaemon) -> None:
        """It holds for clients that connect later."""
        limited.command(f"set_active_thread_percentage {limited.server()} 30")

        def told() -> None:
            assert exporter.scrape().value("cuda_mps_server_active_thread_ratio") == pytest.approx(0.3)

        eventually(told, within=SOON)
