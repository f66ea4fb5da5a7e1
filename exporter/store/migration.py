"""Translation of the rows of schema versions 1 to 5 into those of version 6.

Version 5 has codes instead of sentences, and version 6 other keys. An unknown sentence becomes the code `unknown` with
the sentence as its text, so no row is lost. Values of the present form, or of an unexpected one, stay as they are.
"""

import json
import sqlite3
from collections.abc import Callable, Mapping
from typing import Any

from exporter.model.action import ActionKind, ActionReason
from exporter.model.reason import Reason, ReasonCode
from exporter.model.values import plain
from exporter.parse.old_sentences import reason_of, reason_or_unknown
from exporter.store.tables import Translate

MAX_ROW_BYTES = 16 << 20
"""Longer rows are not translated."""

_Change = Callable[[Any], Any]
_Rules = Mapping[str, str | tuple[str, _Change]]
"""The new name of a key, and the translation of its value."""


def _object(rules: _Rules) -> _Change:
    """Return the translation of an object. A value that is None, or has another key, stays."""

    def translate(values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        new: dict[str, Any] = {}
        for key, value in values.items():
            rule = key if value is None else rules.get(key, key)
            name, change = (rule, None) if isinstance(rule, str) else rule
            new[name] = value if change is None else change(value)
        return new

    return translate


def _list(change: _Change) -> _Change:
    return lambda values: list(map(change, values)) if isinstance(values, list) else values


def _reason(value: object) -> object:
    return plain(reason_or_unknown(value)) if isinstance(value, str) else value


def _reason_or_word(value: object) -> object:
    """Translate a sentence; a single word is a code already."""
    if not isinstance(value, str):
        return value
    known = reason_of(value) or (Reason(ReasonCode.UNKNOWN, text=value) if " " in value else None)
    return value if known is None else plain(known)


def _action_reason(value: object) -> object:
    return value if value in tuple(ActionReason) else ActionReason.UNKNOWN.value


_INDICATIONS = ("indications", _list(_reason))
_PROBLEM = ("problem", _reason)
_ACTION_REASON = ("reason", _action_reason)

_CLUES: _Rules = {
    "flights": ("in_flight_work", _list(_object({"launched_before": "seconds_since_launch"}))),
    "log_in_doubt": "log_unreliable",
    "vanished": "early_disconnects",
}
incident = _object(
    {
        "affected_told": "affected_confirmed",
        "announced": "opening_reported",
        "block_stamp": "block_timestamp",
        "clues": ("clues", _object(_CLUES)),
        "gone": "disconnected",
        "suspects": ("suspects", _list(_object({"tenant": "client", "evidence": _INDICATIONS}))),
        "tenants": "client_details",
        "told": "end_reported",
        "unseen_since": "daemon_missing_since",
        "xids": ("xids", _list(_object({"place": "bus_id"}))),
    }
)
event = _object(
    {
        "incident": ("incident", incident),
        "problem": _PROBLEM,
        "reason": ("reason", _reason_or_word),
        "witnesses": _INDICATIONS,
    }
)

_DRIFT = _object({"hopeless": "ineffective"})


def _drifts(values: object) -> object:
    return {command: _DRIFT(drift) for command, drift in values.items()} if isinstance(values, dict) else values


_ENFORCEMENT: _Rules = {
    "drifting": ("drifts", _drifts),
    "exposed": "unlimited_since",
    "seen": "defaults",
    "sound": "limited_servers",
}
_WATCHDOG_STATE = _object(
    {
        "acting": ("acting", _object({"problem": _PROBLEM, "reason": _ACTION_REASON})),
        "diagnosis": ("diagnosis", _object({"culprit": "process", "witnesses": _INDICATIONS})),
        "enforcing": ("enforcement", _object(_ENFORCEMENT)),
        "intention": "last_planned",
        "lost_at": "state_lost_at",
        "need": "backoff_for",
        "opened_at": "circuit_opened_at",
        "problem": _PROBLEM,
        "process": ("process", _object({"stdout_kept": "stdout_in_file"})),
        "released_at": "resumed_at",
        "rung": "escalation",
        "state": "phase",
        "tallies": ("action_counts", _list(_object({"reason": _ACTION_REASON}))),
        "wanted": "wanted_limits",
        "well_since": "healthy_since",
    }
)


def _watchdog_state(values: Any) -> Any:
    sentence = values.get("said") if isinstance(values, dict) else None
    if not isinstance(sentence, str):
        return _WATCHDOG_STATE(values)
    others = {key: value for key, value in values.items() if key != "said"}
    return {**_WATCHDOG_STATE(others), **_last_action_or_reason(sentence)}


_ACTIONS = {kind.value.replace("_", " "): kind for kind in ActionKind}


def _last_action_or_reason(sentence: str) -> Mapping[str, object]:
    """Return what the watchdog did last, or would have done, or why it waits."""
    words, _, reason = sentence.removeprefix("would ").partition(": ")
    kind = _ACTIONS.get(words)
    if kind is None:
        return {"reason": _reason(sentence)}
    begun = not sentence.startswith("would ")
    return {"last_action": {"kind": kind.value, "reason": _action_reason(reason), "begun": begun}}


watchdog_row = _object({"watch": ("watch", _watchdog_state)})

_TABLES = (("incidents", "incident", incident), ("events", "event", event), ("watches", "watch", watchdog_row))


def migrate(connection: sqlite3.Connection) -> None:
    """Translate all rows, in the caller's transaction."""
    for table, column, translate in _TABLES:
        for (row,) in connection.execute(f"SELECT rowid FROM {table}").fetchall():  # noqa: S608 (of constants)
            select = f"SELECT CAST({column} AS BLOB) FROM {table} WHERE rowid = ?"  # noqa: S608 (of constants)
            (text,) = connection.execute(select, (row,)).fetchone()
            new = _translated(text, translate)
            if new is not None:
                update = f"UPDATE {table} SET {column} = ? WHERE rowid = ?"  # noqa: S608 (of constants)
                connection.execute(update, (new, row))


def _translated(text: object, translate: Translate) -> str | None:
    """Return a row's new text; None if it stays as it is."""
    if not isinstance(text, bytes) or len(text) > MAX_ROW_BYTES:
        return None
    try:
        values = json.loads(text)
        new = translate(values) if isinstance(values, dict) else values
        return None if new == values else json.dumps(new)
    except (ValueError, RecursionError):
        return None
