"""Clients in containers that use the daemon of the host: their PIDs, cgroups and users, faults and ends.

A daemon in a container of its own is in test_many_daemons.py.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from tests.eventually import eventually

from . import figures
from .child import until_end
from .clients import Client, Clients
from .containers import STRANGER, USERS, Container, take_pid
from .device import Device
from .installed import InstalledExporter, install
from .mps import ControlDaemon
from .program import Exporter
from .scrape import MIB, Scrape

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(90)]

POD = "6f9a2c1e-1b5d-4c57-9b0e-3d0f5a7c2b11"
POD_ID, DOCKER_ID, OTHER_ID = ("a1" * 32, "b2" * 32, "c3" * 32)
POD_SLICE = f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice"
POD_CGROUP = f"{POD_SLICE}/cri-containerd-{POD_ID}.scope"
DOCKER_CGROUP = f"system.slice/docker-{DOCKER_ID}.scope"
OTHER_CGROUP = f"system.slice/docker-{OTHER_ID}.scope"
CLIENT_MIB = 64
# Discovery and NVML's lists: every 10 s.
READ_WITHIN = 40
LISTED_SECONDS = 3
UNSHARE = ("unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--")


@pytest.fixture(scope="class")
def unstarted_daemon(root: Path, numbers: Iterator[int]) -> Iterator[ControlDaemon]:
    """Yield root's daemon with one server for all users."""
    yield from until_end(ControlDaemon(root / str(next(numbers)), options=["-multiuser-server"]))


@pytest.fixture
def pod(daemon: ControlDaemon, load_program: Path, numbers: Iterator[int]) -> Iterator[Container]:
    yield from _container(daemon, load_program, numbers, POD_CGROUP)


@pytest.fixture
def docker(daemon: ControlDaemon, load_program: Path, numbers: Iterator[int]) -> Iterator[Container]:
    yield from _container(daemon, load_program, numbers, DOCKER_CGROUP)


def _container(
    daemon: ControlDaemon, load_program: Path, numbers: Iterator[int], cgroup: str, **options: bool
) -> Iterator[Container]:
    directory = daemon.directory / f"container{next(numbers)}"
    yield from until_end(Container(daemon, directory, cgroup, load_program, **options))


class TestContainers:
    """Two containers and the host share a daemon."""

    def test_clients_have_host_pids_and_the_names_of_their_containers(
        self,
        exporter: Exporter,
        daemon: ControlDaemon,
        gpu: Device,
        clients: Clients,
        pod: Container,
        docker: Container,
    ) -> None:
        """The users are those of the host, also if they have other names in the container."""
        trained = pod.start_ready("train", uid=USERS[0], mib=CLIENT_MIB, seconds=120)
        served = docker.start_ready("serve", uid=USERS[1], mib=CLIENT_MIB, seconds=120)
        native = clients.start_ready("native", mib=CLIENT_MIB, seconds=120)

        def shown() -> None:
            scrape = exporter.scrape()
            assert scrape.listed_pids() == sorted(each.pid for each in (trained, served, native))
            used = scrape.memory_by_pid()
            for client, labels in (
                (trained, {"client_container": POD_ID, "client_pod_uid": POD}),
                (served, {"client_container": DOCKER_ID, "client_pod_uid": ""}),
                (native, {"client_container": "", "client_pod_uid": ""}),
            ):
                user = "root" if client.uid == 0 else str(client.uid)
                labels |= {"uid": str(client.uid), "user": user, "command": "load"}
                assert scrape.value("cuda_mps_client_info", pid=str(client.pid), **labels) == 1
                assert used.get(client.pid, 0) >= CLIENT_MIB * MIB
            assert scrape.value("cuda_mps_bypassing_processes", gpu=gpu.uuid) == 0

        eventually(shown, within=READ_WITHIN)
        figures.note(container_pids_in_server_log=_pids_in_log(daemon, trained))
        native.leave()

    def test_a_fault_in_a_container_names_containers(
        self, exporter: Exporter, pod: Container, docker: Container
    ) -> None:
        """The incident has host PIDs, and the workloads that a fault affected."""
        before = exporter.scrape().total("cuda_mps_faults_total")
        victim = pod.start_ready("victim", uid=USERS[0], seconds=120, busy_ms=1, every_ms=20, hold=4)
        cause = docker.start_ready("cause", uid=USERS[1], fault="oob", fault_after=5, busy_ms=1, every_ms=20)
        eventually(lambda: _lists(exporter, [victim, cause]), within=READ_WITHIN)
        pids = victim.pid, cause.pid
        assert victim.fails()
        assert cause.fails()

        def over() -> Scrape:
            scrape = exporter.scrape()
            assert scrape.total("cuda_mps_faults_total") == before + 1
            assert scrape.state("cuda_mps_server_state") == "active"
            return scrape

        scrape = eventually(over, within=READ_WITHIN)
        (fault,) = scrape.select("cuda_mps_fault_info")
        figures.note(container_fault_suspect=fault.labels["suspect_workload"][:40])
        affected = {
            (each.labels["workload_kind"], each.labels["workload"]): each.value
            for each in scrape.select("cuda_mps_fault_last_affected_workload_clients")
        }
        assert affected == {("pod", POD): 1, ("container", DOCKER_ID): 1}
        text = eventually(lambda: exporter.incident(fault.labels["incident"]), within=READ_WITHIN)
        assert all(f"PID {pid} (" in text for pid in pids), text

    def test_the_end_of_a_container_is_no_loss(self, exporter: Exporter, pod: Container, docker: Container) -> None:
        """The clients of a container end with its first process. Those of the other container remain."""
        ended = [pod.start_ready(name, uid=USERS[0], seconds=120) for name in ("first", "second")]
        remains = docker.start_ready("remains", uid=USERS[1], seconds=120)
        eventually(lambda: _lists(exporter, [*ended, remains]), within=READ_WITHIN)
        pod.kill()
        eventually(lambda: _lists(exporter, [remains]), within=READ_WITHIN)
        scrape = exporter.scrape()
        assert not scrape.select("cuda_mps_client_info", client_container=POD_ID)
        assert scrape.total("cuda_mps_daemon_losses_total") == 0
        assert scrape.select("cuda_mps_death_timestamp_seconds") == []
        assert remains.error_codes == []


@pytest.fixture
def with_own_memory(daemon: ControlDaemon, load_program: Path, numbers: Iterator[int]) -> Iterator[Container]:
    yield from _container(daemon, load_program, numbers, OTHER_CGROUP, own_memory=True)


def test_a_container_with_its_own_shared_memory(
    exporter: Exporter, daemon: ControlDaemon, with_own_memory: Container
) -> None:
    """The result is whether MPS serves the client. The exporter lists it if the daemon does."""
    client = with_own_memory.start("apart", mib=CLIENT_MIB, seconds=60)
    client.settle()
    listed = not client.error_codes and client.pid in daemon.clients()
    result = f"errors {client.error_codes}" if client.error_codes else f"ready, {'' if listed else 'not '}listed"
    figures.note(container_with_own_shared_memory=result)
    eventually(lambda: _lists(exporter, [client] if listed else []), within=READ_WITHIN)


@pytest.fixture
def apart(root: Path, daemon: ControlDaemon, numbers: Iterator[int]) -> Iterator[InstalledExporter]:
    """Yield an exporter of root in its own PID namespace, with the directories of the host's daemon."""
    arguments = (f"--pipe-directory={daemon.pipe_directory}", f"--log-directory={daemon.log_directory}")
    exporter = InstalledExporter(
        install(root / "program"), daemon.directory / f"apart{next(numbers)}", *arguments, uid=0, prefix=UNSHARE
    )
    yield exporter
    # unshare(1) ignores SIGTERM while it waits.
    os.kill(_init_of(exporter), signal.SIGTERM)
    exporter.end()


class TestExporterInContainer:
    """An exporter without hostPID, beside the daemon of the host."""

    def test_says_that_it_is_in_a_container(
        self, apart: InstalledExporter, daemon: ControlDaemon, clients: Clients
    ) -> None:
        """The exporter does not report what it cannot see as a loss."""
        client = clients.start_ready("client", uid=USERS[0], mib=CLIENT_MIB, seconds=60)
        eventually(apart.scrape, within=READ_WITHIN)
        answer = _asks(_inside(apart), daemon)
        time.sleep(LISTED_SECONDS)
        scrape = apart.scrape()
        figures.note(
            container_control_program=answer or "answers",
            container_exporter_daemon_state=" ".join(
                each.labels["state"] for each in scrape.select("cuda_mps_daemon_state") if each.value == 1
            ),
            container_exporter_memory_series=len(scrape.select("cuda_mps_client_memory_used_bytes")),
        )
        assert scrape.total("cuda_mps_daemon_losses_total") == 0
        assert scrape.select("cuda_mps_death_timestamp_seconds") == []
        assert "not in the host's PID namespace" in apart.command("doctor")
        client.leave()

    def test_takes_no_stranger_for_a_client(
        self, apart: InstalledExporter, daemon: ControlDaemon, clients: Clients
    ) -> None:
        """Other processes in the exporter's container have the PIDs of daemon and client."""
        client = clients.start_ready("client", uid=USERS[0], mib=CLIENT_MIB, seconds=60)
        if not all(take_pid(_init_of(apart), pid) for pid in (daemon.pid, client.pid)):
            pytest.skip("the kernel does not let a process choose a PID")
        answer = _asks(_inside(apart), daemon)
        figures.note(container_control_program_beside_a_stranger=answer or "answers")
        eventually(lambda: _settled_status(apart, known=not answer), within=READ_WITHIN)
        time.sleep(LISTED_SECONDS)
        status = _settled_status(apart, known=not answer)
        figures.note(container_exporter_names_a_stranger=str(STRANGER) in status)
        assert str(STRANGER) not in status, status


def _init_of(exporter: InstalledExporter) -> int:
    (init,) = psutil.Process(exporter.child.pid).children()
    return int(init.pid)


def _inside(exporter: InstalledExporter) -> tuple[str, ...]:
    return ("nsenter", f"--target={_init_of(exporter)}", "--pid", "--mount", "--")


def _settled_status(exporter: InstalledExporter, *, known: bool) -> str:
    status = exporter.command("status")
    assert ("1 client" if known else "0 of 1 daemons up") in status, status
    return status


def _asks(prefix: Sequence[str], daemon: ControlDaemon) -> str:
    """Return what is wrong with a command that is sent in other namespaces; empty if it is answered."""
    words = (*prefix, "nvidia-cuda-mps-control")
    done = subprocess.run(
        words, input="get_server_list\n", env=daemon.environment, capture_output=True, text=True, timeout=20
    )
    return done.stderr.strip()


def _lists(exporter: Exporter, clients: list[Client]) -> None:
    assert exporter.scrape().listed_pids() == sorted(client.pid for client in clients)


def _pids_in_log(daemon: ControlDaemon, client: Client) -> str:
    """Return which PIDs of a contained client the server's log has."""
    pids = set(re.findall(r"Client \{PID: (\d+),", daemon.server_log.read_text(errors="replace")))
    own = {"host": client.pid, "own": client.inner_pid, "zero": 0}
    return " ".join(name for name, pid in own.items() if str(pid) in pids)
