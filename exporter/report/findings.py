"""All problems that the node has now, the most urgent first."""

from collections.abc import Iterable, Mapping

from exporter.model.daemon import Daemon, DaemonState
from exporter.model.incident import Incident
from exporter.model.node import CollectorName, Node
from exporter.model.reason import Reason, ReasonCode
from exporter.model.server import ServerState
from exporter.model.settings import Mode
from exporter.model.values import replace
from exporter.model.watchdog import HARMLESS, Condition, WatchdogPhase, WatchdogState
from exporter.parse.control_reply import list_servers
from exporter.parse.kernel_log import REBOOT, RESET
from exporter.parse.printable import printable
from exporter.report.contention import starved_clients
from exporter.report.document import WatchdogSummary
from exporter.report.finding import MOST_COMMANDS, Finding
from exporter.report.incident_status import verdict
from exporter.report.problem import NodeProblem, Problem
from exporter.report.problems import (
    BLOCK_PROBLEMS,
    CONDITION_PROBLEMS,
    PHASE_PROBLEMS,
    DaemonProblem,
    Situation,
    of_phase,
)
from exporter.report.reasons import log_text, reason_text, source_text
from exporter.report.recovered import recovered
from exporter.report.remedy import (
    DOCTOR,
    address_of,
    command_to_end_server,
    command_to_kill,
    commands_to_restart,
    commands_to_resume,
    commands_to_signal,
    commands_to_start,
    control_command,
    gpu_text,
    known,
    needed,
    quarantine_cause,
    recovery_steps,
)
from exporter.report.text import counted, failed_starts_text, mebibytes, percent, workload_name
from exporter.report.watchdog_text import history_of, watchdog_summary
from exporter.state import limits, servers
from exporter.state.devices import uses_gpu
from exporter.state.gpus import LOST, is_lost
from exporter.state.hang_detection import STARTING_SECONDS
from exporter.usage.sampling import memory_by_workload
from exporter.view import View, clients_of, gpu_name
from exporter.watchdog.context import Policy
from exporter.watchdog.limit_enforcement import LimitStatus, check_limits

CONTRADICTED_SECONDS = 3600.0
"""For how long a contradiction of a daemon's log is reported."""

FULL_RATIO, LARGE_RATIO = 0.95, 0.5
"""The used part of a GPU's memory, and one workload's part of it, above which the workload fills the memory."""

_DOCTOR_FOR: Mapping[str, str] = {CollectorName.LIBCUDA_PROBES: f"{DOCTOR} --attribution=bpf"}
"""The service has this option from its unit; a command in a shell needs it too."""

_NO_DRIVER = {ReasonCode.DRIVER_NOT_LOADED, ReasonCode.LIBRARY_MISSING}

_SUSPENDED = (WatchdogPhase.CIRCUIT_OPEN, WatchdogPhase.STATE_LOST)
"""The watchdog restarts nothing until an operator runs `resume`, and no GPU is quarantined."""

STATE_PROBLEMS = {
    DaemonState.DOWN: DaemonProblem.DAEMON_DOWN,
    DaemonState.STOPPED: DaemonProblem.DAEMON_STOPPED,
    DaemonState.UNRESPONSIVE: DaemonProblem.DAEMON_UNRESPONSIVE,
    DaemonState.HELD: DaemonProblem.DAEMON_HELD,
    DaemonState.STARTING: DaemonProblem.DAEMON_STARTING,
}


def findings(node: Node, at: float, policy: Policy | None = None) -> tuple[Finding, ...]:
    """Return all problems; `policy` is None if there is no watchdog."""
    daemons = list(View(node).daemons())
    if not node.sources and all(daemon.state is None for daemon in daemons):
        return (Finding(NodeProblem.NOTHING_COLLECTED, at=at, harmless=not daemons),)
    found = (
        *_faults(node, at, policy),
        *daemon_findings(node, at, policy),
        *recovered(node, at),
        *_lost_gpus(node, at),
        *_resets_needed(node, at),
        *_full_servers(node, at),
        *_filled_memory(node, at),
        *starved_clients(node, at),
        *_bypassing(node, at),
        *_drifted_limits(node, at, policy),
        *_not_collected(node, at),
        *_contradicted_logs(node, at),
    )
    # What follows from a missing driver comes after it.
    return tuple(sorted(found, key=lambda each: (-each.severity.rank, each.problem is not NodeProblem.NVML_UNUSABLE)))


def _faults(node: Node, at: float, policy: Policy | None) -> Iterable[Finding]:
    """Yield the faults, first those that a command can end."""
    open_ones = [each for each in node.incidents.values() if each.open]
    open_ones.sort(key=lambda each: not (each.blockers or each.stuck))
    yield from (_fault(node, at, each, policy) for each in open_ones)
    with_incident = {(each.daemon, each.server) for each in open_ones}
    for daemon, server in View(node).servers():
        if server.state is ServerState.FAULT and (daemon.name, server.pid) not in with_incident:
            yield Finding(
                DaemonProblem.SERVER_FAULT,
                at=at,
                daemon=daemon.name,
                server=server.pid,
                situation=Situation.FAULT_WITHOUT_INCIDENT,
            )


def _fault(node: Node, at: float, incident: Incident, policy: Policy | None) -> Finding:
    blockers = tuple(incident.blockers)
    address, situation = address_of(node, incident.daemon, policy), None
    commands = [command_to_kill(incident.details_of(pid), address) for pid in blockers]
    if incident.stuck:
        situation = Situation.SERVER_STUCK
        commands = [command_to_end_server(incident.server, address)]
    elif not blockers:
        situation = Situation.CLIENTS_ENDING
    recovery = f"; {counted(len(blockers), 'client blocks', 'clients block')} recovery" if blockers else ""
    return Finding(
        DaemonProblem.SERVER_FAULT,
        at=at,
        since=incident.started_at,
        daemon=incident.daemon,
        server=incident.server,
        client=blockers[0] if blockers else None,
        values={"suspect": verdict(incident), "recovery": recovery},
        situation=situation,
        commands=known(*commands)[:MOST_COMMANDS],
    )


def _lost_gpus(node: Node, at: float) -> Iterable[Finding]:
    for gpu, problem in lost_gpus(node):
        values = {"gpu": printable(gpu_name(node, gpu)), "problem": reason_text(problem, CollectorName.NVML)}
        action = RESET if problem.code is ReasonCode.GPU_LOST else REBOOT
        in_quarantine = any(_handles(node, daemon, gpu, at) for daemon in node.daemons.values())
        steps = () if in_quarantine else recovery_steps(node, gpu, action)
        yield Finding(NodeProblem.GPU_LOST, at=at, gpu=gpu, values=values, steps=steps)


def lost_gpus(node: Node) -> Iterable[tuple[str, Reason]]:
    """Yield the lost GPUs with their problems. A GPU that was lost before the exporter started has only an index."""
    for uuid, gpu in node.gpus.items():
        if gpu.reading.problem is not None and is_lost(gpu.reading):
            yield uuid, gpu.reading.problem
    # A known GPU that NVML does not list may be the one of which it lists only the index.
    if not any(each.reading.problem == Reason(ReasonCode.GPU_NOT_REPORTED) for each in node.gpus.values()):
        for problem in _problems(node, CollectorName.NVML):
            if problem.code is ReasonCode.GPU_LOST:
                yield problem.parameters.get("subject") or "", problem.about(None)


def _problems(node: Node, name: str) -> Iterable[Reason]:
    source = node.sources.get(name)
    return () if source is None else (each for problem in source.problems.values() for each in problem.each)


def _resets_needed(node: Node, at: float) -> Iterable[Finding]:
    """Yield GPUs that need a reset or a reboot after their last Xid, except those of a present or ended quarantine."""
    for gpu, needs in node.xids.recovery_actions.items():
        if not any(_handles(node, daemon, gpu, needs.at) for daemon in node.daemons.values()):
            yield Finding(
                NodeProblem.GPU_RESET_NEEDED,
                at=at,
                since=needs.at,
                gpu=gpu,
                values={"which": gpu_text(node, gpu), "needed": needed(needs.action)},
                steps=recovery_steps(node, gpu, needs.action),
            )


def _handles(node: Node, daemon: Daemon, gpu: str, at: float) -> bool:
    """Return whether a daemon is in quarantine for this GPU, or an operator has ended that quarantine since."""
    watch = node.watches.get(daemon.name)
    if watch is None:
        return False
    released = watch.resumed_at is not None and watch.resumed_at >= at
    quarantined = watch.quarantine is not None and watch.quarantine.gpu == gpu
    return quarantined or (released and uses_gpu(node, daemon, gpu))


def _full_servers(node: Node, at: float) -> Iterable[Finding]:
    """Yield one problem for all servers without a free client slot."""
    full = []
    for daemon, server in View(node).servers():
        clients, limit = len(clients_of(daemon, server)), limits.clients_limit(node, daemon, server)
        if limit is not None and clients >= limit:
            full.append({"daemon": printable(daemon.name), "server": str(server.pid)})
            full[-1] |= {"clients": str(clients), "limit": str(limit)}
    if full:
        others = counted(len(full) - 1, "more server is full", "more servers are full")
        notes = (others,) if len(full) > 1 else ()
        yield Finding(NodeProblem.CLIENT_SLOTS_FULL, at=at, values=full[0], notes=notes)


def _filled_memory(node: Node, at: float) -> Iterable[Finding]:
    """Yield GPUs with little free memory, most of which one of several workloads has, as the alert defines it."""
    for uuid, held in memory_by_workload(node).items():
        reading = node.gpus[uuid].reading
        used, total = reading.memory_used_bytes, reading.memory_total_bytes
        if used is None or not total or used / total <= FULL_RATIO or len(held) < 2:
            continue
        workload = max(held, key=lambda each: held[each])
        if held[workload] / total > LARGE_RATIO:
            values = {
                "gpu": printable(gpu_name(node, uuid)),
                "workload": workload_name(workload, node.pods),
                "part": percent(held[workload] / total),
                "free": mebibytes(max(0, total - used)),
            }
            yield Finding(NodeProblem.WORKLOAD_FILLS_MEMORY, at=at, gpu=uuid, values=values)


def _bypassing(node: Node, at: float) -> Iterable[Finding]:
    """Yield one problem for all processes that bypass MPS."""
    gpus = {uuid: gpu.bypassing for uuid, gpu in node.gpus.items() if gpu.bypassing}
    if gpus:
        processes = {pid for pids in gpus.values() for pid in pids}
        yield Finding(
            NodeProblem.PROCESS_BYPASSING,
            at=at,
            client=min(processes) if len(processes) == 1 else None,
            values={
                "gpu": ", ".join(printable(gpu_name(node, uuid)) for uuid in gpus),
                "processes": counted(len(processes), "process", "processes"),
            },
        )


def _drifted_limits(node: Node, at: float, policy: Policy | None) -> Iterable[Finding]:
    """Yield one problem for all limits of a daemon that differ from the configuration."""
    for daemon in View(node).daemons():
        watch = node.watches.get(daemon.name)
        if watch is None or watch.wanted_limits is None or not daemon.answers:
            continue
        drifted = [each for each in check_limits(daemon, watch.wanted_limits, at) if each.status is LimitStatus.DRIFTED]
        if drifted:
            address, first = address_of(node, daemon.name, policy), drifted[0]
            place = "for new servers" if first.server is None else f"on server {first.server}"
            more = f", and {len(drifted) - 1} more" if len(drifted) > 1 else ""
            settable = [check.command for check in drifted if check.command][:MOST_COMMANDS]
            yield Finding(
                NodeProblem.LIMITS_DRIFTED,
                at=at,
                daemon=daemon.name,
                server=first.server,
                values={"limits": f"{reason_text(first.reason)} {place}{more}"},
                commands=known(*(control_command(command, address) for command in settable)),
            )


def _not_collected(node: Node, at: float) -> Iterable[Finding]:
    """Yield a paused driver, failing collectors, GPUs that cannot be read, and logs that are not followed."""
    # Other collectors fail if NVML does, so the cause comes first.
    in_order = sorted(node.sources.items(), key=lambda each: (each[0] != CollectorName.NVML, each[0]))
    failing = {name: source for name, source in in_order if source.problems}
    paused = {name for name in failing if all(each.code is ReasonCode.PAUSED for each in _problems(node, name))}
    if paused:
        yield Finding(NodeProblem.EXPORTER_PAUSED, at=at, commands=("cuda-mps-exporter resume",))
    lost = any(lost_gpus(node))
    only_lost = all(each.code is ReasonCode.GPU_LOST for each in _problems(node, CollectorName.NVML))
    for name, source in failing.items():
        # Without NVML's last GPU there are no Xid events.
        if name not in paused and not (
            lost and (name == CollectorName.NVML_EVENTS or (name == CollectorName.NVML and only_lost))
        ):
            values = {"source": printable(name), "problem": source_text(name, source)}
            missing = name == CollectorName.NVML and _lacks_driver(node)
            entry = NodeProblem.NVML_UNUSABLE if missing else NodeProblem.EXPORTER_CANNOT_COLLECT
            yield Finding(entry, at=at, values=values, commands=(_DOCTOR_FOR.get(name, DOCTOR),))
    for uuid, gpu in node.gpus.items():
        problem, mig = gpu.reading.problem, gpu.reading.mig
        of_parent = mig is not None and problem == node.gpus[mig.parent].reading.problem
        if problem is not None and problem.code not in LOST and not of_parent and CollectorName.NVML not in failing:
            values = {"gpu": printable(gpu_name(node, uuid)), "problem": reason_text(problem, CollectorName.NVML)}
            commands = ("nvidia-smi -q", "dmesg | grep -i -e NVRM -e Xid")
            yield Finding(NodeProblem.GPU_UNREADABLE, at=at, values=values, commands=commands)
    for daemon in View(node).daemons():
        for file, problem in sorted(daemon.log.problems.items()):
            if problem is not None and daemon.state is DaemonState.UP:
                lost = problem.code is ReasonCode.LOG_TO_STDOUT
                yield Finding(
                    NodeProblem.LOG_NOT_FOLLOWED,
                    at=at,
                    daemon=daemon.name if lost else None,
                    values={"daemon": printable(daemon.name), "problem": log_text(file, problem)},
                    situation=Situation.LOG_TO_STDOUT if lost else None,
                    commands=() if lost else (DOCTOR,),
                )


def _lacks_driver(node: Node) -> bool:
    """Return whether the node expects MPS, but no server can start. If one runs, its driver is or was there."""
    codes = {problem.code for problem in _problems(node, CollectorName.NVML)}
    no_driver = ReasonCode.DRIVER_MISMATCH in codes or (codes & _NO_DRIVER and not any(View(node).servers()))
    return bool(no_driver) and any(daemon.declared.expected for daemon in node.daemons.values())


def _contradicted_logs(node: Node, at: float) -> Iterable[Finding]:
    """Yield the daemons with a log that other sources contradicted recently."""
    for daemon in View(node).daemons():
        since = daemon.log.contradicted_at
        if since is not None and at - since <= CONTRADICTED_SECONDS:
            yield Finding(NodeProblem.LOG_CONTRADICTED, at=at, since=since, daemon=daemon.name, commands=(DOCTOR,))


def daemon_findings(node: Node, at: float, policy: Policy | None) -> Iterable[Finding]:
    """Yield the problems of all daemons. A daemon's own state gives one problem, the most specific one."""
    for daemon in View(node).daemons():
        watch = node.watches.get(daemon.name, WatchdogState())
        if watch.quarantine is not None:
            yield Finding(
                DaemonProblem.QUARANTINED,
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
            yield Finding(BLOCK_PROBLEMS[block], at=at, daemon=daemon.name)
        found = _state_finding(node, at, daemon, watch, policy)
        if found is not None:
            yield found
        since = daemon.log.own_commands.blocked_since
        if since is not None:
            restart = commands_to_restart(node, daemon, policy)
            yield Finding(NodeProblem.LOG_BLOCKED, at=at, since=since, daemon=daemon.name, commands=restart)


def _state_finding(
    node: Node, at: float, daemon: Daemon, watch: WatchdogState, policy: Policy | None
) -> Finding | None:
    name, summary = daemon.name, watchdog_summary(node, daemon)
    if daemon.runtime.foreign_owner is not None:
        values = {"uid": str(daemon.runtime.foreign_owner), "directory": printable(daemon.pipe_directory)}
        return Finding(DaemonProblem.FOREIGN_DIRECTORY, at=at, daemon=name, values=values)
    if daemon.state is not DaemonState.UP:
        return _not_up(node, at, daemon, watch, policy, summary)
    if watch.quarantine is not None:
        return None
    if watch.diagnosis is not None and watch.diagnosis.condition is Condition.PROGRAM_UNRESPONSIVE:
        # Clients are not affected; lists of them, limits and servers' states are as old as the last answer.
        run = control_command(list_servers(daemon.runtime.protocol), address_of(node, name, policy), deadline=10)
        since = daemon.commands.unanswered_since
        return Finding(DaemonProblem.CONTROL_PROGRAM_UNRESPONSIVE, at=at, since=since, daemon=name, commands=known(run))
    if summary is not None and summary.problem and not summary.fault:
        problem = _problem_of(node, at, daemon, watch)
        commands, since = commands_to_signal(node, watch.diagnosis), _since(node, at, daemon, watch, problem)
        if problem is DaemonProblem.SERVER_CRASH_LOOP:
            return _with_watchdog(_crash_loop(at, daemon), watch, summary)
        return _with_watchdog(Finding(problem, at=at, since=since, daemon=name, commands=commands), watch, summary)
    if watch.phase in _SUSPENDED:
        since = watch.circuit_opened_at if watch.phase is WatchdogPhase.CIRCUIT_OPEN else watch.state_lost_at
        return Finding(PHASE_PROBLEMS[watch.phase], at=at, since=since, daemon=name, commands=commands_to_resume(name))
    if servers.in_crash_loop(daemon, at):
        return _crash_loop(at, daemon)
    if daemon.connections.waiting:
        waiting = {"clients": counted(len(daemon.connections.waiting), "client")}
        return Finding(NodeProblem.CLIENTS_WAITING, at=at, daemon=name, values=waiting)
    return None


def _crash_loop(at: float, daemon: Daemon) -> Finding:
    failed = daemon.connections.failed_starts
    return Finding(
        DaemonProblem.SERVER_CRASH_LOOP,
        at=at,
        since=failed.started_at[0],
        daemon=daemon.name,
        values={"failed": failed_starts_text(failed)},
        commands=(DOCTOR,),
    )


def _not_up(
    node: Node, at: float, daemon: Daemon, watch: WatchdogState, policy: Policy | None, summary: WatchdogSummary | None
) -> Finding:
    problem = _problem_of(node, at, daemon, watch)
    found = Finding(problem, at=at, since=_since(node, at, daemon, watch, problem), daemon=daemon.name)
    query_problem = _query_problem(node, daemon)
    if query_problem is not None:
        cannot_query = (
            () if problem is DaemonProblem.DAEMON_NOT_QUERIED else (f"it cannot be queried: {query_problem}",)
        )
        return replace(
            found,
            values={"problem": query_problem},
            notes=(*history_of(watch), *cannot_query),
            situation=Situation.CANNOT_QUERY,
            commands=(DOCTOR,),
        )
    commands = commands_to_signal(node, watch.diagnosis)
    acts = policy is not None and policy.mode_of(daemon) is Mode.ACT
    if daemon.declared.expected and daemon.ended and watch.quarantine is None:
        if watch.phase in _SUSPENDED:
            start = () if acts else commands_to_start(node, daemon, policy)
            commands = (*commands_to_resume(daemon.name), *start)
        elif watch.phase is WatchdogPhase.IDLE:
            commands = commands_to_start(node, daemon, policy)
    elif problem is DaemonProblem.DAEMON_UNRESPONSIVE and not acts:
        commands = commands_to_restart(node, daemon, policy)
    if summary is not None and summary.action is not None:
        return _with_watchdog(replace(found, commands=commands), watch, summary)
    if problem is DaemonProblem.DAEMON_STATE_UNKNOWN:
        commands = commands or (DOCTOR,)
    return replace(
        found,
        values={} if daemon.runtime.process is None else {"pid": str(daemon.runtime.process.pid)},
        notes=tuple(history_of(watch)),
        situation=Situation.UNSUPPORTED if problem is DaemonProblem.DAEMON_UNSUPPORTED else None,
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
    found = watch.diagnosis
    if found is not None and CONDITION_PROBLEMS[found.condition] is problem:
        return found.since
    return _unknown_since(node, daemon, at) if daemon.state is None else daemon.lifecycle.state_since


def _query_problem(node: Node, daemon: Daemon) -> str | None:
    """Return what prevents a query of a daemon that has ended or is in an unknown state; None if nothing does."""
    source = node.sources.get(CollectorName.CONTROL)
    if source is None or not daemon.supported or daemon.pid_file_spoilt:
        return None
    problem = source.problems.get(daemon.name)
    return (
        reason_text(problem, CollectorName.CONTROL)
        if problem is not None and (daemon.ended or daemon.state is None)
        else None
    )


def _unknown_since(node: Node, daemon: Daemon, at: float) -> float | None:
    """Return since when its state is unknown; None for as long as a daemon may take to start, or to answer."""
    if daemon.state is not None or not daemon.supported:
        return None
    since = (daemon.commands.unanswered_since, daemon.lifecycle.state_since, node.began_at)
    began = next((each for each in since if each is not None), at)
    return began if at - began > STARTING_SECONDS else None
