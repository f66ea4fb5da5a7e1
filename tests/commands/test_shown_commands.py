"""Each command that is shown anywhere can be pasted, is of a known kind, and names what exists."""

import re
from itertools import product

import pytest

from exporter.cli import COMMANDS
from exporter.doctor import CHECKS
from exporter.model.reason import ReasonCode
from exporter.report.problems import PROBLEMS, Situation
from exporter.report.reasons import ADVICE
from tests.commands.collected import Shown, collected, pages
from tests.commands.shell import VERBS, UnknownCommandError, is_command

PLACES = (
    "--help", "JSON", "alert", "catalogue", "dashboard", "docs", "doctor", "log", "page", "resume", "runbook", "status",
)  # fmt: skip


def test_each_shown_command_is_known_and_can_be_pasted(subtests: pytest.Subtests) -> None:
    for place in PLACES:
        with subtests.test(place=place):
            wrong, commands = list[str](), 0
            for shown in collected():
                if shown.place == place:
                    try:
                        commands += is_command(shown)
                    except UnknownCommandError as error:
                        wrong.append(f"{shown.where}: {shown.text}\n    {error}")

            assert not wrong, "\n".join(wrong)
            assert commands > 0


def test_collects_from_all_places() -> None:
    assert {each.place for each in collected()} == set(PLACES)


def test_the_page_shows_no_backquotes() -> None:
    assert {name: page.text for name, page in pages().items() if "`" in page.text} == {}


def test_the_check_finds_a_command_that_does_not_work(subtests: pytest.Subtests) -> None:
    for (text, problem), inline in product(
        [
            ("frobnicate --now", "in no class"),
            ("nvidia-cuda-mps-control -d", "does not name the pipe directory"),
            ("CUDA_MPS_PIPE_DIRECTORY=/x nvidia-cuda-mps-control -d", "does not name the log directory"),
            ("echo ps | nvidia-cuda-mps-control", "does not name the pipe directory"),
            ("echo restart | CUDA_MPS_PIPE_DIRECTORY=/x nvidia-cuda-mps-control", "no command of a control daemon"),
            ("CUDA_MPS_PIPE_DIRECTORY=/x nvidia-cuda-mps-control get_server_list", "no command of protocol 3"),
            ("CUDA_MPS_PIPE_DIRECTORY=/x nvidia-cuda-mps-control server destroy uid_0", "no command of protocol 3"),
            ("nvidia-cuda-mps-control server list --format=csv", "does not name the pipe directory"),
            ("cuda-mps-exporter resume <daemon>", "cannot be pasted"),
            ("cuda-mps-exporter status --no-such-flag", "unrecognized arguments"),
            ("cuda-mps-exporter resume one two", "unrecognized arguments"),
            ("systemctl restart no-such-unit", "is not in systemd/"),
            ("systemctl destroy cuda-mps-exporter", "systemctl destroy"),
            ("install -m 644 systemd/no-such-file /etc", "does not exist"),
            ("curl localhost:10677/nothing", "no such page"),
            ("kill -9 -1", "kill"),
            ("kill -KILL 0", "kill"),
            ("echo 'ps", "cannot be pasted"),
            ("python -m exporter.nothing", "no module"),
            ("python3 dashboards/report.py --month 2026-10", "required: --prometheus"),
            ("docker run …", "cannot be pasted"),
            ("nvidia-smi -i WHICH", "no known placeholder"),
        ],
        [False, True],
    ):
        with (
            subtests.test(text=text, problem=problem, inline=inline),
            pytest.raises(UnknownCommandError, match=problem),
        ):
            is_command(Shown("test", "", text, inline=inline))


PROGRAM = re.compile(
    rf"cuda-mps-exporter (?:{'|'.join(COMMANDS)})\b|systemctl (?:{'|'.join(VERBS)})\b|kubectl [a-z]|journalctl -"
    r"|nvidia-smi -|kill -[A-Z]|nvidia-cuda-mps-control [-<]|\| *nvidia-cuda"
)


def test_no_text_of_the_program_has_a_command_without_marks() -> None:
    """Only texts in backquotes and lists of commands are collected."""
    definitions = [entry.definition for entry in (*PROBLEMS, *CHECKS)]
    texts = [f"{each.summary} {each.meaning} {each.remedy}" for each in definitions]
    texts += [situation.value for situation in Situation]
    texts += [*(code.text for code in ReasonCode), *ADVICE.values()]
    texts += [page.text for page in pages().values()]

    assert [each for each in texts if PROGRAM.search(re.sub(r"`[^`]*`", "", each))] == []
