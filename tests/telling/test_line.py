"""Lines whose pieces have tones, and that can be sent."""

import json

import pytest

from exporter.report.text import Line, Lines, Piece, Tone, bad, doubtful, faint, said, shell, text_of, well
from exporter.serialization import build, plain


def test_pieces_beside_each_other_in_one_tone_are_one() -> None:
    line = said("server ", "513: ", bad("FA"), bad("ULT"), "", faint(""))

    assert line.pieces == (Piece("server 513: "), Piece("FAULT", Tone.BAD))
    assert line.text == "server 513: FAULT"


def test_what_it_has_can_be_asked() -> None:
    assert said("a", doubtful("b")).has(Tone.BAD, Tone.DOUBTFUL)
    assert not said("a", well("b")).has(Tone.BAD)
    assert not said().has(*Tone)


def test_lines_are_text_without_their_tones() -> None:
    assert text_of([said("a ", bad("b")), said(), said(shell("kill -KILL 7"))]) == "a b\n\nkill -KILL 7\n"


def test_they_are_sent_with_their_tones() -> None:
    lines = Lines((said("a ", bad("b"), indent=13), said()))

    assert build(Lines, json.loads(json.dumps(plain(lines)))) == lines


@pytest.mark.parametrize(
    "sent",
    [{}, {"lines": 7}, {"lines": [{"pieces": [{"text": 7}]}]}, {"lines": [{"pieces": [{"text": "", "tone": "loud"}]}]}],
)
def test_what_is_none_is_refused(sent: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"lines|text|tone"):
        build(Lines, sent)


def test_a_line_of_nothing_is_empty() -> None:
    assert said() == Line()
