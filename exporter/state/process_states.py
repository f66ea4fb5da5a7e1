"""States of MPS processes and their units, and probes of control sockets."""

from collections.abc import Iterable, Iterator

from exporter.model.daemon import Daemon, DaemonState
from exporter.model.node import Node
from exporter.model.observation import ControlSocket, ProcessExit, ProcessState, SessionHolder, SocketProbes, UnitState
from exporter.model.values import replace

Witness = ProcessState | UnitState | ControlSocket | SessionHolder


def witness_read(node: Node, seen: Witness) -> Node:
    """One of them was looked at. Of a daemon that is not known, nothing is remembered."""
    match seen:
        case ProcessState():
            return state_read(node, seen)
        case UnitState():
            return unit_read(node, seen)
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


_SUSPENDED = frozenset("Tt")
"""By a signal, or by a debugger (proc_pid_stat(5))."""

_STUCK = frozenset("D")


def state_read(node: Node, seen: ProcessState) -> Node:
    """A process was looked at. What has not changed is as old as it was: its time is since when."""
    known = node.states.get(seen.pid)
    if known is not None and known.start_ticks == seen.start_ticks:
        ended = known.children_page_faults is not None and known.children_page_faults != seen.children_page_faults
        ended_at = seen.at if ended else known.child_ended_at
        if known.state == seen.state:
            seen = replace(known, children_page_faults=seen.children_page_faults, child_ended_at=ended_at)
        else:
            seen = replace(seen, child_ended_at=ended_at)
    return node if seen == known else replace(node, states={**node.states, seen.pid: seen})


def exited(node: Node, seen: ProcessExit) -> Node:
    """A process has gone."""
    known = node.states.get(seen.pid)
    if known is None or known.start_ticks != seen.start_ticks:
        return node
    return replace(node, states={pid: state for pid, state in node.states.items() if pid != seen.pid})


def prune_states(node: Node, wanted: frozenset[int]) -> Node:
    """Let go of all but these."""
    if node.states.keys() <= wanted:
        return node
    return replace(node, states={pid: state for pid, state in node.states.items() if pid in wanted})


def of_daemon(node: Node, daemon: Daemon) -> ProcessState | None:
    """How the control daemon itself stands; None where that is not known."""
    process = daemon.runtime.process
    state = None if process is None or process.pid is None else node.states.get(process.pid)
    return state if process is not None and state is not None and state.start_ticks == process.start_ticks else None


def of_server(node: Node, pid: int) -> ProcessState | None:
    """How a server stands; None where that is not known, or the PID was another process's then."""
    state, process = node.states.get(pid), node.processes.get(pid)
    return None if state is None or (process and process.start_ticks != state.start_ticks) else state


def is_suspended(state: ProcessState | None) -> bool:
    """Whether it was stopped, and may be made to go on."""
    return state is not None and state.state in _SUSPENDED


def is_stuck(state: ProcessState | None) -> bool:
    """Whether it sleeps in the kernel, where no signal reaches it; for a moment everybody does."""
    return state is not None and state.state in _STUCK


def hung(node: Node, daemon: Daemon) -> Iterator[ProcessState]:
    """The control daemon and those of its servers that were stopped, or sleep and cannot be woken."""
    states: Iterable[ProcessState | None] = (of_daemon(node, daemon), *(of_server(node, pid) for pid in daemon.servers))
    return (each for each in states if each is not None and (is_suspended(each) or is_stuck(each)))


def askable(node: Node, server: int) -> bool:
    """Whether the daemon can be asked about a server: one that was stopped would hang it for everybody (R580)."""
    return not is_suspended(of_server(node, server))


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


def prune_units(node: Node) -> Node:
    """Let go of units that name no daemon."""
    named = {daemon.declared.unit for daemon in node.daemons.values()}
    if node.units.keys() <= named:
        return node
    return replace(node, units={unit: state for unit, state in node.units.items() if unit in named})


def ran(node: Node, daemon: Daemon) -> UnitState | None:
    """The unit of a daemon, if it is the one that ran it; None too where systemd does not know it."""
    unit = node.units.get(daemon.declared.unit or "")
    return unit if unit is not None and unit.known and daemon.runtime.unit == daemon.declared.unit else None


def stopped(unit: UnitState | None, ended_at: float) -> bool:
    """Whether an operator stopped the unit, and with it the daemon that went at that time."""
    if unit is None or unit.at <= ended_at:
        return False
    leaves_for_good = unit.active == "deactivating" and unit.restart not in _RESTARTED_ANYHOW
    takes_long = unit.at - ended_at > _LEAVING_SECONDS
    return stays_away(unit) or (unit.result == "success" and leaves_for_good and takes_long)


def stays_away(unit: UnitState) -> bool:
    """Whether a unit has ended because somebody stopped it: so it has, too, where it had to be killed at last."""
    killed_at_last = (unit.active, unit.result) == ("failed", "timeout") and unit.sub != _ABOUT_TO_RESTART
    return (unit.active, unit.result) == ("inactive", "success") or (
        killed_at_last and unit.restart in _RESTARTED_WHEN_LATE
    )


def is_leaving(unit: UnitState | None, ended_at: float) -> bool:
    """Whether it was seen in the midst of stopping, after that time, and nothing is wrong with it so far."""
    return unit is not None and unit.at > ended_at and (unit.active, unit.result) == ("deactivating", "success")


def may_yet_tell(unit: UnitState | None, ended_at: float) -> bool:
    """Whether systemd is still to say what became of it: it was not asked since, or has not noticed yet."""
    return unit is not None and (unit.at <= ended_at or unit.active in ("active", "deactivating"))
