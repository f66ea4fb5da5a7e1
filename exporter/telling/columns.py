"""Rows of cells as lines, in columns of one width; where a terminal is narrow, in fewer and narrower ones."""

import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from exporter.telling.line import Line, Piece, Tone, faint, said


def breadth(text: str) -> int:
    """The columns that a text takes."""
    return len(text) if text.isascii() else sum(map(_of, text))


def shortened(text: str, columns: int, *, keep_end: bool = False) -> str:
    """A text that takes no more than so many columns; what is left out, its end or its beginning, is shown."""
    if breadth(text) <= columns:
        return text
    kept, left = "", columns - 1
    for char in reversed(text) if keep_end else text:
        left -= _of(char)
        if left < 0:
            break
        kept = char + kept if keep_end else kept + char
    return f"…{kept}" if keep_end else f"{kept}…"


def _of(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


_GAP = "  "

Row = Sequence[Piece]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its cells end at the same place where they stand to the `right`.

    `least` is how narrow it may become where there is no room, None: as it is. Of a name that tells more by its end,
    such as a path, `keep_end` shows that.
    """

    name: str
    right: bool = False
    least: int | None = None
    keep_end: bool = False


def aligned(
    columns: Sequence[Column], rows: Sequence[Row], width: int | None = None, dispensable: Sequence[str] = ()
) -> list[Line]:
    """The columns' names, and the rows, as lines no wider than `width`; None: however wide they become.

    Where narrower columns are not enough, the `dispensable` ones are left out, one after the other, which is said.
    """
    shown, widths, left_out = _fitting(columns, rows, width, dispensable)
    header = [faint(column.name) for column in columns]
    lines = [
        _line([row[place] for place in shown], [columns[place] for place in shown], widths) for row in (header, *rows)
    ]
    return [*lines, said(faint(f"not shown, for want of width: {', '.join(left_out)}"))] if left_out else lines


def without(columns: Sequence[Column], rows: Sequence[Row], names: Collection[str]) -> tuple[list[Column], list[Row]]:
    """The columns, and their cells, that are not among these."""
    kept = [place for place, column in enumerate(columns) if column.name not in names]
    return [columns[place] for place in kept], [[row[place] for place in kept] for row in rows]


def _fitting(
    columns: Sequence[Column], rows: Sequence[Row], width: int | None, dispensable: Sequence[str]
) -> tuple[Sequence[int], Sequence[int], Sequence[str]]:
    """The places and widths of the columns that are shown, and the names of those that are not."""
    natural = [
        max(breadth(column.name), *(breadth(row[place].text) for row in rows)) if rows else breadth(column.name)
        for place, column in enumerate(columns)
    ]
    for count in range(len(dispensable) + 1):
        left_out = dispensable[:count]
        shown = [place for place, column in enumerate(columns) if column.name not in left_out]
        widths = _narrowed([natural[place] for place in shown], [columns[place] for place in shown], width)
        if width is None or _total(widths) <= width:
            break
    there = [name for name in left_out if any(column.name == name for column in columns)]
    return shown, widths, there


def _narrowed(widths: Sequence[int], columns: Sequence[Column], width: int | None) -> Sequence[int]:
    """The widths that fit, or the least ones: the widest column gives first."""
    narrowed = list(widths)
    while width is not None and _total(narrowed) > width:
        able = [
            place for place, column in enumerate(columns) if column.least is not None and narrowed[place] > column.least
        ]
        if not able:
            break
        narrowed[max(able, key=lambda place: narrowed[place])] -= 1
    return narrowed


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _line(cells: Row, columns: Sequence[Column], widths: Sequence[int]) -> Line:
    pieces: list[Piece | str] = []
    gap = ""
    for cell, column, width in zip(cells, columns, widths, strict=True):
        text = shortened(cell.text, width, keep_end=column.keep_end)
        blank = " " * (width - breadth(text))
        if text.strip():
            pieces += [gap + blank if column.right else gap, Piece(text, cell.tone)]
            gap = _GAP if column.right else blank + _GAP
        else:
            gap += blank + text + _GAP
    return said(*pieces)


def cell(text: str, tone: Tone = Tone.PLAIN) -> Piece:
    """A cell; one that has nothing to tell is faint."""
    return faint(text) if text == "-" else Piece(text, tone)
