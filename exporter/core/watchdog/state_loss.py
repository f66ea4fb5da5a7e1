"""What the watchdog does if its state could not be read or written when the exporter started: it restarts nothing.

Nobody knows then how often a daemon was restarted, or whether its circuit is open. A new state directory is no such
case: there was nothing to know.
"""

from collections.abc import Mapping

from exporter.core.watchdog.results import interrupted
from exporter.core.watchdog.tallies import counted
from exporter.model.node import Node
from exporter.model.observation import DaemonName
from exporter.model.replace import replace
from exporter.model.watch import Watch


def lost(node: Node, at: float) -> Node:
    """Return a node whose watches may be out of date: what happened since could not be written."""
    return replace(node, watches={name: replace(watch, lost_at=at) for name, watch in node.watches.items()})


def regained(node: Node, remembered: Mapping[DaemonName, Watch], at: float, *, whole: bool) -> Node:
    """Return a node that knows what the state has, now that it can be read and written.

    If the state is not `whole`, a daemon that it does not have stays as it is. An operator's `resume` outweighs what
    is remembered of the daemon.
    """
    watches = {**remembered, **node.watches}
    for name, watch in watches.items():
        if name not in node.watches:
            watches[name] = interrupted(watch, at)
        elif watch.lost_at is not None and name in remembered:
            watches[name] = _merged(interrupted(remembered[name], at), watch)
        elif watch.lost_at is not None and whole:
            watches[name] = replace(watch, lost_at=None)
    return replace(node, watches=watches)


def _merged(remembered: Watch, now: Watch) -> Watch:
    """Return what is remembered, with what was observed and counted since the start."""
    merged = replace(
        remembered,
        process=now.process or remembered.process,
        children=now.children or remembered.children,
        limits=now.limits or remembered.limits,
        wanted=now.wanted or remembered.wanted,
        enforcing=now.enforcing,
        unit_restarts=remembered.unit_restarts if now.unit_restarts is None else now.unit_restarts,
        acting=now.acting or remembered.acting,
        bypassed=remembered.bypassed + now.bypassed,
    )
    for each in now.tallies:
        merged = counted(merged, each.kind, each.reason, each.result, by=each.count)
    return merged
