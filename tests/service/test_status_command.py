"""The `status` command, which asks the running service: for a terminal, a file or a program; once, or watching."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from exporter.cli import parse_arguments
from exporter.collectors.nvml.collector import Nvml
from exporter.collectors.pool import CollectorPool
from exporter.collectors.thread import Inbox
from exporter.config.load import build_config
from exporter.model.node import Node
from exporter.report import status_text
from exporter.service import Service
from exporter.service_socket import ServiceSocket
from tests.builders import DAEMON, at_work, daemon_dead, held_up, idle, node, process, reduced, three_clients
from tests.clocks import HandClock
from tests.eventually import PATIENCE_SECONDS, eventually
from tests.incidents import HOSTILE
from tests.program import main
from tests.terminal.pseudo_terminal import pseudo

Ask = Callable[..., tuple[int, str, str]]
SEQUENCE = re.compile(r"\x1b\[[0-9;]*m")
LEFT = "\x1b[?25h\x1b[?1049l"


class Running:
    """A service in this process, of which only the socket is open."""

    def __init__(self, directory: Path) -> None:
        clock = HandClock()
        config = build_config(parse_arguments(["serve", "--path.runtime-directory", str(directory)]), {}, None)
        self.service = Service(config, node(), CollectorPool(()), Inbox(), clock, driver=Nvml(clock))

    def knows(self, present: Node) -> None:
        """The node is so."""
        self.service.loop.node = present


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A service that knows of an idle node."""
    running = Running(tmp_path)
    running.knows(idle())
    with running.service.service_socket():
        yield running


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Runs the command: its exit code, and what it says on both streams."""

    def asked(*arguments: str) -> tuple[int, str, str]:
        code = main(["status", "--config.file=", "--path.runtime-directory", str(tmp_path), *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return asked


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, ask: Ask, *arguments: str) -> tuple[int, str]:
    """The same, where standard output is a terminal of 80 columns."""
    with pseudo() as pty, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", pty.program)
        patch.setenv("TERM", "xterm")
        code, _, _ = ask(*arguments)
        return code, pty.seen()


def test_piped_it_is_the_table_as_it_is_and_nothing_else(running: Running, ask: Ask) -> None:
    running.knows(held_up())

    assert ask() == (1, status_text.status_table(held_up()), "")


def test_colours_can_be_had_anywhere(running: Running, ask: Ask) -> None:
    running.knows(held_up())

    _, said, _ = ask("--color=always")

    assert "\x1b[1;31mfault\x1b[0m" in said
    assert SEQUENCE.sub("", said) == status_text.status_table(held_up())


def test_at_a_terminal_the_head_comes_first_and_the_table_fits(
    running: Running, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.knows(held_up())

    code, said = at_a_terminal(monkeypatch, ask)

    lines = SEQUENCE.sub("", said).splitlines()
    assert (code, lines[0][:8], "\x1b[1;31mCRITICAL\x1b[0m" in said) == (1, "CRITICAL", True)
    fault = f"  MPS server 513 of {DAEMON} has been in FAULT for 0 ms; 1 client blocks"
    assert lines[2:4] == [fault, "    recovery; suspect: likely PID 600"]
    assert max(map(len, lines)) <= 80


def test_at_a_glance(running: Running, ask: Ask) -> None:
    running.knows(three_clients())

    code, said, _ = ask("--brief")
    assert (code, said.splitlines()[0]) == (0, "warning: 1 of 1 daemons up, 3 clients, 2 GPUs; watchdog observes")
    assert [line.partition(":")[0] for line in said.splitlines()[1:]] == [
        "  CUDA processes bypass MPS on GPU 1",
        f"  Exporter cannot read a log of MPS daemon {DAEMON}",
    ]


def test_one_daemon_alone(running: Running, ask: Ask) -> None:
    running.knows(reduced(*at_work(700, server=514, daemon="/run/other"), start=daemon_dead()).node)

    assert ask()[0] == 1
    code, said, _ = ask("--daemon", "/run/other")
    assert (code, DAEMON in said, "/run/other" in said) == (0, False, True)
    code, said, problem = ask("--daemon", "none")
    assert (code, said, "no daemon none is here; there are: /tmp/nvidia-mps, /run/other" in problem) == (1, "", True)


def test_for_programs(running: Running, ask: Ask) -> None:
    running.knows(three_clients())

    code, said, _ = ask("--json")

    assert (code, json.loads(said)["daemons"][0]["name"]) == (0, DAEMON)


@pytest.mark.parametrize("arguments", [(), ("--json",), ("--brief",), ("--color=always",)])
@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_speaks_to_the_terminal(running: Running, ask: Ask, name: str, arguments: tuple[str, ...]) -> None:
    who = process(600, user=name, command=name, cgroup=f"0::/system.slice/{name}.service\n")
    running.knows(reduced(who, start=three_clients()).node)

    assert all(line.isprintable() for line in SEQUENCE.sub("", ask(*arguments)[1]).split("\n"))


@pytest.mark.parametrize("arguments", [(), ("--color=always",)])
def test_nor_does_whoever_poses_as_the_service(tmp_path: Path, ask: Ask, arguments: tuple[str, ...]) -> None:
    """It may have less rights than who asks it."""
    evil: dict[str, Any] = {"pieces": [{"text": "\x1b[2J\x9b31m\u202e\na", "style": "error"}]}
    sheet = {"at": 0.0, "headline": [], "table": [evil], "problems": [evil], "past_faults": []}
    service = ServiceSocket(tmp_path, {"status": lambda **_: {"text": sheet, "exit_code": 0}})
    service.open()
    _, said, _ = ask(*arguments)
    service.close()

    assert len(said.splitlines()) == 2
    assert all(line.isprintable() for line in SEQUENCE.sub("", said).split("\n"))


@pytest.mark.parametrize("arguments", [["--watch", "0"], ["--watch", "2h"], ["--watch", "often"], ["--color=red"]])
def test_what_makes_no_sense_is_refused(ask: Ask, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended_with:
        ask(*arguments)

    assert ended_with.value.code == 2


def test_watched_it_follows_the_node_and_ends_as_the_node_is(running: Running, tmp_path: Path) -> None:
    """On a screen of its own, which it leaves as it found it."""
    command = [sys.executable, "-m", "exporter", "status", "--config.file=", "--path.runtime-directory", str(tmp_path)]
    seen = ""
    with pseudo() as pty:

        def shows(words: str) -> None:
            nonlocal seen
            seen += pty.seen()
            assert words in SEQUENCE.sub("", seen)

        with subprocess.Popen(
            [*command, "--watch=500ms"], stdout=pty.program, env={**os.environ, "TERM": "xterm"}
        ) as watching:
            eventually(lambda: shows("well: 1 of 1 daemons up"))
            running.knows(daemon_dead())
            eventually(lambda: shows("CRITICAL: 0 of 1 daemons up"))
            watching.send_signal(signal.SIGINT)
            assert watching.wait(PATIENCE_SECONDS) == 1
        shows(LEFT)
    assert seen.endswith(LEFT)
