"""A terminal: colours, line wrapping, a screen that is redrawn."""

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
from exporter.report.text import (
    Line,
    Piece,
    StatusText,
    Style,
    dim,
    error,
    line_of,
    local_time,
    short_time,
    text_width,
)
from exporter.status_client import StatusReport

CHOICES = ("auto", "always", "never")

_SGR = {Style.ERROR: "1;31", Style.WARNING: "33", Style.OK: "32", Style.DIM: "2", Style.COMMAND: "1"}
"""Escape sequences (SGR): bold red, yellow, green, dim and bold."""

_LEAST_WIDTH = 20
"""The indentation of a wrapped line leaves at least so many columns."""

_IMPORTANT = (Style.ERROR, Style.WARNING, Style.COMMAND)
"""Lines with these styles are shown first if there is not enough room for all."""

_WORDS = re.compile(r"\s*\S+")

_DEFAULT_SIZE = os.terminal_size((80, 24))

_ENTER_SCREEN, _LEAVE_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""Select the alternate screen without a cursor; and back."""

_CLEAR = "\x1b[H\x1b[J"
"""Clear the screen before all is written: after a full row, some terminals would erase its last character."""


def use_colours(choice: str, environment: Mapping[str, str], *, at_a_terminal: bool) -> bool:
    """Return whether to use colours: by the choice, then the environment, then the terminal.

    NO_COLOR (no-color.org) takes precedence over FORCE_COLOR (force-color.org) and CLICOLOR_FORCE. Empty variables
    count as unset.
    """
    if choice != "auto":
        return choice == "always"
    if environment.get("NO_COLOR"):
        return False
    if any(environment.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return at_a_terminal and _supports_escapes(environment)


def _supports_escapes(environment: Mapping[str, str]) -> bool:
    return environment.get("TERM", "dumb") not in ("", "dumb")


def render_line(line: Line, *, colours: bool) -> str:
    """Return a line as it is written. Escape sequences within its text are replaced."""
    texts = []
    for piece in line.pieces:
        sequence, text = _SGR.get(piece.style), printable_line(piece.text)
        texts.append(f"\x1b[{sequence}m{text}\x1b[0m" if colours and sequence is not None else text)
    return "".join(texts)


def wrap_line(line: Line, width: int) -> Iterable[Line]:
    """Wrap a line between words. A line with a command is not wrapped, so that the command can be copied."""
    if text_width(line.text) <= width or line.has(Style.COMMAND):
        return [line]
    indent = min(line.indent, max(0, width - _LEAST_WIDTH))
    return [
        line_of(" " * indent if start else "", *_slice(line, start, end))
        for start, end in _row_bounds(line.text, width, indent)
    ]


def _row_bounds(text: str, width: int, indent: int) -> Iterable[tuple[int, int]]:
    """Yield where each row begins and ends; no row is empty."""
    start, end, room = 0, 0, width
    for word in _WORDS.finditer(text):
        if end > start and text_width(text[start : word.end()]) > room:
            yield start, end
            start, room = word.end() - len(word[0].lstrip()), width - indent
        end = word.end()
    yield start, end


def _slice(line: Line, start: int, end: int) -> Iterable[Piece]:
    for piece in line.pieces:
        yield Piece(piece.text[max(0, start) : max(0, end)], piece.style)
        start, end = start - len(piece.text), end - len(piece.text)


def all_lines(status: StatusText) -> Sequence[Line]:
    """Return all lines of a status, for a terminal that scrolls."""
    return (*status.headline, line_of(), *status.body)


def fit_screen(title: Sequence[Line], status: StatusText, width: int, height: int) -> Sequence[Line]:
    """Return as many lines as a screen has room for, problems first. A last line counts the others."""

    def wrapped(lines: Iterable[Line]) -> Sequence[Line]:
        return [row for line in lines for row in wrap_line(line, width)]

    top = wrapped((*title, *status.headline, line_of()))
    problems = wrapped((*status.problems, line_of()) if status.problems else ())
    table, sharing, past = wrapped(status.table), wrapped(status.sharing), wrapped(status.past_faults)
    everything = (*top, *problems, *table, *sharing, *past)
    if _rows(everything, width) <= height:
        return everything
    room = height - 1
    shown: list[Line] = []
    for section in (top, problems, table, sharing, past):
        limit = max(room - _rows(table, width), room * 2 // 3) if section is problems else room
        chosen = _most_important(section, width, limit)
        room -= _rows(chosen, width)
        shown += chosen
    more = line_of(dim(f"… {len(everything) - len(shown)} more lines are not shown"))
    return [*shown, more] if _rows([*shown, more], width) <= height else shown


def _rows(lines: Iterable[Line], width: int) -> int:
    """Return how many rows of a screen the lines take; a line that is too wide continues in the next row."""
    return sum(max(1, -(-text_width(line.text) // width)) for line in lines)


def _most_important(lines: Sequence[Line], width: int, room: int) -> Sequence[Line]:
    """Return as many lines as there is room for: the first one, the most important ones, then others."""
    chosen: set[int] = set()
    for index in sorted(range(len(lines)), key=lambda each: (each > 0, not lines[each].has(*_IMPORTANT), each)):
        room -= _rows((lines[index],), width)
        if room < 0:
            break
        chosen.add(index)
    return [lines[index] for index in sorted(chosen)]


class Terminal:
    """Writes lines to a stream. If it is a terminal, they are coloured and wrapped."""

    def __init__(self, stream: TextIO, environment: Mapping[str, str], colour: str = "auto") -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._colours = use_colours(colour, environment, at_a_terminal=self._is_terminal)
        self.can_redraw = self._is_terminal and _supports_escapes(environment)

    @property
    def width(self) -> int | None:
        """The number of columns; None if the stream is not a terminal."""
        return self.size.columns if self._is_terminal else None

    @property
    def size(self) -> os.terminal_size:
        """The columns and lines; 80 and 24 if the terminal does not report them."""
        try:
            size = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):
            return _DEFAULT_SIZE
        return size if size.columns > 0 and size.lines > 0 else _DEFAULT_SIZE

    def show(self, lines: Iterable[Line]) -> None:
        """Write lines."""
        width = self.width
        rows = (row for line in lines for row in ((line,) if width is None else wrap_line(line, width)))
        self.show_text("".join(f"{render_line(row, colours=self._colours)}\n" for row in rows))

    def show_text(self, text: str) -> None:
        """Write text that needs no escaping. A character that the terminal's encoding lacks becomes a question mark."""
        encoding = self._stream.encoding or "utf-8"
        with _broken_pipe_if_closed():
            self._stream.write(text.encode(encoding, errors="replace").decode(encoding))
            self._stream.flush()

    def redraw(self, lines: Sequence[Line]) -> None:
        """Replace what the screen shows with these lines."""
        self.show_text(_CLEAR + "\n".join(render_line(line, colours=self._colours) for line in lines))

    @contextlib.contextmanager
    def alternate_screen(self) -> Iterator[None]:
        """Use the alternate screen, and restore the terminal in any case."""
        self.show_text(_ENTER_SCREEN)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                self.show_text(_LEAVE_SCREEN)


@contextlib.contextmanager
def _broken_pipe_if_closed() -> Iterator[None]:
    """Raise BrokenPipeError if the terminal was closed, as when its connection ended."""
    try:
        yield
    except OSError as failure:
        if failure.errno == errno.EIO:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from failure
        raise


@contextlib.contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM and SIGHUP, too, and block SIGWINCH for `wait_for_resize`."""
    before = {each: signal.signal(each, signal.default_int_handler) for each in (signal.SIGTERM, signal.SIGHUP)}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for each, handler in before.items():
            signal.signal(each, handler)


def wait_for_resize(seconds: float) -> bool:
    """Wait until the terminal's size changes, but at most so long. Return whether it has changed."""
    return signal.sigtimedwait({signal.SIGWINCH}, seconds) is not None


class StatusWatch:
    """Shows the status repeatedly: in place if the terminal can redraw, otherwise one below the other."""

    def __init__(
        self,
        report: Callable[[int | None], StatusReport],
        terminal: Terminal,
        clock: Clock,
        *,
        seconds: float,
        as_json: bool = False,
        brief: bool = False,
        wait: Callable[[float], object] = wait_for_resize,
    ) -> None:
        """`brief` shows only the headlines."""
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
        """Run until interrupted. Return the last exit code; raise ServiceError if the first report fails."""
        in_place = not self._as_json and self._terminal.can_redraw
        screen = self._terminal.alternate_screen() if in_place else contextlib.nullcontext()
        with contextlib.suppress(KeyboardInterrupt), interrupt_on_signals(), screen:
            if in_place:
                self._terminal.redraw([line_of(dim("collecting …"))])
            while True:
                self._update()
                self._wait(self._seconds)
        return self._exit_code

    def _update(self) -> None:
        problem = None
        try:
            report = self._report(self._terminal.width)
            self._last = self._clock.now(), report
            self._exit_code = report.exit_code
        except ServiceError as failure:
            if self._last is None:
                raise
            problem, self._exit_code = str(failure), 1
        now, (since, report) = self._clock.now(), self._last
        if report.text is None:
            found = {"at": now, "problem": problem} if problem else report.node
            self._terminal.show_text(json.dumps(found) + "\n")
            return
        title = line_of(dim(f"{local_time(now)}, by {report.by}"))
        if problem is not None:
            stale = error(f"{problem}: what follows is as of {short_time(since, now)}")
            title = line_of(dim(local_time(now)), "  ", stale)
        status = report.text
        if self._brief:
            status = replace(status, table=(), sharing=(), problems=(), past_faults=())
        if self._terminal.can_redraw:
            self._terminal.redraw(fit_screen([title], status, *self._terminal.size))
        else:
            self._terminal.show((title, *all_lines(status), line_of()))
