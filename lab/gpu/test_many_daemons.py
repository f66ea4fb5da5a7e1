"""Several daemons on a node: configured, discovered, and in their own namespaces."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.eventually import eventually

from . import figures
from .child import until_end
from .clients import Clients
from .device import Device
from .mps import ControlDaemon
from .namespaced import NamespacedDaemon
from .program import Exporter

pytestmark = pytest.mark.gpu

# Discovery runs every 10 s.
FOUND_WITHIN = 30


@pytest.fixture(scope="class")
def other(root: Path, numbers: Iterator[int]) -> Iterator[ControlDaemon]:
    """Yield a daemon that is not configured."""
    yield from until_end(ControlDaemon(root / str(next(numbers))))


@pytest.fixture(scope="class")
def others_clients(other: ControlDaemon, load_program: Path) -> Iterator[Clients]:
    yield from until_end(Clients(load_program, other, other.directory / "clients"))


class TestTwoDaemons:
    """One daemon is configured. The other starts later in another directory."""

    def test_discovers_the_other_daemon_with_its_clients(
        self, exporter: Exporter, daemon: ControlDaemon, other: ControlDaemon, clients: Clients, others_clients: Clients
    ) -> None:
        """By its process, because it has no default directory."""
        ours = clients.start_ready("ours", mib=64, seconds=300)
        other.start()
        theirs = others_clients.start_ready("theirs", mib=64, seconds=300)

        def listed() -> None:
            scrape = exporter.scrape()
            for each, client in ((daemon, ours), (other, theirs)):
                name = str(each.pipe_directory)
                assert scrape.value("cuda_mps_daemon_up", daemon=name) == 1
                listed = [info.labels["pid"] for info in scrape.select("cuda_mps_client_info", daemon=name)]
                assert listed == [str(client.pid)]
            expected = {
                each.labels["daemon"]: each.labels["expected"] for each in scrape.select("cuda_mps_daemon_info")
            }
            assert expected == {str(daemon.pipe_directory): "true", str(other.pipe_directory): "false"}

        eventually(listed, within=FOUND_WITHIN)

    def test_clients_of_one_daemon_do_not_bypass_the_other(self, exporter: Exporter, gpu: Device) -> None:
        """Both daemons serve the GPU."""

        def none() -> None:
            counts = exporter.scrape().select("cuda_mps_bypassing_processes", gpu=gpu.uuid)
            assert [each.value for each in counts] == [0, 0]

        eventually(none, within=FOUND_WITHIN)

    def test_a_loss_counts_for_one_daemon_only(
        self, exporter: Exporter, daemon: ControlDaemon, other: ControlDaemon
    ) -> None:
        """The client of the other daemon continues."""
        other.kill()

        def lost() -> None:
            scrape = exporter.scrape()
            assert scrape.value("cuda_mps_daemon_up", daemon=str(other.pipe_directory)) == 0
            assert scrape.total("cuda_mps_daemon_losses_total", daemon=str(other.pipe_directory)) == 1
            assert scrape.value("cuda_mps_daemon_up", daemon=str(daemon.pipe_directory)) == 1
            assert scrape.total("cuda_mps_daemon_losses_total", daemon=str(daemon.pipe_directory)) == 0
            assert [info.labels["daemon"] for info in scrape.select("cuda_mps_client_info")] == [
                str(daemon.pipe_directory)
            ]

        eventually(lost)


@pytest.fixture(scope="class")
def namespaced(root: Path, numbers: Iterator[int], load_program: Path) -> Iterator[NamespacedDaemon]:
    yield from until_end(NamespacedDaemon(root / str(next(numbers)), load_program))


def test_a_daemon_in_its_own_namespaces_has_host_pids(
    exporter: Exporter, gpu: Device, namespaced: NamespacedDaemon
) -> None:
    """Its log and replies have other PIDs, and its pipe directory has no path on the host."""
    namespaced.start()

    def listed() -> str:
        scrape = exporter.scrape()
        found = scrape.select("cuda_mps_client_info", pid=str(namespaced.client_in_it()))
        assert len(found) == 1
        (info,) = found
        assert info.labels["server"] == str(namespaced.server_in_it())
        name = info.labels["daemon"]
        assert scrape.value("cuda_mps_daemon_up", daemon=name) == 1
        assert scrape.value("cuda_mps_client_memory_used_bytes", daemon=name, gpu=gpu.uuid) > 64 * 2**20
        assert scrape.state("cuda_mps_server_state", daemon=name) == "active"
        return name

    name = eventually(listed, within=FOUND_WITHIN + 15)
    figures.note(namespaced_daemon=name.replace(str(namespaced.directory), "…"))
    namespaced.end()

    def lost() -> None:
        scrape = exporter.scrape()
        assert scrape.value("cuda_mps_daemon_up", daemon=name) == 0
        assert scrape.total("cuda_mps_daemon_losses_total", daemon=name) == 1

    eventually(lost)
