"""Lines of styled pieces, which can be serialized."""

import json

import pytest

from exporter.model.values import build, plain
from exporter.report.text import Line, Lines, Piece, Style, dim, error, line_of, shell_command, text_of, warning


def test_joins_adjacent_pieces_of_one_style() -> None:
    line = line_of("server ", "513: ", error("FA"), error("ULT"), "", dim(""))

    assert line.pieces == (Piece("server 513: "), Piece("FAULT", Style.ERROR))
    assert line.text == "server 513: FAULT"


def test_has_finds_styles() -> None:
    assert line_of("a", warning("b")).has(Style.ERROR, Style.WARNING)
    assert not line_of("a", dim("b")).has(Style.ERROR)
    assert not line_of().has(*Style)


def test_text_has_no_styles() -> None:
    assert (
        text_of([line_of("a ", error("b")), line_of(), line_of(shell_command("kill -KILL 7"))])
        == "a b\n\nkill -KILL 7\n"
    )


def test_serializes_styles() -> None:
    lines = Lines((line_of("a ", error("b"), indent=13), line_of()))

    assert build(Lines, json.loads(json.dumps(plain(lines)))) == lines


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"lines": 7},
        {"lines": [{"pieces": [{"text": 7}]}]},
        {"lines": [{"pieces": [{"text": "", "style": "loud"}]}]},
    ],
)
def test_rejects_invalid_lines(sent: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"lines|text|style"):
        build(Lines, sent)


def test_a_line_without_pieces_is_empty() -> None:
    assert line_of() == Line()
