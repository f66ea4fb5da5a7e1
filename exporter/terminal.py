"""A terminal: colours, line fitting, a screen that is redrawn."""

import contextlib
import errno
import json
import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TextIO

from exporter.clock import Clock
from exporter.errors import ServiceError
from exporter.parse.printable import printable_line
from exporter.report.text import Line, Piece, StatusText, Style, dim, error, line_of, local_time, short_time, text_width
from exporter.status_client import StatusReport

CHOICES = ("auto", "always", "never")

_SELECTED = {Style.ERROR: "1;31", Style.WARNING: "33", Style.OK: "32", Style.DIM: "2", Style.COMMAND: "1"}
"""By SGR, as every terminal knows it: bold red, yellow, green, dim and bold."""


def wanted(choice: str, environment: Mapping[str, str], *, at_a_terminal: bool) -> bool:
    """Whether there are to be colours: as the choice says, else the environment, else where a terminal knows them.

    NO_COLOR (no-color.org) outweighs FORCE_COLOR (force-color.org) and CLICOLOR_FORCE; empty, each counts as unset.
    """
    if choice != "auto":
        return choice == "always"
    if environment.get("NO_COLOR"):
        return False
    if any(environment.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return at_a_terminal and knows_sequences(environment)


def knows_sequences(environment: Mapping[str, str]) -> bool:
    """Whether the terminal is one that obeys escape sequences."""
    return environment.get("TERM", "dumb") not in ("", "dumb")


def painted(line: Line, *, colours: bool) -> str:
    """A line as it is written. No piece of it can bring a sequence of its own, whoever chose its text."""
    return "".join(_painted(piece) if colours else printable_line(piece.text) for piece in line.pieces)


def _painted(piece: Piece) -> str:
    sequence, text = _SELECTED.get(piece.style), printable_line(piece.text)
    return text if sequence is None else f"\x1b[{sequence}m{text}\x1b[0m"


_LEAST_ROOM = 20
"""No line that was broken goes on so far to the right that less is left of it."""

_TELLING = (Style.ERROR, Style.WARNING, Style.COMMAND)
"""What stays where not all can: what is not well, and what to do."""

_WORDS = re.compile(r"\s*\S+")


def broken(line: Line, width: int) -> Iterable[Line]:
    """The line, broken between words; a command is left whole, for whoever copies it."""
    if text_width(line.text) <= width or line.has(Style.COMMAND):
        return [line]
    return _broken(line, width)


def _broken(line: Line, width: int) -> Iterable[Line]:
    indent = min(line.indent, max(0, width - _LEAST_ROOM))
    for start, end in _rows_of(line.text, width, indent):
        yield line_of(" " * indent if start else "", *_pieces(line, start, end))


def _rows_of(text: str, width: int, indent: int) -> Iterable[tuple[int, int]]:
    """Where each row begins and ends; one is never empty."""
    start, end, room = 0, 0, width
    for word in _WORDS.finditer(text):
        if end > start and text_width(text[start : word.end()]) > room:
            yield start, end
            start, room = word.end() - len(word[0].lstrip()), width - indent
        end = word.end()
    yield start, end


def _pieces(line: Line, start: int, end: int) -> Iterable[Piece]:
    for piece in line.pieces:
        yield Piece(piece.text[max(0, start) : max(0, end)], piece.style)
        start, end = start - len(piece.text), end - len(piece.text)


def bare(sheet: StatusText) -> Sequence[Line]:
    """A sheet without its head: the table comes first, as programs may expect it."""
    return (*sheet.table, *sheet.sharing, *sheet.troubles, *sheet.past)


def whole(sheet: StatusText) -> Sequence[Line]:
    """All of a sheet, for a terminal that scrolls."""
    return (*sheet.head, line_of(), *bare(sheet))


def fitted(title: Sequence[Line], sheet: StatusText, width: int, height: int) -> Sequence[Line]:
    """As much of a sheet as a screen has room for, what is not well first; of the rest it is said how much it is."""
    top = _all_broken((*title, *sheet.head, line_of()), width)
    troubles = _all_broken((*sheet.troubles, line_of()) if sheet.troubles else (), width)
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
    return sum(max(1, -(-text_width(line.text) // width)) for line in lines)


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
    return line_of(dim(f"… {count} more lines are not shown"))


_USUAL_SIZE = os.terminal_size((80, 24))

_OTHER_SCREEN, _OWN_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""The alternate screen, without a cursor; and back."""

_CLEARED = "\x1b[H\x1b[J"
"""Before all is written, at one go: behind a row that is full, a terminal would erase its last character."""


class Terminal:
    """Shows lines on a stream: in colours, and fitted to its width, where it is a terminal."""

    def __init__(self, stream: TextIO, environment: Mapping[str, str], colour: str = "auto") -> None:
        """`colour` is `always`, `never`, or `auto`: where there is one."""
        self._stream = stream
        self._is_one = stream.isatty()
        self._colours = wanted(colour, environment, at_a_terminal=self._is_one)
        self.can_redraw = self._is_one and knows_sequences(environment)

    @property
    def width(self) -> int | None:
        """How many columns it has; None where it is no terminal."""
        return self.size.columns if self._is_one else None

    @property
    def size(self) -> os.terminal_size:
        """Its columns and lines; the usual ones where it does not know them."""
        try:
            size = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):
            return _USUAL_SIZE
        return size if size.columns > 0 and size.lines > 0 else _USUAL_SIZE

    def show(self, lines: Iterable[Line]) -> None:
        """Write lines, one below the other."""
        width = self.width
        for line in lines:
            for row in (line,) if width is None else broken(line, width):
                self._write(f"{painted(row, colours=self._colours)}\n")
        self._flush()

    def show_text(self, text: str) -> None:
        """Write text as it is: for programs, or made harmless before."""
        self._write(text)
        self._flush()

    def redraw(self, lines: Sequence[Line]) -> None:
        """Have the screen show these lines, in place of what it has shown."""
        self._write(_CLEARED + "\n".join(painted(line, colours=self._colours) for line in lines))
        self._flush()

    def _write(self, text: str) -> None:
        """What the terminal's encoding does not have is a question mark."""
        encoding = self._stream.encoding or "utf-8"
        with _closed_like_a_pipe():
            self._stream.write(text.encode(encoding, errors="replace").decode(encoding))

    def _flush(self) -> None:
        with _closed_like_a_pipe():
            self._stream.flush()

    @contextlib.contextmanager
    def screen_of_its_own(self) -> Iterator[None]:
        """The alternate screen, until the end; then the terminal is as it was, however that comes."""
        self._write(_OTHER_SCREEN)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                self._write(_OWN_SCREEN)
                self._flush()


@contextlib.contextmanager
def _closed_like_a_pipe() -> Iterator[None]:
    """A terminal that has been closed, as its connection ended, is a pipe that nobody reads."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EIO:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from error
        raise


@contextlib.contextmanager
def heeding_signals() -> Iterator[None]:
    """Until the end, SIGTERM and SIGHUP are KeyboardInterrupt too, and SIGWINCH is for who waits for it."""
    before = {each: signal.signal(each, signal.default_int_handler) for each in (signal.SIGTERM, signal.SIGHUP)}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for each, handler in before.items():
            signal.signal(each, handler)


def resized_within(seconds: float) -> bool:
    """Wait so long, or until the terminal has another size: whether it has."""
    return signal.sigtimedwait({signal.SIGWINCH}, seconds) is not None


class Watching:
    """Shows what is reported: in place on a terminal that can, else one below the other."""

    def __init__(
        self,
        report: Callable[[int | None], StatusReport],
        terminal: Terminal,
        clock: Clock,
        *,
        seconds: float,
        as_json: bool = False,
        brief: bool = False,
        wait: Callable[[float], object] = resized_within,
    ) -> None:
        """`brief`: the head of each sheet alone."""
        self._report = report
        self._terminal = terminal
        self._clock = clock
        self._seconds = seconds
        self._as_json = as_json
        self._brief = brief
        self._wait = wait
        self._last: tuple[float, StatusReport] | None = None
        self._exit_code = 1

    def run(self) -> int:
        """Until interrupted: the exit code of what was shown last. ServiceError where nothing is told at first."""
        in_place = not self._as_json and self._terminal.can_redraw
        own_screen = self._terminal.screen_of_its_own() if in_place else contextlib.nullcontext()
        with contextlib.suppress(KeyboardInterrupt), heeding_signals(), own_screen:
            if in_place:
                self._terminal.redraw([line_of(dim("looking …"))])
            while True:
                self._turn()
                self._wait(self._seconds)
        return self._exit_code

    def _turn(self) -> None:
        problem = None
        try:
            report = self._report(self._terminal.width)
            self._last = self._clock.now(), report
            self._exit_code = report.exit_code
        except ServiceError as error:
            if self._last is None:
                raise
            problem, self._exit_code = str(error), 1
        since, report = self._last
        if report.text is None:
            self._show_object({"at": self._clock.now(), "problem": problem} if problem else report.node)
        else:
            self._show_sheet(self._title(report.by, since, problem), report.text)

    def _show_object(self, told: object) -> None:
        """One a line, as JSON Lines have it."""
        self._terminal.show_text(json.dumps(told) + "\n")

    def _show_sheet(self, title: Sequence[Line], sheet: StatusText) -> None:
        if self._brief:
            sheet = replace(sheet, table=(), sharing=(), troubles=(), past=())
        if self._terminal.can_redraw:
            self._terminal.redraw(fitted(title, sheet, *self._terminal.size))
        else:
            self._terminal.show((*title, *whole(sheet), line_of()))

    def _title(self, by: str, since: float, problem: str | None) -> Sequence[Line]:
        now = self._clock.now()
        if problem is not None:
            return [
                line_of(dim(local_time(now)), "  ", error(f"{problem}: what follows is as of {short_time(since, now)}"))
            ]
        return [line_of(dim(f"{local_time(now)}, by {by}"))]
