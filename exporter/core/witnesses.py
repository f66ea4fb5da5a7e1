"""What else tells how a control daemon is: the states of processes and units, its socket, who holds a session."""

from exporter.core import process_states, units
from exporter.model.daemon import Daemon, DaemonState
from exporter.model.node import Node
from exporter.model.replace import replace
from exporter.model.witnesses import ControlSocket, ProcessState, SessionHolder, UnitState

Witness = ProcessState | UnitState | ControlSocket | SessionHolder


def witness_read(node: Node, seen: Witness) -> Node:
    """One of them was looked at. Of a daemon that is not known, nothing is remembered."""
    match seen:
        case ProcessState():
            return process_states.state_read(node, seen)
        case UnitState():
            return units.unit_read(node, seen)
        case ControlSocket():
            daemon = node.daemons.get(seen.daemon)
            return node if daemon is None else _with(node, replace(daemon, listening=seen.listening))
        case SessionHolder():
            daemon = node.daemons.get(seen.daemon)
            held = daemon is not None and is_held(daemon) and seen.pid is not None
            return node if daemon is None else _with(node, replace(daemon, holder=seen if held else None))


def is_held(daemon: Daemon) -> bool:
    """Whether somebody's session keeps others out, or may."""
    return daemon.refused_since is not None or daemon.state is DaemonState.HELD


def _with(node: Node, daemon: Daemon) -> Node:
    return replace(node, daemons={**node.daemons, daemon.name: daemon})
