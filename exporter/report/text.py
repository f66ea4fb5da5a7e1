"""Text formatting: styled lines, tables, times, amounts and names."""

import time
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from math import ceil, floor
from typing import TYPE_CHECKING

from exporter.model.identity import Workload, WorkloadKind
from exporter.model.values import frozen, frozen_positional
from exporter.parse.printable import LONGEST_TEXT, printable
from exporter.report.document_parts import Severity

if TYPE_CHECKING:
    # With these, commands that only ask the service would take 1.8 times the instructions.
    from exporter.model.daemon import FailedStarts
    from exporter.model.kernels import Kernel
    from exporter.model.observation import PodFound

SIMULATED = "SIMULATED NODE of `cuda-mps-exporter demo`: nothing here describes this machine"
"""Stated wherever a simulated node is shown."""

NOT_SHOWN = "not shown: only root and the owner of the client see them; run with sudo"
"""Stated of kernels that are hidden from the viewer."""


def utc_time(at: float) -> str:
    """Return a time in ISO 8601, to the millisecond: `2026-11-21T13:05:03.147Z`."""
    seconds, milliseconds = divmod(round(at * 1000), 1000)
    return _formatted(seconds, time.gmtime, f"%Y-%m-%dT%H:%M:%S.{milliseconds:03}Z")


def local_time(at: float) -> str:
    """Return a time in this machine's time zone: `2026-11-21 14:05:03`."""
    return _formatted(int(at), time.localtime, "%Y-%m-%d %H:%M:%S")


def zoned_time(at: float) -> str:
    """Return a time in this machine's time zone with the offset, in ISO 8601: `2026-11-21T14:05:03+01:00`."""
    text = _formatted(int(at), time.localtime, "%Y-%m-%dT%H:%M:%S%z")
    return f"{text[:-2]}:{text[-2:]}"


def zone_text(at: float) -> str:
    """Return this machine's time zone at a time: `CET (UTC+01:00)`, `UTC`, or `UTC-03:00` if it has no name."""
    name, offset = _formatted(int(at), time.localtime, "%Z"), f"UTC{zoned_time(at)[-6:]}"
    return name if name == "UTC" else f"{name} ({offset})" if name.isalpha() else offset


def short_time(at: float, now: float) -> str:
    """Return the local time, `14:05:03`. If `at` is not on the day of `now`, return `2026-11-21 14:05`."""
    (date, _, clock_time), today = local_time(at).partition(" "), local_time(now).partition(" ")[0]
    return clock_time if date == today else f"{date} {clock_time.rpartition(':')[0] or clock_time}"


def duration_text(seconds: float) -> str:
    """Return a duration: `17 ms`, `0.1 s`, `42 s`, `3 min 2 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 0.1:
        return f"{max(0, round(seconds * 1000))} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours == 0:
        return f"{minutes} min {rest} s"
    days, hours = divmod(hours, 24)
    return f"{hours} h {minutes} min" if days == 0 else f"{days} d {hours} h"


def _formatted(seconds: int, calendar: Callable[[float], time.struct_time], form: str) -> str:
    try:
        return time.strftime(form, calendar(seconds))
    except (OverflowError, OSError, ValueError):
        return "invalid time"


class Style(StrEnum):
    """How a piece of text is shown."""

    PLAIN = "plain"
    ERROR = "error"
    WARNING = "warning"
    OK = "ok"
    DIM = "dim"
    COMMAND = "command"
    """A shell command: its line is never broken, so that it can be copied."""


SEVERITY_STYLES = {
    Severity.WELL: Style.OK,
    Severity.INFO: Style.DIM,
    Severity.UNKNOWN: Style.WARNING,
    Severity.WARNING: Style.WARNING,
    Severity.CRITICAL: Style.ERROR,
}


@frozen_positional
class Piece:
    """Text of one style."""

    text: str
    style: Style = Style.PLAIN


@frozen_positional
class Line:
    """One line. If it is broken, the next rows are indented by `indent` characters."""

    pieces: tuple[Piece, ...] = ()
    indent: int = 4

    @property
    def text(self) -> str:
        """The text without styles."""
        return "".join(piece.text for piece in self.pieces)

    def has(self, *styles: Style) -> bool:
        """Return whether any piece has one of these styles."""
        return any(piece.style in styles for piece in self.pieces)


def line_of(*pieces: Piece | str, indent: int = 4) -> Line:
    """Return a line of these pieces. Adjacent pieces of one style are joined."""
    joined: list[Piece] = []
    for each in pieces:
        piece = Piece(each) if isinstance(each, str) else each
        if joined and joined[-1].style is piece.style:
            piece = Piece(joined.pop().text + piece.text, piece.style)
        if piece.text:
            joined.append(piece)
    return Line(tuple(joined), indent)


def error(text: str) -> Piece:
    """Return text about a problem that needs action."""
    return Piece(text, Style.ERROR)


def warning(text: str) -> Piece:
    """Return text about a problem that may need action."""
    return Piece(text, Style.WARNING)


def dim(text: str) -> Piece:
    """Return less important text."""
    return Piece(text, Style.DIM)


def shell_command(text: str) -> Piece:
    """Return a command that can be copied."""
    return Piece(text, Style.COMMAND)


def text_of(lines: Iterable[Line]) -> str:
    """Return the lines as text without styles."""
    return "".join(f"{line.text}\n" for line in lines)


def text_width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return len(text) if text.isascii() else sum(map(_char_width, text))


def truncate(text: str, columns: int, *, truncate_start: bool = False) -> str:
    """Truncate a text to a number of columns. An ellipsis marks the end, or with `truncate_start` the start."""
    if text_width(text) <= columns:
        return text
    result, room = "", columns - 1
    if text.isascii() and room > 0:
        return f"…{text[-room:]}" if truncate_start else f"{text[:room]}…"
    for char in reversed(text) if truncate_start else text:
        room -= _char_width(char)
        if room < 0:
            break
        result = char + result if truncate_start else result + char
    return f"…{result}" if truncate_start else f"{result}…"


def _char_width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


_GAP = "  "

Row = Sequence[Piece]


@frozen
class Column:
    """A column of a table.

    If the terminal is narrow, the column shrinks to `min_width`; None: never. With `truncate_start`, a long name
    is shown by its end, as is better for a path.
    """

    name: str
    align_right: bool = False
    min_width: int | None = None
    truncate_start: bool = False


def align_table(
    columns: Sequence[Column], rows: Sequence[Row], width: int | None = None, droppable: Sequence[str] = ()
) -> list[Line]:
    """Return the header and the rows as lines of at most `width` columns; None: as wide as needed.

    If narrow columns do not suffice, the `droppable` columns are left out in this order. A last line names them.
    """
    natural = {
        column.name: max(map(text_width, (column.name, *(row[index].text for row in rows))))
        for index, column in enumerate(columns)
    }
    for count in range(len(droppable) + 1):
        shown, cells = drop_columns(columns, rows, droppable[:count])
        widths = _narrowed([natural[column.name] for column in shown], shown, width)
        if width is None or _total(widths) <= width:
            break
    header = [dim(column.name) for column in shown]
    lines = [_table_line(row, shown, widths) for row in (header, *cells)]
    dropped = [name for name in droppable[:count] if name in natural]
    return [*lines, line_of(dim(f"terminal too narrow for: {', '.join(dropped)}"))] if dropped else lines


def drop_columns(
    columns: Sequence[Column], rows: Sequence[Row], names: Collection[str]
) -> tuple[list[Column], list[Row]]:
    """Return the columns and rows without the columns of these names."""
    indices = [index for index, column in enumerate(columns) if column.name not in names]
    return [columns[index] for index in indices], [[row[index] for index in indices] for row in rows]


def _narrowed(widths: list[int], columns: Sequence[Column], width: int | None) -> Sequence[int]:
    """Return the widths that fit, or the minimum widths. The widest column shrinks first."""
    while width is not None and _total(widths) > width:
        shrinkable = [
            index for index, column in enumerate(columns) if widths[index] > (column.min_width or widths[index])
        ]
        if not shrinkable:
            break
        widths[max(shrinkable, key=lambda index: widths[index])] -= 1
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _table_line(cells: Row, columns: Sequence[Column], widths: Sequence[int]) -> Line:
    pieces: list[Piece | str] = []
    gap = ""
    for cell, column, width in zip(cells, columns, widths, strict=True):
        text = truncate(cell.text, width, truncate_start=column.truncate_start)
        blank = " " * (width - text_width(text))
        if text.strip():
            pieces += [gap + blank if column.align_right else gap, Piece(text, cell.style)]
            gap = _GAP if column.align_right else blank + _GAP
        else:
            gap += blank + text + _GAP
    return line_of(*pieces)


def cell(text: str, style: Style = Style.PLAIN) -> Piece:
    """Return a table cell; `-`, for no value, is dim."""
    return dim(text) if text == "-" else Piece(text, style)


def external_text(text: str, longest: int) -> str:
    """Return text from outside, printable and without backquotes, which mark our own commands."""
    return printable(text, longest).replace("`", "'")


def kernel_name(kernel: "Kernel") -> str:
    """Return the short name of a kernel, or the kernels of a graph."""
    names = ", ".join(external_text(each.short, LONGEST_TEXT) for each in kernel.names)
    return " of ".join(filter(None, ("graph", names))) if kernel.is_graph else names or "unknown"


_LONGEST_NAME = 32

_LONGEST_WORDS = 120

_SHORT_UUID = 12
"""So many characters distinguish the GPUs of a node: `GPU-1efa3f60`."""

_SHORT_ID = 12
"""As much of a container's ID as Docker shows."""


def display_name(text: str | None) -> str:
    """Return a name, printable and of at most 32 characters; empty for None."""
    shown = printable(text or "")
    return shown if len(shown) <= _LONGEST_NAME else f"{shown[: _LONGEST_NAME - 1]}…"


def short_gpu(gpu: str) -> str:
    """Return the start of a GPU's UUID."""
    return printable(gpu)[:_SHORT_UUID]


def workload_text(workload: Workload | None, pod: str | None) -> str:
    """Return a workload, with the name of its pod if that is known. A user is empty, because users are shown anyway."""
    match workload:
        case None | Workload(kind=WorkloadKind.USER):
            return ""
        case Workload(kind=WorkloadKind.JOB, name=name):
            return f"job {display_name(name)}"
        case Workload(kind=WorkloadKind.POD, name=name):
            return f"pod {display_name(pod or name)}"
        case Workload(kind=WorkloadKind.CONTAINER, name=name):
            return f"container {display_name(name)[:_SHORT_ID]}"
        case Workload(name=name):
            return display_name(name)


def workload_name(workload: Workload, pods: "Mapping[str, PodFound]") -> str:
    """Return a workload by name, that of a user included: `pod vllm-0`, `job 42`, `user alice`."""
    pod = pods.get(workload.name)
    return workload_text(workload, None if pod is None else pod.name) or f"user {display_name(workload.name)}"


def pid_text(pid: int) -> str:
    """Return a PID; a negative number is a PID of another namespace that could not be translated."""
    return f"PID {pid}" if pid > 0 else "an unknown PID"


def mebibytes(used_bytes: int) -> str:
    """Return an amount of memory."""
    return f"{used_bytes >> 20} MiB"


def size_text(size: int) -> str:
    """Return an amount of bytes in its largest unit: `64 MiB`, `1.5 GiB`."""
    exponent = max(0, min(4, (size.bit_length() - 1) // 10))
    unit = ("bytes", "KiB", "MiB", "GiB", "TiB")[exponent]
    return f"{float(f'{size / (1 << 10 * exponent):.3g}'):g} {unit}"


def percent(fraction: float, error: float = 0.0) -> str:
    """Return a fraction as a percentage; a small one is never shown as 0.

    If two standard errors are more than half of it, return the range that they cover: `2 to 14 %`, `under 3 %`.
    """
    if 4 * error > fraction:
        least, most = (round(100 * min(1.0, max(0.0, fraction + side * error)), 6) for side in (-2, 2))
        return f"under {ceil(most)} %" if least < 1 and most <= 99 else f"{floor(least)} to {ceil(most)} %"
    return "under 1 %" if 0 < fraction < 0.01 else f"{100 * fraction:.0f} %"


def with_error(part: float, error: float) -> str:
    """Return a fraction as a percentage with its standard error, rounded up, or as a range if that is large."""
    precise = f"{100 * part:.1f} ± {ceil(1000 * error) / 10:.1f} %" if error else f"{100 * part:.1f} %"
    return precise if 4 * error <= part else percent(part, error)


def counted(count: int, one: str, many: str = "") -> str:
    """Return a number with its noun: `1 client`, `2 clients`; `many` if the plural is irregular."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def failed_starts_text(failed: "FailedStarts") -> str:
    """Return how many servers exited before they were ready, the user of the last one, and why it could not start."""
    user = "" if failed.uid is None else f", the last one for UID {failed.uid}"
    words = f": {external_text(failed.words, _LONGEST_WORDS)}" if failed.words else ", without a reason in its log"
    return f"{failed.count} in a row{user}{words}"


def code_text(code: str) -> str:
    """Return a code such as `end_server` as words."""
    return code.replace("_", " ")


def listed(names: Sequence[str], most: int | None = None) -> str:
    """Return several names as an enumeration: `0, 1 and 2`. If there are more than `most`, the others are counted."""
    more = [] if most is None or len(names) <= most else [f"{len(names) - most} more"]
    *others, last = (*names[:most], *more)
    return f"{', '.join(others)} and {last}" if others else last


def held_text(held_by: tuple[int, ...] | None) -> str:
    """Return what holds the connection of a client that has exited, if anything: `exited, held by PID 7`."""
    held = f"held by {listed([f'PID {pid}' for pid in held_by], 3)}" if held_by else "holder unknown"
    return "" if held_by is None else f"exited, {held}"


def process_text(
    pid: int, command: str | None, user: str | None, workload: str = "", held_by: tuple[int, ...] | None = None
) -> str:
    """Return a process: `PID 600 (train.py of alice, job 42)`."""
    name = " of ".join(filter(None, (display_name(command), display_name(user))))
    text = ", ".join(filter(None, (name, workload, held_text(held_by))))
    return f"{pid_text(pid)} ({text})" if text else pid_text(pid)
