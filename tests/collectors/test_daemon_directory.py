"""A daemon from outside: processes, session holders, sockets, test connections."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.collectors import daemon_directory
from exporter.collectors.control_client import ControlClient
from exporter.collectors.daemon_directory import DaemonDirectory, probe, read_control_sockets, session_holder
from exporter.collectors.daemon_processes import Identities
from exporter.collectors.pipe_dir import PID_FILE, DaemonLocation, Directory, on_host
from exporter.collectors.proc import Proc
from exporter.collectors.processes import Processes
from exporter.model.identity import ProcessIdentity
from exporter.model.observation import (
    ControlReply,
    ControlSocket,
    DaemonProcess,
    Observation,
    ProcessState,
    SessionHolder,
    Wanted,
)
from exporter.model.reason import Reason, ReasonCode
from tests.clocks import HandClock
from tests.conftest import Starter
from tests.eventually import PATIENCE_SECONDS, eventually
from tests.standin.mps import MpsStandIn, is_alive, is_stopped

# The tests state these values, so that they notice a change of the program's constants.
LATER_PROBE_SECONDS = 60.0
PROBES_AT_ONCE = 2
HOLDERS_SECONDS = 2.0
RECHECK_SECONDS = 0.2
RECHECKS = 2
STATES_SECONDS = 0.4

NAME = "node"


class Health:
    """The directory of one daemon and the states of processes, with a clock that the test advances."""

    def __init__(self, location: DaemonLocation, *, proc: Path = Path("/proc")) -> None:
        self.clock = HandClock()
        self.proc = Proc(proc, SystemClock())
        self.directory = DaemonDirectory(location, self.proc, self.clock, Identities())
        self._processes = Processes(proc=proc, clock=self.clock, wait=0.0)

    def want(self, *pids: int, holder: bool = False, listener: bool = False) -> None:
        named = frozenset({NAME})
        self.directory.wanted = Wanted(
            holders=named if holder else frozenset(), sockets=named if listener else frozenset()
        )
        self._processes.watch(frozenset(), frozenset(pids))

    def collect(self, seconds: float = HOLDERS_SECONDS) -> list[Observation]:
        """Advance the clock, collect once, and return the changes, without those of the daemon's process."""
        self.clock.time += seconds
        found = (*self.directory.collect().observations, *self._processes.collect().observations)
        return [each for each in found if not isinstance(each, DaemonProcess)]

    def daemons(self) -> list[DaemonProcess]:
        return [each for each in self.directory.collect().observations if isinstance(each, DaemonProcess)]


@pytest.fixture
def health(mps: MpsStandIn) -> Health:
    return Health(on_host(NAME, mps.pipe_directory, mps.log_directory))


def states(observations: list[Observation]) -> list[tuple[int, str]]:
    return [(each.pid, each.state) for each in observations if isinstance(each, ProcessState)]


def holders(observations: list[Observation]) -> list[int | None]:
    return [each.pid for each in observations if isinstance(each, SessionHolder)]


def listeners(observations: list[Observation]) -> list[bool | None]:
    return [each.listening for each in observations if isinstance(each, ControlSocket)]


# -- states of processes -------------------------------------------------------------------------------------------


def is_in(pid: int, letters: str) -> Callable[[], None]:
    def check() -> None:
        assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in letters

    return check


def test_reports_a_process_at_first_and_when_it_stops_or_continues(health: Health, start: Starter) -> None:
    pid = start().pid
    eventually(is_in(pid, "S"))
    health.want(pid)
    assert states(health.collect()) == [(pid, "S")]
    assert health.collect() == []

    os.kill(pid, signal.SIGSTOP)
    eventually(is_in(pid, "T"))
    (stopped,) = health.collect()
    assert isinstance(stopped, ProcessState)
    assert (stopped.state, stopped.start_ticks) == ("T", health.proc.start_ticks(pid))
    assert health.collect() == []

    os.kill(pid, signal.SIGCONT)
    eventually(is_in(pid, "S"))
    assert states(health.collect()) == [(pid, "S")]


def test_does_not_report_a_change_between_running_and_sleeping(health: Health, start: Starter) -> None:
    process = start([sys.executable, "-c", "input()\nwhile True: pass"], stdin=subprocess.PIPE)
    eventually(is_in(process.pid, "S"))
    health.want(process.pid)
    assert states(health.collect()) == [(process.pid, "S")]
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    eventually(is_in(process.pid, "R"))
    assert health.collect() == []


def test_does_not_report_an_ended_process(health: Health, start: Starter) -> None:
    process = start()
    health.want(process.pid)
    health.collect()
    process.kill()
    eventually(is_in(process.pid, "Z"))
    assert health.collect() == []


def test_ignores_a_number_that_is_not_a_pid(health: Health) -> None:
    health.want(2**22 - 1, 2**40)
    assert health.collect() == []


def test_reads_states_twice_a_second_and_a_new_process_at_once(health: Health, start: Starter) -> None:
    first, second = start().pid, start().pid
    health.want(first)
    health.collect()
    os.kill(first, signal.SIGSTOP)
    eventually(is_in(first, "T"))
    assert health.collect(STATES_SECONDS / 2) == []
    health.want(first, second)
    assert {pid for pid, _ in states(health.collect(0.01))} == {first, second}


# -- session holders -----------------------------------------------------------------------------------------------


class Prompt:
    """An operator's open prompt that is not a descendant of this process."""

    def __init__(self, mps: MpsStandIn, environment: Mapping[str, str]) -> None:
        reader, self._input = os.pipe()
        environment = os.environ | mps.environment() | environment
        command = shutil.which("nvidia-cuda-mps-control", path=environment["PATH"])
        script = 'exec 3<&0; "$0" <&3 >/dev/null 2>&1 & echo $!'
        shell = ["sh", "-c", script, str(command)]
        output = subprocess.run(shell, env=environment, stdin=reader, capture_output=True, check=True).stdout
        os.close(reader)
        self.pid = int(output)
        eventually(self._assert_connected)

    def _assert_connected(self) -> None:
        """A prompt connects a while after its start. The daemon may accept the connection later."""
        sockets = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
        connected = {f"socket:[{inode}]" for _, _, _, _, _, state, inode, *_ in sockets if state == "03"}
        assert connected & {*Proc(Path("/proc"), SystemClock()).open_files(self.pid)}

    def close(self) -> None:
        os.close(self._input)
        eventually(self._assert_ended)

    def _assert_ended(self) -> None:
        assert not is_alive(self.pid)


OpenPrompt = Callable[..., Prompt]


@pytest.fixture
def open_prompt(mps: MpsStandIn) -> Iterator[OpenPrompt]:
    opened: list[Prompt] = []

    def make(**environment: str) -> Prompt:
        opened.append(Prompt(mps, environment))
        return opened[-1]

    yield make
    for each in opened:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            each.close()


def is_holder(pid: int, health: Health) -> Callable[[], None]:
    def check() -> None:
        assert holders(health.collect()) == [pid]

    return check


def test_reports_an_open_prompt_until_it_is_closed(mps: MpsStandIn, health: Health, open_prompt: OpenPrompt) -> None:
    mps.start()
    prompt = open_prompt()
    health.want(holder=True)

    def is_held() -> SessionHolder:
        held = next(iter(health.collect()), None)
        assert isinstance(held, SessionHolder)
        assert held.pid == prompt.pid
        return held

    held = eventually(is_held)
    assert (held.daemon, held.start_ticks) == (NAME, health.proc.start_ticks(prompt.pid))
    assert (held.uid, held.user) == (os.getuid(), pwd.getpwuid(os.getuid()).pw_name)
    assert health.collect() == []

    prompt.close()
    assert holders(health.collect()) == [None]


def test_the_daemon_itself_is_not_a_session_holder(mps: MpsStandIn, health: Health) -> None:
    mps.start()
    health.want(holder=True)
    assert holders(health.collect()) == [None]


def test_a_command_of_the_exporter_is_not_a_session_holder(mps: MpsStandIn, health: Health) -> None:
    mps.start()
    health.want(holder=True)
    with mps.held_session():
        assert holders(health.collect()) == [None]


def test_reports_the_oldest_of_several_prompts(mps: MpsStandIn, health: Health, open_prompt: OpenPrompt) -> None:
    """While the daemon hangs, later prompts wait and have no session yet."""
    mps.start()
    oldest = open_prompt()
    health.want(holder=True)
    eventually(is_holder(oldest.pid, health))
    mps.stop_signal()
    open_prompt()
    health.want(holder=False)
    health.collect()
    health.want(holder=True)
    assert holders(health.collect()) == [oldest.pid]


def test_ignores_a_prompt_of_another_daemon(mps: MpsStandIn, health: Health, tmp_path: Path) -> None:
    with MpsStandIn(tmp_path / "other") as other:
        mps.start()
        other.start()
        prompt = Prompt(other, {})
        health.want(holder=True)
        assert holders(health.collect()) == [None]
        prompt.close()


def test_recognizes_a_pipe_directory_by_another_path(
    mps: MpsStandIn, health: Health, open_prompt: OpenPrompt, tmp_path: Path
) -> None:
    mps.start()
    (tmp_path / "link").symlink_to(mps.pipe_directory)
    prompt = open_prompt(CUDA_MPS_PIPE_DIRECTORY=str(tmp_path / "link"))
    health.want(holder=True)
    eventually(is_holder(prompt.pid, health))


# -- listening sockets ---------------------------------------------------------------------------------------------


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path fits into the address of a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture
def listener(short: Path) -> Health:
    return Health(on_host(NAME, short, short))


def listen(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(path))
    listening.listen()
    return listening


def test_distinguishes_a_listening_socket_from_a_stale_one(short: Path, listener: Health) -> None:
    """The socket file remains after SIGKILL (measured, R580)."""
    listener.want(listener=True)
    with listen(short / "control"):
        assert listeners(listener.collect()) == [True]
        assert listener.collect() == []
    assert (short / "control").exists()
    assert listeners(listener.collect()) == [False]


def test_finds_the_listener_by_another_path_of_its_directory(short: Path, tmp_path: Path) -> None:
    """The path may contain a link such as /var/run."""
    (tmp_path / "link").symlink_to(short)
    health = Health(on_host(NAME, tmp_path / "link", tmp_path))
    health.want(listener=True)
    with listen(short / "control"):
        assert listeners(health.collect()) == [True]


def test_ignores_other_listening_sockets(short: Path, listener: Health) -> None:
    """A cleaner of /tmp removes sockets of daemons that listen, so without the socket nothing is known."""
    (short / "other").mkdir()
    listener.want(listener=True)
    with listen(short / "control_privileged"), listen(short / "other" / "control"):
        assert listeners(listener.collect()) == [None]


def test_knows_no_listener_without_a_socket_and_proc(short: Path, tmp_path: Path) -> None:
    health = Health(on_host(NAME, short, short), proc=tmp_path)
    health.want(listener=True)
    assert listeners(health.collect()) == [None]


def test_a_socket_that_is_not_in_the_table_may_be_in_another_namespace(
    mps: MpsStandIn, health: Health, monkeypatch: pytest.MonkeyPatch
) -> None:
    mps.start()
    monkeypatch.setattr(daemon_directory, "read_control_sockets", lambda *_: None)
    health.want(listener=True)
    assert listeners(health.collect()) == [True]
    health.want()
    health.collect()
    monkeypatch.setattr(Proc, "unix_sockets", lambda *_: "")
    health.want(listener=True)
    assert listeners(health.collect()) == [None]


def test_reports_a_listener_again_when_it_is_wanted_again(listener: Health) -> None:
    listener.want(listener=True)
    assert listeners(listener.collect()) == [None]
    listener.want()
    assert listener.collect() == []
    listener.want(listener=True)
    assert listeners(listener.collect()) == [None]


# -- pid file of a dead daemon -------------------------------------------------------------------------------------


def daemon_states(health: Health) -> list[tuple[bool, bool | None]]:
    return [(each.pid is not None, each.pid_file_left) for each in health.daemons()]


def test_reports_a_pid_file_that_remains_after_a_kill(mps: MpsStandIn, health: Health) -> None:
    mps.start()
    assert daemon_states(health) == [(True, None)]
    mps.kill()
    assert daemon_states(health) == [(False, True)]
    assert daemon_states(health) == []
    (mps.pipe_directory / PID_FILE).unlink()
    assert daemon_states(health) == [(False, False)]


def test_reports_no_remaining_pid_file_without_a_directory(health: Health) -> None:
    assert daemon_states(health) == [(False, False)]


# -- Which processes a daemon may wait for ---------------------------------------------------------------------------


_DAEMON = """
import os, socket, sys, time
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind("control")
listener.listen(1)
if os.fork() == 0:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect("control")
    os.kill(os.getpid(), 19)
kept = []
while True:
    kept.append(listener.accept()[0])
    if len(kept) > 1 and os.path.exists("hang"):
        time.sleep(600)
    if len(kept) > 1:
        kept[-1].recv(64)
"""
"""A daemon with a server, which waits for the first bytes of each connection and keeps all of them."""


class _FromOutside(Proc):
    """No process is one of the exporter."""

    def descends_from_us(self, pid: int) -> bool:
        return False


PROC = _FromOutside(Path("/proc"), SystemClock())


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory whose path fits into the address of a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def daemon(directory: Path) -> Iterator[ProcessIdentity]:
    child = subprocess.Popen([sys.executable, "-c", _DAEMON], cwd=directory, start_new_session=True)
    try:
        eventually(lambda: _connects_its_server(child.pid))
        ticks = PROC.start_ticks(child.pid)
        assert ticks is not None
        yield ProcessIdentity(pid=child.pid, start_ticks=ticks)
    finally:
        os.killpg(child.pid, 9)
        child.wait()


def _connects_its_server(pid: int) -> None:
    assert len(PROC.sockets(pid, 64)) == 2


def _connected(directory: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(str(directory / "control"))
    return connection


def _peers(daemon: ProcessIdentity, number: int) -> tuple[tuple[int, int], ...]:
    eventually(lambda: _accepted(daemon, number))
    sockets = read_control_sockets(PROC, daemon)
    assert sockets is not None
    assert sockets.listening
    return sockets.peers


def _accepted(daemon: ProcessIdentity, number: int) -> None:
    assert len(PROC.sockets(daemon.pid, 64)) == 2 + number


def test_a_process_with_an_open_connection_is_a_peer(directory: Path, daemon: ProcessIdentity) -> None:
    assert _peers(daemon, 0) == ()
    with _connected(directory):
        assert _peers(daemon, 1) == ((os.getpid(), os.getuid()),)
        holder = session_holder(PROC, SystemClock(), "node", read_control_sockets(PROC, daemon))
        assert (holder.pid, holder.uid) == (os.getpid(), os.getuid())
        own = read_control_sockets(Proc(Path("/proc"), SystemClock()), daemon)
        assert own is not None
        assert own.peers == ()


def test_a_connection_whose_other_end_is_closed_holds_no_daemon(directory: Path, daemon: ProcessIdentity) -> None:
    """A daemon that hangs keeps the connection of the command that was killed (measured, R580)."""
    (directory / "hang").touch()
    connection = _connected(directory)
    assert len(_peers(daemon, 1)) == 1
    connection.shutdown(socket.SHUT_WR)
    assert _peers(daemon, 1) == ()
    connection.close()
    assert _peers(daemon, 1) == ()


def test_sockets_of_another_process_with_the_pid_are_not_read(daemon: ProcessIdentity) -> None:
    other = ProcessIdentity(pid=daemon.pid, start_ticks=daemon.start_ticks + 1)
    assert read_control_sockets(PROC, other) is None


def test_a_full_queue_leaves_open_who_is_connected(directory: Path, daemon: ProcessIdentity) -> None:
    """Any user can fill it with connections that end at once: no accepted connection shows them."""
    (directory / "hang").touch()
    with _connected(directory):
        _peers(daemon, 1)
        for _ in range(2):
            _connected(directory).close()
        assert probe(Directory(directory), lambda: False) == (True, False, None)
        assert probe(Directory(directory), lambda: True) == (True, False, True)


# -- Test connections of the exporter --------------------------------------------------------------------------------


SHORT = 0.3
"""A deadline for answers that must not arrive, in seconds."""


def alone() -> bool:
    return False


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
    another = replace(process, start_ticks=process.start_ticks - 1)
    for unknown in (another, None):
        control.request(("get_server_list",), process=unknown)
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


def test_an_answer_between_two_failures_is_no_reason_to_connect_less_often(
    mps: MpsStandIn, client: Client, hanging_program: str
) -> None:
    mps.start()
    control = client(hanging_program)
    for is_suspended in (True, False, True, True):
        os.kill(mps.pid, signal.SIGSTOP if is_suspended else signal.SIGCONT)
        eventually(lambda expected=is_suspended: _assert(is_stopped(mps.pid) is expected))
        control.request(("get_server_list",))
        assert answers(control.collect().observations) == [not is_suspended]


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
