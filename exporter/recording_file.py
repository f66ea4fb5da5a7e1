"""The file of a recording, open to read or to write."""

import contextlib
import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from typing import Literal, TextIO, cast

from exporter.errors import FULL, RecordingError


@contextlib.contextmanager
def opened(path: str, mode: Literal["r", "w"]) -> Iterator[TextIO]:
    """A recording's file, packed if it is named so; `-` is standard input or output.

    RecordingError where it cannot be read or written, also while it is open. That standard output takes no more is not
    its fault.
    """
    try:
        with _file(path, mode) as file:
            yield file
    except BrokenPipeError:
        raise
    except (OSError, EOFError, zlib.error) as error:
        writes_to_stdout = mode == "r" or path == "-"
        if writes_to_stdout and isinstance(error, OSError) and error.errno in FULL:
            raise
        raise RecordingError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _file(path: str, mode: Literal["r", "w"]) -> contextlib.AbstractContextManager[TextIO]:
    if path != "-":
        return cast("TextIO", (gzip.open if path.endswith(".gz") else open)(path, f"{mode}t", errors="replace"))
    if mode == "r" and isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    return contextlib.nullcontext(sys.stdin if mode == "r" else sys.stdout)
