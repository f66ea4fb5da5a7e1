"""Several daemons on a node: configured, found by themselves, and in namespaces of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.eventually import eventually

from . import figures
from .clients import Clients
from .device import Device
from .mps import ControlDaemon
from .namespaced import NamespacedDaemon
from .program import Exporter

pytestmark = pytest.mark.gpu

# Running daemons are looked for every 10 s.
FOUND_WITHIN = 30


@pytest.fixture(scope="class")
def other(root: Path, numbers: Iterator[int]) -> Iterator[ControlDaemon]:
    """A daemon of which nobody has told the program."""
    daemon = ControlDaemon(root / str(next(numbers)))
    yield daemon
    daemon.end()


@pytest.fixture(scope="class")
def others_clients(other: ControlDaemon, load_program: Path) -> Iterator[Clients]:
    clients = Clients(load_program, other, other.directory / "clients")
    yield clients
    clients.end()


class TestTwoDaemons:
    """One is configured; the other starts later, elsewhere, by somebody else."""

    def test_the_other_is_found_with_its_own_clients(
        self, exporter: Exporter, daemon: ControlDaemon, other: ControlDaemon, clients: Clients, others_clients: Clients
    ) -> None:
        """By its process, since no default directory is near it."""
        ours = clients.start_ready("ours", mib=64, seconds=300)
        other.start()
        theirs = others_clients.start_ready("theirs", mib=64, seconds=300)

        def told() -> None:
            scrape = exporter.scrape()
            for each, client in ((daemon, ours), (other, theirs)):
                name = str(each.pipe_directory)
                assert scrape.value("cuda_mps_daemon_up", daemon=name) == 1
                told = [info.labels["pid"] for info in scrape.select("cuda_mps_client_info", daemon=name)]
                assert told == [str(client.pid)]
            expected = {
                each.labels["daemon"]: each.labels["expected"] for each in scrape.select("cuda_mps_daemon_info")
            }
            assert expected == {str(daemon.pipe_directory): "true", str(other.pipe_directory): "false"}

        eventually(told, within=FOUND_WITHIN)

    def test_neither_ones_client_bypasses_the_other(self, exporter: Exporter, gpu: Device) -> None:
        """Both daemons serve the GPU."""

        def none() -> None:
            assert exporter.scrape().value("cuda_mps_bypassing_processes", gpu=gpu.uuid) == 0

        eventually(none, within=FOUND_WITHIN)

    def test_the_loss_of_one_is_its_own(self, exporter: Exporter, daemon: ControlDaemon, other: ControlDaemon) -> None:
        """And the other one's client lives on."""
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
    daemon = NamespacedDaemon(root / str(next(numbers)), load_program)
    yield daemon
    daemon.end()


def test_a_daemon_in_namespaces_of_its_own_is_told_of_in_the_hosts_pids(
    exporter: Exporter, gpu: Device, namespaced: NamespacedDaemon
) -> None:
    """Its log and its answers speak of other PIDs, and its pipe directory is on no path of the host's."""
    namespaced.start()

    def told() -> str:
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

    name = eventually(told, within=FOUND_WITHIN + 15)
    figures.note(namespaced_daemon=name.replace(str(namespaced.directory), "…"))
    namespaced.end()

    def lost() -> None:
        scrape = exporter.scrape()
        assert scrape.value("cuda_mps_daemon_up", daemon=name) == 0
        assert scrape.total("cuda_mps_daemon_losses_total", daemon=name) == 1

    eventually(lost)
