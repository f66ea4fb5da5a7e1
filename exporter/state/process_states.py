"""States of MPS processes and their units, and probes of control sockets."""

from collections.abc import Iterator

from exporter.model.daemon import Daemon, DaemonState, with_commands
from exporter.model.node import Node
from exporter.model.observation import ControlSocket, ProcessExit, ProcessState, SessionHolder, SocketProbes, UnitState
from exporter.model.values import replace
from exporter.parse.proc import SUSPENDED


def socket_read(daemon: Daemon, socket: ControlSocket) -> Daemon:
    """Return the daemon with the state of its control socket, which matters only while commands get no answer."""
    if not is_unanswered(daemon):
        return with_commands(daemon, listening=None, probes=None)
    return with_commands(daemon, listening=socket.listening, probes=_count_probe(daemon, socket))


def _count_probe(daemon: Daemon, socket: ControlSocket) -> SocketProbes | None:
    since = daemon.commands.unanswered_since
    if since is None:
        return None
    before = probes(daemon) or SocketProbes(since=since)
    match socket.answers:
        case True:
            return replace(before, unanswered=0, others=False, answered_at=socket.at, wait_channel=None)
        case False:
            unanswered = 0 if socket.others else before.unanswered + (socket.others is False)
            return replace(
                before,
                unanswered=unanswered,
                others=socket.others,
                answered_at=None,
                wait_channel=socket.wait_channel,
            )
        case None:
            return before


def probes(daemon: Daemon) -> SocketProbes | None:
    """Return the exporter's connections since commands get no answer; None if the socket was not probed since then."""
    known = daemon.commands.probes
    return known if known is not None and known.since == daemon.commands.unanswered_since else None


def session_holder_read(daemon: Daemon, holder: SessionHolder) -> Daemon:
    """Return the daemon with the process that is connected to it, if that can be why commands get no answer."""
    known = (holder.pid, holder.uid) != (None, None) and (is_refused(daemon) or is_unanswered(daemon))
    return with_commands(daemon, session_holder=holder if known else None)


def is_refused(daemon: Daemon) -> bool:
    """Return whether another program's session may block the daemon."""
    return daemon.commands.refused_since is not None or daemon.state is DaemonState.HELD


def is_unanswered(daemon: Daemon) -> bool:
    """Return whether the daemon has ended or does not answer."""
    return daemon.commands.unanswered_since is not None or (daemon.state is not None and not daemon.answers)


def state_read(node: Node, state: ProcessState) -> Node:
    """Return the node with the state of a process. The time of an unchanged state remains the time of its begin."""
    known = node.states.get(state.pid)
    if known is not None and known.start_ticks == state.start_ticks:
        ended = known.children_page_faults is not None and known.children_page_faults != state.children_page_faults
        ended_at = state.at if ended else known.child_ended_at
        if known.state == state.state:
            state = replace(known, children_page_faults=state.children_page_faults, child_ended_at=ended_at)
        else:
            state = replace(state, child_ended_at=ended_at)
    return node if state == known else replace(node, states={**node.states, state.pid: state})


def process_exited(node: Node, ended: ProcessExit) -> Node:
    """Return the node without the state of a process that ended."""
    known = node.states.get(ended.pid)
    if known is None or known.start_ticks != ended.start_ticks:
        return node
    return prune_states(node, node.states.keys() - {ended.pid})


def prune_states(node: Node, wanted: frozenset[int] | set[int]) -> Node:
    """Return the node with the states of these processes only."""
    if node.states.keys() <= wanted:
        return node
    return replace(node, states={pid: state for pid, state in node.states.items() if pid in wanted})


def state_of_daemon(node: Node, daemon: Daemon) -> ProcessState | None:
    """Return the state of the daemon's process; None if it is unknown."""
    process = daemon.runtime.process
    state = None if process is None or process.pid is None else node.states.get(process.pid)
    return state if process is not None and state is not None and state.start_ticks == process.start_ticks else None


def state_of_server(node: Node, pid: int) -> ProcessState | None:
    """Return the state of a server; None if it is unknown, or if it is the state of another process with the PID."""
    state, process = node.states.get(pid), node.processes.get(pid)
    return None if state is None or (process and process.start_ticks != state.start_ticks) else state


def is_suspended(state: ProcessState | None) -> bool:
    """Return whether a signal or a debugger stopped the process."""
    return state is not None and state.state in SUSPENDED


def is_stuck(state: ProcessState | None) -> bool:
    """Return whether the process is in an uninterruptible sleep. For a moment that is normal."""
    return state is not None and state.state == "D"


def suspended_or_stuck(node: Node, daemon: Daemon) -> Iterator[ProcessState]:
    """Yield the states of the daemon and its servers that are suspended or stuck."""
    for state in (state_of_daemon(node, daemon), *(state_of_server(node, pid) for pid in daemon.servers)):
        if state is not None and (is_suspended(state) or is_stuck(state)):
            yield state


def can_query(node: Node, server: int) -> bool:
    """Return whether a query about the server is safe. A query about a suspended one hangs the daemon (R580)."""
    return not is_suspended(state_of_server(node, server))


_ALWAYS_RESTARTED = ("always", "on-success")
"""Restart= of a unit that systemd restarts after every end (systemd.service(5))."""

_RESTARTED_AFTER_TIMEOUT = ("always", "on-failure", "on-abnormal")
"""Restart= of a unit that systemd restarts after a timeout, unless an operator stopped it (measured, systemd 252)."""

_STOP_SECONDS = 1.0
"""A unit that systemd restarts, for example by RestartForceExitStatus=, stops in less time (measured, systemd 252)."""

_ABOUT_TO_RESTART = "failed-before-auto-restart"
"""Short state before a restart, from systemd 254 on."""


def prune_units(node: Node) -> Node:
    """Return the node without units that belong to no daemon."""
    named = {daemon.declared.unit for daemon in node.daemons.values()}
    if node.units.keys() <= named:
        return node
    return replace(node, units={unit: state for unit, state in node.units.items() if unit in named})


def unit_of(node: Node, daemon: Daemon) -> UnitState | None:
    """Return the declared unit of a daemon; None if systemd does not know it, or if the daemon runs in another."""
    unit = node.units.get(daemon.declared.unit or "")
    return unit if unit is not None and unit.known and daemon.runtime.unit == daemon.declared.unit else None


def was_unit_stopped(unit: UnitState | None, ended_at: float) -> bool:
    """Return whether an operator stopped the unit, and with it the daemon that ended at that time."""
    if unit is None or unit.at <= ended_at:
        return False
    not_restarted = unit.active == "deactivating" and unit.restart not in _ALWAYS_RESTARTED
    return is_unit_stopped(unit) or (unit.result == "success" and not_restarted and unit.at - ended_at > _STOP_SECONDS)


def is_unit_stopped(unit: UnitState) -> bool:
    """Return whether an operator stopped the unit. systemd may have killed it after a timeout."""
    killed = (unit.active, unit.result) == ("failed", "timeout") and unit.sub != _ABOUT_TO_RESTART
    stopped = (unit.active, unit.result) == ("inactive", "success")
    return stopped or (killed and unit.restart in _RESTARTED_AFTER_TIMEOUT)


def is_unit_stopping(unit: UnitState | None, ended_at: float) -> bool:
    """Return whether the unit was stopping after that time, without a failure so far."""
    return unit is not None and unit.at > ended_at and (unit.active, unit.result) == ("deactivating", "success")


def may_unit_change(unit: UnitState | None, ended_at: float) -> bool:
    """Return whether systemd may not have noticed the end of the daemon yet, or was not asked since."""
    return unit is not None and (unit.at <= ended_at or unit.active in ("active", "deactivating"))
