"""Problems of daemons and their servers, with what the watchdog does about them."""

from collections.abc import Iterable
from itertools import chain
from typing import Any

from exporter.model.daemon import Daemon, DaemonState
from exporter.model.identity import identity_of
from exporter.model.incident import IncidentKind
from exporter.model.node import CollectorName, Node
from exporter.model.settings import Mode
from exporter.model.values import replace
from exporter.model.watchdog import HARMLESS, Condition, WatchdogPhase, WatchdogState
from exporter.parse.printable import printable
from exporter.report.document import ManualStep
from exporter.report.finding import Finding, observed
from exporter.report.incident_findings import (
    FIND_CAUSE,
    RESTART_ENDED,
    affected_clients,
    ended_clients,
    last_death,
    of_clients,
)
from exporter.report.problems import (
    BLOCK_PROBLEMS,
    CONDITION_PROBLEMS,
    PHASE_PROBLEMS,
    DaemonProblem,
    NodeProblem,
    Problem,
    Situation,
)
from exporter.report.process_status import described
from exporter.report.reasons import reason_text, texts_of
from exporter.report.remedy import (
    DOCTOR,
    MOST_GROUPED,
    address_of,
    clients_beside,
    commands_to_restart,
    commands_to_resume,
    commands_to_signal,
    control_command,
    gpu_text,
    is_living,
    known,
    last_log_lines,
    quarantine_cause,
    recovery_steps,
    signal,
    step_to_rerun,
    step_to_start,
)
from exporter.report.text import counted, duration_text, failed_starts_text, mebibytes
from exporter.report.watchdog_text import MOST_INDICATIONS, history_of, outlook
from exporter.state import servers
from exporter.state.devices import serves_gpu
from exporter.state.lifecycle import STARTING_SECONDS
from exporter.state.processes import is_suspended, pids_to_end, state_of_daemon
from exporter.usage.lasting import FULL_RATIO
from exporter.view import View, clients_of
from exporter.watchdog.context import Policy

_SUSPENDED = (WatchdogPhase.CIRCUIT_OPEN, WatchdogPhase.STATE_LOST)
"""The watchdog restarts nothing until an operator runs `resume`, and no GPU is quarantined."""

_RESTARTING = (WatchdogPhase.ACTING, WatchdogPhase.BACKOFF, WatchdogPhase.DEFERRED_TO_SYSTEMD)

STATE_PROBLEMS = {state: DaemonProblem[f"DAEMON_{state.name}"] for state in DaemonState if state is not DaemonState.UP}

_WAIT = ManualStep(text="Wait for the restart.")


def daemon_findings(node: Node, at: float, policy: Policy | None) -> Iterable[Finding]:
    """Yield the problems of all daemons. A daemon's own state gives one problem, the most specific one."""
    for daemon in View(node).present():
        watch = node.watches.get(daemon.name, WatchdogState())
        if watch.quarantine is not None:
            yield Finding(
                DaemonProblem.QUARANTINED,
                since=watch.quarantine.at,
                daemon=daemon.name,
                gpu=watch.quarantine.gpu,
                values={"cause": quarantine_cause(node, watch.quarantine)},
                **of_clients(node, daemon.clients, "connected client"),
                steps=recovery_steps(node, watch.quarantine.gpu, watch.quarantine.action, daemon, policy),
            )
        block = None if policy is None or not daemon.declared.expected else policy.lock_problem(daemon)
        if policy is not None and block is not None and policy.configured_mode_of(daemon) is Mode.ACT:
            yield Finding(BLOCK_PROBLEMS[block], daemon=daemon.name)
        finding = _state_finding(node, at, daemon, watch, policy)
        if finding is not None and (daemon.ended or not daemon.has_lost_directory):
            yield finding
        since = daemon.log.own_commands.blocked_since
        if since is not None:
            commands, ends = commands_to_restart(node, daemon, policy), clients_beside(node, daemon, policy)
            step = ManualStep(text=NodeProblem.LOG_BLOCKED.definition.remedy, commands=commands, ends=ends)
            yield Finding(NodeProblem.LOG_BLOCKED, since=since, daemon=daemon.name, affected="no client", steps=(step,))


def _state_finding(
    node: Node, at: float, daemon: Daemon, watch: WatchdogState, policy: Policy | None
) -> Finding | None:
    name, diagnosis = daemon.name, watch.diagnosis
    condition = None if diagnosis is None else diagnosis.condition
    if daemon.runtime.foreign_owner is not None:
        values = {"uid": str(daemon.runtime.foreign_owner), "directory": printable(daemon.pipe_directory)}
        return Finding(DaemonProblem.FOREIGN_DIRECTORY, daemon=name, values=values)
    if daemon.state is not DaemonState.UP:
        if daemon.lifecycle.unexplained_end_at is not None and not daemon.declared.expected and daemon.ended:
            return None  # It may have been stopped, or may have ended with its job.
        return _not_up(node, at, daemon, watch, policy)
    if watch.quarantine is not None:
        return None
    if condition is Condition.PROGRAM_UNRESPONSIVE:
        # Clients are not affected; lists of them, limits and servers' states are as old as the last answer.
        run = control_command(daemon.dialect.list_servers, address_of(node, name, policy), deadline=10)
        since = daemon.commands.unanswered_since
        return Finding(DaemonProblem.CONTROL_PROGRAM_UNRESPONSIVE, since=since, daemon=name, commands=known(run))
    if condition not in (None, Condition.FAULT, *HARMLESS):
        return _problem(node, at, daemon, watch, policy, CONDITION_PROBLEMS[condition])
    if watch.phase in _SUSPENDED:
        return Finding(
            PHASE_PROBLEMS[watch.phase],
            since=watch.circuit_opened_at if watch.phase is WatchdogPhase.CIRCUIT_OPEN else watch.state_lost_at,
            daemon=name,
            outlook=outlook(node, daemon, policy),
            steps=_steps_to_resume(daemon, watch),
        )
    if servers.in_crash_loop(daemon, at):
        return _problem(node, at, daemon, watch, policy, DaemonProblem.SERVER_CRASH_LOOP)
    return _waiting(node, at, daemon) if daemon.connections.waiting else None


def _waiting(node: Node, at: float, daemon: Daemon) -> Finding:
    """Return that clients wait, since when, and the clients of another user that occupy the server."""
    queued, waiting, known_processes = daemon.connections.queued, daemon.connections.waiting, node.processes
    uids, text = {queued.get(pid) for pid in waiting}, counted(len(waiting), "client")
    ages = {pid: duration_text(at - client.connected_at) for pid, client in sorted(daemon.clients.items())}
    others = [pid for pid in ages if pid not in known_processes or known_processes[pid].uid not in uids]
    ending = [pids for pid in others if (pids := pids_to_end(node, pid))]
    kill = known(signal("TERM", chain.from_iterable(ending)))
    end = ManualStep(text=NodeProblem.CLIENTS_WAITING.definition.remedy, commands=kill, ends=len(ending) or None)
    return Finding(
        NodeProblem.CLIENTS_WAITING,
        since=observed(node, min(waiting.values())),
        daemon=daemon.name,
        values={"clients": text},
        affected=text,
        affected_names=tuple(described(node, pid, queued.get(pid)) for pid in sorted(waiting)),
        facts=tuple(f"{described(node, pid)} occupies the server, connected for {ages[pid]}" for pid in others),
        steps=(end,),
    )


def _not_up(node: Node, at: float, daemon: Daemon, watch: WatchdogState, policy: Policy | None) -> Finding:
    problem = _problem_of(node, at, daemon, watch)
    found, query_problem = _problem(node, at, daemon, watch, policy, problem), _query_problem(node, daemon)
    if query_problem is None:
        return found
    cannot_query = () if problem is DaemonProblem.DAEMON_NOT_QUERIED else (f"it cannot be queried: {query_problem}",)
    step = ManualStep(text=Situation.CANNOT_QUERY.value, commands=(DOCTOR,))
    return replace(found, values={"problem": query_problem}, notes=(*found.notes, *cannot_query), steps=(step,))


def _problem(
    node: Node, at: float, daemon: Daemon, watch: WatchdogState, policy: Policy | None, problem: Problem
) -> Finding:
    """Return the problem with what indicates it, what happens by itself, and what to do."""
    values, facts, notes = dict[str, str](), tuple[str, ...](), history_of(watch)
    affected: dict[str, Any] = {}
    situation, commands = None, tuple[str, ...]()
    since = _since(node, at, daemon, watch, problem)
    match problem:
        case DaemonProblem.DAEMON_DOWN | DaemonProblem.DAEMON_ENDED:
            gpus = (each.reading for each in node.gpus.values())
            modes = {each.compute_mode for each in gpus if each.compute_mode and serves_gpu(node, daemon, each)}
            facts = (f"compute mode of its GPUs: {', '.join(sorted(modes)).upper()}",) if modes else ()
            ended_at, death = (
                daemon.lifecycle.last_loss_at or daemon.lifecycle.watchdog_ended_at,
                last_death(node, daemon),
            )
            if ended_at is None:
                since = observed(node, since) if death is None else death.started_at
            if (ended_at is not None or death is not None) and daemon.lifecycle.unexplained_end_at is None:
                affected = ended_clients(node, daemon)
                notes = (affected["affected"].replace("ended", "ended with it"), *notes)
        case DaemonProblem.DAEMON_UNRESPONSIVE:
            facts = (_process_state(node, daemon),)
            affected = of_clients(node, daemon.clients)
            ended = f"; a restart would end {affected['affected']}" if daemon.clients else ""
            affected["affected"] = f"new CUDA processes, which hang{ended}"
        case DaemonProblem.DAEMON_HELD:
            affected = {"affected": "commands to the daemon; new clients, if the process has sent nothing"}
        case DaemonProblem.PID_FILE_WRONG:
            values, facts = {"pid": str(daemon.pid)}, (f"write {daemon.pid} into it",)
        case DaemonProblem.DAEMON_UNSUPPORTED:
            protocol = printable(str(daemon.runtime.protocol))
            situation, facts = Situation.UNSUPPORTED, (f"MPS protocol {protocol} is unknown",)
        case DaemonProblem.DAEMON_STATE_UNKNOWN:
            commands = (DOCTOR,)
        case DaemonProblem.SERVER_CRASH_LOOP:
            failed = daemon.connections.failed_starts
            values, since = {"failed": failed_starts_text(failed)}, failed.started_at[0]
            facts = tuple(_causes_of_early_exits(node, daemon))
            affected = {"affected": "new clients; connected ones continue"}
            died = (each for each in node.incidents.values() if each.kind is IncidentKind.SERVER_DIED)
            for each in (each for each in died if each.daemon == daemon.name):
                ended = f"new clients, and {counted(len(each.affected), 'client')} that ended with the last server"
                affected = {"affected": ended, "affected_names": affected_clients(each, node)}
            if failed.last_exit_at is not None:
                facts = (f"the last server exited {duration_text(max(0.0, at - failed.last_exit_at))} ago", *facts)
    if watch.problem is not None:
        facts = (*facts, f"the last action of the watchdog failed: {reason_text(watch.problem)}")
    diagnosis = watch.diagnosis
    if diagnosis is not None and CONDITION_PROBLEMS[diagnosis.condition] is problem:
        if diagnosis.process is not None:
            facts = (described(node, diagnosis.process.pid, start_ticks=diagnosis.process.start_ticks), *facts)
        if diagnosis.indications:
            facts = (*facts, f"indications: {texts_of(diagnosis.indications[:MOST_INDICATIONS])}")
    return Finding(
        problem,
        since=since,
        daemon=daemon.name,
        values=values,
        notes=tuple(notes),
        facts=facts,
        **affected,
        outlook=outlook(node, daemon, policy) if watch.diagnosis is not None or watch.phase in _SUSPENDED else "",
        situation=situation,
        commands=commands,
        steps=_steps(node, daemon, watch, policy, problem),
    )


def crash_loop(node: Node, at: float, daemon: Daemon) -> Finding:
    """Return that the servers of a daemon exit early, without what the watchdog does."""
    return replace(_problem(node, at, daemon, WatchdogState(), None, DaemonProblem.SERVER_CRASH_LOOP), at=at)


def _causes_of_early_exits(node: Node, daemon: Daemon) -> Iterable[str]:
    """Yield what may prevent a server from starting, and is no mistake without that."""
    own = {*daemon.clients, *daemon.servers}
    for uuid, gpu in node.gpus.items():
        reading, label = gpu.reading, gpu_text(node, uuid)
        if serves_gpu(node, daemon, reading):
            others = [process.pid for process in reading.compute_processes or () if process.pid not in own]
            used, total = reading.memory_used_bytes, reading.memory_total_bytes
            if reading.compute_mode == "exclusive_process" and others:
                who = described(node, others[0])
                yield f"{who} uses {label} without this daemon, and its compute mode is EXCLUSIVE_PROCESS"
            if used is not None and total and used / total > FULL_RATIO:
                yield f"the memory of {label} is full: {mebibytes(max(0, total - used))} are free"


def _process_state(node: Node, daemon: Daemon) -> str:
    """Return whether the process of a daemon is stopped."""
    name = "its process" if daemon.pid is None else described(node, daemon.pid)
    state = state_of_daemon(node, daemon)
    if state is None:
        return f"it is unknown whether {name} is stopped"
    return f"{name} is {'' if is_suspended(state) else 'not '}stopped (state {printable(state.state)})"


def _steps(
    node: Node, daemon: Daemon, watch: WatchdogState, policy: Policy | None, problem: Problem
) -> tuple[ManualStep, ...]:
    """Return what to do; nothing if the catalogue's remedy suffices."""
    acts = policy is not None and policy.mode_of(daemon) is Mode.ACT
    cause = ManualStep(text=FIND_CAUSE, commands=last_log_lines(daemon))
    signals = commands_to_signal(node, watch.diagnosis)
    start, suspended = problem.definition.remedy, watch.phase in _SUSPENDED
    match problem:
        case DaemonProblem.DAEMON_ENDED:
            return (ManualStep(text=start), cause)
        case _ if daemon.ended and daemon.directory_taken:
            return (cause,)
        case _ if daemon.ended and daemon.declared.expected and watch.quarantine is None:
            is_down = problem is DaemonProblem.DAEMON_DOWN
            to_start = step_to_start(node, daemon, policy, "Start the daemon." if is_down else start)
            if to_start.commands:
                to_start = replace(to_start, ends=clients_beside(node, daemon, policy))
            elif is_down:
                to_start = replace(to_start, text="Have what ran the daemon start it. Delete its pod, if any.")
            if watch.phase in _RESTARTING:
                return (_WAIT, cause)
            if suspended:
                return (*_steps_to_resume(daemon, watch), *(() if acts else (to_start,)))
            bypassing = [(pid, gpu.bypassing_processes[pid]) for gpu in node.gpus.values() for pid in gpu.bypassing]
            bypass = [pid for pid, process in bypassing if process.daemon == daemon.name]
            names = ", ".join(described(node, pid) for pid in bypass[:MOST_GROUPED])
            restart = (step_to_rerun(node, bypass, f"End and restart what bypasses MPS: {names}."),) if bypass else ()
            ended = (ManualStep(text=RESTART_ENDED),) if daemon.lifecycle.clients_at_end else ()
            return (to_start, *ended, *restart, cause)
        case DaemonProblem.DAEMON_UNRESPONSIVE:
            if watch.phase in _RESTARTING:
                return (_WAIT, cause)
            commands, ends = commands_to_restart(node, daemon, policy), clients_beside(node, daemon, policy)
            first, state = tuple[ManualStep, ...](), state_of_daemon(node, daemon)
            if (state is None or is_suspended(state)) and is_living(node, identity_of(daemon.runtime.process)):
                resume = (f"kill -CONT {daemon.pid}",)
                first = (ManualStep(text="Resume its process, if that is stopped.", commands=resume, ends=0),)
            text = f"{'If it still does not answer after half a minute, r' if first else 'R'}estart the daemon"
            text = "If the watchdog does not restart the daemon, restart it" if acts else text
            text = f"{text}{', which ends its clients' if ends is None else ''}."
            return (*first, ManualStep(text=text, commands=commands, ends=ends), cause)
        case DaemonProblem.SERVER_CRASH_LOOP:
            check = "Check that MPS supports the GPUs and finds the driver's libraries."
            return (
                ManualStep(text="Read why the servers exit.", commands=last_log_lines(daemon, first="server.log")),
                ManualStep(text="Read what the driver reports.", commands=("dmesg | grep -i -e NVRM -e Xid",)),
                ManualStep(text=check, commands=(DOCTOR,)),
            )
        case DaemonProblem.DAEMON_SUSPENDED | DaemonProblem.SERVER_SUSPENDED | DaemonProblem.DAEMON_HELD:
            return (ManualStep(text=start.removesuffix(" No client ends."), commands=signals, ends=0),)
        case DaemonProblem.SERVER_UNRESPONSIVE:
            hung = None if watch.diagnosis is None else watch.diagnosis.server
            server = None if hung is None else daemon.servers.get(hung)
            ends = None if server is None else len(clients_of(daemon, server))
            return (ManualStep(text=start, commands=signals, ends=ends),)
        case _:
            return ()


def _steps_to_resume(daemon: Daemon, watch: WatchdogState) -> tuple[ManualStep, ...]:
    """Return what makes the watchdog restart a daemon again."""
    cause = PHASE_PROBLEMS[watch.phase].definition.remedy.removesuffix(" Then resume restarts.")
    resume = "Permit the watchdog to restart the daemon again."
    # The state directory is the exporter's own.
    logs = last_log_lines(daemon) if watch.phase is WatchdogPhase.CIRCUIT_OPEN else ()
    return (
        ManualStep(text=cause, commands=logs),
        ManualStep(text=resume, commands=commands_to_resume(daemon.name), ends=0),
    )


def _problem_of(node: Node, at: float, daemon: Daemon, watch: WatchdogState) -> Problem:
    """Return the problem of its diagnosis, or else of its state."""
    condition = None if watch.diagnosis is None else watch.diagnosis.condition
    if daemon.pid_file_spoilt:
        return DaemonProblem.PID_FILE_WRONG
    if not daemon.supported and not daemon.ended:
        return DaemonProblem.DAEMON_UNSUPPORTED
    if condition not in (None, Condition.FAULT, *HARMLESS):
        return CONDITION_PROBLEMS[condition]
    if daemon.ended and not daemon.declared.expected:
        return DaemonProblem.DAEMON_ENDED
    if daemon.state in STATE_PROBLEMS:
        return STATE_PROBLEMS[daemon.state]
    if _query_problem(node, daemon) is not None:
        return DaemonProblem.DAEMON_NOT_QUERIED
    if _unknown_since(node, daemon, at) is None:
        return DaemonProblem.DAEMON_UNKNOWN
    return DaemonProblem.DAEMON_STATE_UNKNOWN


def _since(node: Node, at: float, daemon: Daemon, watch: WatchdogState, problem: Problem) -> float | None:
    diagnosis = watch.diagnosis
    if diagnosis is not None and CONDITION_PROBLEMS[diagnosis.condition] is problem:
        return diagnosis.since
    return _unknown_since(node, daemon, at) if daemon.state is None else daemon.lifecycle.state_since


def _query_problem(node: Node, daemon: Daemon) -> str | None:
    """Return what prevents a query of a daemon that has ended or is in an unknown state; None if nothing does."""
    source = node.sources.get(CollectorName.CONTROL)
    if source is None or not daemon.supported or daemon.pid_file_spoilt or not (daemon.ended or daemon.state is None):
        return None
    problem = source.problems.get(daemon.name)
    return None if problem is None else reason_text(problem, CollectorName.CONTROL)


def _unknown_since(node: Node, daemon: Daemon, at: float) -> float | None:
    """Return since when its state is unknown; None for as long as a daemon may take to start, or to answer."""
    if daemon.state is not None or not daemon.supported:
        return None
    since = (daemon.commands.unanswered_since, daemon.lifecycle.state_since, node.began_at)
    began = next((each for each in since if each is not None), at)
    return began if at - began > STARTING_SECONDS else None
