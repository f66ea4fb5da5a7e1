"""Evaluate a node: plan the actions of each expected daemon, report and count them."""

from collections.abc import Callable, Mapping

from exporter.model.action import Action, ActionKind, ActionReason, ActionResult
from exporter.model.event import Event, EventName
from exporter.model.identity import identity_of
from exporter.model.node import Node
from exporter.model.observation import DaemonName
from exporter.model.settings import Mode
from exporter.model.values import replace, revised
from exporter.model.watchdog import Condition, LastAction, OngoingAction, WatchdogPhase, WatchdogState
from exporter.watchdog import decision, diagnosis, limits, restart, verification
from exporter.watchdog.context import Context, Decision, Evaluated, PlannedAction, Policy, Wait, with_count
from exporter.watchdog.decision import decided as decision_decided
from exporter.watchdog.verification import interrupted

Planned = tuple[WatchdogState, tuple[Event, ...], Action | None]


def planned(context: Context, resolve: Decision) -> Planned:
    """The watch, and what there is to tell; in `act`, the action too."""
    match resolve:
        case PlannedAction() if _is_done(context, resolve):
            return replace(context.watch, phase=WatchdogPhase.IDLE), (), None
        case PlannedAction() if context.mode is Mode.OBSERVE:
            return _observed(context, resolve)
        case PlannedAction():
            return _begun(context, resolve)
        case Wait():
            return _waiting(context, resolve)
        case None:
            return _content(context), (), None


def _key(context: Context, deed: PlannedAction) -> str:
    return f"{context.mode.value}: {deed.kind.value} {deed.answers}"


def _is_done(context: Context, deed: PlannedAction) -> bool:
    """A restart that did not help may be tried again: for that there is a budget."""
    again = deed.kind is ActionKind.RESTART and context.mode is Mode.ACT
    return not again and context.watch.last_planned == _key(context, deed)


def _observed(context: Context, deed: PlannedAction) -> Planned:
    watch = with_count(context.watch, deed.kind, deed.reason, ActionResult.OBSERVED)
    last = LastAction(kind=deed.kind, reason=deed.reason, begun=False)
    watch = replace(watch, phase=WatchdogPhase.IDLE, last_planned=_key(context, deed), last_action=last, reason=None)
    return watch, (_event(context, EventName.WATCHDOG_WOULD_ACT, deed.kind, deed.reason),), None


def _begun(context: Context, deed: PlannedAction) -> Planned:
    watch, uid = context.watch, None if context.watch.process is None else context.watch.process.uid
    if deed.kind is ActionKind.RESTART:
        watch = replace(watch, restarts=(*watch.restarts, context.at), last_restart_at=context.at)
    watch = replace(
        watch,
        last_planned=_key(context, deed),
        backoff_for=None,
        not_before=None,
        escalation=watch.escalation if deed.escalation is None else deed.escalation,
    )
    action = Action(daemon=context.daemon.name, kind=deed.kind, reason=deed.reason, steps=deed.steps, uid=uid)
    return begun(replace(context, watch=watch), action)


def begun(context: Context, action: Action) -> Planned:
    """Return the watch with an action that is under way from now on."""
    before = identity_of(context.watch.process)
    acting = OngoingAction(kind=action.kind, reason=action.reason, began_at=context.at, before=before)
    last = LastAction(kind=action.kind, reason=action.reason, begun=True)
    watch = replace(context.watch, phase=WatchdogPhase.ACTING, acting=acting, last_action=last, reason=None)
    return watch, (_event(context, EventName.WATCHDOG_ACTS, action.kind, action.reason),), action


def _waiting(context: Context, wait: Wait) -> Planned:
    """Report the reason once, however long it lasts."""
    watch = replace(context.watch, phase=wait.phase, backoff_for=wait.backoff_for, not_before=wait.until)
    if wait.reason is None or wait.reason == watch.reason:
        return watch, (), None
    watch = replace(watch, reason=wait.reason, last_action=None)
    if wait.phase is WatchdogPhase.CIRCUIT_OPEN and watch.circuit_opened_at is None:
        return *restart.opened(watch, context.daemon.name, context.at, wait.reason), None
    found = watch.diagnosis
    waits = Event(
        at=context.at,
        event=EventName.WATCHDOG_WAITS,
        daemon=context.daemon.name,
        server=None if found is None else found.server,
        reason=wait.reason,
        state=None if found is None else found.condition,
    )
    return watch, (waits,), None


def _content(context: Context) -> WatchdogState:
    """Nothing is to be done; where it is well, whatever comes next is new."""
    watch = context.watch
    if context.condition is Condition.WELL:
        watch = revised(
            watch, last_planned=None, reason=None, last_action=None, problem=None, backoff_for=None, not_before=None
        )
    return revised(watch, phase=WatchdogPhase.IDLE if watch.circuit_opened_at is None else WatchdogPhase.CIRCUIT_OPEN)


def _event(context: Context, name: EventName, kind: ActionKind, reason: ActionReason) -> Event:
    found = context.watch.diagnosis
    return Event(
        at=context.at,
        event=name,
        daemon=context.daemon.name,
        action=kind,
        reason=reason,
        server=None if found is None else found.server,
        pid=None if found is None or found.process is None else found.process.pid,
        indications=None if found is None else found.indications or None,
    )


def lost(node: Node, at: float) -> Node:
    """Return a node whose watches may be out of date: what happened since could not be written."""
    return replace(node, watches={name: replace(watch, state_lost_at=at) for name, watch in node.watches.items()})


def regained(node: Node, remembered: Mapping[DaemonName, WatchdogState], at: float, *, whole: bool) -> Node:
    """Return a node that knows what the state has, now that it can be read and written.

    If the state is not `whole`, a daemon that it does not have stays as it is. An operator's `resume` outweighs what
    is remembered of the daemon.
    """
    watches = {**remembered, **node.watches}
    for name, watch in watches.items():
        if name not in node.watches:
            watches[name] = interrupted(watch, at)
        elif watch.state_lost_at is not None and name in remembered:
            watches[name] = _merged(interrupted(remembered[name], at), watch)
        elif watch.state_lost_at is not None and whole:
            watches[name] = replace(watch, state_lost_at=None)
    return replace(node, watches=watches)


def _merged(remembered: WatchdogState, now: WatchdogState) -> WatchdogState:
    """Return what is remembered, with what was observed and counted since the start."""
    merged = replace(
        remembered,
        process=now.process or remembered.process,
        children=now.children or remembered.children,
        limits=now.limits or remembered.limits,
        wanted_limits=now.wanted_limits or remembered.wanted_limits,
        enforcement=now.enforcement,
        unit_restarts=remembered.unit_restarts if now.unit_restarts is None else now.unit_restarts,
        acting=now.acting or remembered.acting,
        bypassed=remembered.bypassed + now.bypassed,
    )
    for each in now.action_counts:
        merged = with_count(merged, each.kind, each.reason, each.result, by=each.count)
    return merged


Evaluation = tuple[Node, tuple[Event, ...], tuple[Action, ...]]

_STEPS: tuple[Callable[[Context], Evaluated], ...] = (
    diagnosis.diagnosed,
    restart.kept_well,
    decision.quarantined,
    verification.settled,
    restart.by_systemd,
)
"""What is to be known before anything is resolved, in this order."""


def evaluate(node: Node, policy: Policy, *, at: float, chance: float) -> Evaluation:
    """Diagnose every expected daemon, and decide what is to be done now.

    `at` is now, in seconds since the epoch; `chance`, 0 to 1, is for the jitter. To be called after each batch of
    observations, and every second anyhow. The actions that it returns must be carried out; it counts on them.
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
        watches[name], told, action = _judged(context)
        events.extend(told)
        if action is not None:
            actions.append(action)
    return node if watches == node.watches else replace(node, watches=watches), tuple(events), tuple(actions)


def _judged(context: Context) -> Planned:
    context = revised(context, watch=restart.remembered(context))
    events: tuple[Event, ...] = ()
    for step in _STEPS:
        watch, told = step(context)
        context, events = revised(context, watch=watch), events + told
    decided: Planned = (context.watch, (), None)
    if context.watch.acting is None:
        decided = planned(context, decision_decided(context))
    watch, told, action = decided
    watch, limited, more = _limited(revised(context, watch=watch))
    return watch, events + told + limited, action or more


def _limited(context: Context) -> Planned:
    """The limits that should be in force are, or are being put; not while something else is under way."""
    free = context.watch.acting is None
    mode = context.mode if free else Mode.OBSERVE
    configured = context.daemon_policy.limits
    watch, events, action = limits.enforce(context.node, context.daemon, context.watch, configured, mode, context.at)
    if action is None:
        return watch, events, None
    watch, acts, action = begun(replace(context, watch=watch), action)
    return watch, events + acts, action
