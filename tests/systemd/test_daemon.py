"""The daemon's unit with a real systemd: a killed daemon restarts, and a stopped one stays stopped."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.eventually import PATIENCE_SECONDS, eventually, until

from .node import CLIENT, DAEMON, EXPORTER, NAME, Node

SYSTEMD = Path(__file__).parents[2] / "systemd"

QUIT = "quit command issued with timeout of 20"
"""The line that the daemon logs when its unit is stopped."""

ACCEPTING = "Accepting connection..."

pytestmark = [pytest.mark.systems, pytest.mark.usefixtures("at_work")]


def test_an_enabled_daemon_is_expected_and_its_stdout_is_followed(node: Node) -> None:
    node.mps.connect_and_wait(CLIENT)

    node.shows(1, "cuda_mps_server_clients", daemon=NAME)
    assert node.value("cuda_mps_daemon_info", daemon=NAME, expected="true", unit=DAEMON) == 1
    eventually(lambda: _assert_follows(node, "stdout.log"))
    node.mps.disconnect(CLIENT)
    node.shows(0, "cuda_mps_server_clients", daemon=NAME)


def _assert_follows(node: Node, file: str) -> None:
    """Until its unit is found, a discovered daemon is assumed to have the usual log files."""
    assert [labels["file"] for labels, _ in node.samples("cuda_mps_exporter_log_followed", daemon=NAME)] == [file]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_systemd_restarts_a_killed_daemon(node: Node, how: signal.Signals) -> None:
    before, restarts, at = node.pid(DAEMON), node.restarts(DAEMON), time.time()

    node.machine.signal(DAEMON, how.name)
    eventually(lambda: node.answers(before))

    assert node.restarts(DAEMON) == restarts + 1
    assert node.machine.show(DAEMON, "RestartUSec") == "100ms"
    eventually(lambda: node.has_lost(1, since=at))
    node.shows(1, "cuda_mps_daemon_up", daemon=NAME)


def test_kills_a_server_that_outlives_the_daemon(node: Node) -> None:
    """A suspended server does (measured, R580)."""
    at = time.time()
    node.mps.connect_and_wait(CLIENT)
    server = eventually(node.server)
    node.machine.do("kill", "-STOP", str(server))
    before = node.pid(DAEMON)

    node.machine.signal(DAEMON, "SIGKILL")
    eventually(lambda: node.answers(before))

    # A moment after its end, its parent has waited for it.
    until(lambda: node.machine.run("kill", "-0", str(server)).returncode != 0)
    eventually(lambda: node.has_lost(1, since=at))


def test_a_stopped_unit_drains_and_stays_stopped(node: Node) -> None:
    at = time.time()
    node.mps.connect_and_wait(CLIENT)
    node.shows(1, "cuda_mps_daemon_clients", daemon=NAME)
    quits = node.logs(QUIT)

    stopping = node.machine.start("systemctl", "stop", DAEMON)
    eventually(lambda: node.has_logged(QUIT, quits + 1))
    assert stopping.poll() is None, "it waits for its clients"
    node.mps.disconnect(CLIENT)

    assert stopping.wait(PATIENCE_SECONDS) == 0
    node.shows(1, "cuda_mps_daemon_state", daemon=NAME, state="stopped")
    assert (node.machine.show(DAEMON, "Result"), node.pid(DAEMON)) == ("success", 0)
    node.has_lost(0, since=at)


def test_sends_quit_to_a_daemon_that_others_query_all_the_time(node: Node) -> None:
    """While one session is open, every other is refused, that of ExecStop too (measured, R580)."""
    quits = node.logs(QUIT)

    with queried_all_the_time(node):
        node.machine.do("systemctl", "stop", DAEMON)

    node.has_logged(QUIT, quits + 1)


def test_sends_quit_after_the_session_of_another_process(node: Node) -> None:
    """That its commands are refused shows that a daemon responds."""
    quits, accepted = node.logs(QUIT), node.logs(ACCEPTING)
    session = node.machine.start("sh", "-c", "(echo get_server_list; sleep 5) | nvidia-cuda-mps-control >/dev/null")
    eventually(lambda: _has_accepted(node, accepted + 1))

    node.machine.do("systemctl", "stop", DAEMON)

    assert session.wait(PATIENCE_SECONDS) == 0
    node.has_logged(QUIT, quits + 1)


def test_repeats_a_quit_that_had_no_effect(node: Node) -> None:
    """A refused command can return nothing, and exit status 0 (measured, R580)."""
    quits, accepted = node.logs(QUIT), node.logs(ACCEPTING)
    node.mps.deaf()

    stopping = node.machine.start("systemctl", "stop", DAEMON)
    eventually(lambda: _has_accepted(node, accepted + 5))
    node.mps.deaf(False)

    assert stopping.wait(PATIENCE_SECONDS) == 0
    node.has_logged(QUIT, quits + 1)


def _has_accepted(node: Node, connections: int) -> None:
    assert node.logs(ACCEPTING) >= connections


@contextmanager
def queried_all_the_time(node: Node) -> Iterator[None]:
    """Keep sessions open, one after another, until the daemon has ended."""
    session = "(echo get_server_list; sleep 0.1) | nvidia-cuda-mps-control"
    others = node.machine.start("sh", "-c", f"exec >/dev/null 2>&1; while test -e {NAME}/log; do {session}; done")
    yield
    others.wait(PATIENCE_SECONDS)


def test_a_hung_daemon_can_be_restarted(node: Node) -> None:
    """ExecStop ends before TimeoutStopSec, after which systemd would log a timeout."""
    before = node.pid(DAEMON)
    timeouts = node.journal(DAEMON).count("timed out")

    node.machine.signal(DAEMON, "SIGSTOP")
    node.machine.do("systemctl", "restart", DAEMON)
    eventually(lambda: node.answers(before))

    assert node.journal(DAEMON).count("timed out") == timeouts


@pytest.fixture
def defaults(node: Node) -> Iterator[Path]:
    """The environment file of the daemon, restored after the test."""
    file = node.machine.root / "etc" / "default" / "nvidia-cuda-mps"
    yield file
    file.unlink()


def test_systemd_gives_up_on_a_daemon_that_dies_repeatedly(node: Node, defaults: Path) -> None:
    defaults.write_text("CUDA_MPS_LOG_DIRECTORY=/nowhere\n")

    node.machine.signal(DAEMON, "SIGKILL")

    eventually(lambda: node.has_failed(DAEMON))

    assert int(node.machine.show(DAEMON, "NRestarts")) >= 5
    node.shows(0, "cuda_mps_daemon_up", daemon=NAME)


def test_reads_limits_from_the_environment_file(node: Node, defaults: Path) -> None:
    defaults.write_text("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40\n")
    node.machine.do("systemctl", "restart", DAEMON)
    eventually(lambda: node.answers(0))

    assert node.ask("get_default_active_thread_percentage") == "40.0"


@pytest.fixture
def with_protocol_3(node: Node) -> Iterator[None]:
    """Stop the daemon, and start it with the drop-in for protocol 3."""
    file = "/etc/systemd/system/nvidia-cuda-mps.service.d/protocol-3.conf"
    node.machine.do("systemctl", "stop", DAEMON)
    node.machine.write(file, (SYSTEMD / "nvidia-cuda-mps.service.d" / "protocol-3.conf").read_text())
    node.machine.do("systemctl", "daemon-reload")
    node.machine.do("systemctl", "start", DAEMON)
    yield
    node.machine.do("rm", file)
    node.machine.do("systemctl", "daemon-reload")
    node.machine.do("systemctl", "restart", DAEMON)


@pytest.mark.usefixtures("with_protocol_3")
def test_a_daemon_with_protocol_3_is_stopped_by_its_own_option(node: Node) -> None:
    at = time.time()
    node.shows(1, "cuda_mps_daemon_info", daemon=NAME, protocol="3")

    with queried_all_the_time(node):
        node.machine.do("systemctl", "stop", DAEMON)

    node.shows(1, "cuda_mps_daemon_state", daemon=NAME, state="stopped")
    assert (node.machine.show(DAEMON, "Result"), node.pid(DAEMON)) == ("success", 0)
    assert node.logs("Cmd:-q")
    node.has_lost(0, since=at)


def test_truncates_the_log_while_clients_connect(node: Node) -> None:
    log = node.mps.log_directory / "stdout.log"
    connected = node.value("cuda_mps_clients_connected_total", daemon=NAME) or 0
    lost = node.value("cuda_mps_exporter_log_lines_lost_total", daemon=NAME)
    for pid in range(CLIENT, CLIENT + 3):
        node.mps.connect_and_wait(pid)
        node.shows(1, "cuda_mps_daemon_clients", daemon=NAME)
        if pid == CLIENT + 1:
            node.machine.do("logrotate", "--force", "/etc/logrotate.d/nvidia-cuda-mps")
        node.mps.disconnect(pid)
        node.shows(0, "cuda_mps_daemon_clients", daemon=NAME)

    assert node.value("cuda_mps_clients_connected_total", daemon=NAME) == connected + 3
    assert node.value("cuda_mps_exporter_log_lines_lost_total", daemon=NAME) == lost
    assert (log.parent / "stdout.log.1").stat().st_size > 0
    assert b"\0" not in log.read_bytes(), "it is appended to"


def test_a_gpu_can_have_its_own_daemon(node: Node) -> None:
    unit = "nvidia-cuda-mps@GPU-1efa3f60-b0ba-115c-7d58-bd5711d3de4b.service"
    directory = "/run/nvidia-mps/GPU-1efa3f60-b0ba-115c-7d58-bd5711d3de4b"
    node.machine.do("systemctl", "enable", "--now", unit)
    node.machine.do("systemctl", "reload", EXPORTER)

    node.shows(1, "cuda_mps_daemon_info", daemon=directory, unit=unit, expected="true")
    node.shows(1, "cuda_mps_daemon_up", daemon=directory)
    node.shows(1, "cuda_mps_exporter_log_followed", daemon=directory, file="stdout.log")
    node.machine.do("systemctl", "disable", "--now", unit)
    node.machine.do("systemctl", "reload", EXPORTER)
    node.shows(1, "cuda_mps_daemon_state", daemon=directory, state="stopped")


def test_finds_a_manually_started_daemon_by_its_environment(node: Node) -> None:
    """It belongs to another user. The exporter has CAP_SYS_PTRACE, but cannot read that user's files."""
    directories = "CUDA_MPS_PIPE_DIRECTORY=/srv/pipe CUDA_MPS_LOG_DIRECTORY=/srv"
    node.machine.do("sh", "-c", f"export {directories}; mkdir -p /srv/pipe; exec nvidia-cuda-mps-control -d")
    node.machine.do("systemctl", "reload", EXPORTER)

    node.shows(1, "cuda_mps_daemon_up", daemon="/srv/pipe")
    node.shows(1, "cuda_mps_exporter_log_followed", daemon="/srv/pipe", file="control.log")
    quit_ = "while test -e /srv/pipe/log; do echo quit | nvidia-cuda-mps-control || sleep 0.1; done"
    node.machine.do("sh", "-c", f"export {directories}; {quit_}")
    node.shows(1, "cuda_mps_daemon_state", daemon="/srv/pipe", state="stopped")
