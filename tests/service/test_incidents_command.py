"""The `incidents` command, which asks the running service: a table, one incident in words, or JSON."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from exporter import service
from exporter.cli import main
from exporter.model.settings import Retention
from exporter.service import HEALTHY_SECONDS
from exporter.store.database import StateFile
from exporter.web.server import ServiceSocket
from tests.builders import AT, three_clients, with_living
from tests.clocks import HandClock
from tests.incidents.values import HOSTILE, blocked, crowded, ended, hostile
from tests.report.test_incident_text import IN_WORDS
from tests.service.running import Running
from tests.status import incident_json
from tests.terminal.pseudo_terminal import pseudo

RunCommand = Callable[..., tuple[int, str, str]]
OTHER = "/run/nvidia/mps/other"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A service with three clients, to which nothing has happened."""
    present = with_living(three_clients(), *blocked().client_details.values())
    running = Running(tmp_path, present, HandClock(AT + 182))
    with running.service.service_socket():
        yield running


@pytest.fixture
def run_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> RunCommand:
    """Return a function that runs the command, and returns its exit code, stdout and stderr."""

    def asked(*arguments: str) -> tuple[int, str, str]:
        places = ("--path.runtime-directory", str(tmp_path), "--path.state-directory", str(tmp_path))
        code = main(["incidents", "--config.file=", *places, *arguments])
        output = capsys.readouterr()
        return code, output.out, output.err

    return asked


def ids(table: str) -> list[str]:
    return [line.split()[0] for line in table.splitlines()[1:]]


@pytest.mark.usefixtures("running")
def test_reports_that_there_are_no_incidents(run_command: RunCommand) -> None:
    assert run_command() == (0, "No incidents.\n", "")
    assert run_command("--json") == (0, "[]\n", "")


def test_lists_the_newest_first_and_fails_if_one_is_open(running: Running, run_command: RunCommand) -> None:
    running.remember(ended(id="old"), blocked(id="new", detected_at=AT + 9))

    code, table, _ = run_command()

    assert (code, ids(table)) == (1, ["new", "old"])


def test_succeeds_if_no_incident_is_open(running: Running, run_command: RunCommand) -> None:
    running.remember(ended())

    assert run_command()[0] == 0
    assert run_command("513-1a")[0] == 0


def test_filters_by_state_daemon_and_number(running: Running, run_command: RunCommand) -> None:
    running.remember(
        ended(id="a"), blocked(id="b", detected_at=AT + 1), ended(id="c", daemon=OTHER, detected_at=AT + 2)
    )

    assert ids(run_command("--open")[1]) == ["b"]
    assert ids(run_command("--daemon", OTHER)[1]) == ["c"]
    assert ids(run_command("--limit", "2")[1]) == ["c", "b"]
    assert run_command("--daemon", OTHER)[0] == 0


def test_shows_one_incident_as_text(running: Running, run_command: RunCommand) -> None:
    running.remember(ended(id="old"), blocked())

    assert run_command("513-1a") == (1, f"{IN_WORDS}\n", "")


def test_prints_json_of_one_incident_and_of_all(running: Running, run_command: RunCommand) -> None:
    running.remember(ended(id="old", started_at=AT - 9, detected_at=AT - 9), blocked())

    assert json.loads(run_command("old", "--json")[1])["state"] == "ended"
    assert [each["id"] for each in json.loads(run_command("--json")[1])] == ["513-1a", "old"]


def test_reports_an_unknown_incident(running: Running, run_command: RunCommand) -> None:
    running.remember(ended())

    code, output, problem = run_command("513-ff")

    assert (code, output) == (1, "")
    assert "no incident 513-ff is stored; `incidents` lists those that are" in problem


def test_prints_no_escape_sequence_of_a_name(
    running: Running, run_command: RunCommand, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    for name in HOSTILE:
        with subtests.test(name=name):
            running.remember(replace(hostile(name), id="a"))
            for output in (run_command()[1], run_command("a")[1], run_command("--json")[1]):
                assert all(line.isprintable() for line in output.split("\n"))
            assert len(json.loads(run_command("--json")[1])) == 1

            for arguments in ((), ("a",)):
                with pseudo() as pty, monkeypatch.context() as patch:
                    patch.setattr("sys.stdout", pty.program)
                    run_command("--color=always", *arguments)
                    output = re.sub(r"\x1b\[[0-9;]*m", "", pty.seen())
                assert all(line.isprintable() for line in output.split("\n"))
                assert "open for 3 min" in output


def test_limits_the_size_of_the_answer(
    running: Running, run_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MOST_BYTES", 1 << 18)
    running.remember(*(replace(crowded(40), id=str(number)) for number in range(10)))

    assert len(ids(run_command("--limit", "100")[1])) == 10
    listed = json.loads(run_command("--json", "--limit", "100")[1])
    assert 1 < len(listed) < 10, "as many as fit"
    assert len(listed[0]["affected"]) == 40


def test_reports_a_stalled_service(running: Running, run_command: RunCommand) -> None:
    running.clock.time += HEALTHY_SECONDS

    code, _, problem = run_command()

    assert (code, "has not run" in problem) == (1, True)


def test_reports_that_neither_service_nor_state_file_exists(run_command: RunCommand) -> None:
    code, _, problem = run_command()

    assert (code, "no service answers" in problem) == (1, True)


def test_lists_stored_incidents_with_a_warning_if_no_service_runs(tmp_path: Path, run_command: RunCommand) -> None:
    archive = StateFile(tmp_path, Retention(), HandClock(AT))
    archive.open()
    archive.write([ended(id="old"), blocked(id="new", detected_at=AT + 9)])
    archive.close()

    code, table, warning = run_command()

    assert (code, ids(table)) == (1, ["new", "old"])
    assert "an open incident can be over now" in warning
    assert run_command("old")[0] == 0
    assert run_command("none")[0] == 1


@pytest.mark.parametrize("arguments", [["--limit", "0"], ["--limit", "many"], ["--limit", "\u0661\u00b2"], ["a", "b"]])
def test_rejects_invalid_arguments(run_command: RunCommand, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended_with:
        run_command(*arguments)

    assert ended_with.value.code == 2


@pytest.mark.parametrize("arguments", [(), ("--json",)])
@pytest.mark.parametrize("answer", [{}, {"incidents": 7}, {"incidents": [{}]}, {"lines": {}, "exit_code": 0}])
def test_reports_a_service_of_another_version(
    tmp_path: Path, run_command: RunCommand, answer: dict[str, object], arguments: tuple[str, ...]
) -> None:
    service = ServiceSocket(tmp_path, lambda _: {"incidents": lambda **_: answer})
    service.open()
    code, output, problem = run_command(*arguments)
    service.close()
    assert (code, output) == (1, "")
    assert "another version" in problem


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_prints_no_escape_sequence_of_a_false_service(
    tmp_path: Path, run_command: RunCommand, arguments: tuple[str, ...]
) -> None:
    fault = incident_json(blocked()) | {"title": "\x1b[2J\nfault", "verdict": "\x1b["}
    service = ServiceSocket(tmp_path, lambda _: {"incidents": lambda **_: {"incidents": [fault]}})
    service.open()
    code, output, _ = run_command(*arguments)
    service.close()
    assert code == 1
    assert "513-1a" in output
    assert "\x1b" not in output
