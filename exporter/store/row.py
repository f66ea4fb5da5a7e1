"""A value of the model in one row: as JSON, which is ASCII whatever text is in it."""

import json
from collections.abc import Iterable
from typing import TypeVar

from exporter.plain import build, plain

Read = TypeVar("Read")

MOST_BYTES = 64 << 20
"""A thousand faults with 48 clients each have 12 MB."""


def written(value: object) -> str:
    """The value as a row has it."""
    return json.dumps(plain(value))


def read(kind: type[Read], rows: Iterable[tuple[object]]) -> tuple[tuple[Read, ...], int]:
    """The values of these rows, as far as memory is for them, and how many were passed over because they have none."""
    found: list[Read] = []
    unreadable = size = 0
    for (row,) in rows:
        size += len(row) if isinstance(row, bytes) else 0
        if size > MOST_BYTES:
            break
        try:
            found.append(build(kind, json.loads(row)))  # type: ignore[arg-type]
        except (ValueError, TypeError, RecursionError):
            unreadable += 1
    return tuple(found), unreadable


def key(text: str) -> str:
    """A text as a column can have it: SQLite's own takes no lone surrogates."""
    return text.encode("unicode_escape").decode("ascii")
