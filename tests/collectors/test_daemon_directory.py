"""Daemon health from process states, session holders and listening sockets of real processes."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.collectors import daemon_directory
from exporter.collectors.daemon_directory import HOLDERS_SECONDS, DaemonDirectory
from exporter.collectors.daemon_processes import Identities
from exporter.collectors.pipe_dir import PID_FILE, DaemonLocation, on_host
from exporter.collectors.proc import Proc
from exporter.collectors.processes import STATES_SECONDS, Processes
from exporter.model.observation import ControlSocket, DaemonProcess, Observation, ProcessState, SessionHolder, Wanted
from tests.clocks import HandClock
from tests.conftest import Starter
from tests.eventually import eventually
from tests.standin.mps import MpsStandIn, is_alive

NAME = "node"


class Health:
    """The directory of one daemon and the states of processes, with a clock that the test advances."""

    def __init__(self, location: DaemonLocation, *, proc: Path = Path("/proc")) -> None:
        self.clock = HandClock()
        self.proc = Proc(proc, SystemClock())
        self.directory = DaemonDirectory(location, self.proc, self.clock, Identities())
        self._processes = Processes(proc=proc, clock=self.clock, wait=0.0)

    def want(self, *pids: int, holder: bool = False, listener: bool = False) -> None:
        """Set the wanted observations."""
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
        """Return the process of the control daemon if it has changed."""
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
        """Close the input of the prompt and wait until it ends."""
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
    """Return a check that succeeds when the collector reports this process as the holder."""

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
    """Return, for each change, whether a daemon runs and whether a pid file remains."""
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
