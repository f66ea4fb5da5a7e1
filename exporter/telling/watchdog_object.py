"""The watchdog's state of a daemon, as an object for a program."""

from typing import Any

from exporter.model.diagnosis import Diagnosis
from exporter.model.settings import Mode
from exporter.model.watch import Acting, LastAction, Quarantine, Watch
from exporter.parse.printable import printable
from exporter.telling.reasons import reason_object


def watchdog_object(watch: Watch | None, mode: Mode | None) -> dict[str, Any] | None:
    """Return the object; None if the watchdog does not watch the daemon. Times are seconds since the epoch."""
    if watch is None:
        return None
    return {
        "mode": mode,
        "state": watch.state,
        "diagnosis": _diagnosis(watch.diagnosis),
        "acting": _acting(watch.acting),
        "restarts": list(watch.restarts),
        "failures": watch.failures,
        "last_restart_at": watch.last_restart_at,
        "not_before": watch.not_before,
        "circuit_opened_at": watch.opened_at,
        "state_lost_at": watch.lost_at,
        "quarantine": _quarantine(watch.quarantine),
        "stopped_at": watch.stopped_at,
        "counts": [
            {"action": each.kind, "reason": each.reason, "result": each.result, "count": each.count}
            for each in watch.tallies
        ],
        "reason": None if watch.reason is None else reason_object(watch.reason),
        "last_action": _last_action(watch.last_action),
        "problem": None if watch.problem is None else reason_object(watch.problem),
    }


def _diagnosis(found: Diagnosis | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "condition": found.condition,
        "since": found.since,
        "indications": [reason_object(each) for each in found.indications],
        "culprit": None if found.culprit is None else found.culprit.pid,
        "server": found.server,
        "incident": found.incident,
    }


def _last_action(action: LastAction | None) -> dict[str, Any] | None:
    return None if action is None else {"action": action.kind, "reason": action.reason, "begun": action.begun}


def _acting(acting: Acting | None) -> dict[str, Any] | None:
    if acting is None:
        return None
    return {
        "action": acting.kind,
        "reason": acting.reason,
        "began_at": acting.began_at,
        "done_at": acting.done_at,
    }


def _quarantine(quarantine: Quarantine | None) -> dict[str, Any] | None:
    if quarantine is None:
        return None
    return {
        "at": quarantine.at,
        "xid": quarantine.xid,
        "gpu": printable(quarantine.gpu),
        "action": printable(quarantine.action),
    }
