"""Queries to a control daemon within a deadline, their locks, and its process and user."""

import ctypes
import os
import pwd
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest
import structlog

from exporter.clock import SystemClock
from exporter.collectors import child
from exporter.collectors import child as collectors_child
from exporter.collectors.child import NOGROUP, OWN_USER, User, keep_capabilities_from_children, user
from exporter.collectors.control_client import ATTEMPTS, LOCKS, ControlClient, SessionLock
from exporter.collectors.pipe_dir import on_host
from exporter.collectors.thread import Reading
from exporter.collectors.without_capabilities import CAPSET_VERSION
from exporter.model.observation import ControlReply
from exporter.model.reason import Reason, ReasonCode, command_failed
from exporter.parse.control_reply import VERSION_FLAG, QueryOutcome, query_outcome
from exporter.parse.proc import Capability
from tests.another_user import run_as
from tests.eventually import PATIENCE_SECONDS, until
from tests.standin.mps import MpsStandIn, is_alive
from tests.tools import not_here

CLIENT = 5_000_000
SHORT_DEADLINE = 0.5
LONG_DEADLINE = PATIENCE_SECONDS

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

Client = Callable[..., ControlClient]


@pytest.fixture
def client(mps: MpsStandIn) -> Client:
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
    def write(script: str) -> str:
        path = tmp_path / "program"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return write


def received(mps: MpsStandIn) -> list[str]:
    return [line.partition("Cmd:")[2] for line in mps.control_log.splitlines() if "Cmd:" in line]


def replies(reading: Reading) -> list[ControlReply]:
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
GONE = "echo 'Cannot find MPS control daemon process' >&2; exit 1"
SILENT = "exit 0"


ANSWERS = "echo 100.0"
BOTH_KNOWN = {"servers": (451, 452), "with_clients": (451,)}
UNLISTED = {"listed": False}


@pytest.mark.parametrize(
    ("command", "known", "attempts", "outcome"),
    [
        ("get_server_list", UNLISTED, (SILENT, ANSWERS), QueryOutcome.ANSWERED),
        ("get_server_list", UNLISTED, (SILENT, REFUSED) * ATTEMPTS, QueryOutcome.REFUSED),
        ("get_server_list", UNLISTED, (SILENT, SILENT) * ATTEMPTS, QueryOutcome.REFUSED),
        ("get_server_list", UNLISTED, (SILENT, REFUSED, "echo 451"), QueryOutcome.ANSWERED),
        ("get_server_list", UNLISTED, (SILENT, GONE), QueryOutcome.NO_DAEMON),
        ("get_server_list", UNLISTED, (REFUSED, SILENT, ANSWERS), QueryOutcome.ANSWERED),
        ("get_server_list", {}, (SILENT,), QueryOutcome.ANSWERED),
        ("get_server_list", {}, (REFUSED, *(SILENT,) * (ATTEMPTS - 1)), QueryOutcome.REFUSED),
        (
            "get_server_list",
            BOTH_KNOWN,
            (REFUSED, SILENT, REFUSED, SILENT, SILENT, *(REFUSED,) * (ATTEMPTS - 3)),
            QueryOutcome.REFUSED,
        ),
        ("get_server_list", BOTH_KNOWN, (SILENT, ANSWERS), QueryOutcome.ANSWERED),
        ("get_server_list", BOTH_KNOWN, (REFUSED, SILENT, REFUSED, "echo 451"), QueryOutcome.ANSWERED),
        (
            "get_client_list 451",
            BOTH_KNOWN,
            (SILENT, SILENT, *(REFUSED,) * (ATTEMPTS - 3), SILENT, REFUSED, SILENT, SILENT),
            QueryOutcome.REFUSED,
        ),
        ("get_client_list 451", BOTH_KNOWN, (SILENT, ANSWERS), QueryOutcome.ANSWERED),
        ("get_client_list 452", BOTH_KNOWN, (SILENT,), QueryOutcome.ANSWERED),
        ("get_server_status 451", BOTH_KNOWN, (SILENT,) * ATTEMPTS, QueryOutcome.REFUSED),
        ("device_query --csv", {}, (SILENT,) * ATTEMPTS, QueryOutcome.REFUSED),
    ],
)
def test_an_empty_reply_beside_refused_ones_is_no_answer(
    client: Client,
    program: Callable[[str], str],
    tmp_path: Path,
    command: str,
    known: dict[str, Any],
    attempts: tuple[str, ...],
    outcome: QueryOutcome,
) -> None:
    """Server 451 has clients, and 452 has none. Another query whose answer has text confirms an empty list."""
    count = tmp_path / "count"
    cases = "".join(f"{number}) {attempt};;\n" for number, attempt in enumerate(attempts, start=1))
    control = client(
        executable=program(f"echo >> {count}\ncase $(wc -l < {count}) in\n{cases}esac"), sleep=lambda _: None
    )
    control.request((command,), **known)

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
    started, readings = tmp_path / "grandchild", count(1)
    monkeypatch.setattr(child, "SLICE_SECONDS", float("inf"))

    class PastDeadlineOnceStarted(SystemClock):
        """From the start on, more than the deadline passes between two readings, whenever the first of them is."""

        def monotonic(self) -> float:
            return super().monotonic() + (2 * LONG_DEADLINE * next(readings) if started.exists() else 0.0)

    executable = program(f"sleep 600 & echo $! > {started}.new; mv {started}.new {started}; echo; wait")
    reply = client(executable=executable, clock=PastDeadlineOnceStarted()).send("ps")

    assert reply.exit_code is None
    until(lambda: not is_alive(int(started.read_text())))


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


# -- SessionLock -----------------------------------------------------------------------------------------------------


PIPE = (42, 4711)


def lock(directory: Path, deadline: float = 30.0) -> SessionLock:
    return SessionLock(directory, SystemClock(), deadline=deadline)


def test_gives_up_after_the_deadline(tmp_path: Path) -> None:
    with lock(tmp_path).held(PIPE), lock(tmp_path, deadline=0.05).held(PIPE) as problem:
        assert problem is not None
        assert problem.endswith("another exporter holds it")
    with lock(tmp_path, deadline=0.05).held(PIPE) as problem:
        assert problem is None


def test_locks_of_two_daemons_are_independent(tmp_path: Path) -> None:
    with lock(tmp_path).held(PIPE), lock(tmp_path, deadline=0.0).held((42, 4712)) as problem:
        assert problem is None


def test_other_users_cannot_open_the_lock_file(tmp_path: Path) -> None:
    with lock(tmp_path).held(PIPE):
        (file,) = tmp_path.iterdir()

    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/etc/passwd", path)])
def test_tolerates_any_file_in_place_of_the_lock_file(tmp_path: Path, make: object) -> None:
    assert callable(make)
    with lock(tmp_path).held(PIPE):
        (file,) = tmp_path.iterdir()
    file.unlink()
    make(file)

    with lock(tmp_path, deadline=0.0).held(PIPE):
        pass


def test_holds_no_lock_without_runtime_directory_or_daemon(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))

    with lock(tmp_path / "nowhere").held(PIPE) as problem:
        assert problem is None
    with lock(tmp_path).held(None) as problem:
        assert problem is None

    assert len(os.listdir("/proc/self/fd")) == before


def test_limits_the_number_of_lock_files(tmp_path: Path) -> None:
    for inode in range(10 * LOCKS):
        with lock(tmp_path).held((42, inode)):
            pass

    assert len(list(tmp_path.iterdir())) == LOCKS


# -- A child runs as the intended user -------------------------------------------------------------------------------


TENANT, OTHER, UNKNOWN = 65534, 65533, 3_000_000_000
PR_SET_KEEPCAPS = 8
PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 47, 2
BOTH = 1 << Capability.SETGID | 1 << Capability.SETUID
SHOW_STATUS = ("grep", "-E", "^(Uid|NoNewPrivs|Cap(Inh|Prm|Eff|Amb)):", "/proc/self/status")


@pytest.fixture
def _root() -> None:
    if os.geteuid() != 0:
        not_here("only root can switch to another user")


@pytest.mark.usefixtures("_root")
def test_children_get_no_ambient_capabilities() -> None:
    def status_later() -> str:
        assert keep_capabilities_from_children()
        return child_status()

    before, after = as_user_with_both_capabilities(child_status), as_user_with_both_capabilities(status_later)

    assert set(capabilities_of(before).values()) == {BOTH}
    assert set(capabilities_of(after).values()) == {0}


def test_no_uid_and_the_own_uid_are_the_own_user() -> None:
    assert user(None) is OWN_USER
    assert user(os.geteuid()) is OWN_USER


@pytest.mark.usefixtures("_root")
def test_a_user_has_the_groups_of_the_password_database() -> None:
    known = pwd.getpwuid(TENANT)

    assert user(TENANT) == User(TENANT, known.pw_gid, tuple(os.getgrouplist(known.pw_name, known.pw_gid)))


@pytest.mark.usefixtures("_root")
def test_an_unknown_user_has_no_group_of_the_exporter() -> None:
    assert user(UNKNOWN) == User(UNKNOWN, NOGROUP, (NOGROUP,))


def test_names_the_missing_capabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectors_child, "_STATUS", Path(os.devnull))

    with pytest.raises(PermissionError, match=r"it takes CAP_SETUID and CAP_SETGID to start a process as UID \d+"):
        user(os.geteuid() + 1)


@pytest.mark.usefixtures("_root")
def test_can_switch_the_user_with_both_capabilities_and_without_root() -> None:
    assert as_user_with_both_capabilities(lambda: str(user(OTHER).uid)) == str(OTHER)


@pytest.mark.parametrize("uid", [0, OTHER])
def test_a_program_of_another_user_has_none_of_the_exporters_capabilities(everybodys: Path, uid: int) -> None:
    program = everybodys / "control"
    program.write_text(f"#!/bin/sh\nexec {shlex.join(SHOW_STATUS)}\n")
    program.chmod(0o755)

    def status() -> str:
        assert keep_capabilities_from_children()
        return reply_as(uid, program).stdout

    output = as_user_with_both_capabilities(status)

    assert set(fields_of(output)["Uid"].split()) == {str(uid)}
    assert set(capabilities_of(output).values()) == {0}
    assert uid != 0 or fields_of(output)["NoNewPrivs"] == "1"


def test_a_program_of_root_ignores_no_signals(everybodys: Path) -> None:
    program = everybodys / "control"
    program.write_text("#!/bin/sh\nexec grep SigIgn /proc/self/status\n")
    program.chmod(0o755)

    ignored = int(fields_of(as_user_with_both_capabilities(lambda: reply_as(0, program).stdout))["SigIgn"], 16)

    assert not ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)


def test_a_missing_program_of_root_is_reported_as_that_of_any_user(everybodys: Path) -> None:
    missing = everybodys / "missing"

    def reply(uid: int) -> str:
        reply = reply_as(uid, missing)
        return f"{reply.exit_code}: {reply.stderr}"

    for uid in (0, OTHER):
        text = as_user_with_both_capabilities(lambda uid=uid: reply(uid))
        assert text == f"127: {missing}: No such file or directory"


def child_status() -> str:
    return subprocess.run(SHOW_STATUS, capture_output=True, text=True, check=True).stdout


def capabilities_of(status: str) -> dict[str, int]:
    return {name: int(value, 16) for name, value in fields_of(status).items() if name.startswith("Cap")}


def fields_of(status: str) -> dict[str, str]:
    return dict(line.split(":\t") for line in status.splitlines())


def reply_as(uid: int, program: Path) -> ControlReply:
    nowhere = on_host("node", Path("/nowhere"), Path("/nowhere"))
    client = ControlClient(nowhere, executable=str(program), deadline=20.0, clock=SystemClock(), user=user(uid))
    return client.send("get_server_list")


def as_user_with_both_capabilities(function: Callable[[], str]) -> str:
    """Return the result of a function that runs as an ordinary user with CAP_SETUID and CAP_SETGID."""
    # A service imports this at its start. Here, that user may not be permitted to read the environment of the tests.
    import tenacity  # noqa: F401

    return run_as(_switch_user_and_keep_both_capabilities, function)


def _switch_user_and_keep_both_capabilities() -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(TENANT, TENANT, TENANT)
    os.setresuid(TENANT, TENANT, TENANT)
    header, masks = (ctypes.c_uint32 * 2)(CAPSET_VERSION, 0), (ctypes.c_uint32 * 6)(BOTH, BOTH, BOTH)
    assert libc.capset(header, masks) == 0
    for capability in (Capability.SETGID, Capability.SETUID):
        assert libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0) == 0
