"""The `status` command, which asks the running service: for a terminal, a file or a program."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from exporter import app
from exporter.commands import client
from exporter.model.node import Node
from exporter.report import node_status
from exporter.report.finding import Finding
from exporter.report.problems import PROBLEMS, DaemonProblem
from exporter.terminal import progress
from exporter.watchdog.context import Policy
from exporter.web.server import ServiceSocket
from tests.builders import DAEMON, at_work, blocked_recovery, daemon_down, idle, process, reduced, three_clients
from tests.clocks import HandClock
from tests.eventually import eventually
from tests.incidents.values import HOSTILE
from tests.program import main
from tests.service.running import Running
from tests.status import status_json, status_table
from tests.terminal.pseudo_terminal import pseudo

RunCommand = Callable[..., tuple[int, str, str]]
SEQUENCE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A service that knows of an idle node."""
    running = Running(tmp_path, idle(), HandClock())
    with running.service.service_socket():
        yield running


@pytest.fixture
def run_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> RunCommand:
    """Return a function that runs the command, and returns its exit code, stdout and stderr."""

    def run_here(*arguments: str) -> tuple[int, str, str]:
        code = main(["status", "--config.file=", "--path.runtime-directory", str(tmp_path), *arguments])
        output = capsys.readouterr()
        return code, output.out, output.err

    return run_here


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, run_command: RunCommand, *arguments: str) -> tuple[int, str]:
    """The same, where standard output is a terminal of 80 columns."""
    with pseudo() as pty, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", pty.program)
        patch.setenv("TERM", "xterm")
        code, _, _ = run_command(*arguments)
        return code, pty.seen()


def test_prints_the_problems_first_to_a_pipe_too(running: Running, run_command: RunCommand) -> None:
    running.knows(blocked_recovery())

    code, output, problem = run_command()

    assert (code, output[:8], problem) == (1, "CRITICAL", "")
    assert output.endswith(status_table(blocked_recovery(), Policy()))


def test_prints_colours_to_a_pipe_on_request(running: Running, run_command: RunCommand) -> None:
    running.knows(blocked_recovery())

    _, output, _ = run_command("--color=always")

    assert "\x1b[1;31mfault\x1b[0m" in output
    assert SEQUENCE.sub("", output).endswith(status_table(blocked_recovery(), Policy()))


def test_prints_the_overview_first_and_fits_the_table_on_a_terminal(
    running: Running, run_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.knows(blocked_recovery())

    code, output = at_a_terminal(monkeypatch, run_command)

    lines = SEQUENCE.sub("", output).splitlines()
    assert (code, lines[0][:8], "\x1b[1;31mCRITICAL\x1b[0m" in output) == (1, "CRITICAL", True)
    fault = f"CRITICAL: MPS server 513 of {DAEMON} has been in FAULT for 0 ms; PID 601"
    assert lines[3:5] == [fault, "  blocks recovery; suspect: likely PID 600"]
    assert max(map(len, lines)) <= 80


def test_shows_progress_on_a_terminal_while_no_service_runs(
    run_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pseudo() as pty:
        screen: list[str] = []

        def shows_the_text() -> None:
            screen.append(pty.seen())
            assert "".join(screen) == "Reading the state of the node ..."

        def collect(_: object) -> Node:
            eventually(shows_the_text)
            return idle()

        monkeypatch.setattr(app, "collect_once", collect)
        monkeypatch.setattr(client, "progress", partial(progress, after=0.01))
        monkeypatch.setattr(sys, "stderr", pty.program)
        run_command()

        assert screen
        assert pty.seen().strip(" \r") == "", "it is removed before the status is shown"


def test_brief_prints_overview_and_problems(running: Running, run_command: RunCommand) -> None:
    running.knows(three_clients())

    code, output, _ = run_command("--brief")
    assert (code, output.splitlines()[0]) == (1, "warning: 1 of 1 daemons up, 3 clients, 2 GPUs; watchdog observes")
    assert [line.partition(":")[0] for line in output.splitlines()[1:]] == [
        "  CUDA processes bypass MPS on GPU 1",
        f"  Exporter cannot read a log of MPS daemon {DAEMON}",
    ]


def test_exits_with_0_only_if_the_node_is_well(
    running: Running, run_command: RunCommand, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    for found in ((), *((Finding(problem),) for problem in PROBLEMS if problem is not DaemonProblem.WELL)):
        monkeypatch.setattr(node_status, "findings", lambda *_, found=found: found)
        with subtests.test(found=found):
            code, output, _ = run_command("--brief")
            assert (code, output.startswith("well: ")) == ((1, False) if found else (0, True))


def test_prints_one_daemon(running: Running, run_command: RunCommand) -> None:
    running.knows(reduced(*at_work(700, server=514, daemon="/run/other"), start=daemon_down()).node)

    assert run_command()[0] == 1
    code, output, _ = run_command("--daemon", "/run/other")
    assert (code, DAEMON in output, "/run/other" in output) == (0, False, True)
    code, output, problem = run_command("--daemon", "none")
    assert (code, output, "no daemon none is here; there are: /tmp/nvidia-mps, /run/other" in problem) == (1, "", True)


def test_prints_json(running: Running, run_command: RunCommand) -> None:
    running.knows(three_clients())

    code, output, _ = run_command("--json")

    assert (code, json.loads(output)["daemons"][0]["name"]) == (1, DAEMON)


def test_prints_no_escape_sequence_of_a_name(
    running: Running, run_command: RunCommand, subtests: pytest.Subtests
) -> None:
    for name, arguments in product(HOSTILE, [(), ("--json",), ("--brief",), ("--color=always",)]):
        with subtests.test(name=name, arguments=arguments):
            who = process(600, user=name, command=name, cgroup=f"0::/system.slice/{name}.service\n")
            running.knows(reduced(who, start=three_clients()).node)
            assert all(line.isprintable() for line in SEQUENCE.sub("", run_command(*arguments)[1]).split("\n"))


@pytest.mark.parametrize("arguments", [(), ("--color=always",)])
def test_prints_no_escape_sequence_of_a_false_service(
    tmp_path: Path, run_command: RunCommand, arguments: tuple[str, ...]
) -> None:
    """A process that poses as the service can have fewer rights than its client."""
    evil = "\x1b[2J\x9b31m\u202e\na"

    def forged(value: Any) -> Any:
        match value:
            case str():
                return value if value in ("well", "unknown", "warning", "critical", "user") else value + evil
            case dict():
                return {key: forged(each) for key, each in value.items()}
            case list():
                return [forged(each) for each in value]
        return value

    service = ServiceSocket(tmp_path, lambda _: {"status": lambda: {"status": forged(status_json(blocked_recovery()))}})
    service.open()
    _, output, _ = run_command(*arguments)
    service.close()

    assert len(output.splitlines()) > 10
    assert all(line.isprintable() for line in SEQUENCE.sub("", output).split("\n"))


def test_reports_a_service_of_another_version(
    tmp_path: Path, run_command: RunCommand, subtests: pytest.Subtests
) -> None:
    document = status_json(blocked_recovery())
    answers: tuple[dict[str, Any], ...] = (
        {},
        {"status": {}},
        {"status": 7},
        {"status": document | {"version": 0}},
        {"status": document | {"severity": "loud"}},
        {"status": document | {"daemons": [{}]}},
        {"text": "as an earlier version wrote it", "exit_code": 0},
    )
    for answer in answers:
        with subtests.test(answer=answer):
            service = ServiceSocket(tmp_path, lambda _, answer=answer: {"status": lambda **_: answer})
            service.open()
            code, output, problem = run_command()
            service.close()
            assert (code, output, "another version" in problem) == (1, "", True)


@pytest.mark.parametrize("arguments", [["--watch"], ["--color=red"]])
def test_rejects_invalid_arguments(run_command: RunCommand, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended_with:
        run_command(*arguments)

    assert ended_with.value.code == 2
