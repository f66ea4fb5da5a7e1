"""The problems of each control daemon, what the watchdog does about them, and what an operator can do."""

from collections.abc import Iterable
from dataclasses import replace

from exporter.model.daemon import Daemon, DaemonState
from exporter.model.node import Node
from exporter.model.settings import Mode
from exporter.model.watchdog import HARMLESS, Condition, WatchdogPhase, WatchdogState
from exporter.parse.control_reply import list_servers
from exporter.parse.printable import printable
from exporter.report.finding import Finding
from exporter.report.problem import FindingCode
from exporter.report.problems import BLOCK_CODES, CONDITION_CODES, PHASE_CODES, Situation, of_phase
from exporter.report.reasons import reason_text
from exporter.report.remedy import (
    DOCTOR,
    address_of,
    command_to_resume,
    commands_to_restart,
    commands_to_signal,
    commands_to_start,
    control_command,
    quarantine_cause,
    recovery_steps,
)
from exporter.report.text import counted, failed_starts_text
from exporter.report.watchdog_text import WatchdogSummary, history_of, watchdog_summary
from exporter.state import servers
from exporter.state.control_replies import CONTROL
from exporter.state.hang_detection import STARTING_SECONDS
from exporter.view import View
from exporter.watchdog.context import Policy

_SUSPENDED = (WatchdogPhase.CIRCUIT_OPEN, WatchdogPhase.STATE_LOST)
"""The watchdog restarts nothing until an operator runs `resume`, and no GPU is quarantined."""

_STATE_CODES = {
    DaemonState.ABSENT: FindingCode.DAEMON_DEAD,
    DaemonState.STOPPED: FindingCode.DAEMON_STOPPED,
    DaemonState.UNRESPONSIVE: FindingCode.DAEMON_HUNG,
    DaemonState.HELD: FindingCode.DAEMON_HELD,
    DaemonState.STARTING: FindingCode.DAEMON_STARTING,
}


def daemon_findings(node: Node, at: float, policy: Policy | None) -> Iterable[Finding]:
    """Yield the problems of all daemons. A daemon's own state gives one problem, the most specific one."""
    for daemon in View(node).daemons():
        watch = node.watches.get(daemon.name, WatchdogState())
        if watch.quarantine is not None:
            yield Finding(
                code=FindingCode.QUARANTINED,
                at=at,
                since=watch.quarantine.at,
                daemon=daemon.name,
                gpu=watch.quarantine.gpu,
                values={"cause": quarantine_cause(node, watch.quarantine)},
                situation=Situation.STEPS_FOLLOW,
                steps=recovery_steps(node, watch.quarantine.gpu, watch.quarantine.action, daemon, policy),
            )
        block = None if policy is None or not daemon.declared.expected else policy.lock_problem(daemon)
        if policy is not None and block is not None and policy.configured_mode_of(daemon) is Mode.ACT:
            yield Finding(code=BLOCK_CODES[block], at=at, daemon=daemon.name)
        found = _state_finding(node, at, daemon, watch, policy)
        if found is not None:
            yield found
        if daemon.log.own_commands.blocked_since is not None:
            yield Finding(
                code=FindingCode.LOG_BLOCKED,
                at=at,
                since=daemon.log.own_commands.blocked_since,
                daemon=daemon.name,
                commands=commands_to_restart(node, daemon, policy),
            )


def _state_finding(
    node: Node, at: float, daemon: Daemon, watch: WatchdogState, policy: Policy | None
) -> Finding | None:
    name, summary = daemon.name, watchdog_summary(node, daemon)
    if daemon.runtime.foreign_owner is not None:
        values = {"uid": str(daemon.runtime.foreign_owner), "directory": printable(daemon.pipe_directory)}
        return Finding(code=FindingCode.FOREIGN_DIRECTORY, at=at, daemon=name, values=values)
    if daemon.state is not DaemonState.UP:
        return _not_up(node, at, daemon, watch, policy, summary)
    if watch.quarantine is not None:
        return None
    if watch.diagnosis is not None and watch.diagnosis.condition is Condition.PROGRAM_UNRESPONSIVE:
        # Clients are not affected; lists of them, limits and servers' states are as old as the last answer.
        run = control_command(list_servers(daemon.runtime.protocol), address_of(node, name, policy), deadline=10)
        return Finding(
            code=FindingCode.CONTROL_PROGRAM_HUNG,
            at=at,
            since=daemon.commands.unanswered_since,
            daemon=name,
            commands=() if run is None else (run,),
        )
    if summary is not None and summary.problem and not summary.fault:
        code = _code(node, at, daemon, watch)
        commands, since = commands_to_signal(node, watch.diagnosis), _since(node, at, daemon, watch, code)
        if code is FindingCode.SERVER_CRASH_LOOP:
            return _with_watchdog(_crash_loop(at, daemon), watch, summary)
        return _with_watchdog(Finding(code=code, at=at, since=since, daemon=name, commands=commands), watch, summary)
    if watch.phase in _SUSPENDED:
        since = watch.circuit_opened_at if watch.phase is WatchdogPhase.CIRCUIT_OPEN else watch.state_lost_at
        return Finding(code=PHASE_CODES[watch.phase], at=at, since=since, daemon=name, commands=_resume(daemon))
    if servers.in_crash_loop(daemon, at):
        return _crash_loop(at, daemon)
    if daemon.connections.waiting:
        waiting = {"clients": counted(len(daemon.connections.waiting), "client")}
        return Finding(code=FindingCode.CLIENTS_WAITING, at=at, daemon=name, values=waiting)
    return None


def _crash_loop(at: float, daemon: Daemon) -> Finding:
    failed = daemon.connections.failed_starts
    return Finding(
        code=FindingCode.SERVER_CRASH_LOOP,
        at=at,
        since=failed.started_at[0],
        daemon=daemon.name,
        values={"failed": failed_starts_text(failed)},
        commands=(DOCTOR,),
    )


def _not_up(
    node: Node,
    at: float,
    daemon: Daemon,
    watch: WatchdogState,
    policy: Policy | None,
    summary: WatchdogSummary | None,
) -> Finding:
    code = _code(node, at, daemon, watch)
    found = Finding(code=code, at=at, since=_since(node, at, daemon, watch, code), daemon=daemon.name)
    problem = _query_problem(node, daemon)
    if problem is not None:
        cannot_query = () if code is FindingCode.DAEMON_NOT_QUERIED else (f"it cannot be queried: {problem}",)
        return replace(
            found,
            values={"problem": problem},
            notes=(*history_of(watch), *cannot_query),
            situation=Situation.CANNOT_QUERY,
            commands=(DOCTOR,),
        )
    commands = commands_to_signal(node, watch.diagnosis)
    acts = policy is not None and policy.mode_of(daemon) is Mode.ACT
    if daemon.declared.expected and daemon.ended and watch.quarantine is None:
        if watch.phase in _SUSPENDED:
            commands = (*_resume(daemon), *(() if acts else commands_to_start(node, daemon, policy)))
        elif watch.phase is WatchdogPhase.IDLE:
            commands = commands_to_start(node, daemon, policy)
    elif code is FindingCode.DAEMON_HUNG and not acts:
        commands = commands_to_restart(node, daemon, policy)
    if summary is not None and summary.action is not None:
        return _with_watchdog(replace(found, commands=commands), watch, summary)
    if code is FindingCode.DAEMON_STATE_UNKNOWN:
        commands = commands or (DOCTOR,)
    return replace(
        found,
        values={} if daemon.runtime.process is None else {"pid": str(daemon.runtime.process.pid)},
        notes=tuple(history_of(watch)),
        situation=Situation.UNSUPPORTED if code is FindingCode.DAEMON_UNSUPPORTED else None,
        commands=commands,
    )


def _with_watchdog(found: Finding, watch: WatchdogState, summary: WatchdogSummary) -> Finding:
    """Return the finding with what the watchdog does about it, or would do."""
    notes = tuple(history_of(watch))
    if summary.action is None:
        return replace(found, notes=notes)
    situation = Situation.WATCHDOG_OBSERVES if summary.observes else Situation.WATCHDOG_REPORTS
    if watch.phase is not WatchdogPhase.IDLE:
        situation = Situation.RESTARTS_SUSPENDED if watch.phase in _SUSPENDED else Situation.WATCHDOG_ACTS
    values = {**found.values, "watchdog": summary.action, "cause": of_phase(watch.phase).remedy}
    return replace(found, values=values, notes=notes, situation=situation)


def _code(node: Node, at: float, daemon: Daemon, watch: WatchdogState) -> FindingCode:
    """Return the problem of its diagnosis, or else of its state."""
    condition = None if watch.diagnosis is None else watch.diagnosis.condition
    if daemon.pid_file_spoilt:
        return FindingCode.PID_FILE_WRONG
    if not daemon.supported and not daemon.ended:
        return FindingCode.DAEMON_UNSUPPORTED
    if condition not in (None, Condition.FAULT, *HARMLESS):
        return CONDITION_CODES[condition]
    if daemon.ended and not daemon.declared.expected:
        return FindingCode.DAEMON_ENDED
    if daemon.state in _STATE_CODES:
        return _STATE_CODES[daemon.state]
    if _query_problem(node, daemon) is not None:
        return FindingCode.DAEMON_NOT_QUERIED
    return FindingCode.DAEMON_UNKNOWN if _unknown_since(node, daemon, at) is None else FindingCode.DAEMON_STATE_UNKNOWN


def _since(node: Node, at: float, daemon: Daemon, watch: WatchdogState, code: FindingCode) -> float | None:
    found = watch.diagnosis
    if found is not None and CONDITION_CODES[found.condition] is code:
        return found.since
    return _unknown_since(node, daemon, at) if daemon.state is None else daemon.lifecycle.state_since


def _query_problem(node: Node, daemon: Daemon) -> str | None:
    """Return what prevents a query of a daemon that has ended or is in an unknown state; None if nothing does."""
    source = node.sources.get(CONTROL)
    if source is None or not daemon.supported or daemon.pid_file_spoilt:
        return None
    problem = source.problems.get(daemon.name)
    return reason_text(problem, CONTROL) if problem is not None and (daemon.ended or daemon.state is None) else None


def _unknown_since(node: Node, daemon: Daemon, at: float) -> float | None:
    """Return since when its state is unknown; None for as long as a daemon may take to start, or to answer."""
    if daemon.state is not None or not daemon.supported:
        return None
    since = (daemon.commands.unanswered_since, daemon.lifecycle.state_since, node.began_at)
    began = next((each for each in since if each is not None), at)
    return began if at - began > STARTING_SECONDS else None


def _resume(daemon: Daemon) -> tuple[str, ...]:
    command = command_to_resume(daemon.name)
    return () if command is None else (command,)
