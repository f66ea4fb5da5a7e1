"""Clients of a daemon and their memory."""

import time
from collections.abc import Iterator

import pytest

from tests.eventually import eventually

from . import device, figures
from .clients import NO_DAEMON, Client, Clients
from .device import Device
from .mps import ControlDaemon
from .program import Exporter
from .scrape import MIB, Scrape

pytestmark = pytest.mark.gpu

# NVML's lists are read every 10 s.
MEMORY_WITHIN = 25
DEFAULT_MIN_AGE = 15
GIB_IN_MIB = 1024
# A context takes some 516 MiB on Hopper.
CONTEXT_MIB = range(64, 1024)


@pytest.fixture(scope="class")
def three(clients: Clients, exporter: Exporter) -> list[Client]:
    """Start three clients at once while the exporter runs."""
    sizes = {"alpha": 1, "beta": 2, "gamma": 4}
    started = [
        clients.start(name, mib=gib * GIB_IN_MIB, seconds=300, busy_ms=2, every_ms=10) for name, gib in sizes.items()
    ]
    for client in started:
        client.ready()
    return started


class TestThreeClients:
    """Clients of 1, 2 and 4 GiB that alternate between busy and idle."""

    def test_each_is_listed_once_with_its_server_and_user(
        self, exporter: Exporter, daemon: ControlDaemon, three: list[Client]
    ) -> None:
        """Only the info family has the identity."""

        def identified() -> None:
            """The identity is known shortly after the connection."""
            for info in _lists(exporter, three).select("cuda_mps_client_info"):
                assert info.value == 1
                assert info.labels["server"] == str(daemon.server())
                assert info.labels["uid"] == "0"
                assert info.labels["user"] == "root"
                assert "load" in info.labels["command"]

        eventually(identified)

    def test_clients_are_counted(self, exporter: Exporter, daemon: ControlDaemon, three: list[Client]) -> None:
        """Gauges and counters agree, and no client is refused or waits."""

        def counted() -> None:
            scrape = exporter.scrape()
            assert scrape.value("cuda_mps_server_clients", server=str(daemon.server())) == 3
            assert scrape.total("cuda_mps_clients_connected_total") == 3
            assert scrape.total("cuda_mps_clients_disconnected_total") == 0
            assert scrape.total("cuda_mps_clients_refused_total") == 0
            assert scrape.total("cuda_mps_clients_waiting") == 0

        eventually(counted)

    def test_memory_is_correct_to_the_mebibyte(self, exporter: Exporter, gpu: Device, three: list[Client]) -> None:
        """The rest above a client's own allocation is the context, of equal size for all."""

        def contexts() -> set[float]:
            """Return the sizes of contexts: each client's memory without its own allocation."""
            used = _has_memory_of(exporter, three).memory_by_pid()
            sizes = {(used[client.pid] - client.allocated_bytes) / MIB for client in three}
            assert len(sizes) == 1, f"{sizes} of {used}"
            return sizes

        (size,) = eventually(contexts, within=MEMORY_WITHIN)
        assert int(size) in CONTEXT_MIB
        memory = exporter.scrape().select("cuda_mps_client_memory_used_bytes")
        assert {sample.labels["gpu"] for sample in memory} == {gpu.uuid}
        figures.note(context_mib=size)

    def test_nvidia_smi_reports_the_same(self, exporter: Exporter, daemon: ControlDaemon, three: list[Client]) -> None:
        """A second source, which lists the server too."""

        def same() -> None:
            used = _has_memory_of(exporter, three).memory_by_pid()
            reported = device.memory_mib_by_pid()
            assert reported.keys() == {*used, daemon.server()}
            assert {pid: size // MIB for pid, size in used.items()} == {pid: reported[pid] for pid in used}

        eventually(same, within=MEMORY_WITHIN)

    def test_daemon_and_server_are_well(self, exporter: Exporter, daemon: ControlDaemon, three: list[Client]) -> None:
        """Each has exactly one state, and there is no loss."""

        def well() -> None:
            scrape = exporter.scrape()
            assert scrape.value("cuda_mps_daemon_up") == 1
            assert scrape.state("cuda_mps_daemon_state") == "up"
            assert scrape.total("cuda_mps_daemon_losses_total") == 0
            assert scrape.state("cuda_mps_server_state") == "active"
            assert scrape.state("cuda_mps_server_state", server=str(daemon.server())) == "active"

        eventually(well)
        (info,) = exporter.scrape().select("cuda_mps_daemon_info")
        assert info.labels["pipe_directory"] == str(daemon.pipe_directory)

    def test_none_of_them_bypasses(self, exporter: Exporter, gpu: Device, three: list[Client]) -> None:
        """A client that NVML reported first is not a bypassing process."""
        eventually(lambda: _has_memory_of(exporter, three), within=MEMORY_WITHIN)
        assert exporter.scrape().value("cuda_mps_bypassing_processes", gpu=gpu.uuid) == 0


def test_a_client_appears_and_disappears_quickly(exporter: Exporter, daemon: ControlDaemon, clients: Clients) -> None:
    # The first client of a daemon waits for the server's start, which does not count here.
    first = clients.start_ready("first", seconds=120)
    eventually(lambda: _lists(exporter, [first]))

    second = clients.start_ready("second", seconds=120)
    seen = eventually(lambda: _lists(exporter, [first, second]), every=0.02)
    for client in (first, second):
        client.leave()
    gone = eventually(lambda: _lists(exporter, []), every=0.02)
    assert not gone.select("cuda_mps_client_memory_used_bytes")

    def counted() -> None:
        scrape = exporter.scrape()
        assert scrape.value("cuda_mps_server_clients", server=str(daemon.server())) == 0
        assert scrape.total("cuda_mps_clients_connected_total") == 2
        assert scrape.total("cuda_mps_clients_disconnected_total") == 2

    eventually(counted)
    figures.note(
        client_ready_to_visible_seconds=round(seen.at - second.ready_at, 3),
        client_done_to_gone_seconds=round(gone.at - second.done_at, 3),
    )


@pytest.fixture(scope="class")
def default_exporter(daemon: ControlDaemon) -> Iterator[Exporter]:
    """Yield an exporter with the default minimum age of clients."""
    exporter = Exporter(daemon)
    try:
        exporter.wait()
        yield exporter
    finally:
        exporter.end()


def test_a_young_client_is_counted_and_gets_series_later(default_exporter: Exporter, clients: Clients) -> None:
    client = clients.start_ready("young", mib=64, seconds=120)

    def counted() -> Scrape:
        scrape = default_exporter.scrape()
        assert scrape.total("cuda_mps_server_clients") == 1
        return scrape

    young = eventually(counted, within=DEFAULT_MIN_AGE - 3)
    assert young.at - client.started < DEFAULT_MIN_AGE - 1, "counted too late for this test"
    assert young.listed_pids() == []
    assert not young.select("cuda_mps_client_memory_used_bytes")
    older = eventually(lambda: _has_memory_of(default_exporter, [client]), within=2 * DEFAULT_MIN_AGE)
    # Start times are rounded to a second.
    assert older.at - client.started >= DEFAULT_MIN_AGE - 1


def test_a_bypassing_process_is_counted_until_it_exits(exporter: Exporter, gpu: Device, clients: Clients) -> None:
    inside = clients.start_ready("inside", mib=64, seconds=200)
    outside = clients.start_ready("outside", mib=64, seconds=200, environment=NO_DAEMON)

    def bypassing(count: int) -> Scrape:
        scrape = exporter.scrape()
        assert scrape.value("cuda_mps_bypassing_processes", gpu=gpu.uuid) == count
        return scrape

    seen = eventually(lambda: bypassing(1), within=45)
    assert seen.listed_pids() == [inside.pid]
    assert seen.total("cuda_mps_server_clients") == 1
    left_at = time.time()
    outside.leave()
    gone = eventually(lambda: bypassing(0), within=30)
    assert gone.listed_pids() == [inside.pid]
    figures.note(
        bypass_ready_to_visible_seconds=round(seen.at - outside.ready_at, 3),
        bypass_left_to_gone_seconds=round(gone.at - left_at, 3),
    )


def _lists(exporter: Exporter, clients: list[Client]) -> Scrape:
    scrape = exporter.scrape()
    assert scrape.listed_pids() == sorted(client.pid for client in clients)
    return scrape


def _has_memory_of(exporter: Exporter, clients: list[Client]) -> Scrape:
    """Check that NVML reports all memory: it lists a client some 100 ms before it has its memory."""
    scrape = _lists(exporter, clients)
    used = scrape.memory_by_pid()
    assert used.keys() == {client.pid for client in clients}
    assert all(used[client.pid] > client.allocated_bytes for client in clients), f"old numbers: {used}"
    return scrape
