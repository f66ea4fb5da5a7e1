"""What else tells how a control daemon is: the states of processes and units, its socket, who holds a session."""

from exporter.core import process_states, units
from exporter.model.daemon import Daemon, DaemonState
from exporter.model.node import Node
from exporter.model.replace import replace
from exporter.model.witnesses import ControlSocket, ProcessState, SessionHolder, SocketProbes, UnitState

Witness = ProcessState | UnitState | ControlSocket | SessionHolder


def witness_read(node: Node, seen: Witness) -> Node:
    """One of them was looked at. Of a daemon that is not known, nothing is remembered."""
    match seen:
        case ProcessState():
            return process_states.state_read(node, seen)
        case UnitState():
            return units.unit_read(node, seen)
        case ControlSocket() | SessionHolder():
            daemon = node.daemons.get(seen.daemon)
            if daemon is None:
                return node
            daemon = _with_listener(daemon, seen) if isinstance(seen, ControlSocket) else _with_holder(daemon, seen)
            return replace(node, daemons={**node.daemons, daemon.name: daemon})


def _with_listener(daemon: Daemon, seen: ControlSocket) -> Daemon:
    """What was seen of one that answers by now is out of date."""
    if not is_silent(daemon):
        return replace(daemon, commands=replace(daemon.commands, listening=None, probes=None))
    return replace(daemon, commands=replace(daemon.commands, listening=seen.listening, probes=_counted(daemon, seen)))


def _counted(daemon: Daemon, seen: ControlSocket) -> SocketProbes | None:
    """Count a connection of the exporter's own; one made before commands got no answer is out of date."""
    since = daemon.commands.unanswered_since
    if since is None:
        return None
    before = (
        daemon.commands.probes
        if daemon.commands.probes is not None and daemon.commands.probes.since == since
        else SocketProbes(since=since)
    )
    match seen.answers:
        case True:
            return replace(before, unanswered=0, answered_at=seen.at, wait_channel=None)
        case False:
            return replace(before, unanswered=before.unanswered + 1, wait_channel=seen.wait_channel)
        case None:
            return before


def probes(daemon: Daemon) -> SocketProbes | None:
    """Return the exporter's own connections since commands get no answer; None if the socket was not looked at."""
    known = daemon.commands.probes
    return known if known is not None and known.since == daemon.commands.unanswered_since else None


def _with_holder(daemon: Daemon, seen: SessionHolder) -> Daemon:
    """Whoever is seen where nobody is refused holds nothing."""
    return replace(
        daemon,
        commands=replace(daemon.commands, session_holder=seen if seen.pid is not None and is_held(daemon) else None),
    )


def is_held(daemon: Daemon) -> bool:
    """Whether somebody's session keeps others out, or may."""
    return daemon.commands.refused_since is not None or daemon.state is DaemonState.HELD


def is_silent(daemon: Daemon) -> bool:
    """Whether it is gone, or does not answer."""
    return daemon.commands.unanswered_since is not None or (daemon.state is not None and not daemon.answers)
