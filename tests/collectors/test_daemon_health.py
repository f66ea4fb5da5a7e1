"""Who else tells of a control daemon: real processes, their sockets, and the stand-in's sessions."""

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
from exporter.collectors.daemon_health import HOLDERS_SECONDS, STATES_SECONDS, DaemonHealth
from exporter.collectors.pid_files import PidFiles
from exporter.collectors.pipe_dir import PID_FILE, DaemonLocation, on_host
from exporter.collectors.proc import Proc
from exporter.model.observation import ControlSocket, DaemonProcess, Observation, ProcessState, SessionHolder, Wanted
from tests.clocks import HandClock
from tests.conftest import Starter
from tests.eventually import eventually
from tests.standin.mps import MpsStandIn, is_alive

NAME = "node"


class Looks:
    """The witnesses of the stand-in, looked at as time goes on."""

    def __init__(self, location: DaemonLocation, *, proc: Path = Path("/proc")) -> None:
        self.clock = HandClock()
        self.proc = Proc(proc, SystemClock())
        self._locations = {NAME: location}
        self._pid_files = PidFiles(self.proc, self.clock)
        self._witnesses = DaemonHealth(self.proc, self._pid_files, self.clock)

    def want(self, *pids: int, holder: bool = False, listener: bool = False) -> None:
        """Say what is wanted."""
        named = frozenset({NAME})
        self._witnesses.want(
            Wanted(
                states=frozenset(pids),
                holders=named if holder else frozenset(),
                sockets=named if listener else frozenset(),
            )
        )

    def next(self, seconds: float = HOLDERS_SECONDS) -> list[Observation]:
        """What one look sees, so much later."""
        self.clock.time += seconds
        self.daemons()
        return self._witnesses.changed(self._locations)

    def daemons(self) -> list[DaemonProcess]:
        """The control daemon as a process, where that is news."""
        return self._pid_files.changed(self._locations)


@pytest.fixture
def looks(mps: MpsStandIn) -> Looks:
    return Looks(on_host(NAME, mps.pipe_directory, mps.log_directory))


def states(seen: list[Observation]) -> list[tuple[int, str]]:
    return [(each.pid, each.state) for each in seen if isinstance(each, ProcessState)]


def holders(seen: list[Observation]) -> list[int | None]:
    return [each.pid for each in seen if isinstance(each, SessionHolder)]


def listeners(seen: list[Observation]) -> list[bool | None]:
    return [each.listening for each in seen if isinstance(each, ControlSocket)]


# -- how processes stand -------------------------------------------------------------------------------------------


def is_in(pid: int, letters: str) -> Callable[[], None]:
    def check() -> None:
        assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in letters

    return check


def test_a_process_is_told_once_at_first_and_when_it_is_stopped_and_goes_on(looks: Looks, start: Starter) -> None:
    pid = start().pid
    eventually(is_in(pid, "S"))
    looks.want(pid)
    assert states(looks.next()) == [(pid, "S")]
    assert looks.next() == []

    os.kill(pid, signal.SIGSTOP)
    eventually(is_in(pid, "T"))
    (stopped,) = looks.next()
    assert isinstance(stopped, ProcessState)
    assert (stopped.state, stopped.start_ticks) == ("T", looks.proc.start_ticks(pid))
    assert looks.next() == []

    os.kill(pid, signal.SIGCONT)
    eventually(is_in(pid, "S"))
    assert states(looks.next()) == [(pid, "S")]


def test_that_it_runs_or_sleeps_is_no_news(looks: Looks, start: Starter) -> None:
    process = start([sys.executable, "-c", "input()\nwhile True: pass"], stdin=subprocess.PIPE)
    eventually(is_in(process.pid, "S"))
    looks.want(process.pid)
    assert states(looks.next()) == [(process.pid, "S")]
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    eventually(is_in(process.pid, "R"))
    assert looks.next() == []


def test_one_that_has_gone_is_not_told_of(looks: Looks, start: Starter) -> None:
    process = start()
    looks.want(process.pid)
    looks.next()
    process.kill()
    eventually(is_in(process.pid, "Z"))
    assert looks.next() == []


def test_a_number_that_is_nobodys_pid_harms_nothing(looks: Looks) -> None:
    looks.want(2**22 - 1, 2**40)
    assert looks.next() == []


def test_they_are_looked_at_no_more_than_twice_a_second_but_at_once_where_one_is_new(
    looks: Looks, start: Starter
) -> None:
    first, second = start().pid, start().pid
    looks.want(first)
    looks.next()
    os.kill(first, signal.SIGSTOP)
    eventually(is_in(first, "T"))
    assert looks.next(STATES_SECONDS / 2) == []
    looks.want(first, second)
    assert {pid for pid, _ in states(looks.next(0.01))} == {first, second}


# -- whoever holds a session ---------------------------------------------------------------------------------------


class Prompt:
    """An operator's open prompt, in a shell that is no descendant of this process."""

    def __init__(self, mps: MpsStandIn, environment: Mapping[str, str]) -> None:
        told, self._input = os.pipe()
        environment = os.environ | mps.environment() | environment
        command = shutil.which("nvidia-cuda-mps-control", path=environment["PATH"])
        script = 'exec 3<&0; "$0" <&3 >/dev/null 2>&1 & echo $!'
        shell = ["sh", "-c", script, str(command)]
        said = subprocess.run(shell, env=environment, stdin=told, capture_output=True, check=True).stdout
        os.close(told)
        self.pid = int(said)
        eventually(self._is_there)

    def _is_there(self) -> None:
        """`env`, by which the stand-in begins, has its name too, and Python as well until it has its arguments."""
        assert Path(f"/proc/{self.pid}/cmdline").read_bytes().startswith(b"python3\0")
        assert Path(f"/proc/{self.pid}/comm").read_text() == "nvidia-cuda-mps\n"

    def close(self) -> None:
        """End it."""
        os.close(self._input)
        eventually(self._has_gone)

    def _has_gone(self) -> None:
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


def test_an_open_prompt_is_named_until_it_is_closed(mps: MpsStandIn, looks: Looks, open_prompt: OpenPrompt) -> None:
    mps.start()
    prompt = open_prompt()
    looks.want(holder=True)

    (held,) = looks.next()
    assert isinstance(held, SessionHolder)
    assert (held.daemon, held.pid, held.start_ticks) == (NAME, prompt.pid, looks.proc.start_ticks(prompt.pid))
    assert (held.uid, held.user) == (os.getuid(), pwd.getpwuid(os.getuid()).pw_name)
    assert looks.next() == []

    prompt.close()
    assert holders(looks.next()) == [None]


def test_the_daemon_itself_holds_nothing(mps: MpsStandIn, looks: Looks) -> None:
    mps.start()
    looks.want(holder=True)
    assert holders(looks.next()) == [None]


def test_nor_does_a_command_of_our_own(mps: MpsStandIn, looks: Looks) -> None:
    mps.start()
    looks.want(holder=True)
    with mps.held_session():
        assert holders(looks.next()) == [None]


def test_the_eldest_of_several_is_named(mps: MpsStandIn, looks: Looks, open_prompt: OpenPrompt) -> None:
    """One whose daemon hangs waits for its turn, and holds nothing yet."""
    mps.start()
    eldest = open_prompt()
    mps.stop_signal()
    open_prompt()
    looks.want(holder=True)
    assert holders(looks.next()) == [eldest.pid]


def test_a_prompt_in_another_directory_holds_another_daemon(mps: MpsStandIn, looks: Looks, tmp_path: Path) -> None:
    with MpsStandIn(tmp_path / "other") as other:
        mps.start()
        other.start()
        prompt = Prompt(other, {})
        looks.want(holder=True)
        assert holders(looks.next()) == [None]
        prompt.close()


def test_a_directory_is_known_by_whatever_path_leads_there(
    mps: MpsStandIn, looks: Looks, open_prompt: OpenPrompt, tmp_path: Path
) -> None:
    mps.start()
    (tmp_path / "link").symlink_to(mps.pipe_directory)
    prompt = open_prompt(CUDA_MPS_PIPE_DIRECTORY=str(tmp_path / "link"))
    looks.want(holder=True)
    assert holders(looks.next()) == [prompt.pid]


# -- whoever listens -----------------------------------------------------------------------------------------------


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path fits into the address of a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield Path(made)


@pytest.fixture
def listener(short: Path) -> Looks:
    return Looks(on_host(NAME, short, short))


def listen(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.bind(str(path))
    made.listen()
    return made


def test_a_socket_with_a_listener_is_told_from_one_that_was_left(short: Path, listener: Looks) -> None:
    """The file stays after SIGKILL (measured, R580)."""
    listener.want(listener=True)
    with listen(short / "control"):
        assert listeners(listener.next()) == [True]
        assert listener.next() == []
    assert (short / "control").exists()
    assert listeners(listener.next()) == [False]


def test_its_directory_may_have_been_named_otherwise(short: Path, tmp_path: Path) -> None:
    """By a link, as /var/run is one."""
    (tmp_path / "link").symlink_to(short)
    looks = Looks(on_host(NAME, tmp_path / "link", tmp_path))
    looks.want(listener=True)
    with listen(short / "control"):
        assert listeners(looks.next()) == [True]


def test_other_sockets_are_not_it(short: Path, listener: Looks) -> None:
    (short / "other").mkdir()
    listener.want(listener=True)
    with listen(short / "control_privileged"), listen(short / "other" / "control"):
        assert listeners(listener.next()) == [False]


def test_where_the_table_cannot_be_read_nothing_is_known(short: Path, tmp_path: Path) -> None:
    looks = Looks(on_host(NAME, short, short), proc=tmp_path)
    looks.want(listener=True)
    assert listeners(looks.next()) == [None]


def test_what_is_wanted_no_more_is_told_anew_when_it_is_wanted_again(listener: Looks) -> None:
    listener.want(listener=True)
    assert listeners(listener.next()) == [False]
    listener.want()
    assert listener.next() == []
    listener.want(listener=True)
    assert listeners(listener.next()) == [False]


# -- what a dead daemon left ---------------------------------------------------------------------------------------


def left_behind(looks: Looks) -> list[tuple[bool, bool | None]]:
    """Whether there is a daemon, and whether a pid file was left, as far as that is news."""
    return [(each.pid is not None, each.pid_file_left) for each in looks.daemons()]


def test_a_pid_file_stays_after_a_kill_and_not_after_a_quit(mps: MpsStandIn, looks: Looks) -> None:
    mps.start()
    assert left_behind(looks) == [(True, None)]
    mps.kill()
    assert left_behind(looks) == [(False, True)]
    assert left_behind(looks) == []
    (mps.pipe_directory / PID_FILE).unlink()
    assert left_behind(looks) == [(False, False)]


def test_where_there_is_no_directory_nothing_was_left(looks: Looks) -> None:
    assert left_behind(looks) == [(False, False)]
