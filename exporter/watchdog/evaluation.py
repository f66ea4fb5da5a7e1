"""Evaluate a node: diagnose each expected daemon, decide, report and count the actions."""

from collections.abc import Callable, Mapping

from exporter.model.action import Action, ActionKind, ActionReason, ActionResult
from exporter.model.event import Event, EventName
from exporter.model.identity import identity_of
from exporter.model.node import Node
from exporter.model.observation import DaemonName
from exporter.model.settings import Mode
from exporter.model.values import replace, updated
from exporter.model.watchdog import Condition, LastAction, OngoingAction, WatchdogPhase, WatchdogState
from exporter.watchdog import decision, diagnosis, limit_enforcement, restart, verification
from exporter.watchdog.context import Context, Decision, Evaluated, PlannedAction, Policy, Wait, count_action

Evaluation = tuple[Node, tuple[Event, ...], tuple[Action, ...]]

_DaemonEvaluation = tuple[WatchdogState, tuple[Event, ...], Action | None]

_PREPARATION: tuple[Callable[[Context], Evaluated], ...] = (
    diagnosis.diagnose,
    restart.track_health,
    decision.quarantine,
    verification.verify,
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
        context = Context(
            node=node,
            daemon=daemon,
            watch=node.watches.get(name) or WatchdogState(state_lost_at=at if policy.state_lost else None),
            daemon_policy=policy.daemon_policy_of(daemon),
            mode=policy.mode_of(daemon),
            thresholds=policy.thresholds,
            at=at,
            chance=chance,
        )
        watches[name], new, action = _evaluate_daemon(context)
        events.extend(new)
        if action is not None:
            actions.append(action)
    return node if watches == node.watches else replace(node, watches=watches), tuple(events), tuple(actions)


def _evaluate_daemon(context: Context) -> _DaemonEvaluation:
    context = updated(context, watch=restart.remember_processes(context))
    events: tuple[Event, ...] = ()
    for prepare in _PREPARATION:
        watch, new = prepare(context)
        context, events = updated(context, watch=watch), events + new
    action: Action | None = None
    if context.watch.acting is None:
        watch, new, action = _apply(context, decision.decide(context))
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
    """Return the state and the events of a decision; in `act` mode, also the action."""
    match decided:
        case PlannedAction():
            return _plan(context, decided)
        case Wait():
            return *_wait(context, decided), None
        case None:
            watch = context.watch
            if context.condition is Condition.WELL:
                watch = updated(watch, backoff_for=None, not_before=None, last_planned=None)
                watch = updated(watch, reason=None, last_action=None, problem=None)
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
            watches[name] = verification.end_interrupted(watch, at)
        elif watch.state_lost_at is not None and name in stored:
            watches[name] = _merged(verification.end_interrupted(stored[name], at), watch)
        elif watch.state_lost_at is not None and whole:
            watches[name] = replace(watch, state_lost_at=None)
    return replace(node, watches=watches)


def _merged(stored: WatchdogState, now: WatchdogState) -> WatchdogState:
    """Return the stored state with what was observed and counted since the start."""
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
