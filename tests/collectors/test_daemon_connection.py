"""Test connections of the exporter, only to a daemon that does not answer commands."""

import contextlib
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.collectors.control_client import LATER_PROBE_SECONDS, PROBES_AT_ONCE, ControlClient
from exporter.collectors.daemon_directory import RECHECK_SECONDS, RECHECKS, probe
from exporter.collectors.pipe_dir import Directory, on_host
from exporter.collectors.proc import Proc
from exporter.model.identity import ProcessIdentity
from exporter.model.observation import ControlReply, ControlSocket, Observation
from exporter.model.reason import Reason, ReasonCode
from tests.clocks import HandClock
from tests.conftest import Starter
from tests.eventually import PATIENCE_SECONDS, eventually
from tests.standin.mps import MpsStandIn, is_stopped

SHORT = 0.3
"""A deadline for answers that must not arrive, in seconds."""


def alone() -> bool:
    """Return that no other process is connected."""
    return False


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path fits into the address of a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield Path(directory)


@contextlib.contextmanager
def listening(directory: Path, backlog: int = 8, kind: int = socket.SOCK_SEQPACKET) -> Iterator[socket.socket]:
    """Listen on a daemon's control socket without accepting connections."""
    with socket.socket(socket.AF_UNIX, kind) as listener:
        listener.bind(str(directory / "control"))
        listener.listen(backlog)
        yield listener


def answering(listener: socket.socket, answer: bytes | None, after: float = 0.0) -> threading.Thread:
    """Read a connection to its end, as a daemon does, then answer with these bytes or close it after some seconds."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(64) == b""
            time.sleep(after)
            if answer is not None:
                connection.send(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


# -- one connection ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [b"OUTBHELL\0", None], ids=["it answers", "it closes"])
def test_a_daemon_that_reads_the_end_and_answers_is_alive(short: Path, answer: bytes | None) -> None:
    """The exporter ends its side at once, because a daemon that waits for bytes serves no other connection."""
    with listening(short) as listener:
        serving = answering(listener, answer)
        assert probe(Directory(short), alone, PATIENCE_SECONDS) == (True, True, False)
        serving.join(PATIENCE_SECONDS)


def test_waits_for_the_answer_of_a_slow_daemon(short: Path) -> None:
    with listening(short) as listener:
        serving = answering(listener, b"OUTBHELL\0", after=1.0 + RECHECKS * RECHECK_SECONDS)
        assert probe(Directory(short), alone, PATIENCE_SECONDS) == (True, True, False)
        serving.join(PATIENCE_SECONDS)


def test_a_daemon_that_does_not_accept_does_not_answer(short: Path) -> None:
    with listening(short):
        assert probe(Directory(short), alone, SHORT) == (True, False, False)


def test_does_not_wait_for_a_daemon_with_a_full_queue(short: Path) -> None:
    with listening(short, backlog=0):
        assert probe(Directory(short), alone, SHORT) == (True, False, False)
        assert probe(Directory(short), alone, PATIENCE_SECONDS * 10) == (True, False, None)


def test_a_stale_socket_has_no_listener(short: Path) -> None:
    with listening(short):
        pass
    assert probe(Directory(short), alone, SHORT) == (False, None, False)


def test_reports_nothing_without_a_socket(short: Path) -> None:
    assert probe(Directory(short), alone, SHORT) == (None, None, False)
    assert probe(Directory(short / "nowhere"), alone, SHORT) == (None, None, False)
    (short / "control").write_text("no socket")
    assert probe(Directory(short), alone, SHORT) == (None, None, False)


def test_reports_nothing_for_a_socket_of_another_kind(short: Path) -> None:
    with listening(short, kind=socket.SOCK_STREAM):
        assert probe(Directory(short), alone, SHORT) == (None, None, False)


def test_does_not_follow_a_link_at_the_socket(short: Path) -> None:
    (short / "target").mkdir()
    (short / "control").symlink_to(short / "target" / "control")
    with listening(short / "target") as listener:
        listener.setblocking(False)
        assert probe(Directory(short), alone, SHORT) == (None, None, False)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_connects_through_a_path_longer_than_a_socket_address(tmp_path: Path) -> None:
    long = tmp_path / ("d" * 120)
    long.mkdir()
    descriptor = os.open(long, os.O_PATH)
    try:
        with listening(Path(f"/proc/self/fd/{descriptor}")) as listener:
            serving = answering(listener, b"")
            assert probe(Directory(long), alone, PATIENCE_SECONDS) == (True, True, False)
            serving.join(PATIENCE_SECONDS)
    finally:
        os.close(descriptor)


# -- after a command without an answer -----------------------------------------------------------------------------


Client = Callable[..., ControlClient]


@pytest.fixture
def client(mps: MpsStandIn) -> Client:
    def make(executable: str = "nvidia-cuda-mps-control", deadline: float = SHORT, **more: object) -> ControlClient:
        clock = SystemClock()
        path, proc = mps.environment()["PATH"], Proc(Path("/proc"), clock)
        more = {"clock": clock, "path": path, "proc": proc, **more}
        location = on_host("node", mps.pipe_directory, mps.log_directory)
        return ControlClient(location, executable=executable, deadline=deadline, **more)  # type: ignore[arg-type]

    return make


@pytest.fixture
def hanging_program(tmp_path: Path) -> str:
    """A control program that hanging_program before it connects."""
    path = tmp_path / "program"
    path.write_text("#!/bin/sh\nexec sleep 600\n")
    path.chmod(0o755)
    return str(path)


def identity(pid: int) -> ProcessIdentity:
    ticks = Proc(Path("/proc"), SystemClock()).start_ticks(pid)
    assert ticks is not None
    return ProcessIdentity(pid=pid, start_ticks=ticks)


def answers(observations: tuple[Observation, ...]) -> list[bool | None]:
    return [each.answers for each in observations if isinstance(each, ControlSocket)]


def test_distinguishes_a_hanging_program_from_a_hung_daemon(
    mps: MpsStandIn, client: Client, hanging_program: str
) -> None:
    mps.start()
    control = client(hanging_program)
    control.request(("get_server_list",), process=identity(mps.pid))

    reply, connection = control.collect().observations

    assert isinstance(reply, ControlReply)
    assert reply.exit_code is None
    assert isinstance(connection, ControlSocket)
    assert (connection.daemon, connection.listening, connection.answers) == ("node", True, True)


def test_does_not_connect_to_a_daemon_that_answers(mps: MpsStandIn, client: Client) -> None:
    mps.start()
    control = client(deadline=PATIENCE_SECONDS)
    control.request(("get_server_list",), process=identity(mps.pid))
    assert answers(control.collect().observations) == []


def test_does_not_connect_to_a_daemon_that_is_known_to_be_stopped(mps: MpsStandIn, client: Client) -> None:
    mps.start()
    control, process = client(), identity(mps.pid)
    mps.stop_signal()
    eventually(lambda: _assert(is_stopped(mps.pid)))
    control.request(("get_server_list",), process=process)
    assert answers(control.collect().observations) == []
    control.request(("get_server_list",))
    assert answers(control.collect().observations) == [False]


def test_connects_once_a_minute_after_two_failures(mps: MpsStandIn, client: Client) -> None:
    """Each connection occupies a place in the daemon's queue."""
    clock = HandClock()

    class Clock(SystemClock):
        def monotonic(self) -> float:
            return super().monotonic() + clock.time

    mps.start()
    control = client(clock=Clock())
    mps.stop_signal()
    results: list[bool | None] = []
    for _ in range(PROBES_AT_ONCE + 2):
        control.request(("get_server_list",))
        results += answers(control.collect().observations)
    assert results == [False] * PROBES_AT_ONCE
    clock.time += LATER_PROBE_SECONDS
    control.request(("get_server_list",))
    assert answers(control.collect().observations) == [False]


# -- queries that a server must answer -----------------------------------------------------------------------------


def test_does_not_send_a_query_that_a_stopped_server_must_answer(
    mps: MpsStandIn, client: Client, start: Starter
) -> None:
    """The daemon would hang for all other processes too (measured, R580). The reducer may not have this state yet."""
    mps.start()
    server = start().pid
    os.kill(server, signal.SIGSTOP)
    eventually(lambda: _assert(is_stopped(server)))
    control = client(deadline=PATIENCE_SECONDS)
    query = f"get_active_thread_percentage {server}"
    control.request((query, "get_server_list"), process=identity(mps.pid), servers=(server,))

    reading = control.collect()

    (reply,) = reading.observations
    assert isinstance(reply, ControlReply)
    assert (reply.command, reply.exit_code) == ("get_server_list", 0)
    assert reading.problem == Reason(ReasonCode.SERVER_STOPPED, subject=query, pid=server)
    assert query not in mps.control_log


def test_does_not_send_a_query_that_every_server_must_answer(mps: MpsStandIn, client: Client, start: Starter) -> None:
    mps.start()
    server, other = start().pid, start().pid
    os.kill(server, signal.SIGSTOP)
    eventually(lambda: _assert(is_stopped(server)))
    control = client(deadline=PATIENCE_SECONDS)
    control.request(("device_query --csv", f"get_server_status {other}"), servers=(server, other))

    assert [type(each) for each in control.collect().observations] == [ControlReply]


def _assert(condition: bool) -> None:
    assert condition
