"""The `incidents` command, which asks the running service: a table, one incident in words, or JSON."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.cli import main, parse_arguments
from exporter.collectors.nvml.collector import Nvml
from exporter.collectors.pool import CollectorPool
from exporter.collectors.thread import Inbox
from exporter.config.load import build_config
from exporter.history import History
from exporter.model.incident import Incident
from exporter.model.settings import Retention
from exporter.service import HEALTHY_SECONDS, Service
from exporter.service_socket import ServiceSocket
from exporter.store.database import StateFile
from tests.builders import AT, node
from tests.clocks import HandClock
from tests.incidents import HOSTILE, blocked, crowded, ended, hostile
from tests.report.test_incident_text import IN_WORDS
from tests.terminal.pseudo_terminal import pseudo

Ask = Callable[..., tuple[int, str, str]]
OTHER = "/run/nvidia/mps/other"


class Running:
    """A service in this process, of which only the socket is open."""

    def __init__(self, directory: Path) -> None:
        self.clock = HandClock(AT + 182)
        self.history = History()
        config = build_config(parse_arguments(["serve", "--path.runtime-directory", str(directory)]), {}, None)
        self.service = Service(
            config, node(), CollectorPool(()), Inbox(), self.clock, driver=Nvml(self.clock), history=self.history
        )

    def remember(self, *incidents: Incident) -> None:
        """These have happened."""
        self.history.add(replace(node(), incidents={each.id: each for each in incidents}), ())


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A service that nothing has happened to."""
    running = Running(tmp_path)
    with running.service.service_socket():
        yield running


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Runs the command: its exit code, and what it says on both streams."""

    def asked(*arguments: str) -> tuple[int, str, str]:
        places = ("--path.runtime-directory", str(tmp_path), "--path.state-directory", str(tmp_path))
        code = main(["incidents", "--config.file=", *places, *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return asked


def ids(table: str) -> list[str]:
    return [line.split()[0] for line in table.splitlines()[1:]]


@pytest.mark.usefixtures("running")
def test_where_there_was_none_that_is_said(ask: Ask) -> None:
    assert ask() == (0, "No incidents.\n", "")
    assert ask("--json") == (0, "[]\n", "")


def test_the_newest_come_first_and_one_that_is_open_is_not_well(running: Running, ask: Ask) -> None:
    running.remember(ended(id="old"), blocked(id="new", detected_at=AT + 9))

    code, table, _ = ask()

    assert (code, ids(table)) == (1, ["new", "old"])


def test_where_all_are_over_all_is_well(running: Running, ask: Ask) -> None:
    running.remember(ended())

    assert ask()[0] == 0
    assert ask("513-1a")[0] == 0


def test_some_can_be_asked_for(running: Running, ask: Ask) -> None:
    running.remember(
        ended(id="a"), blocked(id="b", detected_at=AT + 1), ended(id="c", daemon=OTHER, detected_at=AT + 2)
    )

    assert ids(ask("--open")[1]) == ["b"]
    assert ids(ask("--daemon", OTHER)[1]) == ["c"]
    assert ids(ask("--limit", "2")[1]) == ["c", "b"]
    assert ask("--daemon", OTHER)[0] == 0


def test_one_in_words(running: Running, ask: Ask) -> None:
    running.remember(ended(id="old"), blocked())

    assert ask("513-1a") == (1, f"{IN_WORDS}\n", "")


def test_one_as_an_object_and_several_as_a_list(running: Running, ask: Ask) -> None:
    running.remember(ended(id="old", started_at=AT - 9, detected_at=AT - 9), blocked())

    assert json.loads(ask("old", "--json")[1])["state"] == "ended"
    assert [each["id"] for each in json.loads(ask("--json")[1])] == ["513-1a", "old"]


def test_one_that_is_not_remembered(running: Running, ask: Ask) -> None:
    running.remember(ended())

    code, said, problem = ask("513-ff")

    assert (code, said) == (1, "")
    assert "no incident 513-ff is stored; `incidents` lists those that are" in problem


def test_a_daemon_that_speaks_in_pids_of_its_own_is_not_to_be_told_to_end_anybody(running: Running, ask: Ask) -> None:
    running.remember(blocked(daemon=OTHER))

    said = ask("513-1a")[1]

    assert "kill -KILL 601" in said
    assert "terminate_client" not in said


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_speaks_to_the_terminal(running: Running, ask: Ask, name: str) -> None:
    running.remember(replace(hostile(name), id="a"))

    for said in (ask()[1], ask("a")[1], ask("--json")[1]):
        assert all(line.isprintable() for line in said.split("\n"))
    assert len(json.loads(ask("--json")[1])) == 1


@pytest.mark.parametrize("name", HOSTILE)
def test_nor_does_any_at_a_terminal(running: Running, ask: Ask, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    running.remember(replace(hostile(name), id="a"))

    for arguments in ((), ("a",)):
        with pseudo() as pty, monkeypatch.context() as patch:
            patch.setattr("sys.stdout", pty.program)
            ask("--color=always", *arguments)
            said = re.sub(r"\x1b\[[0-9;]*m", "", pty.seen())
        assert all(line.isprintable() for line in said.split("\n"))
        assert "open for 3 min" in said


def test_a_crowd_is_told_of(running: Running, ask: Ask) -> None:
    running.remember(*(replace(crowded(400), id=str(number)) for number in range(100)))

    assert len(ids(ask("--limit", "100")[1])) == 100
    listed = json.loads(ask("--json", "--limit", "100")[1])
    assert 1 < len(listed) < 100, "as many as fit"
    assert len(listed[0]["affected"]) == 400


def test_a_service_that_stands_still_does_not_tell_old_news(running: Running, ask: Ask) -> None:
    running.clock.time += HEALTHY_SECONDS

    code, _, problem = ask()

    assert (code, "has not run" in problem) == (1, True)


def test_where_no_service_runs_and_none_has_kept_anything_it_is_said(ask: Ask) -> None:
    code, _, problem = ask()

    assert (code, "no service answers" in problem) == (1, True)


def test_where_no_service_runs_what_one_has_kept_is_told_for_what_it_is(tmp_path: Path, ask: Ask) -> None:
    archive = StateFile(tmp_path, Retention(), HandClock(AT))
    archive.open()
    archive.write([ended(id="old"), blocked(id="new", detected_at=AT + 9)], [])
    archive.close()

    code, table, warning = ask()

    assert (code, ids(table)) == (1, ["new", "old"])
    assert "an open incident can be over now" in warning
    assert ask("old")[0] == 0
    assert ask("none")[0] == 1


@pytest.mark.parametrize("arguments", [["--limit", "0"], ["--limit", "many"], ["--limit", "\u0661\u00b2"], ["a", "b"]])
def test_what_makes_no_sense_is_refused(ask: Ask, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended_with:
        ask(*arguments)

    assert ended_with.value.code == 2


@pytest.mark.parametrize("arguments", [(), ("--json",)])
@pytest.mark.parametrize("answer", [{}, {"exit_code": 0}, {"exit_code": 0, "lines": {"lines": 1}}])
def test_a_service_of_another_version_is_told_of_as_such(
    tmp_path: Path, ask: Ask, answer: dict[str, object], arguments: tuple[str, ...]
) -> None:
    service = ServiceSocket(tmp_path, {"incidents": lambda **_: answer})
    service.open()
    code, said, problem = ask(*arguments)
    service.close()
    assert (code, said) == (1, "")
    assert "another version" in problem
