"""run_command starts a daemon as it would be started by hand, and waits for the command, not for the daemon."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.actions.steps import Cancellation, run_command
from exporter.collectors import child as collectors_child
from exporter.collectors.child import HEAD_BYTES, TAIL_BYTES, Output, run_until_exit
from exporter.model.action import RunCommand
from exporter.model.reason import Reason, ReasonCode
from tests.actions.action_setup import REAL
from tests.actions.scripts import Script
from tests.eventually import PATIENCE_SECONDS, eventually
from tests.standin.mps import MpsStandIn, is_alive, wait_until

OTHER_USER = 65534
LONG = 600.0
"""Longer than a test may take: what is waited for so long makes it fail."""


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path / "program")


def run(
    script: Script, *words: str, seconds: float = LONG, cancellation: Cancellation | None = None, uid: int | None = None
) -> str | None:
    step = RunCommand(arguments=(str(script.path), *words), environment={"CUDA_MPS_PIPE_DIRECTORY": "/p"}, uid=uid)
    return run_command(step, path=os.defpath, cancellation=cancellation or Cancellation(REAL), seconds=seconds)


def test_passes_only_the_arguments_and_the_given_environment(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    before = os.umask(0o077)
    try:
        assert run(script, "-d", "$HOME; *") is None
    finally:
        os.umask(before)
    assert script.reported[:3] == ["-d $HOME; *", "/", "0022"]
    assert script.environment == {"PATH": os.defpath, "CUDA_MPS_PIPE_DIRECTORY": "/p"}


def test_does_not_wait_for_a_daemon_with_inherited_descriptors(script: Script, tmp_path: Path) -> None:
    script.does(f"sleep 600 & echo $! >{tmp_path}/pid; echo started")

    problem = run(script)
    pid = int((tmp_path / "pid").read_text())
    assert is_alive(pid)
    os.kill(pid, 9)

    assert problem is None


def test_starts_the_standin_which_answers(mps: MpsStandIn) -> None:
    mps.pipe_directory.mkdir()
    mps.log_directory.mkdir()
    step = RunCommand(arguments=("nvidia-cuda-mps-control", "-d"), environment=mps.environment())

    assert run_command(step, path=os.defpath, cancellation=Cancellation(REAL)) is None
    assert mps.ask("get_server_list").returncode == 0
    assert run_command(step, path=os.defpath, cancellation=Cancellation(REAL)) == (
        Reason(
            ReasonCode.PROGRAM_FAILED,
            exit_code=1,
            command="nvidia-cuda-mps-control",
            text="An instance of this daemon is already running",
        )
    )


def test_limits_the_output_and_makes_it_printable(script: Script) -> None:
    script.does(f"head -c {TAIL_BYTES * 4} /dev/zero | tr '\\0' 'x'; printf '\\nno GPU'; exit 3")
    assert failed(script, "no GPU")

    script.does(r"printf 'no GPU\n\033[31m: \377\n' >&2; exit 3")
    assert failed(script, "\ufffd[31m: \ufffd")


def output_of(script: Script) -> Output:
    cancellation = Cancellation(REAL)
    return run_until_exit(
        [str(script.path)],
        environment={"PATH": os.defpath},
        wait=lambda exits: cancellation.wait_for_exit(exits, 60),
    )


@pytest.mark.parametrize("output", ["", "exec >&- 2>&-"])
def test_the_exit_of_a_command_ends_the_wait_for_it(script: Script, output: str) -> None:
    """The command, or the daemon that it starts, may close the output before, or keep it open for longer."""
    script.does(f"{output}\nsleep 0.3\nsleep 3 &")
    waits: list[bool] = []

    def wait(exits: Callable[[float], bool]) -> bool:
        while len(waits) < 2 and not any(waits):
            waits.append(exits(PATIENCE_SECONDS))
        return any(waits)

    done = run_until_exit([str(script.path)], environment={"PATH": os.defpath}, wait=wait)
    assert done.exit_code == 0, waits


def test_a_command_may_print_any_amount(script: Script) -> None:
    """With `set -e`, a failing write would end it before it starts the daemon."""
    script.does("set -e; echo first; seq 1 200000; echo last")
    done = output_of(script)

    assert done.exit_code == 0
    assert done.stdout.startswith("first\n1\n2\n")
    assert done.stdout.endswith("200000\nlast\n")
    assert len(done.stdout) < HEAD_BYTES + TAIL_BYTES + 100


def test_a_daemon_can_write_to_the_output_of_its_command_after_that_has_exited(script: Script, tmp_path: Path) -> None:
    """Nothing may end it by SIGPIPE, nor let it wait for a reader, also after the exporter has ended."""
    go, done = tmp_path / "go", tmp_path / "done"
    daemon = f"until test -e {go}; do sleep 0.05; done; seq 1 200000; echo $? >{done}.new; mv {done}.new {done}"
    script.does(f"({daemon}) & echo started")
    result = output_of(script)
    assert (result.exit_code, result.stdout) == (0, "started\n")

    go.touch()
    wait_until(done.exists)
    assert done.read_text() == "0\n"


def test_kills_a_command_at_its_deadline(script: Script) -> None:
    script.does("exec sleep 600")

    assert run(script, seconds=0.5) == Reason(ReasonCode.PROGRAM_NOT_ENDED, command=str(script.path), seconds=0.5)


def test_kills_a_command_with_its_child_processes(script: Script, tmp_path: Path) -> None:
    script.does(f"sleep 600 & echo $! >{tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; wait")
    cancellation = Cancellation(REAL)

    def end_once_started() -> None:
        wait_until((tmp_path / "pid").exists)
        cancellation.cancel()

    ending = threading.Thread(target=end_once_started)
    ending.start()
    assert run(script, cancellation=cancellation) is not None
    ending.join()
    child = int((tmp_path / "pid").read_text())
    eventually(lambda: _gone(child))


def test_lets_a_start_command_end_after_cancellation(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that is half started is none."""
    monkeypatch.setattr("exporter.actions.steps.GRACE_SECONDS", PATIENCE_SECONDS)
    cancellation = Cancellation(REAL)
    script.does("sleep 0.3; exit 0")
    threading.Timer(0.1, cancellation.cancel).start()

    assert run(script, cancellation=cancellation) is None


def test_kills_a_start_command_after_the_grace_period(script: Script) -> None:
    cancellation = Cancellation(REAL)
    cancellation.cancel()
    script.does("exec sleep 600")

    problem = run(script, cancellation=cancellation)
    assert problem is not None
    assert problem.code is ReasonCode.PROGRAM_NOT_ENDED


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), Reason(ReasonCode.NO_PROGRAM)),
        (
            ("/nowhere/daemon",),
            Reason(ReasonCode.PROGRAM_NOT_STARTED, command="/nowhere/daemon", text="No such file or directory"),
        ),
        (("/etc/passwd",), Reason(ReasonCode.PROGRAM_NOT_STARTED, command="/etc/passwd", text="Permission denied")),
        (("a\0b",), Reason(ReasonCode.PROGRAM_NOT_STARTED, command="a\x00b", text="embedded null byte")),
    ],
)
def test_reports_a_command_that_cannot_be_started(arguments: tuple[str, ...], problem: Reason) -> None:
    step = RunCommand(arguments=arguments)
    assert run_command(step, path=os.defpath, cancellation=Cancellation(REAL)) == problem


def test_runs_as_the_user_of_the_daemon_without_capabilities(everybodys: Path) -> None:
    script = Script(everybodys / "program")
    script.does(f"grep -E 'Cap(Inh|Prm|Eff|Amb)|Groups' /proc/self/status >{everybodys}/rights")

    assert run(script, uid=OTHER_USER) is None
    assert script.reported[3:5] == [str(OTHER_USER)] * 2
    rights = dict(line.split(":\t") for line in (everybodys / "rights").read_text().splitlines())
    assert rights.pop("Groups").split() == [str(OTHER_USER)]
    assert {int(held, 16) for held in rights.values()} == {0}


def test_reports_that_it_cannot_start_processes_of_another_user(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collectors_child, "may_switch_user", lambda: False)

    assert run(script, uid=OTHER_USER) == Reason(
        ReasonCode.USER_NOT_PERMITTED, command=str(script.path), uid=OTHER_USER
    )
    assert not script.was_started


def failed(script: Script, text: str) -> bool:
    expected = Reason(ReasonCode.PROGRAM_FAILED, command=str(script.path), exit_code=3, text=text)
    return run(script) == expected


def _gone(pid: int) -> None:
    assert not is_alive(pid)
