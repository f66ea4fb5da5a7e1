"""Configuration of structlog, the limited log of events, and a stream that never blocks, even if its reader does."""

import contextlib
import io
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO, cast

import structlog
from structlog.typing import EventDict, ExcInfo, Processor

from exporter.clock import Clock
from exporter.config.settings import LEVELS
from exporter.parse.printable import printable_lines
from exporter.report.text import utc_time

if TYPE_CHECKING:
    # Commands that only ask the service do not need the model.
    from exporter.model.event import Event
    from exporter.model.node import Node
    from exporter.model.observation import SourceReading

MAX_PENDING = 1 << 20
"""Characters that can wait to be written. A record that exceeds this is dropped and counted."""

EMPTY: tuple[object, ...] = (None, (), [], {})

DRAIN_SECONDS = 1.0
"""How long the service waits at its end until all records are written."""


def configure(level: str, log_format: str, stream: TextIO, *, simulated: bool = False) -> None:
    """Write records to `stream`. The format `auto` is `console` on a terminal, else `json`.

    Each record of a `simulated` node states it.
    """
    if log_format == "auto":
        log_format = "console" if stream.isatty() else "json"
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            *((lambda _logger, _method, event: {**event, "simulated": True},) if simulated else ()),
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *_renderers(log_format, colors=stream.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=lambda *_: structlog.WriteLogger(cast("TextIO", _TolerantStream(stream))),
    )


class _TolerantStream:
    """A stream whose errors are ignored: a full disk or a closed journal must not end the program."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


class BackgroundStream(io.TextIOBase):
    """A stream that never blocks: a thread writes the text to another stream, in order."""

    def __init__(self, stream: TextIO) -> None:
        """Start the thread. If that fails, `write` writes to the other stream itself."""
        super().__init__()
        self._stream = stream
        self._changed = threading.Condition()
        self._pending: deque[str] = deque()
        self._length = 0
        self._unreported = 0
        self.dropped = 0
        """How many records were dropped because too much text was pending."""
        self._thread: threading.Thread | None = threading.Thread(target=self._run, name="log", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._thread = None

    def write(self, text: str) -> int:
        """Pass text to the thread."""
        if self._thread is None:
            self._write(text)
            return len(text)
        with self._changed:
            if self._length + len(text) > MAX_PENDING:
                self.dropped, self._unreported = self.dropped + 1, self._unreported + 1
            else:
                self._pending.append(text)
                self._length += len(text)
                self._changed.notify_all()
        return len(text)

    def flush(self) -> None:
        """Do nothing: the thread writes at once."""

    def isatty(self) -> bool:
        """Return whether the other stream is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """Return the descriptor of the other stream."""
        return self._stream.fileno()

    def drain(self, seconds: float) -> bool:
        """Wait up to `seconds` until everything is written, and return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._length, timeout=seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending)
                texts, self._pending = self._pending, deque()
            text = "".join(texts)
            self._write(text)
            with self._changed:
                self._length -= len(text)
                dropped, self._unreported = self._unreported, 0
            if dropped:
                structlog.get_logger().warning("log_records_dropped", count=dropped, total=self.dropped)
            with self._changed:
                self._changed.notify_all()

    def _write(self, text: str) -> None:
        """Write to the descriptor. A lock of the other stream could block the interpreter's exit."""
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
                    # Another process that shares the open file made it non-blocking.
                    select.select([], [descriptor], [])


@contextlib.contextmanager
def in_background() -> Iterator[BackgroundStream]:
    """Replace stderr by a stream that never blocks, for tracebacks too."""
    before = sys.stderr
    with contextlib.suppress(OSError, ValueError):
        before.flush()
    stream = BackgroundStream(before)
    sys.stderr = cast("TextIO", stream)
    try:
        yield stream
    finally:
        # If the reader of stderr still blocks, later writes must not block either.
        if stream.drain(DRAIN_SECONDS):
            sys.stderr = before


def _renderers(log_format: str, *, colors: bool) -> list[Processor]:
    if log_format == "console":
        return [_as_text, _console_renderer(colors=colors)]
    if log_format == "logfmt":
        return [
            structlog.processors.format_exc_info,
            _as_text,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"]),
        ]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _console_renderer(*, colors: bool) -> structlog.dev.ConsoleRenderer:
    """Return a renderer that writes values as text. structlog's own columns write Python's representation."""
    bright, dim, cyan, magenta, reset = (
        getattr(structlog.dev, name) if colors else "" for name in ("BRIGHT", "DIM", "CYAN", "MAGENTA", "RESET_ALL")
    )
    levels = structlog.dev.ConsoleRenderer.get_default_level_styles(colors)
    text, pairs = structlog.dev.KeyValueColumnFormatter, (cyan, magenta, reset, _quoted)
    columns = (
        ("timestamp", text(None, dim, reset, str)),
        ("level", structlog.dev.LogLevelColumnFormatter(levels, reset)),
        ("event", text(None, bright, reset, str, width=30)),
        ("at", lambda key, value: text(*pairs)(key, utc_time(value))),
        ("", text(*pairs)),
    )
    return structlog.dev.ConsoleRenderer(
        columns=[structlog.dev.Column(*each) for each in columns], exception_formatter=_write_traceback
    )


def _quoted(value: object) -> str:
    """Quote text with spaces, so that a value cannot look like other keys."""
    text = str(value)
    return text if text and set(text).isdisjoint(' "=') else '"{}"'.format(text.replace('"', "'"))


def _write_traceback(stream: TextIO, problem: ExcInfo) -> None:
    """Write a traceback without local variables, which can contain the environment of a workload."""
    text = io.StringIO()
    structlog.dev.plain_traceback(text, problem)
    stream.write(printable_lines(text.getvalue()))


def _as_text(_logger: object, _method: str, record: EventDict) -> EventDict:
    """Write values as text, without those that are unknown or empty, and remove text that could control a terminal."""
    return {key: value if key == "at" else _text(value) for key, value in record.items() if value not in EMPTY}


def _text(value: object) -> object:
    if isinstance(value, str):
        return printable_lines(value)
    if isinstance(value, list | tuple):
        return "; ".join(str(_text(each)) for each in value)
    if isinstance(value, dict):
        # A reason begins with its code.
        known = ((key, each) for key, each in value.items() if each not in EMPTY)
        pairs = (("" if key == "code" else f"{_text(key)}=", _text(each)) for key, each in known)
        return " ".join(f"{name}{text}" for name, text in pairs)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


MAX_RECORDS = 60
PERIOD_SECONDS = 60.0
"""Records of one kind and daemon that are written in one period. The others are counted in one record."""


class EventLog:
    """Logs events with their severities and codes, and problems of collectors."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._log = structlog.get_logger()
        self._periods: dict[tuple[str | None, str], tuple[float, int]] = {}
        """When the period of a daemon's records of one kind began, and how many there were."""

    def event(self, event: "Event") -> None:
        """Log an event, unless it is frequent and there are too many records like it.

        The end of a fault is the record `incident`, which is complete: collectors send it elsewhere.
        """
        name = event.event.value
        if event.event.traits.frequent and not event.urgent and not self._permits(event.daemon, name):
            return
        if event.ends_fault and event.incident is not None:
            from exporter.report.incident_status import incident_record

            self._log.log(LEVELS[event.level], "incident", **incident_record(event.incident, event.at))
            return
        fields = {key: value for key, value in event.as_json().items() if key != "event"}
        self._log.log(LEVELS[event.level], name, **fields)

    def source(self, reading: "SourceReading", before: "Node", after: "Node") -> None:
        """Log that a collector begins or ceases to have a problem, with one daemon or in general."""
        known, daemon = before.sources.get(reading.name), reading.daemon or ""
        previous = None if known is None else known.problems.get(daemon)
        problem = after.sources[reading.name].problems.get(daemon)
        if (problem is None) == (previous is None):
            return
        name = "source_recovered" if problem is None else "source_problem"
        if not self._permits(reading.daemon, f"{name} {reading.name}"):
            return
        fields = {} if reading.daemon is None else {"daemon": reading.daemon}
        if problem is None:
            self._log.info(name, source=reading.name, **fields)
        else:
            from exporter.report.reasons import reason_text

            codes = ",".join(dict.fromkeys(each.code for each in problem.each))
            text = reason_text(problem, reading.name)
            self._log.warning(name, source=reading.name, problem=codes, text=text, **fields)

    def summarize(self, *, force: bool = False) -> None:
        """Log how many records were left out in each period that has ended, or in all periods (`force`)."""
        now = self._clock.monotonic()
        ended = [key for key, (began, _) in self._periods.items() if force or now - began >= PERIOD_SECONDS]
        for daemon, name in ended:
            count = self._periods.pop((daemon, name))[1] - MAX_RECORDS
            if count > 0:
                self._log.warning("records_left_out", daemon=daemon, name=name, count=count, seconds=PERIOD_SECONDS)

    def _permits(self, daemon: str | None, name: str) -> bool:
        """Count a record, and return whether it is written."""
        began, count = self._periods.get((daemon, name), (self._clock.monotonic(), 0))
        self._periods[daemon, name] = began, count + 1
        return count < MAX_RECORDS
