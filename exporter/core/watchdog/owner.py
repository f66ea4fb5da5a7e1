"""One owner for each failure: if systemd restarts a unit by itself, the watchdog only counts."""

from exporter.core.watchdog.matter import Matter, Told
from exporter.core.watchdog.resolve import Wait
from exporter.core.watchdog.tallies import counted
from exporter.model.action import ActionKind, ActionReason, ActionResult
from exporter.model.event import Event, EventName
from exporter.model.reason import Reason, ReasonCode
from exporter.model.replace import replace
from exporter.model.watch import WatchState
from exporter.model.witnesses import UnitState

_TELLING_SECONDS = 5.0
"""How long it may take until systemd's word of a unit is known."""

_RESTARTING = ("always", "on-failure", "on-abnormal", "on-abort")
"""Those Restart= that hold for a process which a signal has ended (systemd.service(5))."""

_AT_IT = ("activating", "deactivating", "reloading")


def left_to_systemd(matter: Matter, since: float) -> Wait | None:
    """Why a daemon that died at `since` is not ours to restart, by its unit; None where it is."""
    name, unit, waited = matter.mandate.unit, matter.unit, matter.at - since
    if unit is None or unit.at < since:
        if waited <= _TELLING_SECONDS:
            return Wait(reason=None)
        if unit is None:
            return Wait(reason=Reason(ReasonCode.SYSTEMD_UNREACHABLE, unit=name))
    unusable = unusable_because(unit)
    if unusable is not None:
        return Wait(reason=unusable)
    if unit.active == "failed" and unit.result == "start-limit-hit":
        given_up = Reason(ReasonCode.START_LIMIT_HIT, unit=name)
        return Wait(reason=given_up, state=WatchState.DEFERRED_TO_SYSTEMD)
    if _at_it(unit) and waited <= matter.rules.systemd:
        restarts = Reason(ReasonCode.RESTARTED_BY_SYSTEMD, unit=name)
        return Wait(reason=restarts, state=WatchState.DEFERRED_TO_SYSTEMD)
    return None


def unusable_because(unit: UnitState) -> Reason | None:
    """Return why a unit cannot be restarted at all; None if it can be."""
    if unit.problem is not None:
        problem = unit.problem
        return Reason(ReasonCode.UNIT_UNREADABLE, unit=unit.unit, state=problem.code, text=problem.detail or None)
    if unit.load != "loaded":
        return Reason(ReasonCode.UNIT_NOT_LOADED, unit=unit.unit, state=unit.load or None)
    return None


def _at_it(unit: UnitState) -> bool:
    """Whether systemd is about to restart it: it may not have noticed yet that it must."""
    return unit.active in _AT_IT or (unit.active == "active" and unit.restart in _RESTARTING)


def by_systemd(matter: Matter) -> Told:
    """Count what systemd has restarted by itself, once the daemon is back."""
    watch, unit = matter.watch, matter.unit
    if unit is None or not unit.known or not matter.ran_in_unit:
        return watch, ()
    before = watch.unit_restarts
    if before is None or unit.restarts < before:
        return replace(watch, unit_restarts=unit.restarts), ()
    new = unit.restarts - before
    if not new or not matter.lives:
        return watch, ()
    watch = counted(watch, ActionKind.RESTART, ActionReason.CRASHED, ActionResult.BY_SYSTEMD, by=new)
    restarts = (*watch.restarts, *(matter.at,) * new)[-matter.rules.restarts :]
    watch = replace(watch, unit_restarts=unit.restarts, restarts=restarts, last_restart_at=matter.at)
    event = Event(
        at=matter.at,
        event=EventName.WATCHDOG_ACTED,
        daemon=matter.daemon.name,
        action=ActionKind.RESTART,
        reason=ActionReason.CRASHED,
        result=ActionResult.BY_SYSTEMD,
    )
    return watch, (event,)
