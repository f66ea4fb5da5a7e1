"""Processes that SIGSTOP stopped are named and ended late. Leftover servers of a dead daemon are ended."""

import os
import signal
from functools import partial

import psutil
import pytest

from tests.eventually import eventually

from . import figures
from .clients import Clients
from .hung_daemon import HUNG_AFTER_SECONDS, Hang, HungDaemon
from .limited import NewClients, all_processors
from .mps import ControlDaemon, is_live_mps
from .timing import seconds_until, stays
from .watchdog import Watchdog, Watchdogs

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hung_daemon")]

UNRESPONSIVE_WITHIN = 75
RESTARTED_WITHIN = 120
WATCHED_SECONDS = 6
# A query that was pending at the signal counts from its start.
A_MOMENT = 1


def test_ends_a_stopped_server_of_a_dead_daemon_before_the_next_daemon_answers(
    daemon: ControlDaemon, clients: Clients, watchdogs: Watchdogs
) -> None:
    """While the daemon runs, the server is only named, and gets no query, which would hang the daemon."""
    everything = all_processors(clients)
    watchdog = watchdogs.start(liveness=2)
    clients.start_ready("client", mib=64, seconds=600)
    # The exporter sets and queries the limits of a new server; a query of a stopped server would hang the daemon.
    eventually(partial(_has_set_the_limits, watchdog))
    server = psutil.Process(daemon.server())
    os.kill(server.pid, signal.SIGSTOP)
    eventually(partial(_is_diagnosed, watchdog, "server_suspended", server.pid))
    asked = daemon.control_log.stat().st_size
    stays(partial(_answers, daemon), for_seconds=WATCHED_SECONDS)
    assert str(server.pid) not in _commands(daemon, asked)
    assert watchdog.done() == []
    assert server.status() == psutil.STATUS_STOPPED

    new_clients, former = NewClients(clients, everything), daemon.process()
    assert former is not None
    daemon.kill()
    taken = seconds_until(
        leftover_gone=lambda: not is_live_mps(server),
        answers=partial(daemon.is_replaced, former),
        client=new_clients.one_is_limited,
    )
    figures.note(**{f"leftover_server_kill_to_{name}_seconds": seconds for name, seconds in taken.items()})
    assert taken["leftover_gone"] <= taken["answers"]
    eventually(watchdog.is_well)
    assert watchdog.done() == ["restart for down: succeeded"]


@pytest.fixture(scope="module")
def hang(hung_daemon: HungDaemon) -> Hang:
    """Return the result of the daemon that was stopped when the first of these tests started."""
    return hung_daemon.over()


@pytest.mark.timeout(200)
class TestHungDaemon:
    """A daemon that SIGSTOP stopped, with two clients."""

    def test_is_reported_soon_and_restarted_later(self, hang: Hang) -> None:
        """Not before the configured time."""
        figures.note(**{f"daemon_stopped_to_{name}_seconds": seconds for name, seconds in hang.taken.items()})
        assert hang.taken["unresponsive"] <= UNRESPONSIVE_WITHIN
        assert HUNG_AFTER_SECONDS - A_MOMENT <= hang.taken["gone"] <= hang.taken["answers"] <= RESTARTED_WITHIN
        assert hang.done == ["restart for hung: succeeded"]

    def test_names_and_ends_the_stopped_process(self, hang: Hang) -> None:
        """The process that answers later is another one."""
        assert [(each["state"], each["pid"]) for each in hang.diagnosed if "pid" in each] == [
            ("suspended", hang.stopped.pid)
        ]
        assert not is_live_mps(hang.stopped)
        assert hang.successor is not None
        assert hang.successor != hang.stopped

    def test_saves_evidence_before_the_action(self, hang: Hang) -> None:
        """Once, with the state of the process."""
        (bundle,) = hang.saved
        texts = {file.name: file.read_text(errors="replace") for file in bundle.iterdir() if file.is_file()}
        figures.note(evidence_saved=", ".join(f"{name} {len(text)}" for name, text in sorted(texts.items())))
        assert str(hang.stopped.pid) in texts["processes.txt"]
        assert "T (stopped)" in texts["processes.txt"]
        assert any("Cmd:" in text for name, text in texts.items() if "control" in name)


def _is_diagnosed(watchdog: Watchdog, diagnosis: str, pid: int) -> None:
    assert watchdog.diagnosis == diagnosis, watchdog.evidence()
    assert watchdog.logged("daemon_diagnosed")[-1]["pid"] == pid


def _has_set_the_limits(watchdog: Watchdog) -> None:
    assert watchdog.logged("limits_in_force")


def _answers(daemon: ControlDaemon) -> None:
    """A query may collide with one of the exporter."""
    daemon.command("get_server_list")


def _commands(daemon: ControlDaemon, since: int) -> str:
    """Return the commands in the log after an offset."""
    lines = daemon.control_log.read_bytes()[since:].decode(errors="replace").splitlines()
    return "\n".join(line.partition("Cmd:")[2] for line in lines if "Cmd:" in line)
