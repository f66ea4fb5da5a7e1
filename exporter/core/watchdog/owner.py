"""One owner for each failure: where systemd restarts a unit by itself, it does, and the watchdog counts."""

from exporter.core.watchdog.matter import Matter, Told
from exporter.core.watchdog.resolve import Wait
from exporter.core.watchdog.tallies import counted
from exporter.model.action import ActionKind, ActionResult
from exporter.model.event import Event, EventName
from exporter.model.replace import replace
from exporter.model.watch import WatchState
from exporter.model.witnesses import UnitState

CRASHED = "crashed"

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
            return Wait(why=None)
        if unit is None:
            return Wait(why=f"nobody tells how {name} is: there is no systemd that could be asked")
    unusable = unusable_because(unit)
    if unusable is not None:
        return Wait(why=unusable)
    if unit.active == "failed" and unit.result == "start-limit-hit":
        why = f"systemd has given up on {name} (start-limit-hit): `systemctl reset-failed {name}`, then start it"
        return Wait(why=why, state=WatchState.DEFERRED_TO_SYSTEMD)
    if _at_it(unit) and waited <= matter.rules.systemd:
        return Wait(why=f"systemd restarts {name} by itself", state=WatchState.DEFERRED_TO_SYSTEMD)
    return None


def unusable_because(unit: UnitState) -> str | None:
    """Why a unit cannot be restarted at all, whoever tried."""
    if unit.problem is not None:
        return f"{unit.unit} cannot be looked at: {unit.problem.detail or unit.problem.code}"
    if unit.load != "loaded":
        return f"{unit.unit} is {unit.load or 'not known'} to systemd: name the daemon's unit, or restart_command"
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
    watch = counted(watch, ActionKind.RESTART, CRASHED, ActionResult.BY_SYSTEMD, by=new)
    restarts = (*watch.restarts, *(matter.at,) * new)[-matter.rules.restarts :]
    watch = replace(watch, unit_restarts=unit.restarts, restarts=restarts, last_restart_at=matter.at)
    event = Event(
        at=matter.at,
        event=EventName.WATCHDOG_ACTED,
        daemon=matter.daemon.name,
        action=ActionKind.RESTART,
        reason=CRASHED,
        result=ActionResult.BY_SYSTEMD,
    )
    return watch, (event,)
