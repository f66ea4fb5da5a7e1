"""The stand-in's log fifo, `ps` and control socket are open to all users, like the real ones (measured)."""

import os
import socket
import stat
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from .mps import MpsStandIn, wait_until
from .mps_daemon import sockets
from .mps_daemon.logs import HEADER, Kind, message, send
from .test_standin import FIRST, SECOND, texts

CHOSEN = datetime(2026, 11, 22, 12, 0, 0, 123_000, tzinfo=UTC)
PIPE_BUF = 4096


@pytest.fixture
def mps(mps: MpsStandIn) -> MpsStandIn:
    """A running daemon without clients."""
    mps.start()
    return mps


def fifo(mps: MpsStandIn) -> Path:
    return mps.pipe_directory / "log"


def read_out(mps: MpsStandIn) -> None:
    """Wait until the daemon has read all messages."""
    mps.deaf(False)


def lines_after(mps: MpsStandIn, before: int) -> list[str]:
    """Return the raw lines of control.log after `before` lines, up to one that is written now."""
    mps.say("control", "the end")
    return mps.control_log.splitlines()[before:-1]


# -- forgery -------------------------------------------------------------------------------------------------------


def test_a_forged_message_becomes_a_line_with_the_chosen_pid_and_time(mps: MpsStandIn) -> None:
    mode = fifo(mps).stat().st_mode
    assert (stat.S_ISFIFO(mode), stat.S_IMODE(mode)) == (True, 0o777), "it is open to all users"
    mps.connect_and_wait(FIRST)
    send(fifo(mps), message(Kind.CONTROL, 1, "one\ntwo", CHOSEN))
    send(fifo(mps), message(Kind.CONTROL, 591, "Exit with status 0", CHOSEN))
    send(fifo(mps), message(Kind.SERVER, 12, "Server is handling a fatal GPU error.", CHOSEN))
    mps.say("control", "the end")

    assert "two" in mps.control_log.splitlines(), "a line without time"
    assert "[2026-11-22 12:00:00.123 Control   591] Exit with status 0" in mps.control_log.splitlines()
    assert "[2026-11-22 12:00:00.123 Server    12] Server is handling a fatal GPU error." in mps.server_log.splitlines()


def test_a_message_has_the_measured_layout() -> None:
    data = message(0xABCDE000, 591, "text", CHOSEN)
    fields = (0xABCDE000, 591, 2026, 11, 22, 0, 12, 0, 0, 123)

    assert HEADER.size == 48
    assert data == b"".join(field.to_bytes(4, "little") for field in fields) + (4).to_bytes(8, "little") + b"text"


def test_plain_text_is_dropped(mps: MpsStandIn) -> None:
    before = len(mps.control_log.splitlines())
    send(fifo(mps), b"Exit with status 0\n")
    read_out(mps)

    assert lines_after(mps, before) == []
    assert texts(mps.control_log)[-1] == "the end"


@pytest.mark.parametrize(
    "garbage", [b"x" * 64, HEADER.pack(Kind.CONTROL, 1, *[0] * 8, 1 << 40)], ids=["no kind", "absurd length"]
)
def test_a_message_without_a_valid_header_stops_both_logs_until_the_next_daemon(
    mps: MpsStandIn, garbage: bytes
) -> None:
    mps.connect_and_wait(FIRST)
    control, server = mps.control_log, mps.server_log
    send(fifo(mps), garbage)

    mps.disconnect(FIRST)
    mps.connect_and_wait(SECOND)
    assert mps.ask("get_server_list").stdout == f"{mps.server_pid}\n"
    mps.ask("quit -t 0")
    wait_until(lambda: not mps.is_running())
    assert (mps.control_log, mps.server_log) == (control, server)

    mps.start()
    assert "Starting control daemon" in mps.control_log.removeprefix(control)


def test_blocked_logs_do_not_block_writers(mps: MpsStandIn) -> None:
    send(fifo(mps), b"x" * 64)
    for _ in range(100):
        send(fifo(mps), b"x" * PIPE_BUF)
        read_out(mps)

    assert mps.ask("get_server_list").returncode == 0


def test_a_message_that_arrives_in_parts_is_written_as_one(mps: MpsStandIn) -> None:
    data = message(Kind.CONTROL, 1, "x" * 100_000)
    with fifo(mps).open("wb") as writer:
        writer.write(data[:50])
        writer.flush()
        writer.write(data[50:])
    mps.say("control", "the end")

    assert texts(mps.control_log)[-2:] == ["x" * 100_000, "the end"]


def test_a_reader_of_the_fifo_removes_lines_while_the_daemon_is_stopped(mps: MpsStandIn) -> None:
    mps.stop_signal()
    thief = os.open(fifo(mps), os.O_RDONLY | os.O_NONBLOCK)
    send(fifo(mps), message(Kind.CONTROL, 1, "stolen"))
    taken = os.read(thief, PIPE_BUF)
    os.close(thief)
    before = mps.control_log
    send(fifo(mps), message(Kind.SERVER, 1, "meanwhile"))
    assert (mps.control_log, mps.server_log) == (before, ""), "a stopped daemon logs nothing until it continues"
    mps.cont()
    wait_until(lambda: texts(mps.server_log) == ["meanwhile"])

    assert b"stolen" in taken
    assert "stolen" not in mps.control_log


# -- order, loss, hang ---------------------------------------------------------------------------------------------


def test_the_daemons_lines_are_in_order_during_a_flood(mps: MpsStandIn) -> None:
    flood = threading.Thread(target=flooded, args=(mps, 2000))
    flood.start()
    for number in range(200):
        mps.say("control", f"own {number}")
    flood.join()
    mps.say("control", "the end")

    log = texts(mps.control_log)
    assert [text for text in log if text.startswith("own")] == [f"own {number}" for number in range(200)]
    assert log.count("flood" * 40) == 2000


def flooded(mps: MpsStandIn, count: int) -> None:
    """Send messages, each in one write, and wait while the fifo is full."""
    with fifo(mps).open("wb", buffering=0) as writer:
        for _ in range(count):
            writer.write(message(Kind.CONTROL, 1, "flood" * 40))


def test_lines_of_other_processes_are_logged_while_the_daemon_waits_for_a_stopped_server(mps: MpsStandIn) -> None:
    mps.connect_and_wait(FIRST)
    server = psutil.Process(mps.server_pid)
    server.suspend()
    mps.ask_in_background(f"get_server_status {server.pid}")
    wait_until(lambda: "Cmd:get_server_status" in mps.control_log)
    send(fifo(mps), message(Kind.SERVER, server.pid, "meanwhile"))
    wait_until(lambda: texts(mps.server_log)[-1] == "meanwhile")

    server.resume()


def test_quit_removes_the_fifo_and_sigkill_does_not(mps: MpsStandIn) -> None:
    mps.ask("quit")
    wait_until(lambda: not mps.is_running())
    assert not fifo(mps).exists()

    mps.start()
    left = fifo(mps).stat().st_ino
    keeper = os.open(fifo(mps), os.O_RDONLY | os.O_NONBLOCK)
    mps.kill()
    assert fifo(mps).stat().st_ino == left

    mps.start()
    assert fifo(mps).stat().st_ino != left
    os.close(keeper)


# -- the echo of `ps` ----------------------------------------------------------------------------------------------

HOSTILE = "x\nUI closed\n[2026-11-22 12:00:00.123 Control     1] Exit with status 0"


def test_ps_echoes_the_line_breaks_of_a_clients_name(mps: MpsStandIn) -> None:
    mps.connect_and_wait(FIRST, command=HOSTILE)
    before = len(mps.control_log.splitlines())
    reply = mps.ask("ps").stdout.splitlines()

    assert reply[0].split() == ["PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"]
    assert reply[1].split()[0] == str(FIRST)
    assert reply[1].endswith(" x")
    assert reply[2:] == HOSTILE.split("\n")[1:]
    log = mps.control_log.splitlines()[before:]
    row = next(number for number, line in enumerate(log) if line.endswith(" x"))
    assert log[row + 1 : row + 3] == HOSTILE.split("\n")[1:]


def test_ps_echoes_the_name_that_a_process_gave_itself(mps: MpsStandIn) -> None:
    words = [HOSTILE, "-c", "import time; print(flush=True); time.sleep(600)"]
    with subprocess.Popen(words, executable=sys.executable, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        mps.connect_and_wait(process.pid)
        reply = mps.ask("ps").stdout
        process.kill()

    assert reply.endswith(f" {HOSTILE}\n")


# -- connections that send nothing ---------------------------------------------------------------------------------


def probe(mps: MpsStandIn) -> socket.socket:
    connection = sockets.connect(mps.pipe_directory, "control")
    connection.shutdown(socket.SHUT_WR)
    return connection


def test_a_connection_that_sends_nothing_is_answered_and_logged_as_a_cuda_connect(mps: MpsStandIn) -> None:
    before = len(mps.control_log.splitlines())
    with probe(mps) as connection:
        assert (connection.recv(100), connection.recv(100)) == (b"OUTBHELL\0", b"")

    assert texts("\n".join(lines_after(mps, before))) == [
        "Accepting connection...",
        "User did not send valid credentials",
    ]


def test_a_connection_that_sends_nothing_is_answered_while_a_session_is_open(mps: MpsStandIn) -> None:
    with mps.held_session(), probe(mps) as connection:
        assert connection.recv(100) == b"OUTBHELL\0"


def test_an_idle_connection_blocks_the_daemon_until_it_is_closed(mps: MpsStandIn) -> None:
    with sockets.connect(mps.pipe_directory, "control"), pytest.raises(subprocess.TimeoutExpired):
        mps.ask("get_server_list", timeout=0.5)

    assert mps.ask("get_server_list").returncode == 0


def test_a_stopped_daemon_answers_no_connection_and_a_dead_one_refuses(mps: MpsStandIn) -> None:
    mps.stop_signal()
    with probe(mps) as connection:
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(100)
    mps.cont()

    wait_until(lambda: "Unable to accept connection" in texts(mps.control_log))
