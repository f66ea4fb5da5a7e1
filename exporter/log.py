"""Configures structlog, once: for a person at a terminal, or for machines."""

import contextlib
import io
from typing import TextIO, cast

import structlog
from structlog.typing import EventDict, ExcInfo, Processor

from exporter.config.settings import LEVELS
from exporter.parse.printable import harmless


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
    stream.write(harmless(text.getvalue()))


def _in_words(_logger: object, _method: str, record: EventDict) -> EventDict:
    """Values for a person: lists as words, and no text that could speak to a terminal, whoever chose it."""
    return {key: _words(value) for key, value in record.items()}


def _words(value: object) -> object:
    if isinstance(value, str):
        return harmless(value)
    if isinstance(value, list | tuple):
        return "; ".join(str(_words(each)) for each in value)
    return value
