"""Text formatting: names, amounts, times, lines and columns."""

import time
import unicodedata
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from exporter.model.identity import Workload, WorkloadKind
from exporter.parse.printable import printable


def utc_time(at: float) -> str:
    """A moment in ISO 8601, to the millisecond: `2026-11-21T13:05:03.147Z`."""
    seconds, milliseconds = divmod(round(at * 1000), 1000)
    return _written(seconds, time.gmtime, f"%Y-%m-%dT%H:%M:%S.{milliseconds:03}Z")


def local_time(at: float) -> str:
    """A moment as the clock on the wall has it, where this program runs: `2026-11-21 14:05:03`."""
    return _written(int(at), time.localtime, "%Y-%m-%d %H:%M:%S")


def short_time(at: float, now: float) -> str:
    """A moment as one speaks of it on the same day, `14:05:03`; else with its date, `2026-11-21 14:05`."""
    told, today = local_time(at), local_time(now)
    return told[len("2026-11-21 ") :] if told.split()[0] == today.split()[0] else told.rpartition(":")[0] or told


def duration_text(seconds: float) -> str:
    """How long something took, in words: `17 ms`, `0.1 s`, `42 s`, `3 min 2 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 0.1:
        return f"{max(0, round(seconds * 1000))} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{left} s"
    hours, minutes = divmod(minutes, 60)
    if hours == 0:
        return f"{minutes} min {left} s"
    days, hours = divmod(hours, 24)
    return f"{hours} h {minutes} min" if days == 0 else f"{days} d {hours} h"


def _written(seconds: int, calendar: Callable[[float], time.struct_time], form: str) -> str:
    try:
        return time.strftime(form, calendar(seconds))
    except (OverflowError, OSError, ValueError):
        return "in no year that a calendar has"


class Style(StrEnum):
    """What a piece of text is to whoever reads it."""

    PLAIN = "plain"
    ERROR = "error"
    WARNING = "warning"
    OK = "ok"
    DIM = "dim"
    COMMAND = "command"
    """For a shell: never broken, so that it can be copied."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text, and its tone."""

    text: str
    style: Style = Style.PLAIN


@dataclass(frozen=True, slots=True)
class Line:
    """One line. Where it must be broken, it goes on `indent` characters from the left."""

    pieces: tuple[Piece, ...] = ()
    indent: int = 4

    @property
    def text(self) -> str:
        """The line without its tones."""
        return "".join(piece.text for piece in self.pieces)

    def has(self, *tones: Style) -> bool:
        """Whether any piece of it is of one of these tones."""
        return any(piece.style in tones for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Lines:
    """Several lines, as one value that can be sent."""

    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusText:
    """How the node is. `at` is when that was so, in seconds since the epoch.

    `head` is that at a glance, `table` who is there and who falls with whom, `sharing` how well they share their GPUs,
    `troubles` what is not well, with all that is known of it, `past` the faults that are over.
    """

    at: float
    head: tuple[Line, ...]
    table: tuple[Line, ...]
    troubles: tuple[Line, ...]
    past: tuple[Line, ...]
    sharing: tuple[Line, ...] = ()


def line_of(*pieces: Piece | str, indent: int = 4) -> Line:
    """A line of these pieces; those that stand beside each other in one tone become one."""
    joined: list[Piece] = []
    for each in pieces:
        piece = Piece(each) if isinstance(each, str) else each
        if joined and joined[-1].style is piece.style:
            piece = Piece(joined.pop().text + piece.text, piece.style)
        if piece.text:
            joined.append(piece)
    return Line(tuple(joined), indent)


def error(text: str) -> Piece:
    """What somebody must act on."""
    return Piece(text, Style.ERROR)


def warning(text: str) -> Piece:
    """What may need somebody, or not."""
    return Piece(text, Style.WARNING)


def well(text: str) -> Piece:
    """What is as it should be."""
    return Piece(text, Style.OK)


def dim(text: str) -> Piece:
    """What is beside the matter."""
    return Piece(text, Style.DIM)


def shell_command(text: str) -> Piece:
    """What a shell can be told."""
    return Piece(text, Style.COMMAND)


def text_of(lines: Iterable[Line]) -> str:
    """The lines as text, without their tones."""
    return "".join(f"{line.text}\n" for line in lines)


def text_width(text: str) -> int:
    """The columns that a text takes."""
    return len(text) if text.isascii() else sum(map(_of, text))


def truncate(text: str, columns: int, *, keep_end: bool = False) -> str:
    """A text that takes no more than so many columns; what is left out, its end or its beginning, is shown."""
    if text_width(text) <= columns:
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


def align_table(
    columns: Sequence[Column], rows: Sequence[Row], width: int | None = None, dispensable: Sequence[str] = ()
) -> list[Line]:
    """The columns' names, and the rows, as lines no wider than `width`; None: however wide they become.

    Where narrower columns are not enough, the `dispensable` ones are left out, one after the other, which is said.
    """
    shown, widths, left_out = _fitting(columns, rows, width, dispensable)
    header = [dim(column.name) for column in columns]
    lines = [
        _line([row[place] for place in shown], [columns[place] for place in shown], widths) for row in (header, *rows)
    ]
    return [*lines, line_of(dim(f"not shown, for want of width: {', '.join(left_out)}"))] if left_out else lines


def drop_columns(
    columns: Sequence[Column], rows: Sequence[Row], names: Collection[str]
) -> tuple[list[Column], list[Row]]:
    """The columns, and their cells, that are not among these."""
    kept = [place for place, column in enumerate(columns) if column.name not in names]
    return [columns[place] for place in kept], [[row[place] for place in kept] for row in rows]


def _fitting(
    columns: Sequence[Column], rows: Sequence[Row], width: int | None, dispensable: Sequence[str]
) -> tuple[Sequence[int], Sequence[int], Sequence[str]]:
    """The places and widths of the columns that are shown, and the names of those that are not."""
    natural = [
        max(text_width(column.name), *(text_width(row[place].text) for row in rows))
        if rows
        else text_width(column.name)
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
        text = truncate(cell.text, width, keep_end=column.keep_end)
        blank = " " * (width - text_width(text))
        if text.strip():
            pieces += [gap + blank if column.right else gap, Piece(text, cell.style)]
            gap = _GAP if column.right else blank + _GAP
        else:
            gap += blank + text + _GAP
    return line_of(*pieces)


def cell(text: str, style: Style = Style.PLAIN) -> Piece:
    """A cell; one that has nothing to tell is faint."""
    return dim(text) if text == "-" else Piece(text, style)


_LONGEST_NAME = 32
_SHORT_UUID = 12
"""As much of a GPU's UUID as tells it from the others of a node: `GPU-1efa3f60`."""

_SHORT_ID = 12
"""As much of a container's ID as Docker shows."""

_MEBIBYTE = 1 << 20


def truncate_name(text: str, longest: int) -> str:
    """A text; where it is longer than that, what is left out is shown."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def display_name(text: str | None) -> str:
    """A name, shown safely and cut short; empty where there is none."""
    return truncate_name(printable(text or ""), _LONGEST_NAME)


def short_gpu(gpu: str) -> str:
    """As much of a GPU's UUID as tells it from others."""
    return printable(gpu)[:_SHORT_UUID]


def workload_text(workload: Workload | None, pod: str | None) -> str:
    """An owner, with the pod's name where there is one; empty where it is a user, who is named otherwise."""
    match workload:
        case None | Workload(kind=WorkloadKind.USER):
            return ""
        case Workload(kind=WorkloadKind.SLURM_JOB, name=name):
            return f"job {display_name(name)}"
        case Workload(kind=WorkloadKind.POD, name=name):
            return f"pod {display_name(pod or name)}"
        case Workload(kind=WorkloadKind.CONTAINER, name=name):
            return f"container {display_name(name)[:_SHORT_ID]}"
        case Workload(name=name):
            return display_name(name)


def pid_text(pid: int) -> str:
    """A PID; a negative number stands for a PID of another namespace, which cannot be told here."""
    return f"PID {pid}" if pid > 0 else "a PID not known here"


def mebibytes(used_bytes: int) -> str:
    """An amount of memory."""
    return f"{used_bytes // _MEBIBYTE} MiB"


def counted(count: int, one: str, many: str = "") -> str:
    """How many of something: `1 client`, `2 clients`; `many` where an s is not enough."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def listed(names: Sequence[str]) -> str:
    """Several names as one speaks of them: `0, 1 and 2`."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def process_text(pid: int, command: str | None, user: str | None, owner: str = "") -> str:
    """A process in a few words: `PID 600 (train.py of alice, job 42)`."""
    named = " of ".join(each for each in (display_name(command), display_name(user)) if each)
    told = ", ".join(each for each in (named, owner) if each)
    return f"{pid_text(pid)} ({told})" if told else pid_text(pid)
