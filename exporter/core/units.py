"""What systemd says of the end of a control daemon that it ran: an operator stopped the unit, or it failed."""

from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.replace import replace
from exporter.model.witnesses import UnitState

_RESTARTED_ANYHOW = ("always", "on-success")
"""Restart= of a unit that is started again however it ended (systemd.service(5))."""

_RESTARTED_WHEN_LATE = ("always", "on-failure", "on-abnormal")
"""Restart= of a unit that is started again after a timeout, unless somebody had stopped it (there; tried: 252)."""

_LEAVING_SECONDS = 1.0
"""A unit that is to come back, as by RestartForceExitStatus=, stops for a shorter moment (tried: 252)."""

_ABOUT_TO_RESTART = "failed-before-auto-restart"
"""Through this a unit passes for a moment, from systemd 254 on."""


def unit_read(node: Node, seen: UnitState) -> Node:
    """A unit was looked at."""
    return replace(node, units={**node.units, seen.unit: seen})


def forget(node: Node) -> Node:
    """Let go of units that name no daemon."""
    named = {daemon.declared.unit for daemon in node.daemons.values()}
    if node.units.keys() <= named:
        return node
    return replace(node, units={unit: state for unit, state in node.units.items() if unit in named})


def ran(node: Node, daemon: Daemon) -> UnitState | None:
    """The unit of a daemon, if it is the one that ran it; None too where systemd does not know it."""
    unit = node.units.get(daemon.declared.unit or "")
    return unit if unit is not None and unit.known and daemon.runtime.unit == daemon.declared.unit else None


def stopped(unit: UnitState | None, gone_at: float) -> bool:
    """Whether an operator stopped the unit, and with it the daemon that went at that time."""
    if unit is None or unit.at <= gone_at:
        return False
    leaves_for_good = unit.active == "deactivating" and unit.restart not in _RESTARTED_ANYHOW
    takes_long = unit.at - gone_at > _LEAVING_SECONDS
    return stays_away(unit) or (unit.result == "success" and leaves_for_good and takes_long)


def stays_away(unit: UnitState) -> bool:
    """Whether a unit has ended because somebody stopped it: so it has, too, where it had to be killed at last."""
    killed_at_last = (unit.active, unit.result) == ("failed", "timeout") and unit.sub != _ABOUT_TO_RESTART
    return (unit.active, unit.result) == ("inactive", "success") or (
        killed_at_last and unit.restart in _RESTARTED_WHEN_LATE
    )


def is_leaving(unit: UnitState | None, gone_at: float) -> bool:
    """Whether it was seen in the midst of stopping, after that time, and nothing is wrong with it so far."""
    return unit is not None and unit.at > gone_at and (unit.active, unit.result) == ("deactivating", "success")


def may_yet_tell(unit: UnitState | None, gone_at: float) -> bool:
    """Whether systemd is still to say what became of it: it was not asked since, or has not noticed yet."""
    return unit is not None and (unit.at <= gone_at or unit.active in ("active", "deactivating"))
