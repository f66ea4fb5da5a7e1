"""Rows that versions 1 to 4 of the file have: they are translated into those of version 5.

Version 5 has codes where earlier ones had sentences. A sentence that is not known becomes the code `unknown` with the
sentence as its text: no row is lost because of it. What has another form than expected stays as it is.
"""

import json
import sqlite3
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from exporter.model.action import ActionKind, ActionReason
from exporter.model.reason import Reason, ReasonCode
from exporter.parse.old_sentences import reason_of, reason_or_unknown
from exporter.serialization import plain
from exporter.store.database import Translate

Values = dict[str, Any]
Kind = TypeVar("Kind")

LONGEST_ROW = 16 << 20
"""Bytes of the longest row that is translated."""

_ACTIONS = {kind.value.replace("_", " "): kind for kind in ActionKind}


_INCIDENT_KEYS = {
    "affected_told": "affected_confirmed",
    "announced": "opening_reported",
    "block_stamp": "block_timestamp",
    "gone": "disconnected",
    "tenants": "client_details",
    "told": "end_reported",
    "unseen_since": "daemon_missing_since",
}
_CLUES_KEYS = {"flights": "in_flight_work", "log_in_doubt": "log_unreliable", "vanished": "early_disconnects"}
"""Keys that have another name in version 5."""


def incident(values: Values) -> Values:
    """Return an incident as version 5 has it, with codes for the indications of each suspect."""
    values = _with_keys(values, _INCIDENT_KEYS)
    values = _renamed(values, "xids", "xids", lambda xids: _all_with_keys(xids, {"place": "bus_id"}))
    values = _renamed(values, "clues", "clues", _clues)
    return _renamed(values, "suspects", "suspects", _suspects)


def _clues(values: Any) -> Any:
    in_flight = {"launched_before": "seconds_since_launch"}
    values = _with_keys(values, _CLUES_KEYS)
    return _renamed(values, "in_flight_work", "in_flight_work", lambda work: _all_with_keys(work, in_flight))


def _suspects(values: Any) -> Any:
    suspects = _all_with_keys(values, {"tenant": "client"})
    if not isinstance(suspects, list):
        return suspects
    return [_renamed(each, "evidence", "indications", _reasons) for each in suspects]


def _with_keys(values: Any, keys: Mapping[str, str]) -> Any:
    return {keys.get(key, key): value for key, value in values.items()} if isinstance(values, dict) else values


def _all_with_keys(values: Any, keys: Mapping[str, str]) -> Any:
    return [_with_keys(each, keys) for each in values] if isinstance(values, list) else values


def event(values: Values) -> Values:
    """Return an event of today. A reason that is one word is a code already."""
    values = _renamed(values, "witnesses", "indications", _reasons)
    values = _renamed(values, "problem", "problem", _reason)
    values = _renamed(values, "reason", "reason", _reason_or_word)
    return _renamed(values, "incident", "incident", incident)


def kept_watch(values: Values) -> Values:
    """Return a row of the table of watches as it is today."""
    return _renamed(values, "watch", "watch", _watch)


def migrate(connection: sqlite3.Connection) -> None:
    """Translate all rows. It is to be called in a transaction."""
    for table, column, translate in _TABLES:
        for (row,) in connection.execute(f"SELECT rowid FROM {table}").fetchall():  # noqa: S608 (of constants)
            select = f"SELECT CAST({column} AS BLOB) FROM {table} WHERE rowid = ?"  # noqa: S608 (of constants)
            (text,) = connection.execute(select, (row,)).fetchone()
            new = _translated(text, translate)
            if new is not None:
                update = f"UPDATE {table} SET {column} = ? WHERE rowid = ?"  # noqa: S608 (of constants)
                connection.execute(update, (new, row))


_TABLES = (("incidents", "incident", incident), ("events", "event", event), ("watches", "watch", kept_watch))


def _translated(text: object, translate: Translate) -> str | None:
    """Return a row's new text; None if it stays as it is."""
    if not isinstance(text, bytes) or len(text) > LONGEST_ROW:
        return None
    try:
        values = json.loads(text)
        new = translate(values) if isinstance(values, dict) else values
        return None if new == values else json.dumps(new)
    except (ValueError, RecursionError):
        return None


def _watch(values: Any) -> Any:
    if not isinstance(values, dict):
        return values
    values = _renamed(values, "diagnosis", "diagnosis", _diagnosis)
    values = _renamed(values, "problem", "problem", _reason)
    values = _renamed(values, "acting", "acting", _acting)
    values = _renamed(values, "tallies", "action_counts", _action_counts)
    values = _renamed(values, "process", "process", _process)
    values = _renamed(values, "enforcing", "enforcement", _enforcement)
    said = values.get("said")
    others = {key: value for key, value in values.items() if key != "said"}
    values = {**others, **_said(said)} if isinstance(said, str) else values
    return _with_new_names(values, _WATCHDOG_STATE)


_WATCHDOG_STATE = {
    "state": "phase",
    "opened_at": "circuit_opened_at",
    "lost_at": "state_lost_at",
    "released_at": "resumed_at",
    "rung": "escalation",
    "well_since": "healthy_since",
    "wanted": "wanted_limits",
    "need": "backoff_for",
    "intention": "last_planned",
}
_ENFORCEMENT = {"seen": "defaults", "exposed": "unlimited_since", "sound": "limited_servers"}


def _with_new_names(values: Any, names: Mapping[str, str]) -> Any:
    """Return an object with its values under their new names."""
    return {names.get(key, key): value for key, value in values.items()} if isinstance(values, dict) else values


def _enforcement(values: object) -> object:
    return _with_new_names(_renamed(values, "drifting", "drifts", _drifts), _ENFORCEMENT)


def _drifts(values: object) -> object:
    if not isinstance(values, dict):
        return values
    return {command: _with_new_names(drift, {"hopeless": "ineffective"}) for command, drift in values.items()}


def _process(values: object) -> object:
    return _with_new_names(values, {"stdout_kept": "stdout_in_file"}) if isinstance(values, dict) else values


def _diagnosis(values: object) -> object:
    values = _renamed(values, "witnesses", "indications", _reasons) if isinstance(values, dict) else values
    return _with_new_names(values, {"culprit": "process"})


def _acting(values: object) -> object:
    if not isinstance(values, dict):
        return values
    return _renamed(_renamed(values, "problem", "problem", _reason), "reason", "reason", _action_reason)


def _action_counts(values: object) -> object:
    if not isinstance(values, list):
        return values
    return [_renamed(each, "reason", "reason", _action_reason) if isinstance(each, dict) else each for each in values]


def _said(said: str) -> Mapping[str, object]:
    """Return what the watchdog did last, or would have done, or why it waits."""
    words, _, reason = said.removeprefix("would ").partition(": ")
    kind = _ACTIONS.get(words)
    if kind is None:
        return {"reason": _reason(said)}
    begun = not said.startswith("would ")
    return {"last_action": {"kind": kind.value, "reason": _action_reason(reason), "begun": begun}}


def _renamed(values: Kind, old: str, new: str, translate: Callable[[Any], Any]) -> Kind:
    """Return an object with a value translated, under its new name; a value that is missing stays so."""
    if not isinstance(values, dict) or old not in values or values[old] is None:
        return values
    others = {key: value for key, value in values.items() if key != old}
    return cast("Kind", {**others, new: translate(values[old])})


def _reasons(values: object) -> object:
    return list(map(_reason, values)) if isinstance(values, list) else values


def _reason(value: object) -> object:
    return plain(reason_or_unknown(value)) if isinstance(value, str) else value


def _reason_or_word(value: object) -> object:
    if not isinstance(value, str):
        return value
    known = reason_of(value) or (Reason(ReasonCode.UNKNOWN, text=value) if " " in value else None)
    return value if known is None else plain(known)


def _action_reason(value: object) -> object:
    return value if value in tuple(ActionReason) else ActionReason.UNKNOWN.value
