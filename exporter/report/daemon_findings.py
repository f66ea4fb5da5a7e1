"""What is wrong with each control daemon, what the watchdog does about it, and what an operator can do."""

from collections.abc import Iterable
from dataclasses import replace

from exporter.model.daemon import Daemon, DaemonState
from exporter.model.node import Node
from exporter.model.settings import Mode
from exporter.model.watchdog import HARMLESS, Condition, Quarantine, WatchdogPhase, WatchdogState
from exporter.parse.control_reply import LIST_SERVERS
from exporter.parse.printable import printable
from exporter.report import remedy
from exporter.report.finding import Finding
from exporter.report.problem import FindingCode
from exporter.report.problem_text import problem_text
from exporter.report.problems import OF_BLOCK, OF_CONDITION, OF_WATCH_STATE, Situation
from exporter.report.remedy import (
    DOCTOR,
    address_of,
    command_to_resume,
    commands_to_restart,
    control_command,
    start_commands_of,
)
from exporter.report.text import counted
from exporter.report.watchdog_text import Account, account, history_of
from exporter.state.control_replies import CONTROL
from exporter.state.hang_detection import STARTING_SECONDS
from exporter.view import View
from exporter.watchdog.context import Policy

_SUSPENDED = (WatchdogPhase.CIRCUIT_OPEN, WatchdogPhase.STATE_LOST)
"""The watchdog restarts nothing until an operator runs `resume`."""


def daemon_findings(node: Node, at: float, policy: Policy | None) -> Iterable[Finding]:
    """Return the problems of all daemons; of one daemon, the most telling."""
    for daemon in View(node).daemons():
        watch = node.watches.get(daemon.name, WatchdogState())
        if watch.quarantine is not None:
            yield _quarantined(node, at, daemon, watch.quarantine, policy)
        held_by = None if policy is None or not daemon.declared.expected else policy.lock_problem(daemon)
        if policy is not None and held_by is not None and policy.configured_mode_of(daemon) is Mode.ACT:
            yield Finding(code=OF_BLOCK[held_by], at=at, daemon=daemon.name)
        found = _found(node, at, daemon, watch, policy)
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


def _found(node: Node, at: float, daemon: Daemon, watch: WatchdogState, policy: Policy | None) -> Finding | None:
    known = account(node, daemon)
    if daemon.runtime.foreign_owner is not None:
        values = {"uid": str(daemon.runtime.foreign_owner), "directory": printable(daemon.pipe_directory)}
        return Finding(code=FindingCode.FOREIGN_DIRECTORY, at=at, daemon=daemon.name, values=values)
    if daemon.state is not DaemonState.UP:
        return _not_up(node, at, daemon, watch, policy)
    if watch.quarantine is not None:
        return None
    if _condition(watch) is Condition.PROGRAM_UNRESPONSIVE:
        # Clients are not affected; lists of them, limits and servers' states are as old as the last answer.
        run = control_command(LIST_SERVERS, address_of(node, daemon.name, policy), deadline=10)
        return Finding(
            code=FindingCode.CONTROL_PROGRAM_HUNG,
            at=at,
            since=daemon.commands.unanswered_since,
            daemon=daemon.name,
            commands=() if run is None else (run,),
        )
    if known is not None and known.ill and not known.of_fault:
        code = _code(node, at, daemon, watch)
        since = _since(node, at, daemon, watch, code)
        return _watched(Finding(code=code, at=at, since=since, daemon=daemon.name), daemon, watch, known, policy)
    if watch.phase in _SUSPENDED:
        since = watch.circuit_opened_at if watch.phase is WatchdogPhase.CIRCUIT_OPEN else watch.state_lost_at
        code = OF_WATCH_STATE[watch.phase]
        return Finding(code=code, at=at, since=since, daemon=daemon.name, commands=_resume(daemon))
    if daemon.connections.waiting:
        waiting = {"clients": counted(len(daemon.connections.waiting), "client")}
        return Finding(code=FindingCode.CLIENTS_WAITING, at=at, daemon=daemon.name, values=waiting)
    return None


def _quarantined(node: Node, at: float, daemon: Daemon, quarantine: Quarantine, policy: Policy | None) -> Finding:
    return Finding(
        code=FindingCode.QUARANTINED,
        at=at,
        since=quarantine.at,
        daemon=daemon.name,
        gpu=quarantine.gpu,
        values={"cause": remedy.cause(node, quarantine)},
        steps=remedy.steps(node, quarantine.gpu, quarantine.action, daemon, policy),
    )


def _not_up(node: Node, at: float, daemon: Daemon, watch: WatchdogState, policy: Policy | None) -> Finding:
    code = _code(node, at, daemon, watch)
    found = Finding(code=code, at=at, since=_since(node, at, daemon, watch, code), daemon=daemon.name)
    unasked, known = _not_asked(node, daemon), account(node, daemon)
    if unasked is not None:
        problem = unasked
        of_this = code is FindingCode.DAEMON_NOT_QUERIED
        return replace(
            found,
            values={"problem": problem},
            notes=(*history_of(watch), *(() if of_this else (f"it cannot be queried: {problem}",))),
            situation=Situation.CANNOT_QUERY,
            commands=(DOCTOR,),
        )
    commands = _brings_back(node, daemon, watch, policy)
    if known is not None and known.says is not None:
        return _watched(replace(found, commands=commands), daemon, watch, known, policy)
    values = {} if daemon.runtime.process is None else {"pid": str(daemon.runtime.process.pid)}
    doctor = (DOCTOR,) if code is FindingCode.DAEMON_STATE_UNKNOWN else ()
    unsupported = Situation.UNSUPPORTED if code is FindingCode.DAEMON_UNSUPPORTED else None
    return replace(
        found, values=values, notes=tuple(history_of(watch)), situation=unsupported, commands=commands or doctor
    )


def _watched(found: Finding, daemon: Daemon, watch: WatchdogState, known: Account, policy: Policy | None) -> Finding:
    """Return the finding with what the watchdog does about it, or would do."""
    situation = None
    if known.says is not None:
        idle = Situation.WATCHDOG_OBSERVES if known.planned else Situation.WATCHDOG_REPORTS
        situation = idle if watch.phase is WatchdogPhase.IDLE else Situation.WATCHDOG_ACTS
    values = {} if known.says is None else {"watchdog": known.says}
    return replace(found, values=values, notes=tuple(history_of(watch)), situation=situation)


def _condition(watch: WatchdogState) -> Condition | None:
    return None if watch.diagnosis is None else watch.diagnosis.condition


def _code(node: Node, at: float, daemon: Daemon, watch: WatchdogState) -> FindingCode:
    """Return the problem of its diagnosis, or else of its state."""
    condition = _condition(watch)
    if daemon.pid_file_spoilt:
        return FindingCode.PID_FILE_WRONG
    if not daemon.supported and not daemon.ended:
        return FindingCode.DAEMON_UNSUPPORTED
    if condition not in (None, Condition.FAULT, *HARMLESS):
        return OF_CONDITION[condition]
    match daemon.state:
        case DaemonState.ABSENT | DaemonState.STOPPED if not daemon.declared.expected:
            return FindingCode.DAEMON_ENDED
        case DaemonState.ABSENT:
            return FindingCode.DAEMON_DEAD
        case DaemonState.STOPPED:
            return FindingCode.DAEMON_STOPPED
        case DaemonState.UNRESPONSIVE:
            return FindingCode.DAEMON_HUNG
        case DaemonState.HELD:
            return FindingCode.DAEMON_HELD
        case DaemonState.STARTING:
            return FindingCode.DAEMON_STARTING
    if _not_asked(node, daemon) is not None:
        return FindingCode.DAEMON_NOT_QUERIED
    return FindingCode.DAEMON_UNKNOWN if _unknown_since(node, daemon, at) is None else FindingCode.DAEMON_STATE_UNKNOWN


def _since(node: Node, at: float, daemon: Daemon, watch: WatchdogState, code: FindingCode) -> float | None:
    found = watch.diagnosis
    if found is not None and OF_CONDITION[found.condition] is code:
        return found.since
    return _unknown_since(node, daemon, at) if daemon.state is None else daemon.lifecycle.state_since


def _not_asked(node: Node, daemon: Daemon) -> str | None:
    """Return what prevents a query of a daemon that is gone or whose state is unknown; None if nothing does."""
    source = node.sources.get(CONTROL)
    if source is None or not daemon.supported or daemon.pid_file_spoilt:
        return None
    problem = source.problems.get(daemon.name)
    return problem_text(problem, CONTROL) if problem is not None and (daemon.ended or daemon.state is None) else None


def _unknown_since(node: Node, daemon: Daemon, at: float) -> float | None:
    """Return since when its state is unknown; None for as long as a daemon may take to start, or to answer."""
    if daemon.state is not None or not daemon.supported:
        return None
    since = (daemon.commands.unanswered_since, daemon.lifecycle.state_since, node.began_at)
    began = next((each for each in since if each is not None), at)
    return began if at - began > STARTING_SECONDS else None


def _brings_back(node: Node, daemon: Daemon, watch: WatchdogState, policy: Policy | None) -> tuple[str, ...]:
    """Return the command that starts a daemon that is gone; none while the watchdog is restarting it."""
    if not daemon.declared.expected or not daemon.ended or watch.quarantine is not None:
        return ()
    if watch.phase in _SUSPENDED:
        return _resume(daemon)
    return start_commands_of(node, daemon, policy) if watch.phase is WatchdogPhase.IDLE else ()


def _resume(daemon: Daemon) -> tuple[str, ...]:
    command = command_to_resume(daemon.name)
    return () if command is None else (command,)
