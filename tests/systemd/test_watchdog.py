"""The watchdog acts with a real systemd, with the rights of its drop-in and the polkit rule."""

import time
from collections.abc import Iterator

import pytest

from exporter.loop import READ_SECONDS, STOPPED_SECONDS
from tests.eventually import eventually

from .node import CONFIGURATION, DAEMON, EXPORTER, GUIDE, NAME, Node
from .node import RULES as POLKIT_RULES

LIMITS = f'''
[[daemons]]
pipe_directory = "{NAME}"
log_directory = "/var/log/nvidia-mps"
unit = "{DAEMON}"
pinned_memory_limits = ["0=2G"]
'''
DROP_IN = f"/etc/systemd/system/{DAEMON}.d/no_systemd_restart.conf"

pytestmark = [pytest.mark.systems, pytest.mark.usefixtures("at_work")]


@pytest.fixture(scope="module", autouse=True)
def _acting(node: Node) -> Iterator[None]:
    """Permit the watchdog to act, with all other optional rights, until the end of this file."""
    node.machine.write(CONFIGURATION, node.settings + LIMITS)
    node.machine.do(
        "sh", "-c", f"install -Dm 644 -t /etc/systemd/system/{EXPORTER}.d /root/systemd/{EXPORTER}.d/*.conf"
    )
    node.follow(GUIDE, "Let it act")
    yield
    node.machine.write(CONFIGURATION, node.settings)
    node.machine.do("rm", "-r", f"/etc/systemd/system/{EXPORTER}.d", f"/etc/polkit-1/rules.d/{POLKIT_RULES}")
    node.machine.do("systemctl", "daemon-reload")
    node.machine.do("systemctl", "restart", DAEMON, EXPORTER)


def _restarts(node: Node, result: str) -> float:
    return node.value("cuda_mps_watchdog_restarts_total", daemon=NAME, result=result) or 0


def test_reports_that_it_acts_and_reads_everything(node: Node) -> None:
    node.shows(1, "cuda_mps_watchdog_mode", daemon=NAME, mode="act")
    node.shows(1, "cuda_mps_exporter_source_up", source="kernel")


def test_counts_restarts_of_systemd_and_leaves_them_to_it(node: Node) -> None:
    before, counted, done = node.pid(DAEMON), _restarts(node, "by_systemd"), _restarts(node, "succeeded")

    node.machine.signal(DAEMON, "SIGKILL")
    eventually(lambda: node.answers(before))

    node.shows(counted + 1, "cuda_mps_watchdog_restarts_total", daemon=NAME, result="by_systemd")
    assert _restarts(node, "succeeded") == done


def test_sets_limits_as_the_daemons_user(node: Node) -> None:
    """The daemon obeys only its own user and root, and the exporter is not root."""
    eventually(lambda: _assert_limited(node))

    before = node.pid(DAEMON)
    node.machine.do("systemctl", "restart", DAEMON)
    eventually(lambda: node.answers(before))

    eventually(lambda: _assert_limited(node))


def _assert_limited(node: Node) -> None:
    assert node.ask("get_default_device_pinned_mem_limit 0") == "2G"


def test_restarts_a_hung_daemon_once(node: Node) -> None:
    before, done, started = node.pid(DAEMON), _restarts(node, "succeeded"), node.starts()

    node.machine.signal(DAEMON, "SIGSTOP")
    node.shows(done + 1, "cuda_mps_watchdog_restarts_total", daemon=NAME, result="succeeded")

    eventually(lambda: node.answers(before))
    assert node.starts() == started + 1, "systemd, by itself, was not there first"


@pytest.fixture
def no_systemd_restart(node: Node) -> Iterator[None]:
    """Prevent systemd from restarting the daemon."""
    node.machine.write(DROP_IN, "[Service]\nRestart=no\nRestartForceExitStatus=\n")
    node.machine.do("systemctl", "daemon-reload")
    yield
    (node.machine.root / DROP_IN.lstrip("/")).unlink()
    node.machine.do("systemctl", "daemon-reload")


@pytest.mark.usefixtures("no_systemd_restart")
def test_restarts_a_daemon_that_systemd_does_not_restart(node: Node) -> None:
    before, done, restarts = node.pid(DAEMON), _restarts(node, "succeeded"), node.restarts(DAEMON)

    node.machine.signal(DAEMON, "SIGKILL")
    eventually(lambda: node.answers(before))

    assert node.restarts(DAEMON) <= restarts, "systemd has not restarted it"
    node.shows(done + 1, "cuda_mps_watchdog_restarts_total", daemon=NAME, result="succeeded")


def test_leaves_a_manually_stopped_daemon_stopped(node: Node) -> None:
    done = sum(value for _, value in node.samples("cuda_mps_watchdog_restarts_total", daemon=NAME))

    node.machine.do("systemctl", "stop", DAEMON)
    node.shows(1, "cuda_mps_daemon_state", daemon=NAME, state="stopped")
    node.machine.do("systemctl", "restart", EXPORTER)
    node.shows(1, "cuda_mps_daemon_state", daemon=NAME, state="stopped")

    time.sleep(3)
    assert node.pid(DAEMON) == 0
    assert sum(value for _, value in node.samples("cuda_mps_watchdog_restarts_total", daemon=NAME)) == done


STOPS = 2
"""How often the exporter is stopped."""


def test_leaves_a_daemon_stopped_that_was_stopped_while_the_exporter_stood_still(node: Node) -> None:
    def restarts() -> float:
        return sum(value for _, value in node.samples("cuda_mps_watchdog_restarts_total", daemon=NAME))

    for _ in range(STOPS):
        node.settles()
        done = restarts()
        node.machine.signal(EXPORTER, "SIGSTOP")
        stop = node.machine.start("systemctl", "stop", DAEMON)
        time.sleep(STOPPED_SECONDS + 1)
        node.machine.signal(EXPORTER, "SIGCONT")
        assert stop.wait() == 0
        node.shows(1, "cuda_mps_daemon_state", daemon=NAME, state="stopped")
        # A wrong restart comes when all was read.
        time.sleep(2 * READ_SECONDS)
        assert (restarts(), node.pid(DAEMON)) == (done, 0)
