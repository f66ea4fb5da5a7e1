"""ControlClient asks a control daemon, and comes back by its deadline whatever the daemon does."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from exporter.clock import SystemClock
from exporter.collectors.control import ATTEMPTS, ControlClient, SessionLock
from exporter.collectors.pipe_dir import on_host
from exporter.collectors.thread import Reading
from exporter.model.observation import ControlReply
from exporter.model.problem import command_failed
from exporter.parse.control_reply import VERSION_FLAG, QueryOutcome, query_outcome
from tests.eventually import PATIENCE_SECONDS, eventually
from tests.standin.mps import MpsStandIn, is_alive

CLIENT = 5_000_000
SHORT_DEADLINE = 0.5
LONG_DEADLINE = PATIENCE_SECONDS

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

Client = Callable[..., ControlClient]


@pytest.fixture
def client(mps: MpsStandIn) -> Client:
    """Makes the client of the stand-in's daemon, or of another program in its place."""

    def make(**options: object) -> ControlClient:
        options = {
            "executable": "nvidia-cuda-mps-control",
            "deadline": LONG_DEADLINE,
            "clock": SystemClock(),
            "path": mps.environment()["PATH"],
            **options,
        }
        return ControlClient(on_host("node", mps.pipe_directory, mps.log_directory), **options)  # type: ignore[arg-type]

    return make


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], str]:
    """Writes a shell script to be used in place of nvidia-cuda-mps-control, and says where it is."""

    def write(script: str) -> str:
        path = tmp_path / "program"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return write


def asked(mps: MpsStandIn) -> list[str]:
    """The commands that reached the daemon."""
    return [line.partition("Cmd:")[2] for line in mps.control_log.splitlines() if "Cmd:" in line]


def replies(reading: Reading) -> list[ControlReply]:
    """What the daemon replied."""
    return [seen for seen in reading.observations if isinstance(seen, ControlReply)]


# -- answers -------------------------------------------------------------------------------------------------------


def test_a_look_asks_what_is_wanted_once(mps: MpsStandIn, client: Client) -> None:
    mps.start()
    mps.connect_and_wait(CLIENT)
    control = client()
    control.request((VERSION_FLAG, "get_server_list", f"get_client_list {mps.server_pid}"))

    first, second = control.collect(), control.collect()

    assert [(seen.command, seen.exit_code, seen.stdout, seen.stderr) for seen in replies(first)] == [
        (VERSION_FLAG, 0, "CUDA MPS Control binary version: 13000\n", ""),
        ("get_server_list", 0, f"{mps.server_pid}\n", ""),
        (f"get_client_list {mps.server_pid}", 0, f"{CLIENT}\n", ""),
    ]
    assert {seen.daemon for seen in replies(first)} == {"node"}
    assert first.problem is None
    assert (second.observations, second.problem) == ((), None)
    assert asked(mps) == ["get_server_list", f"get_client_list {mps.server_pid}"]


def test_no_daemon_is_an_observation_and_not_the_sources_failure(client: Client) -> None:
    control = client()
    control.request(("get_server_list", "get_server_status 1"))

    reading = control.collect()

    assert [query_outcome(seen.exit_code, seen.stderr) for seen in replies(reading)] == [QueryOutcome.NO_DAEMON]
    assert reading.problem is None


def test_a_killed_daemons_stale_files_are_no_daemon(mps: MpsStandIn, client: Client) -> None:
    mps.start()
    mps.kill()

    reply = client().send("get_server_list")

    assert query_outcome(reply.exit_code, reply.stderr) is QueryOutcome.NO_DAEMON


@pytest.mark.parametrize(
    ("printed", "text"),
    [
        (r"\377\376 12\n", "\ufffd\ufffd 12\n"),
        (r"\000\033[31m\n", "\0\033[31m\n"),
        (r"\303\244\342\202\254", "ä€"),
        ("", ""),
    ],
)
def test_output_is_text_whatever_the_bytes(
    client: Client, program: Callable[[str], str], printed: str, text: str
) -> None:
    reply = client(executable=program(f"printf '{printed}'; printf '{printed}' >&2")).send("get_server_list")

    assert (reply.exit_code, reply.stdout, reply.stderr) == (0, text, text)


def test_a_program_that_does_not_listen_is_answered_for(client: Client, program: Callable[[str], str]) -> None:
    reply = client(executable=program("exec <&-; echo 7")).send("get_server_list")

    assert (reply.exit_code, reply.stdout) == (0, "7\n")


# -- collisions ----------------------------------------------------------------------------------------------------


def test_a_held_session_is_told_as_refused_after_a_few_attempts(mps: MpsStandIn, client: Client) -> None:
    mps.start()
    pauses: list[float] = []
    with mps.held_session():
        control = client(sleep=pauses.append)
        control.request(("get_server_list", "get_server_status 1"))
        reading = control.collect()

    assert [query_outcome(seen.exit_code, seen.stderr) for seen in replies(reading)] == [QueryOutcome.REFUSED]
    assert len(pauses) == ATTEMPTS - 1
    assert all(0 < pause <= 1 for pause in pauses)
    assert reading.problem is None
    assert asked(mps) == []


def test_a_command_refused_once_is_asked_again(mps: MpsStandIn, client: Client) -> None:
    mps.start()
    session = mps.held_session()
    session.__enter__()

    reply = client(sleep=lambda _: session.__exit__(None, None, None)).send("get_server_list")

    assert (reply.exit_code, reply.stdout) == (0, "")
    assert asked(mps) == ["get_server_list"]


def test_two_that_share_a_lock_do_not_collide(mps: MpsStandIn, client: Client, tmp_path: Path) -> None:
    mps.start()
    mps.slow(0.02)
    collisions: list[float] = []

    def ask() -> None:
        lock = SessionLock(tmp_path, SystemClock(), deadline=LONG_DEADLINE)
        control = client(sleep=collisions.append, lock=lock)
        for _ in range(5):
            assert control.send("get_server_list").exit_code == 0

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(asked(mps)) == 15
    assert collisions == []


# -- hanging -------------------------------------------------------------------------------------------------------


def test_a_stopped_daemon_costs_one_deadline_and_leaves_nothing(mps: MpsStandIn, client: Client) -> None:
    mps.start()
    mps.stop_signal()
    control = client(deadline=SHORT_DEADLINE)
    control.request(("get_server_list", "get_server_status 1", "get_client_list 1"))

    reading = control.collect()

    assert [(seen.command, seen.exit_code) for seen in replies(reading)] == [("get_server_list", None)]
    assert (replies(reading)[0].seconds or 0) >= SHORT_DEADLINE
    assert psutil.Process().children() == []
    mps.cont()
    assert client().send("get_server_list").exit_code == 0


def test_a_deadline_ends_the_whole_family(client: Client, program: Callable[[str], str], tmp_path: Path) -> None:
    born = tmp_path / "grandchild"

    class PastDeadlineOnceBorn(SystemClock):
        def monotonic(self) -> float:
            return super().monotonic() + (2 * LONG_DEADLINE if born.exists() else 0.0)

    executable = program(f"sleep 600 & echo $! > {born}.new; mv {born}.new {born}; echo; wait")
    reply = client(executable=executable, clock=PastDeadlineOnceBorn()).send("ps")

    def has_ended() -> None:
        assert not is_alive(int(born.read_text()))

    assert reply.exit_code is None
    eventually(has_ended)


def test_a_child_that_closes_its_output_and_stays_is_ended_too(client: Client, program: Callable[[str], str]) -> None:
    reply = client(executable=program("exec >&- 2>&-; sleep 600"), deadline=SHORT_DEADLINE).send("ps")

    assert reply.exit_code is None


def test_a_program_that_never_stops_printing_cannot_fill_the_memory(
    client: Client, program: Callable[[str], str]
) -> None:
    before = peak_memory()

    reply = client(executable=program("exec yes"), deadline=SHORT_DEADLINE).send("get_server_list")

    assert reply.exit_code is None or len(reply.stdout) <= 1 << 20
    assert peak_memory() - before < 64 << 20


def peak_memory() -> int:
    """The most memory that this process ever had, in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


@pytest.fixture(autouse=True)
def _peak_begins_anew() -> None:
    Path("/proc/self/clear_refs").write_text("5")


# -- a program that cannot be used ---------------------------------------------------------------------------------


def test_a_missing_program_is_the_sources_problem(client: Client, tmp_path: Path) -> None:
    missing = str(tmp_path / "nowhere")
    control = client(executable=missing)
    control.request(("get_server_list", "get_server_status 1"))

    reading = control.collect()

    assert len(reading.observations) == 1
    assert reading.problem == command_failed(missing, 127, f"{missing}: No such file or directory")


@pytest.mark.parametrize(("mode", "error"), [(0o644, "Permission denied"), (0o755, "Exec format error")])
def test_a_program_that_cannot_be_run_is_the_sources_problem(
    client: Client, tmp_path: Path, mode: int, error: str
) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF of another machine")
    program.chmod(mode)
    control = client(executable=str(program))
    control.request(("get_server_list",))

    assert control.collect().problem == command_failed(str(program), 127, f"{program}: {error}")


def test_a_program_that_breaks_is_the_sources_problem_in_its_own_words(
    client: Client, program: Callable[[str], str]
) -> None:
    executable = program("echo 'libcuda.so.1: cannot open shared object file' >&2; exit 127")
    control = client(executable=executable)
    control.request(("get_server_list", "get_server_status 1"))

    reading = control.collect()

    assert len(reading.observations) == 1
    assert reading.problem == command_failed(executable, 127, "libcuda.so.1: cannot open shared object file")


def test_a_program_killed_by_a_signal_is_the_sources_problem(client: Client, program: Callable[[str], str]) -> None:
    executable = program(f"kill -{signal.SIGSEGV:d} $$")
    control = client(executable=executable)
    control.request(("get_server_list",))

    assert control.collect().problem == command_failed(executable, -11, "")


# -- what the child gets -------------------------------------------------------------------------------------------


def test_the_child_gets_only_what_it_needs(
    client: Client, program: Callable[[str], str], mps: MpsStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setenv("DATABASE_PASSWORD", "secret")

    reply = client(executable=program("exec env"), path=os.defpath).send("get_server_list")
    variables = dict(line.split("=", 1) for line in reply.stdout.splitlines())

    assert {name: value for name, value in variables.items() if name not in ("PWD", "SHLVL", "_", "OLDPWD")} == {
        "PATH": os.defpath,
        "LC_ALL": "C",
        "CUDA_MPS_PIPE_DIRECTORY": str(mps.pipe_directory),
    }


def test_the_child_inherits_no_descriptors(client: Client, program: Callable[[str], str], tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        reply = client(executable=program("exec ls -l /proc/self/fd")).send("get_server_list")

    assert "secret" not in reply.stdout
