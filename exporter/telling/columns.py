"""Rows of text as columns of one width."""

from collections.abc import Collection, Sequence


def aligned(rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> list[str]:
    """The rows as lines; the first has the columns' names, and `right` those whose cells end at the same place."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    to_right = [name in right for name in rows[0]]
    return ["  ".join(map(_cell, row, widths, to_right)).rstrip() for row in rows]


def _cell(text: str, width: int, to_right: bool) -> str:
    return text.rjust(width) if to_right else text.ljust(width)
