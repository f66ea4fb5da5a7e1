"""Clients and daemons of several ordinary users. They need no entry in /etc/passwd."""

import os
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from tests.eventually import eventually

from . import figures
from .child import until_end
from .clients import Client, Clients
from .device import Device
from .installed import InstalledExporter, install, with_rights_of_unit, without_rights
from .mps import ControlDaemon
from .program import Exporter
from .scrape import MIB, Scrape

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(90)]

ANN, BOB, EVE, MONITOR = 20001, 20002, 20003, 20004
CLIENT_MIB = 64
# Discovery and NVML's lists: every 10 s.
READ_WITHIN = 40
# A client that has no server within this time waits for its turn.
TURN_SECONDS = 4


@pytest.fixture(scope="class")
def shared_daemon(root: Path, numbers: Iterator[int]) -> Iterator[ControlDaemon]:
    """Yield root's daemon with one server for all users."""
    daemon = ControlDaemon(root / str(next(numbers)), options=["-multiuser-server"])
    daemon.start()
    yield from until_end(daemon)


@pytest.fixture(scope="class")
def anns_daemon(root: Path, numbers: Iterator[int]) -> Iterator[ControlDaemon]:
    """Yield a daemon that Ann has started."""
    daemon = ControlDaemon(root / str(next(numbers)), uid=ANN)
    daemon.start()
    yield from until_end(daemon)


@pytest.fixture(scope="class")
def anns_clients(anns_daemon: ControlDaemon, load_program: Path) -> Iterator[Clients]:
    """Yield clients of Ann's daemon."""
    yield from until_end(Clients(load_program, anns_daemon, anns_daemon.directory / "clients"))


def test_users_of_one_daemon_in_turn(exporter: Exporter, daemon: ControlDaemon, clients: Clients) -> None:
    """A client with a server is listed with its user. A client that waits for its turn is counted as waiting."""
    ann = clients.start_ready("ann", uid=ANN, mib=CLIENT_MIB, seconds=200)
    others = [clients.start(name, uid=uid, mib=CLIENT_MIB, seconds=200) for name, uid in (("bob", BOB), ("eve", EVE))]
    everyone = [ann, *others]
    time.sleep(TURN_SECONDS)
    together = [client for client in everyone if client.events("ready")]
    figures.note(users_at_once_of_one_daemon=len(together))
    eventually(lambda: _shows(exporter, everyone), within=READ_WITHIN)

    ann.leave()
    order = ["ann"]
    for _ in others:
        served = eventually(partial(_served, [each for each in others if each.name not in order]), within=READ_WITHIN)
        running = [each for each in others if each.child.exit_code is None]
        eventually(partial(_shows, exporter, running), within=READ_WITHIN)
        order += [served.name]
        served.leave()
    figures.note(users_in_turn=" ".join(order))
    assert sorted(order) == ["ann", "bob", "eve"]
    assert exporter.scrape().total("cuda_mps_clients_refused_total") == 0
    assert exporter.scrape().select("cuda_mps_death_timestamp_seconds") == []


@pytest.fixture(scope="class")
def shared_exporter(shared_daemon: ControlDaemon) -> Iterator[Exporter]:
    """Yield an exporter of the shared daemon."""
    exporter = Exporter(shared_daemon, "--client-min-age=0s")
    exporter.wait()
    yield from until_end(exporter)


@pytest.fixture
def shared_clients(shared_daemon: ControlDaemon, load_program: Path, numbers: Iterator[int]) -> Iterator[Clients]:
    """Yield clients of the shared daemon, which end after the test."""
    directory = shared_daemon.directory / f"clients{next(numbers)}"
    yield from until_end(Clients(load_program, shared_daemon, directory))


@pytest.fixture
def everyone(shared_clients: Clients) -> list[Client]:
    """Start a client of each user, at once on one server."""
    return [
        shared_clients.start_ready(name, uid=uid, mib=CLIENT_MIB, seconds=200, busy_ms=1, every_ms=20, hold=4)
        for name, uid in (("ann", ANN), ("bob", BOB), ("eve", EVE))
    ]


class TestUsersTogether:
    """One server for all users. MPS reports root as the user of each client."""

    def test_each_client_has_its_user(self, shared_exporter: Exporter, everyone: list[Client]) -> None:
        """Clients have their memory, and the users are their workloads."""

        def shown() -> None:
            scrape = _shows(shared_exporter, everyone)
            used = scrape.memory_by_pid()
            assert all(used.get(client.pid, 0) >= CLIENT_MIB * MIB for client in everyone)
            for client in everyone:
                assert scrape.value("cuda_mps_workload_clients", workload_kind="user", workload=str(client.uid)) == 1

        eventually(shown, within=READ_WITHIN)
        status = shared_exporter.status()
        for client in everyone:
            assert any({str(client.pid), str(client.uid)} <= set(line.split()) for line in status.splitlines()), status

    def test_a_fault_names_all_affected_users(
        self, shared_exporter: Exporter, shared_clients: Clients, everyone: list[Client]
    ) -> None:
        eventually(lambda: _shows(shared_exporter, everyone), within=READ_WITHIN)
        cause = shared_clients.start_ready("cause", uid=BOB, fault="oob", fault_after=5, busy_ms=1, every_ms=20)
        affected = [*everyone, cause]
        eventually(lambda: _shows(shared_exporter, affected), within=READ_WITHIN)
        for client in affected:
            assert client.fails()
        eventually(lambda: _has_recovered(shared_exporter, len(affected)), within=READ_WITHIN)
        (fault,) = shared_exporter.scrape().select("cuda_mps_fault_info")
        figures.note(
            users_fault_suspect=fault.labels["suspect_workload"], users_fault_confidence=fault.labels["confidence"]
        )
        _names_everyone(shared_exporter, fault.labels["incident"], affected)

    def test_the_death_of_the_daemon_names_all_its_users(
        self, shared_exporter: Exporter, shared_daemon: ControlDaemon, everyone: list[Client]
    ) -> None:
        eventually(lambda: _shows(shared_exporter, everyone), within=READ_WITHIN)
        shared_daemon.kill()
        (death,) = eventually(lambda: _deaths(shared_exporter, "daemon_died"), within=READ_WITHIN)
        _names_everyone(shared_exporter, death, everyone)
        shared_daemon.start()


class TestUsersOwnDaemon:
    """Ann's daemon beside root's: each has its clients, and a loss counts for one."""

    def test_both_are_attributed(
        self,
        exporter: Exporter,
        daemon: ControlDaemon,
        clients: Clients,
        anns_daemon: ControlDaemon,
        anns_clients: Clients,
        gpu: Device,
    ) -> None:
        of_root = clients.start_ready("bob", uid=BOB, mib=CLIENT_MIB, seconds=200)
        own = anns_clients.start_ready("ann", uid=ANN, mib=CLIENT_MIB, seconds=200)

        def shown() -> None:
            scrape = _attributes(exporter, {daemon: of_root, anns_daemon: own})
            for each, owner in ((daemon, 0), (anns_daemon, ANN)):
                name = str(each.pipe_directory)
                assert scrape.value("cuda_mps_daemon_up", daemon=name) == 1
                assert scrape.value("cuda_mps_daemon_info", daemon=name, uid=str(owner)) == 1
                assert scrape.value("cuda_mps_bypassing_processes", daemon=name, gpu=gpu.uuid) == 0

        eventually(shown, within=READ_WITHIN)

    def test_a_guest_of_another_user(
        self, exporter: Exporter, anns_daemon: ControlDaemon, anns_clients: Clients
    ) -> None:
        """It is unknown whether MPS serves such a client. The exporter lists it if the daemon does."""
        guest = anns_clients.start("eve", uid=EVE, mib=CLIENT_MIB, seconds=60)
        time.sleep(TURN_SECONDS)
        listed = anns_daemon.clients()
        figures.note(
            users_guest_of_ordinary_daemon="listed"
            if guest.pid in listed
            else f"errors {guest.error_codes}"
            if guest.error_codes
            else "bypasses"
            if guest.events("ready")
            else "waits"
        )

        def shown() -> None:
            infos = exporter.scrape().select("cuda_mps_client_info", daemon=str(anns_daemon.pipe_directory))
            assert {info.labels["uid"] for info in infos if int(info.labels["pid"]) == guest.pid} == (
                {str(EVE)} if guest.pid in listed else set()
            )
            assert {int(info.labels["pid"]) for info in infos} == listed

        eventually(shown, within=READ_WITHIN)

    def test_a_loss_names_its_users_alone(
        self, exporter: Exporter, daemon: ControlDaemon, anns_daemon: ControlDaemon, anns_clients: Clients
    ) -> None:
        name = str(anns_daemon.pipe_directory)
        own = anns_clients.start_ready("later", uid=ANN, seconds=200)
        eventually(lambda: _is_listed(exporter, name, own), within=READ_WITHIN)
        anns_daemon.kill()
        (death,) = eventually(lambda: _deaths(exporter, "daemon_died"), within=READ_WITHIN)
        _names_everyone(exporter, death, [own])
        scrape = exporter.scrape()
        assert scrape.total("cuda_mps_daemon_losses_total", daemon=name) == 1
        assert scrape.total("cuda_mps_daemon_losses_total", daemon=str(daemon.pipe_directory)) == 0


@pytest.fixture
def with_rights(root: Path, daemon: ControlDaemon) -> Iterator[InstalledExporter]:
    """Yield an exporter with the rights of its unit, and without a configured daemon."""
    program, prefix = install(root / "program"), with_rights_of_unit(MONITOR)
    yield from until_end(InstalledExporter(program, daemon.directory / "unit", uid=MONITOR, prefix=prefix))


@pytest.fixture
def without_right(root: Path, daemon: ControlDaemon) -> Iterator[InstalledExporter]:
    """Yield an exporter without any right, of one daemon."""
    program, prefix = install(root / "program"), without_rights(MONITOR)
    configured = (f"--pipe-directory={daemon.pipe_directory}", f"--log-directory={daemon.log_directory}")
    directory = daemon.directory / "user"
    yield from until_end(InstalledExporter(program, directory, *configured, uid=MONITOR, prefix=prefix))


def test_users_of_several_daemons_with_the_units_rights(
    with_rights: InstalledExporter,
    daemon: ControlDaemon,
    clients: Clients,
    anns_daemon: ControlDaemon,
    anns_clients: Clients,
    gpu: Device,
) -> None:
    """The exporter finds both daemons, and reads all sources.

    GPU_SYSTEM_CALLS names a file with the numbers of the system calls that the unit's SystemCallFilter= leaves, as
    JSON; without one, all are open.
    """
    present = clients.start_ready("bob", uid=BOB, mib=CLIENT_MIB, seconds=60)
    anns = anns_clients.start_ready("ann", uid=ANN, mib=CLIENT_MIB, seconds=60)

    def seen() -> Scrape:
        scrape = _attributes(with_rights, {daemon: present, anns_daemon: anns})
        assert scrape.value("cuda_mps_gpu_up", gpu=gpu.uuid) == 1
        for each, client in ((daemon, present), (anns_daemon, anns)):
            name = str(each.pipe_directory)
            assert scrape.value("cuda_mps_daemon_up", daemon=name) == 1
            assert scrape.memory_by_pid().get(client.pid, 0) >= CLIENT_MIB * MIB
            assert scrape.value("cuda_mps_exporter_log_followed", daemon=name, file="control.log") == 1
        return scrape

    assert eventually(seen, within=READ_WITHIN).blind_sources() == []
    figures.note(unit_system_calls_filtered="GPU_SYSTEM_CALLS" in os.environ)


def test_users_of_several_daemons_without_any_right(
    without_right: InstalledExporter,
    daemon: ControlDaemon,
    clients: Clients,
    anns_daemon: ControlDaemon,
    anns_clients: Clients,
) -> None:
    """The clients of a configured daemon have their users. The other daemon is reported as not located."""
    anns_clients.start_ready("ann", uid=ANN, mib=CLIENT_MIB, seconds=60)
    expected = {daemon: clients.start_ready("bob", uid=BOB, mib=CLIENT_MIB, seconds=60)}
    scrape = eventually(lambda: _attributes(without_right, expected), within=READ_WITHIN)
    assert not scrape.select("cuda_mps_daemon_up", daemon=str(anns_daemon.pipe_directory))
    assert scrape.value("cuda_mps_exporter_source_up", source="discovery") == 0
    figures.note(users_blind_sources_without_rights=" ".join(scrape.blind_sources()))
    assert f"control daemon {anns_daemon.pid} cannot be located" in without_right.command("status")
    assert "CAP_SYS_PTRACE" in without_right.command("doctor")


def _attributes(exporter: Exporter | InstalledExporter, clients: Mapping[ControlDaemon, Client]) -> Scrape:
    """Check that each daemon has its client, and the client its user."""
    scrape = exporter.scrape()
    for daemon, client in clients.items():
        listed = scrape.select("cuda_mps_client_info", daemon=str(daemon.pipe_directory))
        assert [(info.labels["pid"], info.labels["uid"]) for info in listed] == [(str(client.pid), str(client.uid))]
    return scrape


def _served(clients: list[Client]) -> Client:
    found = [client for client in clients if client.events("ready")]
    assert found
    return found[0]


def _shows(exporter: Exporter, clients: list[Client]) -> Scrape:
    """Check that clients with a server are listed with their users, and that the others are counted as waiting."""
    scrape = exporter.scrape()
    served = {str(client.pid): str(client.uid) for client in clients if client.events("ready")}
    infos = scrape.select("cuda_mps_client_info")
    assert {each.labels["pid"]: each.labels["uid"] for each in infos} == served
    assert {each.labels["pid"]: each.labels["user"] for each in infos} == served, "no user has a name"
    assert scrape.total("cuda_mps_clients_waiting") == len(clients) - len(served)
    return scrape


def _is_listed(exporter: Exporter, daemon: str, client: Client) -> None:
    assert exporter.scrape().value("cuda_mps_client_info", daemon=daemon, pid=str(client.pid), uid=str(client.uid)) == 1


def _has_recovered(exporter: Exporter, affected: int) -> None:
    scrape = exporter.scrape()
    assert scrape.total("cuda_mps_faults_total") == 1
    assert scrape.total("cuda_mps_fault_last_affected_clients") == affected
    assert scrape.state("cuda_mps_server_state") == "active"


def _deaths(exporter: Exporter, kind: str) -> list[str]:
    found = exporter.scrape().select("cuda_mps_death_timestamp_seconds", kind=kind)
    assert len(found) == 1
    return [each.labels["incident"] for each in found]


def _names_everyone(exporter: Exporter, incident: str, clients: list[Client]) -> None:
    """Check that the incident has the user beside the PID of each client."""
    shown = eventually(lambda: exporter.incident(incident), within=READ_WITHIN)
    for client in clients:
        assert f"PID {client.pid} (load of {client.uid})" in shown, shown
