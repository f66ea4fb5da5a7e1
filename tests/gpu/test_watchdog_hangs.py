"""What was stopped by a signal is named, and left alone for long enough; what a dead daemon left is cleared away."""

import os
import signal
from functools import partial

import psutil
import pytest

from tests.eventually import eventually

from . import figures
from .clients import Clients
from .hung_daemon import HUNG_AFTER_SECONDS, Hang, HungDaemon
from .limited import Newcomers, all_processors
from .mps import ControlDaemon, is_live_mps
from .race import seconds_until, stays
from .watchdog import Watchdog, Watchdogs

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hung_daemon")]

UNRESPONSIVE_WITHIN = 75
RESTARTED_WITHIN = 120
WATCHED_SECONDS = 6
# A question that was just being asked when it was stopped counts from its asking.
A_MOMENT = 1


def test_a_dead_daemons_stopped_server_is_ended_before_the_next_daemon_serves(
    daemon: ControlDaemon, clients: Clients, watchdogs: Watchdogs
) -> None:
    """While the daemon lives, the server is named and no more; nobody asks about it, which would hang the daemon."""
    everything = all_processors(clients)
    watchdog = watchdogs.start(liveness=2)
    clients.start_ready("tenant", mib=64, seconds=600)
    # The program sets a new server's limits and asks for them; a question that meets a stopped server hangs the daemon.
    eventually(partial(_has_set_the_limits, watchdog))
    server = psutil.Process(daemon.server())
    os.kill(server.pid, signal.SIGSTOP)
    eventually(partial(_is_diagnosed, watchdog, "server_suspended", server.pid))
    asked = daemon.control_log.stat().st_size
    stays(partial(_answers, daemon), for_seconds=WATCHED_SECONDS)
    assert str(server.pid) not in _commands(daemon, asked)
    assert watchdog.done() == []
    assert server.status() == psutil.STATUS_STOPPED

    newcomers, former = Newcomers(clients, everything), daemon.process()
    assert former is not None
    daemon.kill()
    taken = seconds_until(
        leftover_gone=lambda: not is_live_mps(server),
        answers=partial(daemon.is_followed, former),
        client=newcomers.one_is_limited,
    )
    figures.note(**{f"leftover_server_kill_to_{name}_seconds": seconds for name, seconds in taken.items()})
    assert taken["leftover_gone"] <= taken["answers"]
    eventually(watchdog.is_well)
    assert watchdog.done() == ["restart for crashed: succeeded"]


@pytest.fixture(scope="module")
def hang(hung_daemon: HungDaemon) -> Hang:
    """The daemon that was stopped when the first of these tests began."""
    return hung_daemon.over()


@pytest.mark.timeout(200)
class TestHungDaemon:
    """A daemon that was stopped by a signal, with two clients."""

    def test_it_is_soon_known_and_later_restarted(self, hang: Hang) -> None:
        """No sooner than was asked for."""
        figures.note(**{f"daemon_stopped_to_{name}_seconds": seconds for name, seconds in hang.taken.items()})
        assert hang.taken["unresponsive"] <= UNRESPONSIVE_WITHIN
        assert HUNG_AFTER_SECONDS - A_MOMENT <= hang.taken["gone"] <= hang.taken["answers"] <= RESTARTED_WITHIN
        assert hang.done == ["restart for hung: succeeded"]

    def test_the_stopped_process_is_named_and_is_what_ended(self, hang: Hang) -> None:
        """By its identity: the one that answers is another."""
        assert [(each["state"], each["pid"]) for each in hang.diagnosed if "pid" in each] == [
            ("suspended", hang.stopped.pid)
        ]
        assert not is_live_mps(hang.stopped)
        assert hang.successor is not None
        assert hang.successor != hang.stopped

    def test_what_was_known_before_is_saved(self, hang: Hang) -> None:
        """Once, with the state that the process was in."""
        (bundle,) = hang.saved
        texts = {file.name: file.read_text(errors="replace") for file in bundle.iterdir() if file.is_file()}
        figures.note(evidence_saved=", ".join(f"{name} {len(text)}" for name, text in sorted(texts.items())))
        assert str(hang.stopped.pid) in texts["processes.txt"]
        assert "T (stopped)" in texts["processes.txt"]
        assert any("Cmd:" in text for name, text in texts.items() if "control" in name)


def _is_diagnosed(watchdog: Watchdog, diagnosis: str, pid: int) -> None:
    assert watchdog.diagnosis == diagnosis, watchdog.evidence()
    assert watchdog.said("daemon_diagnosed")[-1]["pid"] == pid


def _has_set_the_limits(watchdog: Watchdog) -> None:
    assert watchdog.said("limits_in_force")


def _answers(daemon: ControlDaemon) -> None:
    """A question may collide with one of the program's."""
    daemon.command("get_server_list")


def _commands(daemon: ControlDaemon, since: int) -> str:
    """What it has been asked since its log was so long."""
    said = daemon.control_log.read_bytes()[since:].decode(errors="replace").splitlines()
    return "\n".join(line.partition("Cmd:")[2] for line in said if "Cmd:" in line)
