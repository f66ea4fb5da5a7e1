"""Diagnosis of a daemon: the gravest condition that two independent sources confirm."""

from collections.abc import Iterable, Iterator

from exporter.model.daemon import Daemon, DaemonState
from exporter.model.event import EventName
from exporter.model.identity import identity_of
from exporter.model.incident import Incident
from exporter.model.observation import ProcessState, UnitState
from exporter.model.reason import Reason, ReasonCode
from exporter.model.server import ServerState
from exporter.model.values import replace
from exporter.model.watchdog import HARMLESS, Condition, Diagnosis
from exporter.parse.control_reply import servers_queried
from exporter.state import processes
from exporter.state import servers as state_servers
from exporter.state.hangs import program_hangs
from exporter.watchdog.context import Context, Evaluated

_STOPPED_SECONDS = 1.0
"""A server that was stopped for less than this may have been stopped by a debugger, or for a moment."""

_HUNG = frozenset({Condition.UNRESPONSIVE, Condition.SUSPENDED})
_WAITING = frozenset({Condition.SERVER_SUSPENDED, Condition.SERVER_UNRESPONSIVE, Condition.STUCK_IN_DRIVER})
_NOT_REPORTED = (None, *HARMLESS)


def diagnose(context: Context) -> Evaluated:
    """Return the state with its diagnosis, and an event if the condition has changed."""
    before, found = context.watch.diagnosis, _diagnosis(context)
    if found.condition in _HUNG and before is not None:
        # A hang that is found to be a suspension, or the reverse, continues. After a wait for another process, a hang
        # begins now: the daemon may not have been queried since. Log lines change nothing, because any user can write
        # them (measured, R580).
        if before.condition in _WAITING:
            found = replace(found, since=context.at)
        elif before.condition in _HUNG:
            found = replace(found, since=before.since)
    if found == before:
        return context.watch, ()
    watch = replace(context.watch, diagnosis=found)
    if found.condition is Condition.STOPPED:
        watch = replace(watch, stopped_at=found.since)
    elif context.daemon.state is not None and not context.daemon.ended:
        watch = replace(watch, stopped_at=None)
    was = None if before is None else before.condition
    same = before is not None and (was, before.process) == (found.condition, found.process)
    if same or (was in _NOT_REPORTED and found.condition in _NOT_REPORTED):
        return watch, ()
    event = context.event(
        EventName.DAEMON_DIAGNOSED,
        server=found.server,
        pid=None if found.process is None else found.process.pid,
        state=found.condition,
        reason=found.indications[0] if found.indications else None,
        indications=found.indications or None,
    )
    return watch, (event,)


def _diagnosis(context: Context) -> Diagnosis:
    if context.daemon.ended:
        return _exit_diagnosis(context)
    for check in _CHECKS:
        found = check(context)
        if found is not None:
            return found
    starting = context.daemon.state is DaemonState.STARTING
    condition = Condition.WELL if context.works else Condition.STARTING if starting else Condition.UNKNOWN
    return Diagnosis(condition=condition, since=context.daemon.lifecycle.state_since or context.at)


# -- A daemon that has ended -------------------------------------------------------------------------------------------


def _exit_diagnosis(context: Context) -> Diagnosis:
    lifecycle, watch = context.daemon.lifecycle, context.watch
    since = lifecycle.state_since or context.at
    ever_ran = lifecycle.ever_ran or watch.process is not None or watch.healthy_since is not None
    stop = _stop_indication(context, ever_ran=ever_ran)
    if stop is not None:
        return Diagnosis(condition=Condition.STOPPED, since=watch.stopped_at or since, indications=(stop,))
    if not ever_ran:
        return Diagnosis(condition=Condition.NEVER_STARTED, since=since, indications=(Reason(ReasonCode.NEVER_RAN),))
    unit, left = _unit_since_exit(context), bool(lifecycle.pid_file_left)
    # Without an observed loss, as while the exporter was not running, something else must show that it was no quit.
    no_quit = _loss_observed(context.daemon) or left or (unit is not None and unit.active == "failed")
    indications = tuple(_exit_indications(context, unit))
    independent = {_KINDS.get(indication.code, indication.code) for indication in indications}
    down = lifecycle.unexplained_end_at is None and no_quit and len(independent) >= 2
    condition = Condition.DOWN if down else Condition.UNKNOWN
    return Diagnosis(condition=condition, since=since, indications=indications)


def _stop_indication(context: Context, *, ever_ran: bool) -> Reason | None:
    daemon, unit = context.daemon, _unit_since_exit(context)
    if unit is not None and processes.is_unit_stopped(unit):
        ended = unit.result == "success"
        return Reason(ReasonCode.UNIT_ENDED if ended else ReasonCode.UNIT_STOP_TIMED_OUT, unit=unit.unit)
    if daemon.state is DaemonState.STOPPED:
        return Reason(ReasonCode.QUIT_RECEIVED)
    # A quit removes the pid file, SIGKILL does not (measured, R580). The log, if it was read, is more certain.
    removed = daemon.lifecycle.pid_file_left is False and daemon.lifecycle.unexplained_end_at is None
    if removed and ever_ran and not _log_without_quit(daemon):
        return Reason(ReasonCode.NO_PID_FILE_LEFT)
    return None if context.watch.stopped_at is None else Reason(ReasonCode.NOT_STARTED_SINCE_STOP)


_KINDS = {ReasonCode.NO_DAEMON_FOUND: ReasonCode.PID_FILE_LEFT, ReasonCode.UNIT_RESTARTING: ReasonCode.UNIT_FAILED}
"""Indications with the same source as another one: systemd, or the pid file, which NVIDIA's program reads and any user
may write (measured, R580)."""


def _exit_indications(context: Context, unit: UnitState | None) -> Iterator[Reason]:
    """Yield what indicates an exit.

    That the log has no quit indicates one only if the kernel reported the exit, or if the process was never known.
    """
    daemon, lifecycle, process = context.daemon, context.daemon.lifecycle, context.watch.process
    gone = lifecycle.traces_expected and process is not None
    if gone and process is not None:
        yield Reason(ReasonCode.PROCESS_GONE, pid=process.pid)
    if lifecycle.not_found_at is not None and lifecycle.not_found_at >= (lifecycle.state_since or 0.0):
        yield Reason(ReasonCode.NO_DAEMON_FOUND)
    if (gone or process is None) and _log_without_quit(daemon):
        yield Reason(ReasonCode.LOG_ENDS_WITHOUT_QUIT)
    if daemon.commands.listening is False:
        yield Reason(ReasonCode.NO_LISTENER)
    if lifecycle.pid_file_left:
        yield Reason(ReasonCode.PID_FILE_LEFT)
    if unit is not None and unit.active == "failed":
        yield Reason(ReasonCode.UNIT_FAILED, unit=unit.unit, text=unit.result)
    if unit is not None and unit.sub == "auto-restart":
        yield Reason(ReasonCode.UNIT_RESTARTING, unit=unit.unit)


def _log_without_quit(daemon: Daemon) -> bool:
    """Return whether the log was followed until the exit: it would have a quit."""
    return daemon.log_followed and _loss_observed(daemon)


def _loss_observed(daemon: Daemon) -> bool:
    """Return whether the end was observed, and no operator caused it."""
    ends = (daemon.lifecycle.last_loss_at, daemon.lifecycle.watchdog_ended_at)
    return any(at is not None and at >= (daemon.lifecycle.state_since or 0.0) for at in ends)


def _unit_since_exit(context: Context) -> UnitState | None:
    """Return the state of the daemon's unit, if it was read since the exit."""
    unit = context.unit
    if unit is None or unit.problem is not None or not context.ran_in_unit:
        return None
    return unit if unit.at >= (context.daemon.lifecycle.state_since or 0.0) else None


# -- A daemon that runs ------------------------------------------------------------------------------------------------


def _suspended(context: Context) -> Diagnosis | None:
    daemon, state = context.daemon, processes.state_of_daemon(context.node, context.daemon)
    if state is None or not processes.is_suspended(state) or not _unanswered(daemon):
        return None
    suspended = Reason(ReasonCode.PROCESS_SUSPENDED, pid=state.pid, state=state.state)
    return Diagnosis(
        condition=Condition.SUSPENDED,
        since=min(state.at, daemon.commands.unanswered_since or state.at),
        indications=(suspended, Reason(ReasonCode.DAEMON_UNANSWERING)),
        process=identity_of(state),
    )


def _stuck(context: Context) -> Diagnosis | None:
    """An uninterruptible sleep counts only if the daemon does not answer: then the daemon waits for it."""
    daemon = context.daemon
    if daemon.state is not DaemonState.UNRESPONSIVE:
        return None
    states = (processes.state_of_daemon(context.node, daemon), *_server_states(context))
    asleep = next((state for state in states if processes.is_stuck(state)), None)
    if asleep is None:
        return None
    stuck = Reason(ReasonCode.PROCESS_STUCK_IN_KERNEL, pid=asleep.pid, wait_channel=asleep.wait_channel)
    return Diagnosis(
        condition=Condition.STUCK_IN_DRIVER,
        since=asleep.at,
        indications=(stuck, Reason(ReasonCode.DAEMON_UNANSWERING)),
        process=identity_of(asleep),
        server=asleep.pid if asleep.pid in daemon.servers else None,
    )


def _server_suspended(context: Context) -> Diagnosis | None:
    stopped = filter(processes.is_suspended, _server_states(context))
    state = min(stopped, key=lambda each: each.at, default=None)
    if state is None or context.at - state.at < _STOPPED_SECONDS:
        return None
    suspended = Reason(ReasonCode.SERVER_SUSPENDED, server=state.pid, state=state.state)
    daemon = ReasonCode.DAEMON_UNANSWERING if _unanswered(context.daemon) else ReasonCode.DAEMON_NOT_WAITING
    return Diagnosis(
        condition=Condition.SERVER_SUSPENDED,
        since=state.at,
        indications=(suspended, Reason(daemon)),
        process=identity_of(state),
        server=state.pid,
    )


def _server_unresponsive(context: Context) -> Diagnosis | None:
    """A daemon that queries a server that does not answer hangs with it (measured, R580).

    A restart of the daemon would end all other clients, although that server is the cause. Only a command of the
    exporter shows which server it is (`waits_for_server`): any user can write the log.
    """
    daemon, server = context.daemon, context.daemon.commands.waits_for_server
    unresponsive = daemon.state is DaemonState.UNRESPONSIVE and daemon.commands.unanswered_since is not None
    if not unresponsive or server is None or server not in daemon.servers:
        return None
    return Diagnosis(
        condition=Condition.SERVER_UNRESPONSIVE,
        since=_unresponsive_since(context),
        indications=(Reason(ReasonCode.COMMANDS_UNANSWERED), Reason(ReasonCode.SERVER_QUERIED, server=server)),
        process=identity_of(context.node.processes.get(server)),
        server=server,
    )


def _unresponsive(context: Context) -> Diagnosis | None:
    """Two commands and a second indication have confirmed it (`state/lifecycle.py`)."""
    if context.daemon.state is not DaemonState.UNRESPONSIVE:
        return None
    daemon, known = context.daemon, processes.probes(context.daemon)
    indications = [Reason(ReasonCode.COMMANDS_UNANSWERED)]
    if daemon.runtime.process is not None:
        indications.append(Reason(ReasonCode.PROCESS_ALIVE, pid=daemon.runtime.process.pid))
    if known is not None and known.unanswered:
        indications.append(Reason(ReasonCode.CONNECTIONS_UNANSWERED, wait_channel=known.wait_channel))
    if daemon.commands.listening is False:
        indications.append(Reason(ReasonCode.NO_LISTENER))
    # The end of the log is only a hint.
    hint = servers_queried(daemon.log.last_command or "", daemon.servers)
    if len(hint) == 1:
        indications.append(Reason(ReasonCode.LOG_ENDS_WITH_QUERY, server=next(iter(hint))))
    since = _unresponsive_since(context)
    return Diagnosis(condition=Condition.UNRESPONSIVE, since=since, indications=tuple(indications))


def _unresponsive_since(context: Context) -> float:
    daemon = context.daemon
    return min(daemon.lifecycle.state_since or context.at, daemon.commands.unanswered_since or context.at)


def _program_unresponsive(context: Context) -> Diagnosis | None:
    """Commands go through the control program. If the daemon answers without it, the program is at fault."""
    if not program_hangs(context.daemon, context.at):
        return None
    return Diagnosis(
        condition=Condition.PROGRAM_UNRESPONSIVE,
        since=context.daemon.commands.unanswered_since or context.at,
        indications=(Reason(ReasonCode.PROGRAM_UNANSWERED), Reason(ReasonCode.CONNECTIONS_ANSWERED)),
    )


def _held(context: Context) -> Diagnosis | None:
    daemon, holder = context.daemon, context.daemon.commands.session_holder
    if daemon.state is not DaemonState.HELD:
        return None
    unanswered = daemon.commands.unanswered_since is not None
    indications = [Reason(ReasonCode.COMMANDS_UNANSWERED if unanswered else ReasonCode.COMMANDS_REFUSED)]
    if holder is not None:
        uid = None if holder.user else holder.uid
        indications.insert(0, Reason(ReasonCode.SESSION_OPEN, pid=holder.pid, user=holder.user, uid=uid))
    since, process = daemon.lifecycle.state_since or context.at, identity_of(holder)
    return Diagnosis(condition=Condition.HELD, since=since, indications=tuple(indications), process=process)


def _fault(context: Context) -> Diagnosis | None:
    incident = next(iter(open_faults(context)), None)
    if incident is None:
        return None
    if incident.stuck:
        second = Reason(ReasonCode.FAULT_PERSISTS)
    else:
        second = Reason(ReasonCode.AFFECTED_CLIENTS_CONNECTED, pids=tuple(sorted(incident.blockers)) or None)
    return Diagnosis(
        condition=Condition.FAULT,
        since=incident.started_at,
        indications=(Reason(ReasonCode.SERVER_IN_FAULT, server=incident.server), second),
        server=incident.server,
        incident=incident.id,
    )


def open_faults(context: Context) -> Iterable[Incident]:
    """Yield the daemon's open faults on servers that are known to be in FAULT, the oldest first."""
    servers = context.daemon.servers
    for each in context.node.incidents.values():
        in_fault = each.server in servers and servers[each.server].state is ServerState.FAULT
        if each.open and each.daemon == context.daemon.name and in_fault:
            yield each


def _crash_loop(context: Context) -> Diagnosis | None:
    starts = context.daemon.connections.failed_starts
    if not state_servers.in_crash_loop(context.daemon, context.at):
        return None
    exited = Reason(ReasonCode.SERVERS_EXITED_EARLY, count=len(starts.started_at))
    return Diagnosis(
        condition=Condition.CRASH_LOOP,
        since=starts.started_at[0],
        indications=(exited, Reason(ReasonCode.NO_SERVER_STARTED)),
    )


_CHECKS = (
    *(_suspended, _stuck, _server_suspended, _server_unresponsive, _unresponsive),
    *(_program_unresponsive, _held, _fault, _crash_loop),
)
"""The gravest condition first."""


def _unanswered(daemon: Daemon) -> bool:
    return daemon.state is DaemonState.UNRESPONSIVE or daemon.commands.unanswered_since is not None


def _server_states(context: Context) -> list[ProcessState]:
    """Return the states of the servers with a known process: the PID of another one may be reused."""
    known = (pid for pid in context.daemon.servers if pid in context.node.processes)
    return [state for pid in known if (state := processes.state_of_server(context.node, pid)) is not None]
