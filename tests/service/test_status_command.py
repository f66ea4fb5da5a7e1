"""The `status` command, which asks the running service: for a terminal, a file or a program."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from exporter.errors import ServiceError
from exporter.report import status_text
from exporter.service_socket import ServiceSocket
from exporter.status_client import status_report
from tests.builders import DAEMON, at_work, blocked_recovery, daemon_dead, idle, process, reduced, three_clients
from tests.clocks import HandClock
from tests.incidents.values import HOSTILE
from tests.program import main
from tests.service.running import Running
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


def test_prints_only_the_table_to_a_pipe(running: Running, run_command: RunCommand) -> None:
    running.knows(blocked_recovery())

    assert run_command() == (1, status_text.status_table(blocked_recovery()), "")


def test_prints_colours_to_a_pipe_on_request(running: Running, run_command: RunCommand) -> None:
    running.knows(blocked_recovery())

    _, output, _ = run_command("--color=always")

    assert "\x1b[1;31mfault\x1b[0m" in output
    assert SEQUENCE.sub("", output).endswith(status_text.status_table(blocked_recovery()))


def test_prints_the_overview_first_and_fits_the_table_on_a_terminal(
    running: Running, run_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.knows(blocked_recovery())

    code, output = at_a_terminal(monkeypatch, run_command)

    lines = SEQUENCE.sub("", output).splitlines()
    assert (code, lines[0][:8], "\x1b[1;31mCRITICAL\x1b[0m" in output) == (1, "CRITICAL", True)
    fault = f"  MPS server 513 of {DAEMON} has been in FAULT for 0 ms; 1 client blocks"
    assert lines[2:4] == [fault, "    recovery; suspect: likely PID 600"]
    assert max(map(len, lines)) <= 80


def test_brief_prints_overview_and_problems(running: Running, run_command: RunCommand) -> None:
    running.knows(three_clients())

    code, output, _ = run_command("--brief")
    assert (code, output.splitlines()[0]) == (0, "warning: 1 of 1 daemons up, 3 clients, 2 GPUs; watchdog observes")
    assert [line.partition(":")[0] for line in output.splitlines()[1:]] == [
        "  CUDA processes bypass MPS on GPU 1",
        f"  Exporter cannot read a log of MPS daemon {DAEMON}",
    ]


def test_prints_one_daemon(running: Running, run_command: RunCommand) -> None:
    running.knows(reduced(*at_work(700, server=514, daemon="/run/other"), start=daemon_dead()).node)

    assert run_command()[0] == 1
    code, output, _ = run_command("--daemon", "/run/other")
    assert (code, DAEMON in output, "/run/other" in output) == (0, False, True)
    code, output, problem = run_command("--daemon", "none")
    assert (code, output, "no daemon none is here; there are: /tmp/nvidia-mps, /run/other" in problem) == (1, "", True)


def test_prints_json(running: Running, run_command: RunCommand) -> None:
    running.knows(three_clients())

    code, output, _ = run_command("--json")

    assert (code, json.loads(output)["daemons"][0]["name"]) == (0, DAEMON)


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
    evil: dict[str, Any] = {"pieces": [{"text": "\x1b[2J\x9b31m\u202e\na", "style": "error"}]}
    sheet = {"at": 0.0, "headline": [], "table": [evil], "problems": [evil], "past_faults": []}
    service = ServiceSocket(tmp_path, {"status": lambda **_: {"text": sheet, "exit_code": 0}})
    service.open()
    _, output, _ = run_command(*arguments)
    service.close()

    assert len(output.splitlines()) == 2 + bool(arguments)
    assert all(line.isprintable() for line in SEQUENCE.sub("", output).split("\n"))


def test_reports_a_service_of_another_version(
    tmp_path: Path, run_command: RunCommand, subtests: pytest.Subtests
) -> None:
    answers: tuple[dict[str, Any], ...] = (
        {},
        {"exit_code": 0, "text": {}},
        {"exit_code": "well", "node": {}},
        {"exit_code": 0, "text": 7},
        {"exit_code": 0},
        {"table": "as an earlier version wrote it", "exit_code": 0},
    )
    for answer in answers:
        with subtests.test(answer=answer):
            service = ServiceSocket(tmp_path, {"status": lambda answer=answer, **_: answer})
            service.open()
            code, output, problem = run_command()
            service.close()
            assert (code, output, "another version" in problem) == (1, "", True)


def test_reports_an_unknown_daemon_without_a_service() -> None:
    with pytest.raises(ServiceError, match="no daemon another is here; there are: /tmp/nvidia-mps"):
        status_report(lambda **_: None, daemon_dead, daemon="another")


@pytest.mark.parametrize("arguments", [["--watch"], ["--color=red"]])
def test_rejects_invalid_arguments(run_command: RunCommand, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended_with:
        run_command(*arguments)

    assert ended_with.value.code == 2


def test_shows_the_headline_to_a_person_who_watches_it_in_colours(running: Running, run_command: RunCommand) -> None:
    """`watch -c` has no terminal to offer. A program that reads a pipe gets the table first."""
    running.knows(daemon_dead())
    code, coloured, _ = run_command("--color=always")
    assert code == 1
    assert "CRITICAL: 0 of 1 daemons up" in SEQUENCE.sub("", coloured).split("\n")[0]
    assert "\x1b[1;31m" in coloured
    assert run_command()[1] in SEQUENCE.sub("", coloured)
