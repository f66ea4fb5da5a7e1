"""Each query adds lines to the daemon's log: how much the log of an idle node grows."""

import time

import pytest

from benchmarks.control_log_growth import bytes_by_command
from tests.eventually import eventually

from . import figures
from .clients import Clients
from .mps import ControlDaemon
from .program import Exporter

pytestmark = pytest.mark.gpu

CLIENTS = 8
# After an event, the exporter sends more queries for a while. The measurement starts after that.
SETTLE_SECONDS = 8
WATCH_SECONDS = 62
# One command in 30 seconds is enough, because any reply counts. A few more are allowed.
COMMANDS_LIMIT = WATCH_SECONDS // 30 + 4
DAY = 86400
BYTES_A_DAY_LIMIT = 1_000_000
COMMANDS_A_DAY, LISTS_A_DAY = DAY // 30, DAY // 300


def bytes_a_day(daemon: ControlDaemon) -> int:
    """Return the bytes of log a day, from the cost of each kind of command and its rate."""
    start = daemon.control_log.stat().st_size
    server = daemon.server()
    for command in ("get_server_list", f"get_server_status {server}", f"get_client_list {server}"):
        daemon.command(command)
    written = bytes_by_command(daemon.control_log.read_bytes()[start:].decode())
    for_life, status, clients = (
        size / times
        for times, size in (written[kind] for kind in ("get_server_list", "get_server_status", "get_client_list"))
    )
    return round((COMMANDS_A_DAY - 2 * LISTS_A_DAY) * for_life + LISTS_A_DAY * (status + clients))


def test_the_log_of_an_idle_node_grows_slowly(exporter: Exporter, daemon: ControlDaemon, clients: Clients) -> None:
    idle = [clients.start(f"idle{number}", seconds=300, every_ms=200) for number in range(CLIENTS)]
    for client in idle:
        client.ready()

    def listed() -> None:
        assert exporter.scrape().listed_pids() == sorted(client.pid for client in idle)

    eventually(listed)
    time.sleep(SETTLE_SECONDS)
    start, began = daemon.control_log.stat().st_size, time.monotonic()
    time.sleep(WATCH_SECONDS)  # the measured window, not a wait
    seconds = time.monotonic() - began
    written = daemon.control_log.read_bytes()[start:]
    commands = written.count(b"Cmd:")
    a_day = bytes_a_day(daemon)
    figures.note(
        control_log_seconds_watched=round(seconds, 1),
        control_log_bytes_written=len(written),
        control_log_bytes_per_day_8_clients=a_day,
        control_log_bytes_per_command=round(len(written) / commands) if commands else 0,
        control_commands_in_window=commands,
    )
    assert commands <= COMMANDS_LIMIT
    assert a_day <= BYTES_A_DAY_LIMIT
    assert exporter.scrape().value("cuda_mps_daemon_up") == 1
