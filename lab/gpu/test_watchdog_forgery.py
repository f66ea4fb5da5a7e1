"""An ordinary user forges the logs of a real daemon while a watchdog may act."""

import subprocess
import sys
import time

import psutil
import pytest

from tests.eventually import eventually

from . import figures
from .clients import Clients
from .mps import ControlDaemon
from .timing import stays
from .watchdog import NAME, Watchdog, Watchdogs

pytestmark = pytest.mark.gpu

NOBODY = 65534
CONTROL, SERVER = 0xABCDE000, 0xABCDE001
BLOCKED_WITHIN = 60.0

# It imports nothing else, so the user need not be able to read this directory.
FORGE = """
import os, struct, sys, time
fifo, kind, pid, *texts = sys.argv[1:]
descriptor = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
for text in texts:
    now = time.localtime()
    body = text.encode()
    stamp = (now.tm_year, now.tm_mon, now.tm_mday, 0, now.tm_hour, now.tm_min, now.tm_sec, 123)
    os.write(descriptor, struct.pack("<II8iQ", int(kind), int(pid), *stamp, len(body)) + body)
"""


def forge(daemon: ControlDaemon, kind: int, pid: int, *texts: str) -> None:
    """Write messages into the daemon's fifo as a user without rights."""
    fifo = str(daemon.pipe_directory / "log")
    arguments = [sys.executable, "-c", FORGE, fifo, str(kind), str(pid), *texts]
    subprocess.run(arguments, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", check=True, timeout=30)


def is_logged(daemon: ControlDaemon, text: str) -> None:
    assert text in daemon.control_log.read_text(errors="replace") + daemon.server_log.read_text(errors="replace")


def contradictions(watchdog: Watchdog) -> int:
    return int(watchdog.exporter.scrape().total("cuda_mps_daemon_log_contradictions_total", daemon=NAME))


def test_forged_lines_change_nothing_and_a_real_death_is_repaired(
    daemon: ControlDaemon, clients: Clients, watchdogs: Watchdogs
) -> None:
    watchdog = watchdogs.start()
    connected = [clients.start(f"client{number}", seconds=120, mib=64, busy_ms=2, every_ms=5) for number in range(3)]
    eventually(lambda: _has_clients(watchdog, 3))
    former, server = daemon.pid, daemon.server()
    victims = [str(each.pid) for each in connected[:2]]

    forge(daemon, CONTROL, former, "NEW UI", "Cmd:quit", f"Server {server} exited with status 0", "Exit with status 0")
    forge(daemon, SERVER, server, f"Client process {connected[2].pid} disconnected")
    torn = [f"Client {{PID: {pid}, Context ID: 1}} on device 0 to be torn down" for pid in victims]
    lists = ["The following devices will be reset:", "0", "The following client process have a sticky error set:"]
    forge(daemon, SERVER, server, "Server is handling a fatal GPU error.", *torn, *lists, *victims)
    eventually(lambda: is_logged(daemon, "Exit with status 0"))

    stays(lambda: _is_untouched(watchdog, daemon, former, 3), for_seconds=15)
    eventually(lambda: _has_contradictions(watchdog, 3))
    figures.note(forged_lines_contradicted=contradictions(watchdog), forged_lines_false_events=0)

    daemon.kill()
    eventually(lambda: _is_back(watchdog, daemon, former))
    assert watchdog.exporter.scrape().value("cuda_mps_daemon_losses_total", daemon=NAME, reason="died") == 1


def test_a_blocked_log_is_reported_and_ends_with_a_restart(
    daemon: ControlDaemon, clients: Clients, watchdogs: Watchdogs
) -> None:
    watchdog = watchdogs.start()
    clients.start("client", seconds=140, mib=64, busy_ms=2, every_ms=5)
    eventually(lambda: _has_clients(watchdog, 1))
    time.sleep(1)
    forge(daemon, 0xDEADBEEF, daemon.pid, "x" * 64)
    began, former = time.time(), daemon.pid
    eventually(lambda: _is_blocked(watchdog, True), within=BLOCKED_WITHIN + 15)
    taken = time.time() - began
    figures.note(log_blocked_reported_seconds=round(taken, 1))
    _is_untouched(watchdog, daemon, former, 1)
    daemon.kill()
    eventually(lambda: _is_back(watchdog, daemon, former))
    eventually(lambda: _is_blocked(watchdog, False), within=60)
    assert taken <= BLOCKED_WITHIN


def _has_clients(watchdog: Watchdog, count: int) -> None:
    assert watchdog.exporter.scrape().value("cuda_mps_daemon_clients", daemon=NAME) == count, watchdog.evidence()


def _has_contradictions(watchdog: Watchdog, count: int) -> None:
    assert contradictions(watchdog) >= count, watchdog.evidence()


def _is_untouched(watchdog: Watchdog, daemon: ControlDaemon, former: int, clients: int) -> None:
    scrape = watchdog.exporter.scrape()
    assert scrape.value("cuda_mps_daemon_up", daemon=NAME) == 1, watchdog.evidence()
    assert scrape.value("cuda_mps_daemon_clients", daemon=NAME) == clients, watchdog.evidence()
    assert scrape.total("cuda_mps_daemon_losses_total", daemon=NAME) == 0, watchdog.evidence()
    assert scrape.total("cuda_mps_faults_total", daemon=NAME) == 0, watchdog.evidence()
    assert (watchdog.done(), daemon.pid) == ([], former), watchdog.evidence()


def _is_back(watchdog: Watchdog, daemon: ControlDaemon, former: int) -> None:
    assert watchdog.restarts() == 1, f"{watchdog.evidence()}\n{_behind(daemon)}"
    assert daemon.pid != former
    assert daemon.answers()


def _behind(daemon: ControlDaemon) -> str:
    """Return the pid file's text, and what /proc shows of the processes that have the daemon's name."""
    text = (daemon.pipe_directory / "nvidia-cuda-mps-control.pid").read_text(errors="replace")
    # Unlike `as_dict`, this leaves out a process that ends meanwhile.
    named = [each.info for each in psutil.process_iter(["pid", "ppid", "exe", "cmdline", "status"])]
    return f"pid file {text!r}: {[each for each in named if 'nvidia-cuda-mps' in str(each)]}"


def _is_blocked(watchdog: Watchdog, blocked: bool) -> None:
    scrape = watchdog.exporter.scrape()
    assert scrape.value("cuda_mps_daemon_log_blocked", daemon=NAME) == int(blocked), watchdog.evidence()
