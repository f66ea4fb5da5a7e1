"""What stands behind a page's question mark, read by name: whatever is wrong is told by name."""

import math
from collections.abc import Collection, Mapping
from urllib.parse import parse_qsl

MOST_FIELDS = 16


class QueryError(ValueError):
    """A query that cannot be answered; the message says what to write instead."""


class Query:
    """A page's parameters, each at most once; QueryError where there is another, or a value that cannot be used."""

    def __init__(self, text: str, known: Collection[str]) -> None:
        try:
            fields = parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS)
        except ValueError as error:
            raise QueryError(f"more than {MOST_FIELDS} parameters; there are {', '.join(known)}") from error
        self._values: Mapping[str, str] = dict(fields)
        if not self._values.keys() <= set(known):
            raise QueryError(f"a parameter that there is not; there are {', '.join(known)}")
        if len(self._values) < len(fields):
            raise QueryError("a parameter is there twice; keep one of them")

    def text(self, name: str) -> str | None:
        """Any text; None if it is not there."""
        return self._values.get(name)

    def word(self, name: str, words: Collection[str]) -> str | None:
        """One of some words; None if it is not there."""
        word = self._values.get(name)
        if word is not None and word not in words:
            raise QueryError(f"{name}: write one of {', '.join(words)}")
        return word

    def count(self, name: str, default: int, most: int) -> int:
        """A whole number from 1 to the most that there may be."""
        text = self._values.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) <= len(str(most)) and 1 <= int(text) <= most):
            raise QueryError(f"{name}: write a whole number from 1 to {most}")
        return int(text)

    def moment(self, name: str) -> float | None:
        """A time in seconds since the epoch; None if it is not there."""
        text = self._values.get(name)
        try:
            at = None if text is None else float(text)
        except ValueError:
            at = math.nan
        if at is not None and not math.isfinite(at):
            raise QueryError(f"{name}: write seconds since the epoch, as `date +%s` does")
        return at
