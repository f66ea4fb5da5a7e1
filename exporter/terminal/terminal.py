"""Standard output: a person's terminal, or a file or program to which nothing is done."""

import contextlib
import errno
import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TextIO

from exporter.telling.line import Line
from exporter.terminal.colours import knows_sequences, painted, wanted
from exporter.terminal.fitting import broken

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
