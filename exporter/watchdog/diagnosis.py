"""Diagnosis of a daemon: the gravest condition that two independent sources confirm."""

from collections.abc import Iterable, Iterator

from exporter.model.daemon import Daemon, DaemonState
from exporter.model.event import Event, EventName
from exporter.model.identity import identity_of
from exporter.model.incident import Incident
from exporter.model.observation import ProcessState, UnitState
from exporter.model.reason import Reason, ReasonCode
from exporter.model.server import ServerState
from exporter.model.values import replace
from exporter.model.watchdog import HARMLESS, Condition, Diagnosis, WatchdogState
from exporter.parse.control_reply import servers_queried
from exporter.state import hang_detection, process_states
from exporter.state import servers as state_servers
from exporter.state.process_states import probes
from exporter.watchdog.context import Context, Evaluated

_NOT_FOUND = Reason(ReasonCode.NO_DAEMON_FOUND)
_LEFT_BEHIND = Reason(ReasonCode.PID_FILE_LEFT)
_OF_THE_PID_FILE = (_NOT_FOUND, _LEFT_BEHIND)

_ENOUGH = 2
"""This many independent indications establish a crash."""


def exit_diagnosis(context: Context) -> Diagnosis:
    """Return the diagnosis of a daemon that is gone."""
    daemon, since = context.daemon, context.daemon.lifecycle.state_since or context.at
    stopped = _stopped(context)
    if stopped is not None:
        return Diagnosis(condition=Condition.STOPPED, since=context.watch.stopped_at or since, indications=(stopped,))
    if not _ever_lived(context):
        never_ran = Reason(ReasonCode.NEVER_RAN)
        return Diagnosis(condition=Condition.NEVER_SEEN, since=since, indications=(never_ran,))
    indications = tuple(_indications(context))
    # NVIDIA's program reads the pid file, which any user may write (measured, R580): both are one indication.
    independent = len(indications) - all(each in indications for each in _OF_THE_PID_FILE)
    sure = daemon.lifecycle.unexplained_end_at is None and _no_quit(context) and independent >= _ENOUGH
    return Diagnosis(condition=Condition.CRASHED if sure else Condition.UNKNOWN, since=since, indications=indications)


def _stopped(context: Context) -> Reason | None:
    """Return what indicates that an operator stopped the daemon; None if nothing does."""
    daemon, unit = context.daemon, _of_its_end(context)
    if unit is not None and process_states.stays_away(unit):
        ended = unit.result == "success"
        return Reason(ReasonCode.UNIT_ENDED if ended else ReasonCode.UNIT_STOP_TIMED_OUT, unit=unit.unit)
    if daemon.state is DaemonState.STOPPED:
        return Reason(ReasonCode.QUIT_RECEIVED)
    # After a quit the pid file goes, after SIGKILL it stays (measured, R580); the log, where it was read, knows better.
    if (
        daemon.lifecycle.pid_file_left is False
        and daemon.lifecycle.unexplained_end_at is None
        and not _log_tells(context)
        and _ever_lived(context)
    ):
        return Reason(ReasonCode.NO_PID_FILE_LEFT)
    if context.watch.stopped_at is not None:
        return Reason(ReasonCode.NOT_STARTED_SINCE_STOP)
    return None


def _ever_lived(context: Context) -> bool:
    watch = context.watch
    return context.daemon.lifecycle.ever_ran or watch.process is not None or watch.healthy_since is not None


def _indications(context: Context) -> Iterator[Reason]:
    daemon, process = context.daemon, context.watch.process
    if daemon.lifecycle.ever_ran and process is not None:
        yield Reason(ReasonCode.PROCESS_GONE, pid=process.pid)
    if daemon.lifecycle.not_found_at is not None and daemon.lifecycle.not_found_at >= (
        daemon.lifecycle.state_since or 0.0
    ):
        yield _NOT_FOUND
    if _log_tells(context):
        yield Reason(ReasonCode.LOG_ENDS_WITHOUT_QUIT)
    if daemon.commands.listening is False:
        yield Reason(ReasonCode.NO_LISTENER)
    if daemon.lifecycle.pid_file_left:
        yield _LEFT_BEHIND
    unit = _of_its_end(context)
    if unit is not None and unit.active == "failed":
        yield Reason(ReasonCode.UNIT_FAILED, unit=unit.unit, text=unit.result)
    if unit is not None and unit.sub == "auto-restart":
        yield Reason(ReasonCode.UNIT_RESTARTING, unit=unit.unit)


def _log_tells(context: Context) -> bool:
    """Whether the end was seen while its log was followed, which would have told of a quit."""
    return context.daemon.log_followed and _lost(context.daemon)


def _no_quit(context: Context) -> bool:
    """Whether that end was no quit: of one that nobody saw, as while the exporter was not there, traces must tell."""
    unit = _of_its_end(context)
    failed = unit is not None and unit.active == "failed"
    return _lost(context.daemon) or bool(context.daemon.lifecycle.pid_file_left) or failed


def _lost(daemon: Daemon) -> bool:
    """Whether its end was seen, and no quit."""
    return daemon.lifecycle.last_loss_at is not None and daemon.lifecycle.last_loss_at >= (
        daemon.lifecycle.state_since or 0.0
    )


def _of_its_end(context: Context) -> UnitState | None:
    """What systemd told of its unit since."""
    unit = context.unit
    told = unit is not None and unit.problem is None and unit.at >= (context.daemon.lifecycle.state_since or 0.0)
    return unit if told and context.ran_in_unit else None


_STANDING_SECONDS = 1.0
"""A server that was stopped for less than this may have been so by a debugger, or at one look."""

_HUNG = frozenset({Condition.UNRESPONSIVE, Condition.SUSPENDED})
_WAITED_FOR = frozenset({Condition.SERVER_SUSPENDED, Condition.SERVER_UNRESPONSIVE, Condition.STUCK_IN_DRIVER})
_TRIFLES = frozenset({None, *HARMLESS})


def diagnosed(context: Context) -> Evaluated:
    """The watch with its diagnosis; an event where that is news."""
    before = context.watch.diagnosis
    found = _continued(context, _found(context), before)
    if found == before:
        return context.watch, ()
    watch = _stopping(replace(context.watch, diagnosis=found), found, context)
    was = None if before is None else before.condition
    trifle = was in _TRIFLES and found.condition in _TRIFLES
    same = before is not None and (was, before.process) == (found.condition, found.process)
    return watch, () if trifle or same else (_told(context, found),)


def _continued(context: Context, found: Diagnosis, before: Diagnosis | None) -> Diagnosis:
    """One that hangs may be found to be stopped, or the other way round: that is the same matter.

    One that only waited for another process hangs by itself from now on, if it does: it may not have been asked since.
    Lines of its log change nothing: every user can write them (measured, R580).
    """
    if found.condition not in _HUNG or before is None:
        return found
    if before.condition in _WAITED_FOR:
        return replace(found, since=context.at)
    return replace(found, since=before.since) if before.condition in _HUNG else found


def _stopping(watch: WatchdogState, found: Diagnosis, context: Context) -> WatchdogState:
    """An operator's stop is remembered until the daemon lives again."""
    if found.condition is Condition.STOPPED:
        return replace(watch, stopped_at=found.since)
    alive = context.daemon.state is not None and not context.daemon.ended
    return replace(watch, stopped_at=None) if alive else watch


def _told(context: Context, found: Diagnosis) -> Event:
    return Event(
        at=context.at,
        event=EventName.DAEMON_DIAGNOSED,
        daemon=context.daemon.name,
        server=found.server,
        pid=None if found.process is None else found.process.pid,
        state=found.condition,
        reason=found.indications[0] if found.indications else None,
        indications=found.indications or None,
    )


def _found(context: Context) -> Diagnosis:
    """The gravest that there is."""
    if context.daemon.ended:
        return exit_diagnosis(context)
    return (
        _suspended(context)
        or _stuck(context)
        or _server_suspended(context)
        or _server_unresponsive(context)
        or _unresponsive(context)
        or _program_unresponsive(context)
        or _held(context)
        or _fault(context)
        or _crash_loop(context)
        or _sound(context)
    )


def _suspended(context: Context) -> Diagnosis | None:
    daemon, state = context.daemon, process_states.of_daemon(context.node, context.daemon)
    if state is None or not process_states.is_suspended(state) or not _silent(daemon):
        return None
    return Diagnosis(
        condition=Condition.SUSPENDED,
        since=min(state.at, daemon.commands.unanswered_since or state.at),
        indications=(
            Reason(ReasonCode.PROCESS_SUSPENDED, pid=state.pid, state=state.state),
            Reason(ReasonCode.DAEMON_UNANSWERING),
        ),
        process=identity_of(state),
    )


def _stuck(context: Context) -> Diagnosis | None:
    """A short sleep in the kernel is nothing; one beside a daemon that answers nobody is what it waits for."""
    daemon = context.daemon
    if daemon.state is not DaemonState.UNRESPONSIVE:
        return None
    states = (process_states.of_daemon(context.node, daemon), *_states_of_servers(context))
    asleep = next(filter(process_states.is_stuck, states), None)
    if asleep is None:
        return None
    return Diagnosis(
        condition=Condition.STUCK_IN_DRIVER,
        since=asleep.at,
        indications=(
            Reason(ReasonCode.PROCESS_STUCK_IN_KERNEL, pid=asleep.pid, wait_channel=asleep.wait_channel),
            Reason(ReasonCode.DAEMON_UNANSWERING),
        ),
        process=identity_of(asleep),
        server=asleep.pid if asleep.pid in daemon.servers else None,
    )


def _server_suspended(context: Context) -> Diagnosis | None:
    stopped = filter(process_states.is_suspended, _states_of_servers(context))
    state = min(stopped, key=lambda each: each.at, default=None)
    if state is None or context.at - state.at < _STANDING_SECONDS:
        return None
    daemon = ReasonCode.DAEMON_UNANSWERING if _silent(context.daemon) else ReasonCode.DAEMON_NOT_WAITING
    return Diagnosis(
        condition=Condition.SERVER_SUSPENDED,
        since=state.at,
        indications=(
            Reason(ReasonCode.SERVER_SUSPENDED, server=state.pid, state=state.state),
            Reason(daemon),
        ),
        process=identity_of(state),
        server=state.pid,
    )


def _server_unresponsive(context: Context) -> Diagnosis | None:
    """A daemon that asks a server which does not answer hangs with it (measured, R580).

    To restart it would end every other client, and that server is what hangs. Only a command of the exporter itself
    shows which server that is (`Daemon.waits_for`): the log is written by every user.
    """
    daemon, server = context.daemon, context.daemon.commands.waits_for_server
    silent = daemon.state is DaemonState.UNRESPONSIVE and daemon.commands.unanswered_since is not None
    if not silent or server is None or server not in daemon.servers:
        return None
    process = context.node.processes.get(server)
    return Diagnosis(
        condition=Condition.SERVER_UNRESPONSIVE,
        since=min(daemon.lifecycle.state_since or context.at, daemon.commands.unanswered_since or context.at),
        indications=(
            Reason(ReasonCode.COMMANDS_UNANSWERED),
            Reason(ReasonCode.SERVER_QUERIED, server=server),
        ),
        process=None if process is None else identity_of(process),
        server=server,
    )


def _unresponsive(context: Context) -> Diagnosis | None:
    """Two commands and a second indication have made it so (`state/hang_detection.py`)."""
    daemon = context.daemon
    if daemon.state is not DaemonState.UNRESPONSIVE:
        return None
    return Diagnosis(
        condition=Condition.UNRESPONSIVE,
        since=min(daemon.lifecycle.state_since or context.at, daemon.commands.unanswered_since or context.at),
        indications=(Reason(ReasonCode.COMMANDS_UNANSWERED), *_signs_of_a_hang(daemon)),
    )


def _signs_of_a_hang(daemon: Daemon) -> Iterator[Reason]:
    """Yield further indications. What the log ends with is a hint, and no more."""
    known = probes(daemon)
    if daemon.runtime.process is not None:
        yield Reason(ReasonCode.PROCESS_ALIVE, pid=daemon.runtime.process.pid)
    if known is not None and known.unanswered:
        yield Reason(ReasonCode.CONNECTIONS_UNANSWERED, wait_channel=known.wait_channel)
    if daemon.commands.listening is False:
        yield Reason(ReasonCode.NO_LISTENER)
    hint = servers_queried(daemon.log.last_command or "", daemon.servers)
    if len(hint) == 1:
        yield Reason(ReasonCode.LOG_ENDS_WITH_QUERY, server=next(iter(hint)))


def _program_unresponsive(context: Context) -> Diagnosis | None:
    """Commands go through the control program: if the daemon answers without it, the program is at fault."""
    daemon = context.daemon
    if not hang_detection.program_hangs(daemon, context.at):
        return None
    return Diagnosis(
        condition=Condition.PROGRAM_UNRESPONSIVE,
        since=daemon.commands.unanswered_since or context.at,
        indications=(Reason(ReasonCode.PROGRAM_UNANSWERED), Reason(ReasonCode.CONNECTIONS_ANSWERED)),
    )


def _held(context: Context) -> Diagnosis | None:
    daemon, holder = context.daemon, context.daemon.commands.session_holder
    if daemon.state is not DaemonState.HELD:
        return None
    refused = Reason(ReasonCode.COMMANDS_REFUSED)
    found = Diagnosis(
        condition=Condition.HELD, since=daemon.lifecycle.state_since or context.at, indications=(refused,)
    )
    process = identity_of(holder)
    if holder is None or process is None:
        return found
    who = Reason(ReasonCode.SESSION_OPEN, pid=holder.pid, user=holder.user, uid=None if holder.user else holder.uid)
    return replace(found, indications=(who, refused), process=process)


def _fault(context: Context) -> Diagnosis | None:
    incident = next(iter(faults(context)), None)
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


def faults(context: Context) -> Iterable[Incident]:
    """The daemon's faults that are not over, the eldest first, as far as their servers are known to be in one."""
    servers = context.daemon.servers
    for each in context.node.incidents.values():
        ill = each.server in servers and servers[each.server].state is ServerState.FAULT
        if each.open and each.daemon == context.daemon.name and ill:
            yield each


def _crash_loop(context: Context) -> Diagnosis | None:
    starts = context.daemon.connections.failed_starts
    if (
        not starts.reported
        or starts.last_exit_at is None
        or context.at - starts.last_exit_at > state_servers.CEASED_SECONDS
    ):
        return None
    return Diagnosis(
        condition=Condition.CRASH_LOOP,
        since=starts.started_at[0],
        indications=(
            Reason(ReasonCode.SERVERS_EXITED_EARLY, count=len(starts.started_at)),
            Reason(ReasonCode.NO_SERVER_STARTED),
        ),
    )


def _sound(context: Context) -> Diagnosis:
    daemon = context.daemon
    condition = Condition.UNKNOWN
    if context.lives:
        condition = Condition.WELL
    elif daemon.state is DaemonState.STARTING:
        condition = Condition.STARTING
    return Diagnosis(condition=condition, since=daemon.lifecycle.state_since or context.at)


def _silent(daemon: Daemon) -> bool:
    return daemon.state is DaemonState.UNRESPONSIVE or daemon.commands.unanswered_since is not None


def _states_of_servers(context: Context) -> list[ProcessState]:
    """How those stand whose process is known: of another, the PID may have passed on."""
    known = (pid for pid in context.daemon.servers if pid in context.node.processes)
    return [state for pid in known if (state := process_states.of_server(context.node, pid)) is not None]
