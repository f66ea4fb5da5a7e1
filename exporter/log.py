"""Configures structlog, once: for a person at a terminal, or for machines.

A reader of stderr that stops to read blocks whoever writes to it. The service writes in a thread of its own.
"""

import contextlib
import io
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import TextIO, cast

import structlog
from structlog.typing import EventDict, ExcInfo, Processor

from exporter.config.settings import LEVELS
from exporter.parse.printable import printable_lines

MOST_WAITING = 1 << 20
"""How many characters may wait to be written. A record that would be too much is dropped, and counted."""

DRAIN_SECONDS = 1.0
"""How long the end of the service waits until all is written."""


def configure(level: str, log_format: str, stream: TextIO) -> None:
    """Send records to `stream`; `auto` is for a person where it is a terminal, and JSON elsewhere."""
    if log_format == "auto":
        log_format = "console" if stream.isatty() else "json"
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *_rendering(log_format, colors=stream.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=lambda *_: structlog.WriteLogger(cast("TextIO", _Forgiving(stream))),
    )


class _Forgiving:
    """A stream that may fail: a full disk or a journal that has gone must not end what it was to tell of."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


class BackgroundStream(io.TextIOBase):
    """A stream that never blocks: a thread writes to another one, in order."""

    def __init__(self, stream: TextIO) -> None:
        """If there is no thread to be had, it writes at once."""
        super().__init__()
        self._stream = stream
        self._news = threading.Condition()
        self._waiting: deque[str] = deque()
        self._length = 0
        self._dropped = self._untold = 0
        self._thread: threading.Thread | None = threading.Thread(target=self._run, name="log", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._thread = None

    @property
    def dropped(self) -> int:
        """How many records were dropped because too much waited to be written."""
        return self._dropped

    def write(self, text: str) -> int:
        """Have this written soon."""
        if self._thread is None:
            self._write(text)
            return len(text)
        with self._news:
            if self._length + len(text) > MOST_WAITING:
                self._dropped, self._untold = self._dropped + 1, self._untold + 1
            else:
                self._waiting.append(text)
                self._length += len(text)
                self._news.notify_all()
        return len(text)

    def flush(self) -> None:
        """Do nothing: whatever can be written is written soon."""

    def isatty(self) -> bool:
        """Whether the other stream is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """The other stream's descriptor."""
        return self._stream.fileno()

    def drain(self, seconds: float) -> bool:
        """Wait until all is written, for at most so long; whether it is."""
        with self._news:
            return self._news.wait_for(lambda: not self._length, timeout=seconds)

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting)
                texts, self._waiting = self._waiting, deque()
            text = "".join(texts)
            self._write(text)
            with self._news:
                self._length -= len(text)
                dropped, self._untold = self._untold, 0
            if dropped:
                structlog.get_logger().warning(
                    "log_records_dropped", count=dropped, total=self._dropped, reason="stderr took no more"
                )
            with self._news:
                self._news.notify_all()

    def _write(self, text: str) -> None:
        """Write by the descriptor: at the end, the interpreter must not find a lock of the other stream taken."""
        with contextlib.suppress(OSError, ValueError):
            try:
                descriptor = self._stream.fileno()
            except OSError:
                self._stream.write(text)
                return
            data = text.encode(self._stream.encoding or "utf-8", "backslashreplace")
            while data:
                try:
                    data = data[os.write(descriptor, data) :]
                except BlockingIOError:
                    # Another process made it so; they share the description.
                    select.select([], [descriptor], [])


@contextlib.contextmanager
def in_background() -> Iterator[BackgroundStream]:
    """Have all that is written to stderr meanwhile, tracebacks included, block no thread that writes it."""
    before = sys.stderr
    with contextlib.suppress(OSError, ValueError):
        before.flush()
    stream = BackgroundStream(before)
    sys.stderr = cast("TextIO", stream)
    try:
        yield stream
    finally:
        # If the reader still blocks it, nothing that is written until the process ends may wait for that.
        if stream.drain(DRAIN_SECONDS):
            sys.stderr = before


def _rendering(log_format: str, *, colors: bool) -> list[Processor]:
    if log_format == "console":
        return [_in_words, structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=_traceback)]
    if log_format == "logfmt":
        return [
            structlog.processors.format_exc_info,
            _in_words,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"]),
        ]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _traceback(stream: TextIO, problem: ExcInfo) -> None:
    """Without local variables: these might hold what a workload's /proc entry held."""
    text = io.StringIO()
    structlog.dev.plain_traceback(text, problem)
    stream.write(printable_lines(text.getvalue()))


def _in_words(_logger: object, _method: str, record: EventDict) -> EventDict:
    """Return a record with lists and objects as words, and without text that could control a terminal."""
    return {key: _words(value) for key, value in record.items()}


def _words(value: object) -> object:
    if isinstance(value, str):
        return printable_lines(value)
    if isinstance(value, list | tuple):
        return "; ".join(str(_words(each)) for each in value)
    if isinstance(value, dict):
        return " ".join(_pair(key, each) for key, each in value.items())
    return value


def _pair(key: object, value: object) -> str:
    """Return a part of an object as words; a reason begins with its code."""
    words = str(_words(value))
    return words if key == "code" else f"{_words(key)}={words}"
