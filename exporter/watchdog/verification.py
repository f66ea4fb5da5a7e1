"""Results of actions: whether a restart helped, what an operator's `resume` and an exporter restart change."""

from exporter.model.action import AGAINST_FAULTS, ActionKind, ActionReason, ActionResult
from exporter.model.event import Event, EventName
from exporter.model.identity import identity_of
from exporter.model.node import Node
from exporter.model.observation import ActionDone, Resumed
from exporter.model.reason import Reason, ReasonCode
from exporter.model.values import replace
from exporter.model.watchdog import Condition, OngoingAction, WatchdogState
from exporter.watchdog import restart
from exporter.watchdog.context import Context, Evaluated, count_action

RESULT_SECONDS = 180.0
"""How long the watchdog waits for an action's result. The longest step, a unit's restart, may take 75 s."""

START_SECONDS = 1.0
"""A daemon runs 15 ms after its command (measured, R580), and a unit's daemon some tenths of a second later."""

POD_SECONDS = 120.0
"""A pod may take this long to end (its grace period is 30 s by default), and its successor to start."""


def record_result(node: Node, done: ActionDone) -> Node:
    """Record the end of an action. Its effect is verified later."""
    watch = node.watches.get(done.daemon)
    acting = None if watch is None else watch.acting
    if watch is None or acting is None or (acting.kind, acting.reason) != (done.kind, done.reason):
        return node
    ended = replace(acting, done_at=done.at, problem=done.problem, evidence=done.evidence)
    return replace(node, watches={**node.watches, done.daemon: replace(watch, acting=ended)})


def resume(node: Node, resumed: Resumed) -> tuple[Node, tuple[Event, ...]]:
    """Clear all that prevents a restart, because an operator has asked for it."""
    name, at = resumed.daemon, resumed.at
    if name not in node.daemons:
        return node, ()
    before = node.watches.get(name, WatchdogState())
    watch, closed = restart.close_circuit(before, name, at, Reason(ReasonCode.OPERATOR_RESUMED))
    events = (Event(at=at, event=EventName.DAEMON_RESUMED, daemon=name), *closed)
    if before.quarantine is not None:
        events += (Event(at=at, event=EventName.DAEMON_RELEASED, daemon=name, xid=before.quarantine.xid),)
    watch = replace(
        watch,
        resumed_at=at,
        quarantine=None,
        state_lost_at=None,
        restarts=(),
        failures=0,
        not_before=None,
        backoff_for=None,
        last_planned=None,
        reason=None,
        last_action=None,
        problem=None,
    )
    return replace(node, watches={**node.watches, name: watch}), events


def end_interrupted(watch: WatchdogState, at: float) -> WatchdogState:
    """End the action that ran when the exporter ended. A restart may have helped all the same."""
    acting = watch.acting
    if acting is None or acting.done_at is not None:
        return watch
    problem = None if acting.kind is ActionKind.RESTART else Reason(ReasonCode.EXPORTER_RESTARTED)
    return replace(watch, acting=replace(acting, done_at=at, problem=problem))


def end_all_interrupted(node: Node, at: float) -> Node:
    """Return the stored node of an earlier run of the exporter, with its actions ended."""
    return replace(node, watches={name: end_interrupted(watch, at) for name, watch in node.watches.items()})


def verify(context: Context) -> Evaluated:
    """Return the state without its action, once its effect is known."""
    acting = context.watch.acting
    if acting is None:
        return context.watch, ()
    if acting.done_at is None:
        overdue = context.at - acting.began_at > RESULT_SECONDS
        return _ended(context, acting, Reason(ReasonCode.NO_RESULT)) if overdue else (context.watch, ())
    if acting.problem is not None or acting.kind is not ActionKind.RESTART:
        return _ended(context, acting, acting.problem)
    if context.condition is Condition.DOWN and _died_again(context, acting, acting.done_at):
        return _ended(context, acting, Reason(ReasonCode.DAEMON_ENDED_AGAIN))
    # No daemon was observed since an earlier run of the exporter began the restart.
    missing = context.condition is Condition.DOWN and not context.daemon.lifecycle.ever_ran
    waited, pod_seconds = context.at - acting.done_at, 0.0 if context.pod_uid is None else POD_SECONDS
    if missing and waited > START_SECONDS + pod_seconds:
        return _ended(context, acting, Reason(ReasonCode.DAEMON_MISSING))
    seconds = context.thresholds.verify + pod_seconds
    problem = _restart_problem(context, acting, seconds)
    if problem is not None and waited <= seconds:
        return context.watch, ()
    return _ended(context, acting, problem)


def _died_again(context: Context, acting: OngoingAction, done_at: float) -> bool:
    """Return whether the new daemon has died.

    The restart itself ends a daemon that hung. The exit counts if it came after the restart, or of another process.
    """
    loss_at = context.daemon.lifecycle.last_loss_at
    if context.pod_uid is not None and identity_of(context.watch.process) == acting.before:
        # The pod, with a daemon that hung, ends some time after the API server has deleted it.
        return False
    if loss_at is None or loss_at <= acting.began_at:
        return False
    another = identity_of(context.watch.process) != acting.before
    return acting.reason is ActionReason.DOWN or loss_at > done_at or another


def _restart_problem(context: Context, acting: OngoingAction, seconds: float) -> Reason | None:
    """Return None if the daemon answers and its process is another one than before. It has so many seconds."""
    daemon = context.daemon
    if not context.works or (daemon.lifecycle.state_since or 0.0) < acting.began_at:
        return Reason(ReasonCode.DAEMON_NOT_ANSWERING, seconds=seconds)
    now = identity_of(daemon.runtime.process)
    if acting.before is not None and now is None:
        return Reason(ReasonCode.ANSWERING_PROCESS_UNKNOWN)
    if acting.before is None or now != acting.before:
        return None
    return Reason(ReasonCode.OLD_PROCESS_PRESENT, pid=acting.before.pid)


def _ended(context: Context, acting: OngoingAction, problem: Reason | None) -> Evaluated:
    watch, name, at = context.watch, context.daemon.name, context.at
    result = ActionResult.SUCCEEDED if problem is None else ActionResult.FAILED
    watch = replace(count_action(watch, acting.kind, acting.reason, result), acting=None, problem=problem)
    if acting.kind in AGAINST_FAULTS and watch.escalation is not None:
        watch = replace(watch, escalation=replace(watch.escalation, at=acting.done_at or at))
    event = context.event(
        EventName.WATCHDOG_ACTED,
        action=acting.kind,
        reason=acting.reason,
        result=result,
        problem=problem,
        evidence=acting.evidence,
    )
    if problem is None or acting.kind is not ActionKind.RESTART:
        return watch, (event,)
    watch = replace(watch, failures=watch.failures + 1)
    if watch.failures < restart.FAILURES_IN_A_ROW:
        return watch, (event,)
    failed = Reason(ReasonCode.RESTARTS_FAILED, count=watch.failures)
    watch, opened = restart.open_circuit(watch, name, at, failed)
    return watch, (event, *opened)
