"""Every query writes to the daemon's log: how much a quiet node's log grows because somebody watches."""

import time

import pytest

from tests.eventually import eventually

from . import figures
from .clients import Clients
from .mps import ControlDaemon
from .program import Exporter

pytestmark = pytest.mark.gpu

CLIENTS = 8
# News makes the program ask more often for a while; what is measured is the time after that.
SETTLE_SECONDS = 8
WATCH_SECONDS = 62
# One command in three seconds would be far from frugal already.
COMMANDS_LIMIT = WATCH_SECONDS // 3
HOUR = 3600


def test_a_quiet_node_keeps_a_short_log(exporter: Exporter, daemon: ControlDaemon, clients: Clients) -> None:
    idle = [clients.start(f"idle{number}", seconds=300, every_ms=200) for number in range(CLIENTS)]
    for client in idle:
        client.ready()

    def listed() -> None:
        assert exporter.scrape().listed_pids() == sorted(client.pid for client in idle)

    eventually(listed)
    time.sleep(SETTLE_SECONDS)
    start, began = daemon.control_log.stat().st_size, time.monotonic()
    time.sleep(WATCH_SECONDS)  # a window to measure in, not a wait for something
    seconds = time.monotonic() - began
    written = daemon.control_log.read_bytes()[start:]
    commands = written.count(b"Cmd:")
    figures.note(
        control_log_seconds_watched=round(seconds, 1),
        control_log_bytes_written=len(written),
        control_log_bytes_per_hour_8_clients=round(len(written) / seconds * HOUR),
        control_log_bytes_per_command=round(len(written) / commands) if commands else 0,
        control_commands_in_window=commands,
    )
    assert commands <= COMMANDS_LIMIT
    assert exporter.scrape().value("cuda_mps_daemon_up") == 1
