"""A terminal: colours and line wrapping."""

import contextlib
import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TextIO

from exporter.parse.printable import printable_line
from exporter.report.text import Line, Piece, Style, line_of, text_width

CHOICES = ("auto", "always", "never")

_SGR = {Style.ERROR: "1;31", Style.WARNING: "33", Style.OK: "32", Style.DIM: "2", Style.COMMAND: "1"}
"""Escape sequences (SGR): bold red, yellow, green, dim and bold."""

_LEAST_WIDTH = 20
"""The indentation of a wrapped line leaves at least so many columns."""

_WORDS = re.compile(r"\s*\S+")

DEFAULT_WIDTH = 80

PROGRESS_SECONDS = 2.0
"""After so long, a command shows that it works."""


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
    return at_a_terminal and environment.get("TERM", "dumb") not in ("", "dumb")


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


class Terminal:
    """Writes lines to a stream. If it is a terminal, they are coloured and wrapped."""

    def __init__(self, stream: TextIO, environment: Mapping[str, str], colour: str = "auto") -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._colours = use_colours(colour, environment, at_a_terminal=self._is_terminal)

    @property
    def width(self) -> int | None:
        """The number of columns, 80 if the terminal does not report it; None if the stream is not a terminal."""
        if not self._is_terminal:
            return None
        with contextlib.suppress(OSError, ValueError):
            return os.get_terminal_size(self._stream.fileno()).columns or DEFAULT_WIDTH
        return DEFAULT_WIDTH

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
def progress(stream: TextIO, text: str, after: float = PROGRESS_SECONDS) -> Iterator[None]:
    """Show a text while the body runs, after some seconds, if the stream is a terminal."""
    if not stream.isatty():
        yield
        return
    # Commands that the service answers need no threads.
    from threading import Timer

    def write(shown: str) -> None:
        stream.write(shown)
        stream.flush()

    timer = Timer(after, write, (text,))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        write(f"\r{' ' * len(text)}\r")
