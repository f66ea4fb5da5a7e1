"""Lines that fit a terminal: broken between words where they are too wide, left out where they are too many."""

import re
from collections.abc import Iterable, Sequence

from exporter.telling.columns import breadth
from exporter.telling.line import Line, Piece, Sheet, Tone, faint, said

_LEAST_ROOM = 20
"""No line that was broken goes on so far to the right that less is left of it."""

_TELLING = (Tone.BAD, Tone.DOUBTFUL, Tone.COMMAND)
"""What stays where not all can: what is not well, and what to do."""

_WORDS = re.compile(r"\s*\S+")


def broken(line: Line, width: int) -> Iterable[Line]:
    """The line, broken between words; a command is left whole, for whoever copies it."""
    if breadth(line.text) <= width or line.has(Tone.COMMAND):
        return [line]
    return _broken(line, width)


def _broken(line: Line, width: int) -> Iterable[Line]:
    indent = min(line.indent, max(0, width - _LEAST_ROOM))
    for start, end in _rows_of(line.text, width, indent):
        yield said(" " * indent if start else "", *_pieces(line, start, end))


def _rows_of(text: str, width: int, indent: int) -> Iterable[tuple[int, int]]:
    """Where each row begins and ends; one is never empty."""
    start, end, room = 0, 0, width
    for word in _WORDS.finditer(text):
        if end > start and breadth(text[start : word.end()]) > room:
            yield start, end
            start, room = word.end() - len(word[0].lstrip()), width - indent
        end = word.end()
    yield start, end


def _pieces(line: Line, start: int, end: int) -> Iterable[Piece]:
    for piece in line.pieces:
        yield Piece(piece.text[max(0, start) : max(0, end)], piece.tone)
        start, end = start - len(piece.text), end - len(piece.text)


def bare(sheet: Sheet) -> Sequence[Line]:
    """A sheet without its head: the table comes first, as programs may expect it."""
    return (*sheet.table, *sheet.sharing, *sheet.troubles, *sheet.past)


def whole(sheet: Sheet) -> Sequence[Line]:
    """All of a sheet, for a terminal that scrolls."""
    return (*sheet.head, said(), *bare(sheet))


def fitted(title: Sequence[Line], sheet: Sheet, width: int, height: int) -> Sequence[Line]:
    """As much of a sheet as a screen has room for, what is not well first; of the rest it is said how much it is."""
    top = _all_broken((*title, *sheet.head, said()), width)
    troubles = _all_broken((*sheet.troubles, said()) if sheet.troubles else (), width)
    table, past = _all_broken(sheet.table, width), _all_broken(sheet.past, width)
    sharing = _all_broken(sheet.sharing, width)
    everything = (*top, *troubles, *table, *sharing, *past)
    if _rows(everything, width) <= height:
        return everything
    room = height - _rows([_more(len(everything))], width)
    top = _most_telling(top, width, room)
    room -= _rows(top, width)
    troubles = _most_telling(troubles, width, max(room - _rows(table, width), room * 2 // 3))
    room -= _rows(troubles, width)
    table = _most_telling(table, width, room)
    room -= _rows(table, width)
    sharing = _most_telling(sharing, width, room)
    past = _most_telling(past, width, room - _rows(sharing, width))
    shown = (*top, *troubles, *table, *sharing, *past)
    more = _more(len(everything) - len(shown))
    return [*shown, more] if _rows([*shown, more], width) <= height else shown


def _all_broken(lines: Iterable[Line], width: int) -> Sequence[Line]:
    return [row for line in lines for row in broken(line, width)]


def _rows(lines: Iterable[Line], width: int) -> int:
    """How many rows of a screen the lines take; one that is too wide goes on in the next row."""
    return sum(max(1, -(-breadth(line.text) // width)) for line in lines)


def _most_telling(lines: Sequence[Line], width: int, room: int) -> Sequence[Line]:
    """As many of the lines as there is room for: the first one, those that matter most, then others."""
    kept: set[int] = set()
    for place in sorted(range(len(lines)), key=lambda each: (each > 0, not lines[each].has(*_TELLING), each)):
        room -= _rows((lines[place],), width)
        if room < 0:
            break
        kept.add(place)
    return [lines[place] for place in sorted(kept)]


def _more(count: int) -> Line:
    return said(faint(f"… {count} more lines are not shown"))
