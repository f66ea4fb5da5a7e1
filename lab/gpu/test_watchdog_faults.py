"""The watchdog and faults: it waits for recovery, and ends only affected clients that delay it, if permitted."""

import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import psutil
import pytest

from tests.eventually import eventually

from . import figures
from .clients import NO_DAEMON, Clients
from .mps import ControlDaemon
from .timing import stays
from .watchdog import NAME, Watchdog, Watchdogs

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hung_daemon")]

LADDER = ("kill_clients", "shut_down_server", "restart_daemon")
FAULT_SECONDS = 5
STEP_SECONDS = 5
FAULTS = 5
LINGERS_SECONDS = 1.5
HELD_SECONDS = 20
TO_BE_REFUSED_SECONDS = 0.5
SEEN_SECONDS = 1.5
WATCHED_SECONDS = 6
BUSY = {"seconds": 600, "busy_ms": 1, "every_ms": 20}
# Too little for a server of MPS.
TOO_LITTLE_MEMORY = 1 << 28


def test_ends_an_affected_client_that_delays_recovery(
    daemon: ControlDaemon, clients: Clients, watchdogs: Watchdogs
) -> None:
    """By SIGKILL after the configured time. Other clients are not affected."""
    watchdog = watchdogs.start(allow=["kill_clients"], fault=FAULT_SECONDS, step=STEP_SECONDS)
    bypasser = clients.start_ready("bypasser", environment=NO_DAEMON, **BUSY)
    victim = clients.start_ready("victim", hold=600, **BUSY)
    server = daemon.server()
    cause = clients.start_ready("cause", fault="trap", fault_after=1)
    victim.fails()
    faulted = cause.events("fault")[0]["at"]

    eventually(partial(_has_recovered, watchdog, 1), within=FAULT_SECONDS + STEP_SECONDS + 20)
    seconds = time.time() - faulted
    acted = [(each["action"], each["at"] - faulted) for each in watchdog.logged("watchdog_acts")]
    acted = [(action, after) for action, after in acted if action != "set_limits"]
    figures.note(
        lingering_victim_steps=", ".join(f"{action} after {after:.1f} s" for action, after in acted),
        lingering_victim_recovered_after_seconds=round(seconds, 1),
        lingering_victim_lives_on=str(victim.child.exit_code is None),
    )
    steps = [action for action, _ in acted]
    assert steps == ["kill_clients"]
    assert acted[0][1] >= FAULT_SECONDS
    assert daemon.server() == server, "the server outlives its fault"
    assert bypasser.child.exit_code is None
    assert bypasser.error_codes == []
    assert watchdog.restarts() == 0
    clients.start_ready("newcomer", seconds=0)


@pytest.fixture(scope="class")
def eager(watchdogs: Watchdogs) -> Watchdog:
    """Return a watchdog that may take all actions, with short times."""
    return watchdogs.start(liveness=2, allow=LADDER, fault=FAULT_SECONDS, step=STEP_SECONDS)


class TestNoAction:
    """Faults that recover, and actions of an operator."""

    def test_faults_that_recover(self, daemon: ControlDaemon, clients: Clients, eager: Watchdog) -> None:
        """The affected clients exit at once or a little later."""
        for number in range(FAULTS):
            hold = LINGERS_SECONDS * (number % 2)
            victim = clients.start_ready(f"victim{number}", hold=hold, **BUSY)
            clients.start_ready(f"cause{number}", fault="oob", fault_after=0.3, hold=hold)
            victim.fails()
            eventually(partial(_has_recovered, eager, number + 1))
        assert eager.done() == []

    def test_a_killed_server(self, daemon: ControlDaemon, clients: Clients, eager: Watchdog) -> None:
        """The daemon starts another server for the next client."""
        clients.start_ready("before", **BUSY)
        killed, living = daemon.server(), daemon.process()
        psutil.Process(killed).kill()
        # A client that starts at this moment gets error 805 and no new server.
        eventually(lambda: _is_gone(daemon, killed))
        clients.start_ready("after", **BUSY)
        stays(lambda: _is_still(daemon, living), for_seconds=WATCHED_SECONDS)
        assert daemon.server() != killed
        assert eager.done() == []

    def test_an_open_session(self, daemon: ControlDaemon, eager: Watchdog) -> None:
        """The watchdog names its process."""
        living = daemon.process()
        with _held_session(daemon) as holder:
            stays(lambda: _is_still(daemon, living), for_seconds=HELD_SECONDS)
        diagnosed = [(each["state"], each.get("pid")) for each in eager.logged("daemon_diagnosed")]
        assert ("held", holder) in diagnosed
        eventually(eager.is_well)
        assert eager.done() == []

    def test_a_daemon_that_received_quit(self, daemon: ControlDaemon, clients: Clients, eager: Watchdog) -> None:
        """It is not restarted."""
        clients.end()
        daemon.quit()
        eventually(lambda: _is_diagnosed(eager, "stopped"))
        stays(lambda: _is_still(daemon, None), for_seconds=WATCHED_SECONDS)
        assert eager.done() == []


def test_reports_servers_that_cannot_start_and_takes_no_action(
    daemon: ControlDaemon, clients: Clients, watchdogs: Watchdogs
) -> None:
    """A restart would not help."""
    watchdog = watchdogs.start(liveness=2)
    living = daemon.process()
    assert living is not None
    resource.prlimit(living.pid, resource.RLIMIT_AS, (TOO_LITTLE_MEMORY, TOO_LITTLE_MEMORY))
    # A client tries for 0.1 s only. Before that the exporter must have read the page faults of the daemon's children.
    time.sleep(SEEN_SECONDS)
    for number in range(2):
        clients.start(f"asks{number}", seconds=1, on_term="die")
    eventually(lambda: _was_diagnosed(watchdog, "crash_loop"))
    eventually(lambda: _has_counted_a_crash_loop(watchdog))
    stays(lambda: _is_still(daemon, living), for_seconds=WATCHED_SECONDS)
    assert watchdog.done() == []


def _has_counted_a_crash_loop(watchdog: Watchdog) -> None:
    """The log has an event before the metrics are published."""
    assert watchdog.exporter.scrape().total("cuda_mps_server_crash_loops_total", daemon=NAME) >= 1


def _is_gone(daemon: ControlDaemon, server: int) -> None:
    assert f"Server {server} exited" in daemon.control_log.read_text()


@contextmanager
def _held_session(daemon: ControlDaemon) -> Iterator[int]:
    """Yield the PID of an operator's open session. If it collides with a query, it is opened again."""
    holder = eventually(partial(_opened, daemon))
    try:
        yield holder.pid
    finally:
        holder.communicate()


def _opened(daemon: ControlDaemon) -> subprocess.Popen[bytes]:
    silent = subprocess.DEVNULL
    holder = subprocess.Popen(
        ["nvidia-cuda-mps-control"], env=daemon.environment, stdin=subprocess.PIPE, stdout=silent, stderr=silent
    )
    with suppress(subprocess.TimeoutExpired):
        holder.wait(TO_BE_REFUSED_SECONDS)
    assert holder.poll() is None
    return holder


def _has_recovered(watchdog: Watchdog, faults: int) -> None:
    scrape = watchdog.exporter.scrape()
    assert scrape.total("cuda_mps_faults_total", daemon=NAME) == faults
    assert scrape.state("cuda_mps_server_state", daemon=NAME) == "active", watchdog.evidence()


def _is_diagnosed(watchdog: Watchdog, diagnosis: str) -> None:
    assert watchdog.diagnosis == diagnosis, watchdog.evidence()


def _was_diagnosed(watchdog: Watchdog, diagnosis: str) -> None:
    """At some time: the clients may give up, and the servers end with them."""
    assert diagnosis in {each["state"] for each in watchdog.logged("daemon_diagnosed")}, watchdog.evidence()


def _is_still(daemon: ControlDaemon, process: psutil.Process | None) -> None:
    assert daemon.process() == process
