"""`status --watch` shows the node repeatedly, in place on a terminal, until it is interrupted."""

import json
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from exporter.errors import ServiceError
from exporter.model.node import Node
from exporter.report.objects import node_object
from exporter.report.status_text import render_status
from exporter.report.status_view import view_of
from exporter.report.text import local_time, short_time
from exporter.status_client import StatusReport
from exporter.terminal import StatusWatch, Terminal, interrupt_on_signals, wait_for_resize
from tests.builders import AT, DAEMON, daemon_dead, full, idle
from tests.clocks import HandClock
from tests.terminal.pseudo_terminal import Pseudo

ENTERED, LEFT, CLEARED = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l", "\x1b[H\x1b[J"
XTERM = {"TERM": "xterm"}
GONE = ServiceError("no service answers")

Reports = Sequence[Node | ServiceError]


class Watched:
    """A series of reports. Ctrl-C follows the last one."""

    def __init__(self, node: Reports, *, as_json: bool = False) -> None:
        self.clock = HandClock(AT)
        self.widths: list[int | None] = []
        self.waited: list[float] = []
        self._reports = list(node)
        self._as_json = as_json

    def report(self, width: int | None) -> StatusReport:
        """Return the next report."""
        self.widths.append(width)
        node = self._reports.pop(0)
        if isinstance(node, ServiceError):
            raise node
        if self._as_json:
            return StatusReport(by="the service", exit_code=int(view_of(node).fails), node=node_object(view_of(node)))
        return StatusReport(by="the service", exit_code=int(view_of(node).fails), text=render_status(node, width=width))

    def wait(self, seconds: float) -> None:
        """Advance the clock."""
        self.waited.append(seconds)
        self.clock.time += seconds
        if not self._reports:
            raise KeyboardInterrupt

    def run(self, terminal: Terminal, *, brief: bool = False) -> int:
        """Run until Ctrl-C, and return the exit code."""
        watching = StatusWatch(
            self.report, terminal, self.clock, seconds=2.0, as_json=self._as_json, brief=brief, wait=self.wait
        )
        return watching.run()


def piped(tmp_path: Path, watched: Watched, *, brief: bool = False) -> tuple[int, str]:
    with (tmp_path / "output").open("w+") as file:
        code = watched.run(Terminal(file, XTERM), brief=brief)
        file.seek(0)
        return code, file.read()


def screens(pty: Pseudo) -> list[list[str]]:
    """Return the lines of each screen that was drawn on the alternate screen."""
    seen = pty.seen()
    assert (seen[: len(ENTERED)], seen[-len(LEFT) :]) == (ENTERED, LEFT)
    _, looking, *drawn = seen[len(ENTERED) : -len(LEFT)].split(CLEARED)
    assert looking == "collecting …"
    return [each.split("\n") for each in drawn]


def test_redraws_in_place_and_returns_the_last_exit_code(pty: Pseudo) -> None:
    watched = Watched([idle(), daemon_dead()])

    assert watched.run(Terminal(pty.program, XTERM, "never")) == 1

    first, second = screens(pty)
    assert first[:2] == [f"{local_time(AT)}, by the service", "well: 1 of 1 daemons up, 0 clients, 1 GPU"]
    assert second[:2] == [
        f"{local_time(AT + 2)}, by the service",
        "CRITICAL: 0 of 1 daemons up, 0 clients, 2 GPUs",
    ]
    assert watched.waited == [2.0, 2.0]


def test_fits_the_terminal_at_each_update(pty: Pseudo) -> None:
    watched = Watched([full(), full()])
    wait = watched.wait

    def wait_and_resize(seconds: float) -> None:
        pty.resize(50, 10)
        wait(seconds)

    watched.wait = wait_and_resize  # type: ignore[method-assign]
    watched.run(Terminal(pty.program, XTERM, "never"))

    assert watched.widths == [80, 50]
    assert [len(each) for each in screens(pty)] == [24, 10]


def test_marks_old_data_while_the_service_restarts(pty: Pseudo) -> None:
    watched = Watched([idle(), GONE, GONE, idle()])

    assert watched.run(Terminal(pty.program, XTERM, "never")) == 0

    titles = [each[0] for each in screens(pty)]
    assert titles[1:3] == [
        f"{local_time(AT + passed)}  no service answers: what follows is as of {short_time(AT, AT)}"
        for passed in (2, 4)
    ]
    assert titles[3] == f"{local_time(AT + 6)}, by the service"


def test_stale_status_fails(pty: Pseudo) -> None:
    assert Watched([idle(), GONE]).run(Terminal(pty.program, XTERM)) == 1


def test_raises_if_the_first_report_fails(pty: Pseudo) -> None:
    with pytest.raises(ServiceError):
        Watched([GONE]).run(Terminal(pty.program, XTERM))
    assert pty.seen().endswith(LEFT)


def test_a_pipe_gets_one_status_after_the_other(tmp_path: Path) -> None:
    """The output has no escape sequences and no limit of lines."""
    code, output = piped(tmp_path, Watched([full(), GONE]))

    assert code == 1
    assert output.isprintable() is False
    assert all(line.isprintable() for line in output.split("\n"))
    first, second = output.split(f"{local_time(AT + 2)}  no service")
    assert first.startswith(f"{local_time(AT)}, by the service\nwarning: 1 of 1 daemons up, 48 clients")
    assert first.count(" active ") == second.count(" active ") == 48
    assert first.endswith("\n\n")


def test_brief_shows_the_headline(tmp_path: Path) -> None:
    _, output = piped(tmp_path, Watched([full()]), brief=True)
    assert output.split("\n")[1:] == [
        "warning: 1 of 1 daemons up, 48 clients, 1 GPU",
        f"  MPS server 513 of {DAEMON} has no free client slot (48 of 48)",
        "",
        "",
        "",
    ]


def test_writes_json_lines(pty: Pseudo) -> None:
    """JSON is written in lines on a terminal, too."""
    assert Watched([idle(), GONE, idle()], as_json=True).run(Terminal(pty.program, XTERM)) == 0

    first, gone, last = (json.loads(line) for line in pty.seen().splitlines())
    assert first == last == json.loads(json.dumps(node_object(view_of(idle()))))
    assert gone == {"at": AT + 2, "problem": "no service answers"}


def test_a_resize_ends_the_wait() -> None:
    with interrupt_on_signals():
        signal.pthread_kill(threading.get_ident(), signal.SIGWINCH)
        assert wait_for_resize(60)


def test_the_wait_ends_after_its_time() -> None:
    with interrupt_on_signals():
        assert not wait_for_resize(0.01)
