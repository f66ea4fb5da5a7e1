"""A value of the model in one row: as JSON, which is ASCII whatever text is in it."""

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from exporter.plain import build, plain

Read = TypeVar("Read")
Translate = Callable[[dict[str, Any]], dict[str, Any]]

MOST_BYTES = 64 << 20
"""A thousand faults with 48 clients each have 12 MB."""


def written(value: object) -> str:
    """The value as a row has it."""
    return json.dumps(plain(value))


def read(
    kind: type[Read], rows: Iterable[tuple[object]], translate: Translate | None = None
) -> tuple[tuple[Read, ...], int]:
    """Return the values of these rows, within `MOST_BYTES`, and the number of rows that have no such value.

    `translate` makes an object of today from one of an earlier version.
    """
    found: list[Read] = []
    unreadable = size = 0
    for (row,) in rows:
        size += len(row) if isinstance(row, bytes) else 0
        if size > MOST_BYTES:
            break
        try:
            values = json.loads(row)  # type: ignore[arg-type]
            found.append(build(kind, values if translate is None else translate(values)))
        except (ValueError, TypeError, RecursionError):
            unreadable += 1
    return tuple(found), unreadable


def key(text: str) -> str:
    """A text as a column can have it: SQLite's own takes no lone surrogates."""
    return text.encode("unicode_escape").decode("ascii")
