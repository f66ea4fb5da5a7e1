"""The daemon in the foreground and the exporter, both as their shipped units, with a real systemd.

GPU_SYSTEMD names the archive that pack_systemd.sh makes. Without one, these tests are skipped.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.systemd.node import DAEMON, EXPORTER, GUIDE, NAME

from . import figures
from .device import Device
from .scrape import MIB
from .systemd_node import GpuMachine, GpuNode

pytestmark = pytest.mark.gpu

CLIENT_MIB = 64
PERCENTAGE = 40
ABOUT = 0.45
"""MPS rounds."""
DROP_IN = f"/etc/systemd/system/{DAEMON}.d/no_systemd_restart.conf"
LIMITS = f'''
[[daemons]]
pipe_directory = "{NAME}"
log_directory = "/var/log/nvidia-mps"
unit = "{DAEMON}"
pinned_memory_limits = ["0=2G"]
'''


@pytest.fixture(scope="session")
def machine(root: Path, load_program: Path) -> Iterator[GpuNode]:
    """Yield a booted systemd with both units. It lasts for all tests here."""
    archive = os.environ.get("GPU_SYSTEMD")
    if archive is None:
        pytest.skip("GPU_SYSTEMD names no archive of pack_systemd.sh")
    begun = time.time()
    booted = GpuMachine(Path(archive).resolve(), load_program, root / "systemd")
    try:
        node = GpuNode(booted, root / "systemd")
        try:
            node.set_up()
        except (AssertionError, OSError) as problem:
            pytest.fail(f"{problem}\n{node.evidence()}")
        figures.note(systemd_boot_seconds=round(time.time() - begun, 1))
        yield node
    finally:
        booted.close()


@pytest.fixture
def node(machine: GpuNode) -> Iterator[GpuNode]:
    """Wait until both units run, and end all clients afterwards."""
    machine.settles()
    yield machine
    machine.leave()


class TestUnits:
    """The exporter as it is shipped: an ordinary user with CAP_SYS_PTRACE in its sandbox, which only reads."""

    def test_reads_a_daemon_in_the_foreground(self, node: GpuNode, gpu: Device) -> None:
        """Its logs are its stdout, and NVML works behind DeviceAllow= and SystemCallFilter=."""
        node.serve("train", mib=CLIENT_MIB, seconds=120).ready()

        def read() -> None:
            assert node.value("cuda_mps_client_info", daemon=NAME, unit="train.service", user="root") == 1
            assert node.value("cuda_mps_daemon_info", daemon=NAME, expected="true", unit=DAEMON) == 1
            assert [each["file"] for each, _ in node.samples("cuda_mps_exporter_log_followed", daemon=NAME)] == [
                "stdout.log"
            ]
            assert node.value("cuda_mps_gpu_up", gpu=gpu.uuid) == 1
            memory = node.value("cuda_mps_client_memory_used_bytes", daemon=NAME, gpu=gpu.uuid) or 0
            assert memory >= CLIENT_MIB * MIB

        eventually(read, within=40, every=0.2)
        blind = sorted(each["source"] for each, value in node.samples("cuda_mps_exporter_source_up") if value == 0)
        figures.note(systemd_blind_sources=" ".join(blind))
        assert blind == []

    def test_a_stopped_unit_waits_for_its_client_and_is_no_loss(self, node: GpuNode) -> None:
        """`systemctl stop` sends `quit`."""
        client = node.serve("last", seconds=120)
        client.ready()
        node.shows(1, "cuda_mps_daemon_clients", daemon=NAME)
        begun = time.time()
        stopping = node.machine.start("systemctl", "stop", DAEMON)
        time.sleep(1)
        assert stopping.poll() is None, "it waits for its client"
        client.stop()
        assert stopping.wait(30) == 0
        node.shows(1, "cuda_mps_daemon_state", daemon=NAME, state="stopped")
        assert (node.machine.show(DAEMON, "Result"), node.pid(DAEMON)) == ("success", 0)
        assert client.events("error") == []
        node.has_lost(0, since=begun)


@pytest.fixture(scope="class")
def acting(machine: GpuNode) -> Iterator[None]:
    """Let the exporter act, with the daemon's limits."""
    machine.limit(PERCENTAGE)
    machine.write_configuration(LIMITS)
    machine.follow(GUIDE, "Let it act")
    machine.machine.do("systemctl", "restart", DAEMON, EXPORTER)
    yield
    machine.limit(None)
    machine.write_configuration("")
    machine.machine.do("rm", "-r", f"/etc/systemd/system/{EXPORTER}.d")
    machine.machine.do("systemctl", "daemon-reload")
    machine.machine.do("systemctl", "restart", DAEMON, EXPORTER)


@pytest.mark.usefixtures("acting")
class TestActing:
    """The exporter with `act.conf` and the polkit rule."""

    def test_systemd_restarts_a_killed_daemon_with_the_limit_of_its_environment(self, node: GpuNode) -> None:
        """The watchdog counts the restart, and leaves it to systemd. Both limits count for the next client."""
        eventually(lambda: _is_limited(node))
        everything = node.processors()
        before, restarts, by_systemd = node.pid(DAEMON), node.restarts(DAEMON), node.counted("by_systemd")
        succeeded = node.counted("succeeded")
        client = node.serve("victim", seconds=120)
        assert client.ready()["processors"] < everything * ABOUT
        node.shows(1, "cuda_mps_client_info", daemon=NAME, unit="victim.service")

        killed = time.time()
        node.machine.signal(DAEMON, "SIGKILL")
        eventually(lambda: node.answers(before))
        figures.note(systemd_kill_to_answers_seconds=round(time.time() - killed, 2))

        assert client.errors()
        assert node.restarts(DAEMON) == restarts + 1
        node.shows(by_systemd + 1, "cuda_mps_watchdog_restarts_total", daemon=NAME, result="by_systemd")
        assert node.counted("succeeded") == succeeded
        eventually(lambda: node.has_lost(1, since=killed - 1))
        eventually(lambda: _is_limited(node))
        figures.note(systemd_kill_to_limits_seconds=round(time.time() - killed, 2))
        heir = node.serve("heir", seconds=60, greed=3000).ready()
        assert heir["processors"] < everything * ABOUT
        assert heir["granted"] is False
        (incident,) = [each for each in node.page("/api/v1/incidents")["data"] if "victim.service" in str(each)]
        figures.note(systemd_death_kind=str(incident["kind"]))

    def test_restarts_a_daemon_that_systemd_does_not_restart(self, node: GpuNode) -> None:
        """The exporter calls `systemctl` as an ordinary user, which polkit permits."""
        node.machine.write(DROP_IN, "[Service]\nRestart=no\nRestartForceExitStatus=\n")
        node.machine.do("systemctl", "daemon-reload")
        before, succeeded, restarts = node.pid(DAEMON), node.counted("succeeded"), node.restarts(DAEMON)
        try:
            killed = time.time()
            node.machine.signal(DAEMON, "SIGKILL")
            eventually(lambda: node.answers(before), within=60)
            figures.note(systemctl_kill_to_answers_seconds=round(time.time() - killed, 2))
        finally:
            (node.machine.root / DROP_IN.lstrip("/")).unlink()
            node.machine.do("systemctl", "daemon-reload")
        assert node.restarts(DAEMON) <= restarts, "systemd has not restarted it"
        node.shows(succeeded + 1, "cuda_mps_watchdog_restarts_total", daemon=NAME, result="succeeded")
        eventually(lambda: _is_limited(node))

    def test_restarts_a_suspended_daemon_once(self, node: GpuNode) -> None:
        """ExecStop= gives up on a daemon that does not answer."""
        client = node.serve("waiting", seconds=120)
        client.ready()
        before, succeeded = node.pid(DAEMON), node.counted("succeeded")
        stopped = time.time()
        node.machine.signal(DAEMON, "SIGSTOP")
        eventually(lambda: node.answers(before), within=100)
        figures.note(systemd_stopped_to_answers_seconds=round(time.time() - stopped, 1))
        node.shows(succeeded + 1, "cuda_mps_watchdog_restarts_total", daemon=NAME, result="succeeded")
        assert client.errors()
        node.is_known()


def _is_limited(node: GpuNode) -> None:
    assert node.ask("get_default_device_pinned_mem_limit 0") == "2G"
    assert node.ask("get_default_active_thread_percentage") == f"{PERCENTAGE}.0"
