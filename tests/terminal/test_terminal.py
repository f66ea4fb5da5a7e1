"""Output to a pseudo-terminal, and to a file."""

import contextlib
import io
import os
from pathlib import Path

import pytest

from exporter.report.text import error, line_of, shell_command
from exporter.terminal import PROGRESS_SECONDS, Terminal, progress
from tests.eventually import eventually
from tests.terminal.pseudo_terminal import Pseudo

XTERM = {"TERM": "xterm"}


def test_a_terminal_has_colours_and_a_width(pty: Pseudo) -> None:
    terminal = Terminal(pty.program, XTERM)
    terminal.show([line_of("state ", error("fault"))])

    assert terminal.width == 80
    assert pty.seen() == "state \x1b[1;31mfault\x1b[0m\n"


def test_width_follows_the_size(pty: Pseudo) -> None:
    terminal = Terminal(pty.program, XTERM)
    pty.resize(20, 5)
    terminal.show([line_of("a line that is too wide for it"), line_of(shell_command("a command that is as wide"))])

    assert terminal.width == 20
    assert pty.seen().split("\n")[:2] == ["a line that is too", "wide for it"]


def test_an_unknown_width_is_80(pty: Pseudo) -> None:
    pty.resize(0, 0)
    assert Terminal(pty.program, XTERM).width == 80


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {}])
def test_a_dumb_terminal_gets_no_escape_sequences(pty: Pseudo, environment: dict[str, str]) -> None:
    terminal = Terminal(pty.program, environment)
    terminal.show([line_of(error("fault"))])

    assert (terminal.width, pty.seen()) == (80, "fault\n")


def test_a_file_has_no_width_and_no_colours(tmp_path: Path) -> None:
    with (tmp_path / "output").open("w+") as file:
        terminal = Terminal(file, XTERM)
        terminal.show([line_of(error("x" * 300), " and more words")])
        file.seek(0)

        assert (terminal.width, file.read()) == (None, f"{'x' * 300} and more words\n")


def test_replaces_characters_that_the_encoding_lacks() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="latin-1")
    Terminal(stream, {}).show([line_of("/tmp/caf\u00e9\u2026")])
    assert raw.getvalue() == "/tmp/caf\u00e9?\n".encode("latin-1")


def test_a_closed_terminal_is_a_broken_pipe() -> None:
    """The terminal closes when the connection to the node ends."""
    person, programs = os.openpty()
    with contextlib.suppress(OSError), open(programs, "w", encoding="utf-8") as program:
        terminal = Terminal(program, XTERM)
        os.close(person)
        with pytest.raises(BrokenPipeError):
            terminal.show([line_of("fault")])


def test_shows_progress_until_the_work_is_done(pty: Pseudo) -> None:
    screen: list[str] = []

    def shows_the_text() -> None:
        screen.append(pty.seen())
        assert "".join(screen) == "Working"

    with progress(pty.program, "Working", after=0.01):
        eventually(shows_the_text)
    assert pty.seen() == "\r       \r"


def test_shows_no_progress_of_quick_work_or_without_a_terminal(pty: Pseudo) -> None:
    file = io.StringIO()
    with progress(pty.program, "Working", after=PROGRESS_SECONDS * 1000), progress(file, "Working", after=0):
        pass
    assert "Working" not in pty.seen() + file.getvalue()
