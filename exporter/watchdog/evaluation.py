"""Evaluate a node: diagnose each expected daemon, decide what to do, report and count the actions."""

from collections.abc import Callable, Mapping
from itertools import chain

from exporter.incidents import incidents
from exporter.model.action import (
    Action,
    ActionKind,
    ActionReason,
    ActionResult,
    ActionStep,
    EndProcess,
    GiveCommand,
    Role,
    SaveEvidence,
)
from exporter.model.event import Event, EventName
from exporter.model.identity import ProcessIdentity, identity_of
from exporter.model.incident import Incident
from exporter.model.node import Node
from exporter.model.observation import DaemonName
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import AllowedAction, Mode
from exporter.model.values import replace, updated
from exporter.model.watchdog import (
    Condition,
    Diagnosis,
    EscalationStep,
    LastAction,
    OngoingAction,
    Quarantine,
    WatchdogPhase,
    WatchdogState,
)
from exporter.parse.kernel_log import RESET
from exporter.parse.proc import mps_program
from exporter.state import devices, xids
from exporter.state.processes import client_id
from exporter.watchdog import diagnosis, limit_enforcement, restart
from exporter.watchdog.context import Context, Decision, Evaluated, PlannedAction, Policy, Wait, count_action
from exporter.watchdog.diagnosis import open_faults


def quarantine(context: Context) -> Evaluated:
    """Put the daemon into quarantine if one of its GPUs needs a reset or a reboot."""
    watch = context.watch
    if watch.quarantine is not None:
        return watch, ()
    new = (each for each in xids.of_hardware(context.node) if each.action and each.at > (watch.resumed_at or 0.0))
    of_daemon = (each for each in new if devices.uses_gpu(context.node, context.daemon, each.gpu))
    found = max(of_daemon, key=lambda each: each.at, default=None)
    if found is None:
        return watch, ()
    found = replace(found, gpu=devices.whole_gpu(context.node, found.gpu))
    event = context.event(EventName.DAEMON_QUARANTINED, gpu=found.gpu, xid=found.xid, reason=_need(found))
    return replace(watch, quarantine=found), (event,)


def _need(found: Quarantine) -> Reason:
    code = ReasonCode.GPU_NEEDS_RESET if found.action == RESET else ReasonCode.GPU_NEEDS_REBOOT
    return Reason(code, xid=found.xid, gpu=found.gpu)


def decide(context: Context) -> Decision:
    """Return the action to take, or why the watchdog waits. No action must be under way."""
    watch, found = context.watch, context.watch.diagnosis
    if watch.quarantine is not None:
        return Wait(reason=_need(watch.quarantine), phase=WatchdogPhase.QUARANTINED)
    if watch.state_lost_at is not None and context.mode is Mode.ACT:
        return Wait(reason=Reason(ReasonCode.STATE_LOST), phase=WatchdogPhase.STATE_LOST)
    if found is None:
        return None
    match found.condition:
        case Condition.DOWN:
            return restart.restart_down_daemon(context, found.since)
        case Condition.UNRESPONSIVE:
            return kill_blockers(context) or restart.restart_hung(context, found.since)
        case Condition.SUSPENDED:
            return restart.restart_hung(context, found.since)
        case Condition.SERVER_SUSPENDED:
            return _end_hung_server(context, found, ReasonCode.SERVER_MUST_CONTINUE)
        case Condition.SERVER_UNRESPONSIVE:
            kill = kill_blockers(context)
            return kill or _end_hung_server(context, found, ReasonCode.SERVER_MUST_END)
        case Condition.FAULT:
            return remedy_fault(context)
        case condition if condition in _NO_REMEDY:
            named = found.process if condition in (Condition.HELD, Condition.STUCK_IN_DRIVER) else None
            return Wait(reason=Reason(_NO_REMEDY[condition], pid=None if named is None else named.pid))
        case _:
            return None


def _end_hung_server(context: Context, found: Diagnosis, remedy: ReasonCode) -> Decision:
    """End a server that hangs, if the configuration permits it and /proc has shown that it is the daemon's server."""
    after, process = context.thresholds.hung_after, found.process
    if AllowedAction.END_HUNG_SERVER not in context.thresholds.allow or process is None:
        return Wait(reason=Reason(remedy, server=found.server))
    if context.at - found.since < after:
        return restart.recent_hang(context, after, server=found.server)
    if process not in context.watch.children:
        return Wait(reason=Reason(ReasonCode.SERVER_PARENT_UNKNOWN, server=found.server, state=found.condition))
    if found.condition is Condition.SERVER_UNRESPONSIVE and len(context.watch.children) > 1:
        return Wait(reason=Reason(ReasonCode.HUNG_SERVER_AMBIGUOUS, server=found.server))
    steps = (SaveEvidence(), EndProcess(identity=process, role=Role.SERVER))
    cause = f"server {process.pid} {process.start_ticks}"
    return PlannedAction(kind=ActionKind.END_SERVER, reason=ActionReason.HUNG, steps=steps, cause=cause)


_NO_REMEDY = {
    Condition.STOPPED: ReasonCode.STOPPED_BY_OPERATOR,
    Condition.NEVER_STARTED: ReasonCode.NEVER_SEEN,
    Condition.PROGRAM_UNRESPONSIVE: ReasonCode.PROGRAM_AT_FAULT,
    Condition.HELD: ReasonCode.SESSION_HELD,
    Condition.STUCK_IN_DRIVER: ReasonCode.STUCK_IN_KERNEL,
    Condition.CRASH_LOOP: ReasonCode.SERVERS_CANNOT_START,
}
"""Why the watchdog waits in a condition that passes, or that only others can end."""


# -- remedies of a fault ----------------------------------------------------------------------------------------------

_Step = tuple[ActionKind, bool]  # An action, and whether it is forced.

_STEPS: dict[_Step, AllowedAction] = {
    (ActionKind.KILL_CLIENTS, False): AllowedAction.KILL_CLIENTS,
    (ActionKind.SHUT_DOWN_SERVER, False): AllowedAction.SHUT_DOWN_SERVER,
    (ActionKind.SHUT_DOWN_SERVER, True): AllowedAction.SHUT_DOWN_SERVER,
    (ActionKind.RESTART, False): AllowedAction.RESTART_DAEMON,
}
"""The escalation steps in their order, with the action that the configuration must list."""


def remedy_fault(context: Context) -> Decision:
    """Decide about the daemon's oldest open fault."""
    incident = next(iter(open_faults(context)), None)
    if incident is None:
        return None
    pids = None if incident.stuck else tuple(sorted(incident.blockers)) or None
    code = ReasonCode.FAULT_NEEDS_SERVER_END if incident.stuck else ReasonCode.FAULT_WAITS_FOR_CLIENTS
    waits = Wait(reason=Reason(code, server=incident.server, pids=pids))
    # Any user can write the log (measured, R580), so a reply of the daemon must have shown the fault.
    reported_at = context.daemon.servers[incident.server].fault_reported_at
    confirmed = reported_at is not None and reported_at >= incident.detected_at
    if context.at - incident.started_at < context.thresholds.fault or not confirmed:
        return waits
    last = context.watch.escalation
    if last is not None and last.incident != incident.id:
        last = None
    if last is not None and context.at - last.at < context.thresholds.step:
        return Wait(reason=Reason(ReasonCode.REMEDY_TAKES_EFFECT, action=last.kind))
    if incidents.all_disconnected(incident) and not incident.stuck:
        return waits
    steps = list(_STEPS)
    for step in steps if last is None else steps[steps.index((last.kind, last.forced)) + 1 :]:
        # The end of a server that is stuck must be forced.
        effective = not incident.stuck or step[1] or step[0] is ActionKind.RESTART
        if effective and _STEPS[step] in context.thresholds.allow:
            decision = _take(context, incident, step)
            if decision is not None:
                return decision
    return waits


def kill_blockers(context: Context) -> PlannedAction | None:
    """Return the action that ends affected clients for which the daemon waits; None if that is not the next step.

    After an operator's `terminate_client` for such a client, the daemon answers no command until the client has exited
    (measured, R580).
    """
    decision = remedy_fault(context)
    return decision if isinstance(decision, PlannedAction) and decision.kind is ActionKind.KILL_CLIENTS else None


def _take(context: Context, incident: Incident, step: _Step) -> Decision:
    """Return the decision for one step; None if the step has nothing to do."""
    kind, forced = step
    steps: tuple[ActionStep, ...]
    match kind:
        case ActionKind.KILL_CLIENTS:
            # A client without a visible PID cannot be signalled.
            pids = (pid for pid in sorted(incident.blockers) if pid > 1 and pid in incident.affected)
            clients = (_affected_process(context, incident, pid) for pid in pids)
            steps = tuple(EndProcess(identity=each, role=Role.CLIENT) for each in clients if each is not None)
            if not steps:
                return None
        case ActionKind.SHUT_DOWN_SERVER:
            unsafe = _why_unsafe(context, incident.server)
            if unsafe is not None:
                return unsafe
            server = context.daemon.servers[incident.server]
            command = context.daemon.dialect.command_to_end(server, forced=forced)
            if command is None:
                return None
            steps = (GiveCommand(command=command),)
        case _:
            unsafe = _why_unsafe(context, None)
            return unsafe or restart.restart_running(context, ActionReason.FAULT, incident.started_at)
    return PlannedAction(
        kind=kind,
        reason=ActionReason.FAULT,
        steps=(SaveEvidence(), *steps),
        cause=f"{kind.value} {incident.id}{' -f' if forced else ''}",
        escalation=EscalationStep(incident=incident.id, kind=kind, at=context.at, forced=forced),
    )


def _affected_process(context: Context, incident: Incident, pid: int) -> ProcessIdentity | None:
    """Return the affected process if it still has its PID, and if the daemon and NVML list it since the fault.

    If NVML has listed no MPS clients since the fault, the daemon's list suffices.
    """
    process, client = context.node.processes.get(pid), context.daemon.clients.get(pid)
    details = incident.client_details.get(pid)
    if process is None or process.ended or client is None or details is None or client.server != incident.server:
        return None
    same = process.uid is not None and details.client == client_id(client, process)
    listed = client.listed_at is not None and client.listed_at >= incident.detected_at
    of_mps = mps_program(process.executable, process.command) is not None
    readings = (gpu.reading for gpu in context.node.gpus.values())
    lists = [each.mps_processes for each in readings if each.at >= incident.detected_at]
    known_lists = [processes for processes in lists if processes is not None]
    on_gpu = not known_lists or any(each.pid == pid for each in chain(*known_lists))
    return identity_of(process) if same and listed and not of_mps and on_gpu else None


def _why_unsafe(context: Context, server: int | None) -> Wait | None:
    """Return why a server, or the daemon (None), must not be ended: unaffected or unknown clients use it."""
    daemon, faults = context.daemon, tuple(open_faults(context))
    affected = {(each.server, pid) for each in faults for pid in each.affected}
    clients = [each for each in daemon.clients.values() if server in (None, each.server)]
    unaffected = sorted(each.pid for each in clients if (each.server, each.pid) not in affected)
    if unaffected:
        return Wait(reason=Reason(ReasonCode.CLIENTS_UNAFFECTED, server=server, pids=tuple(unaffected)))
    for each in faults:
        logged = daemon.servers[each.server].uid is not None and daemon.log_followed
        if server in (None, each.server) and not logged and not incidents.were_clients_queried(daemon, each):
            return Wait(reason=Reason(ReasonCode.CLIENTS_UNKNOWN, server=server))
    return None


# -- evaluation --------------------------------------------------------------------------------------------------------


Evaluation = tuple[Node, tuple[Event, ...], tuple[Action, ...]]

_DaemonEvaluation = tuple[WatchdogState, tuple[Event, ...], Action | None]

_PREPARATION: tuple[Callable[[Context], Evaluated], ...] = (
    diagnosis.diagnose,
    restart.track_health,
    quarantine,
    restart.verify,
    restart.count_unit_restarts,
)
"""The steps before a decision, in this order."""


def evaluate(node: Node, policy: Policy, *, at: float, chance: float) -> Evaluation:
    """Diagnose each expected daemon and decide what to do now. The caller must take the returned actions.

    `at` is now in seconds since the epoch; `chance`, 0 to 1, is for the jitter of the backoff. Call it after each batch
    of observations, and at least every second.
    """
    watches = dict(node.watches)
    events: list[Event] = []
    actions: list[Action] = []
    for name, daemon in node.daemons.items():
        if not daemon.declared.expected or daemon.runtime.same_as is not None:
            continue
        watches[name], new, action = _evaluate_daemon(restart.context_of(node, daemon, policy, at=at, chance=chance))
        events.extend(new)
        if action is not None:
            actions.append(action)
    return node if watches == node.watches else replace(node, watches=watches), tuple(events), tuple(actions)


def _evaluate_daemon(context: Context) -> _DaemonEvaluation:
    events: tuple[Event, ...] = ()
    for prepare in _PREPARATION:
        watch, new = prepare(context)
        context, events = updated(context, watch=watch), events + new
    action: Action | None = None
    if context.watch.acting is None:
        watch, new, action = _apply(context, decide(context))
        context, events = updated(context, watch=watch), events + new
    # Limits are set only if no other action is under way.
    mode = Mode.OBSERVE if context.watch.acting is not None else context.mode
    configured = context.daemon_policy.limits
    watch, new, limit_action = limit_enforcement.enforce(
        context.node, context.daemon, context.watch, configured, mode, context.at
    )
    events += new
    if limit_action is None:
        return watch, events, action
    watch, new = _begin(replace(context, watch=watch), limit_action)
    return watch, events + new, limit_action


def _apply(context: Context, decided: Decision) -> _DaemonEvaluation:
    match decided:
        case PlannedAction():
            return _plan(context, decided)
        case Wait():
            return *_wait(context, decided), None
        case None:
            watch = context.watch
            if context.condition is Condition.WELL:
                watch = watch.settled()
            phase = WatchdogPhase.IDLE if watch.circuit_opened_at is None else WatchdogPhase.CIRCUIT_OPEN
            return updated(watch, phase=phase), (), None


def _plan(context: Context, planned: PlannedAction) -> _DaemonEvaluation:
    watch, kind, reason = context.watch, planned.kind, planned.reason
    key = f"{context.mode.value}: {kind.value} {planned.cause}"
    # A restart that did not help may be repeated: it has a budget.
    repeatable = kind is ActionKind.RESTART and context.mode is Mode.ACT
    if not repeatable and watch.last_planned == key:
        return replace(watch, phase=WatchdogPhase.IDLE), (), None
    watch = replace(watch, last_planned=key)
    if context.mode is Mode.OBSERVE:
        last = LastAction(kind=kind, reason=reason, begun=False)
        watch = count_action(watch, kind, reason, ActionResult.OBSERVED)
        watch = replace(watch, phase=WatchdogPhase.IDLE, last_action=last, reason=None)
        return watch, (_event(context, EventName.WATCHDOG_WOULD_ACT, kind, reason),), None
    if kind is ActionKind.RESTART:
        watch = replace(watch, restarts=(*watch.restarts, context.at), last_restart_at=context.at)
    watch = replace(watch, backoff_for=None, not_before=None, escalation=planned.escalation or watch.escalation)
    uid = None if watch.process is None else watch.process.uid
    action = Action(daemon=context.daemon.name, kind=kind, reason=reason, steps=planned.steps, uid=uid)
    return *_begin(replace(context, watch=watch), action), action


def _begin(context: Context, action: Action) -> Evaluated:
    kind, reason, before = action.kind, action.reason, identity_of(context.watch.process)
    acting = OngoingAction(kind=kind, reason=reason, began_at=context.at, before=before)
    last = LastAction(kind=kind, reason=reason, begun=True)
    watch = replace(context.watch, phase=WatchdogPhase.ACTING, acting=acting, last_action=last, reason=None)
    return watch, (_event(context, EventName.WATCHDOG_ACTS, kind, reason),)


def _wait(context: Context, wait: Wait) -> Evaluated:
    """Report each reason to wait once."""
    watch = replace(context.watch, phase=wait.phase, backoff_for=wait.backoff_for, not_before=wait.until)
    if wait.reason is None or wait.reason == watch.reason:
        return watch, ()
    watch = replace(watch, reason=wait.reason, last_action=None)
    if wait.phase is WatchdogPhase.CIRCUIT_OPEN and watch.circuit_opened_at is None:
        return restart.open_circuit(watch, context.daemon.name, context.at, wait.reason)
    server, state = (None, None) if watch.diagnosis is None else (watch.diagnosis.server, watch.diagnosis.condition)
    return watch, (context.event(EventName.WATCHDOG_WAITS, server=server, reason=wait.reason, state=state),)


def _event(context: Context, name: EventName, kind: ActionKind, reason: ActionReason) -> Event:
    found = context.watch.diagnosis
    return context.event(
        name,
        action=kind,
        reason=reason,
        server=None if found is None else found.server,
        pid=None if found is None or found.process is None else found.process.pid,
        indications=None if found is None else found.indications or None,
    )


# -- A state file that cannot be read or written for a while -----------------------------------------------------------


def mark_state_lost(node: Node, at: float) -> Node:
    """Return the node with states that may be out of date: changes since could not be stored."""
    return replace(node, watches={name: replace(watch, state_lost_at=at) for name, watch in node.watches.items()})


def restore_state(node: Node, stored: Mapping[DaemonName, WatchdogState], at: float, *, whole: bool) -> Node:
    """Return the node with the stored states, which can be read and written again.

    A daemon that has no stored state stays as it is, unless the stored states are `whole`. After an operator's `resume`
    the stored state of a daemon is ignored.
    """
    watches = {**stored, **node.watches}
    for name, watch in watches.items():
        if name not in node.watches:
            watches[name] = restart.end_interrupted(watch, at)
        elif watch.state_lost_at is not None and name in stored:
            watches[name] = _merged(restart.end_interrupted(stored[name], at), watch)
        elif watch.state_lost_at is not None and whole:
            watches[name] = replace(watch, state_lost_at=None)
    return replace(node, watches=watches)


def _merged(stored: WatchdogState, now: WatchdogState) -> WatchdogState:
    merged = replace(
        stored,
        process=now.process or stored.process,
        children=now.children or stored.children,
        limits=now.limits or stored.limits,
        wanted_limits=now.wanted_limits or stored.wanted_limits,
        enforcement=now.enforcement,
        unit_restarts=stored.unit_restarts if now.unit_restarts is None else now.unit_restarts,
        acting=now.acting or stored.acting,
        bypassed=stored.bypassed + now.bypassed,
    )
    for each in now.action_counts:
        merged = count_action(merged, each.kind, each.reason, each.result, by=each.count)
    return merged
