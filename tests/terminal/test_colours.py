"""Colours where there are any, and nothing else that speaks to a terminal."""

import re
from itertools import product

import pytest

from exporter.report.text import Line, Piece, Style, dim, error, line_of
from exporter.terminal import render_line, use_colours
from tests.incidents.values import HOSTILE

XTERM = {"TERM": "xterm-256color"}


def test_uses_colours_by_option_environment_and_terminal(subtests: pytest.Subtests) -> None:
    """The command line takes precedence over the environment, and that over the terminal."""
    for choice, environment, at_a_terminal, colours in [
        ("auto", XTERM, True, True),
        ("auto", XTERM, False, False),
        ("auto", {"TERM": "dumb"}, True, False),
        ("auto", {}, True, False),
        ("auto", {**XTERM, "NO_COLOR": "1"}, True, False),
        ("auto", {**XTERM, "NO_COLOR": ""}, True, True),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("auto", {"CLICOLOR_FORCE": "1"}, False, True),
        ("auto", {"CLICOLOR_FORCE": "0", "FORCE_COLOR": ""}, False, False),
        ("auto", {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
        ("always", {"NO_COLOR": "1", "TERM": "dumb"}, False, True),
        ("never", {**XTERM, "FORCE_COLOR": "1"}, True, False),
    ]:
        with subtests.test(choice=choice, environment=environment, at_a_terminal=at_a_terminal, colours=colours):
            assert use_colours(choice, environment, at_a_terminal=at_a_terminal) is colours


def test_a_style_ends_with_its_piece() -> None:
    line = line_of(dim("Held up by "), "PID 600 ", error("still"))

    assert render_line(line, colours=True) == "\x1b[2mHeld up by \x1b[0mPID 600 \x1b[1;31mstill\x1b[0m"
    assert render_line(line, colours=False) == line.text


def test_styles_do_not_change_the_text(subtests: pytest.Subtests) -> None:
    for style in Style:
        with subtests.test(style=style):
            line = Line((Piece("a"), Piece("b c", style)))
            assert re.sub(r"\x1b\[[0-9;]*m", "", render_line(line, colours=True)) == line.text


def test_text_contains_no_escape_sequences(subtests: pytest.Subtests) -> None:
    """Another program may pose as the service."""
    for name, style in product([*HOSTILE, "\x9b31m", "\x1b]0;title\x07", "\r\x08\x7f"], [Style.PLAIN, Style.ERROR]):
        with subtests.test(name=name, style=style):
            line = Line((Piece(name, style),))
            assert render_line(line, colours=False).isprintable()
            without_ours = render_line(line, colours=True).removeprefix("\x1b[1;31m").removesuffix("\x1b[0m")
            assert without_ours.isprintable()
