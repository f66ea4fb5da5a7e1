"""Translation of recordings of FORMAT 1: an object as such a file has it becomes one as `recording.py` writes it today.

A rename of a kind of observation, of a key or of a value is one entry in a table here. An object that has today's names
already is returned as it is.
"""

from collections.abc import Callable, Mapping
from typing import Any

from exporter.model.action import ActionReason
from exporter.parse.old_sentences import reason_or_unknown
from exporter.plain import plain

Values = Mapping[str, Any]
Translate = Callable[[Any], Any]

HEADER_KEYS: Mapping[str, str] = {}
"""Keys of the header that have another name today: old name, new name."""

KINDS: Mapping[str, str] = {}
"""Kinds of observations (the key `source` of each line) that have another name today: old name, new name."""

KEYS: Mapping[str, Mapping[str, str]] = {}
"""Keys that have another name today, by the kind's name of today: old name, new name."""

VALUES: Mapping[str, Mapping[str, Translate]] = {
    "action_done": {
        "reason": lambda value: value if value in tuple(ActionReason) else ActionReason.UNKNOWN.value,
        "problem": lambda value: plain(reason_or_unknown(value)) if isinstance(value, str) else value,
    },
}
"""Functions that translate values, by the kind's name of today and the key's name of today."""


def header(values: Values) -> dict[str, Any]:
    """Return a header with today's keys."""
    return {HEADER_KEYS.get(key, key): value for key, value in values.items()}


def observation(values: Values) -> dict[str, Any]:
    """Return an observation with the kind, the keys and the values of today."""
    old_kind = values.get("source")
    kind = KINDS.get(old_kind, old_kind) if isinstance(old_kind, str) else None
    if kind is None:
        return dict(values)
    keys, translations = KEYS.get(kind, {}), VALUES.get(kind, {})
    renamed = {keys.get(key, key): value for key, value in values.items()}
    translated = {key: translations[key](value) if key in translations else value for key, value in renamed.items()}
    return {**translated, "source": kind}


def renamed(names: Mapping[str, str]) -> Translate:
    """Return a function for `VALUES` that renames a text, and leaves any other value as it is."""
    return lambda value: names.get(value, value) if isinstance(value, str) else value
