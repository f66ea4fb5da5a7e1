"""Tests of ControlClient: it queries a control daemon within a deadline."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import structlog

from exporter.clock import SystemClock
from exporter.collectors import child
from exporter.collectors.control_client import ATTEMPTS, ControlClient, SessionLock
from exporter.collectors.pipe_dir import on_host
from exporter.collectors.thread import Reading
from exporter.model.observation import ControlReply
from exporter.model.reason import Reason, ReasonCode, command_failed
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
    """Return a function that creates a client of the stand-in's daemon."""

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
    """Return a function that writes a shell script to replace nvidia-cuda-mps-control."""

    def write(script: str) -> str:
        path = tmp_path / "program"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return write


def received(mps: MpsStandIn) -> list[str]:
    """Return the commands that reached the daemon."""
    return [line.partition("Cmd:")[2] for line in mps.control_log.splitlines() if "Cmd:" in line]


def replies(reading: Reading) -> list[ControlReply]:
    """Return the replies of the daemon."""
    return [seen for seen in reading.observations if isinstance(seen, ControlReply)]


# -- replies -------------------------------------------------------------------------------------------------------


def test_sends_requested_commands_once(mps: MpsStandIn, client: Client) -> None:
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
    assert received(mps) == ["get_server_list", f"get_client_list {mps.server_pid}"]


def test_logs_once_that_commands_are_sent_without_the_lock(mps: MpsStandIn, client: Client, tmp_path: Path) -> None:
    mps.start()
    (tmp_path / "file").touch()
    control = client(lock=SessionLock(tmp_path / "file", SystemClock()))
    with structlog.testing.capture_logs() as logged:
        for _ in range(2):
            assert query_outcome(control.send("get_server_list")) is QueryOutcome.ANSWERED

    (record,) = logged
    assert (record["event"], record["daemon"]) == ("control_lock_not_held", "node")
    assert record["reason"].endswith("Not a directory")


def test_a_missing_daemon_is_an_observation_and_not_a_problem(client: Client) -> None:
    control = client()
    control.request(("get_server_list", "get_server_status 1"))

    reading = control.collect()

    assert [query_outcome(seen) for seen in replies(reading)] == [QueryOutcome.NO_DAEMON]
    assert reading.problem is None


def test_does_not_mistake_the_files_of_a_killed_daemon_for_a_daemon(mps: MpsStandIn, client: Client) -> None:
    mps.start()
    mps.kill()

    reply = client().send("get_server_list")

    assert query_outcome(reply) is QueryOutcome.NO_DAEMON


@pytest.mark.parametrize(
    ("printed", "text"),
    [
        (r"\377\376 12\n", "\ufffd\ufffd 12\n"),
        (r"\000\033[31m\n", "\0\033[31m\n"),
        (r"\303\244\342\202\254", "ä€"),
        ("", ""),
    ],
)
def test_decodes_any_output(client: Client, program: Callable[[str], str], printed: str, text: str) -> None:
    reply = client(executable=program(f"printf '{printed}'; printf '{printed}' >&2")).send("get_server_list")

    assert (reply.exit_code, reply.stdout, reply.stderr) == (0, text, text)


def test_accepts_a_program_that_closes_its_stdin(client: Client, program: Callable[[str], str]) -> None:
    reply = client(executable=program("exec <&-; echo 7")).send("get_server_list")

    assert (reply.exit_code, reply.stdout) == (0, "7\n")


# -- collisions ----------------------------------------------------------------------------------------------------


def test_reports_a_held_session_as_refused_after_several_attempts(mps: MpsStandIn, client: Client) -> None:
    mps.start()
    pauses: list[float] = []
    with mps.held_session():
        control = client(sleep=pauses.append)
        control.request(("get_server_list", "get_server_status 1"))
        reading = control.collect()

    assert [query_outcome(seen) for seen in replies(reading)] == [QueryOutcome.REFUSED]
    assert len(pauses) == ATTEMPTS - 1
    assert all(0 < pause <= 1 for pause in pauses)
    assert reading.problem is None
    assert received(mps) == []


def test_sends_a_refused_command_again(mps: MpsStandIn, client: Client) -> None:
    mps.start()
    session = mps.held_session()
    session.__enter__()

    reply = client(sleep=lambda _: session.__exit__(None, None, None)).send("get_default_active_thread_percentage")

    assert (reply.exit_code, reply.stdout) == (0, "100.0\n")
    assert received(mps) == ["get_default_active_thread_percentage"]


REFUSED = "echo 'Cannot send command to MPS control daemon process' >&2; exit 1"
SILENT = "exit 0"


@pytest.mark.parametrize(
    ("command", "attempts", "outcome"),
    [
        ("get_server_list", (REFUSED, SILENT, REFUSED, SILENT), QueryOutcome.REFUSED),
        ("get_server_list", (SILENT, REFUSED, SILENT, SILENT), QueryOutcome.REFUSED),
        ("get_client_list 451", (SILENT, SILENT, REFUSED, SILENT), QueryOutcome.REFUSED),
        ("get_server_status 451", (SILENT, SILENT, SILENT, SILENT), QueryOutcome.REFUSED),
        ("get_server_list", (SILENT, SILENT, SILENT, SILENT), QueryOutcome.ANSWERED),
        ("get_server_list", (REFUSED, SILENT, "echo 451"), QueryOutcome.ANSWERED),
        ("get_client_list 452", (SILENT,), QueryOutcome.ANSWERED),
    ],
)
def test_an_empty_reply_beside_refused_ones_is_no_answer(
    client: Client,
    program: Callable[[str], str],
    tmp_path: Path,
    command: str,
    attempts: tuple[str, ...],
    outcome: QueryOutcome,
) -> None:
    """Server 451 has clients, and 452 has none."""
    count = tmp_path / "count"
    cases = "".join(f"{number}) {attempt};;\n" for number, attempt in enumerate(attempts, start=1))
    control = client(
        executable=program(f"echo >> {count}\ncase $(wc -l < {count}) in\n{cases}esac"), sleep=lambda _: None
    )
    control.request((command,), servers=(451, 452), with_clients=(451,))

    (reply,) = replies(control.collect())

    assert query_outcome(reply) is outcome
    assert len(count.read_text()) == len(attempts)


def test_sends_a_command_that_changes_something_once_if_its_reply_is_empty(
    client: Client, program: Callable[[str], str], tmp_path: Path
) -> None:
    count = tmp_path / "count"
    refused_first = f"echo >> {count}; [ $(wc -l < {count}) -gt 1 ] || {{ {REFUSED}; }}"
    control = client(executable=program(refused_first), sleep=lambda _: None)

    reply = control.send("set_default_device_pinned_mem_limit 0 2G")

    assert (reply.exit_code, len(count.read_text())) == (0, 2)


def test_clients_that_share_a_lock_do_not_collide(mps: MpsStandIn, client: Client, tmp_path: Path) -> None:
    mps.start()
    mps.slow(0.02)
    collisions: list[float] = []

    def query() -> None:
        lock = SessionLock(tmp_path, SystemClock(), deadline=LONG_DEADLINE)
        control = client(sleep=collisions.append, lock=lock)
        for _ in range(5):
            assert control.send("get_server_list").exit_code == 0

    threads = [threading.Thread(target=query) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(received(mps)) == 15
    assert collisions == []


# -- hangs ---------------------------------------------------------------------------------------------------------


def test_a_stopped_daemon_costs_one_deadline_and_leaves_no_child(mps: MpsStandIn, client: Client) -> None:
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


def test_a_stop_of_the_exporter_is_no_timeout(client: Client, program: Callable[[str], str], tmp_path: Path) -> None:
    started = tmp_path / "started"

    class StoppedOnceStarted(SystemClock):
        def monotonic(self) -> float:
            return super().monotonic() + (300.0 if started.exists() else 0.0)

    executable = program(f"touch {started}; echo; sleep 0.5; echo 7")
    reply = client(executable=executable, clock=StoppedOnceStarted()).send("ps")
    assert (reply.exit_code, reply.stdout.split()) == (0, ["7"])


def test_kills_all_descendants_at_the_deadline(
    client: Client, program: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "grandchild"
    monkeypatch.setattr(child, "SLICE_SECONDS", float("inf"))

    class PastDeadlineOnceStarted(SystemClock):
        def monotonic(self) -> float:
            return super().monotonic() + (2 * LONG_DEADLINE if started.exists() else 0.0)

    executable = program(f"sleep 600 & echo $! > {started}.new; mv {started}.new {started}; echo; wait")
    reply = client(executable=executable, clock=PastDeadlineOnceStarted()).send("ps")

    def has_ended() -> None:
        assert not is_alive(int(started.read_text()))

    assert reply.exit_code is None
    eventually(has_ended)


def test_kills_a_child_that_closes_its_output_and_runs_on(client: Client, program: Callable[[str], str]) -> None:
    reply = client(executable=program("exec >&- 2>&-; sleep 600"), deadline=SHORT_DEADLINE).send("ps")

    assert reply.exit_code is None


def test_limits_the_output_of_a_program(client: Client, program: Callable[[str], str]) -> None:
    before = peak_memory()

    reply = client(executable=program("exec yes"), deadline=SHORT_DEADLINE).send("get_server_list")

    assert reply.exit_code is None or len(reply.stdout) <= 1 << 20
    assert peak_memory() - before < 64 << 20


def peak_memory() -> int:
    """Return the peak memory of this process in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


@pytest.fixture(autouse=True)
def _reset_peak_memory() -> None:
    Path("/proc/self/clear_refs").write_text("5")


# -- programs that fail ---------------------------------------------------------------------------------------------


def test_reports_a_missing_program(client: Client, tmp_path: Path) -> None:
    missing = str(tmp_path / "nowhere")
    control = client(executable=missing)
    control.request(("get_server_list", "get_server_status 1"))

    reading = control.collect()

    assert len(reading.observations) == 1
    assert reading.problem == Reason(ReasonCode.PROGRAM_MISSING, subject=missing)


@pytest.mark.parametrize(("mode", "error"), [(0o644, "Permission denied"), (0o755, "Exec format error")])
def test_reports_a_program_that_cannot_be_executed(client: Client, tmp_path: Path, mode: int, error: str) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF of another machine")
    program.chmod(mode)
    control = client(executable=str(program))
    control.request(("get_server_list",))

    assert control.collect().problem == command_failed(str(program), 127, f"{program}: {error}")


def test_reports_the_output_of_a_program_that_fails(client: Client, program: Callable[[str], str]) -> None:
    executable = program("echo 'libcuda.so.1: cannot open shared object file' >&2; exit 127")
    control = client(executable=executable)
    control.request(("get_server_list", "get_server_status 1"))

    reading = control.collect()

    assert len(reading.observations) == 1
    assert reading.problem == command_failed(executable, 127, "libcuda.so.1: cannot open shared object file")


def test_reports_a_program_killed_by_a_signal(client: Client, program: Callable[[str], str]) -> None:
    executable = program(f"kill -{signal.SIGSEGV:d} $$")
    control = client(executable=executable)
    control.request(("get_server_list",))

    assert control.collect().problem == command_failed(executable, -11, "")


# -- environment of children ----------------------------------------------------------------------------------------


def test_the_child_gets_a_minimal_environment(
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
