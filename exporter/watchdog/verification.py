"""Whether an action helped, and the dry run of the watchdog on a recording."""

from exporter.model.action import AGAINST_FAULTS, ActionKind, ActionReason, ActionResult
from exporter.model.event import Event, EventName
from exporter.model.identity import identity_of
from exporter.model.node import Node
from exporter.model.observation import ActionDone, Resumed
from exporter.model.reason import Reason, ReasonCode
from exporter.model.values import replace
from exporter.model.watchdog import Condition, OngoingAction, WatchdogState
from exporter.watchdog import restart
from exporter.watchdog.context import Context, Evaluated, with_count

UNHEARD_SECONDS = 180.0
"""After so long nothing more is heard of an action, in seconds. The longest step, a unit's restart, may take 75."""

COMES_SECONDS = 1.0
"""A daemon is there 15 ms after its command (measured, R580), and a unit's some tenths of a second later."""


def done(node: Node, seen: ActionDone) -> Node:
    """An action has ended; what it has helped is yet to be seen."""
    watch = node.watches.get(seen.daemon)
    acting = None if watch is None else watch.acting
    if watch is None or acting is None or (acting.kind, acting.reason) != (seen.kind, seen.reason):
        return node
    ended = replace(acting, done_at=seen.at, problem=seen.problem, evidence=seen.evidence)
    return replace(node, watches={**node.watches, seen.daemon: replace(watch, acting=ended)})


def resumed(node: Node, seen: Resumed) -> tuple[Node, tuple[Event, ...]]:
    """An operator lets it be restarted again: all that kept it from being is forgotten."""
    if seen.daemon not in node.daemons:
        return node, ()
    before = node.watches.get(seen.daemon, WatchdogState())
    watch, events = restart.closed(before, seen.daemon, seen.at, Reason(ReasonCode.OPERATOR_RESUMED))
    if before.quarantine is not None:
        released = EventName.DAEMON_RELEASED
        events += (Event(at=seen.at, event=released, daemon=seen.daemon, xid=before.quarantine.xid),)
    watch = replace(
        watch,
        resumed_at=seen.at,
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
    return replace(node, watches={**node.watches, seen.daemon: watch}), events


def interrupted(watch: WatchdogState, at: float) -> WatchdogState:
    """What was under way when the exporter ended goes on no more: what it has done so far may do, or not."""
    acting = watch.acting
    if acting is None or acting.done_at is not None:
        return watch
    lost = None if acting.kind is ActionKind.RESTART else Reason(ReasonCode.EXPORTER_RESTARTED)
    return replace(watch, acting=replace(acting, done_at=at, problem=lost))


def taken_up(node: Node, at: float) -> Node:
    """A node whose watches another run of the exporter has left."""
    return replace(node, watches={name: interrupted(watch, at) for name, watch in node.watches.items()})


def settled(context: Context) -> Evaluated:
    """The watch without its action, once it is known whether that helped."""
    acting = context.watch.acting
    if acting is None:
        return context.watch, ()
    if acting.done_at is None:
        unheard = context.at - acting.began_at > UNHEARD_SECONDS
        return _ended(context, acting, Reason(ReasonCode.NO_RESULT)) if unheard else (context.watch, ())
    if acting.problem is not None or acting.kind is not ActionKind.RESTART:
        return _ended(context, acting, acting.problem)
    if _died_again(context, acting, acting.done_at):
        return _ended(context, acting, Reason(ReasonCode.DAEMON_ENDED_AGAIN))
    if _never_came(context, acting.done_at):
        return _ended(context, acting, Reason(ReasonCode.DAEMON_MISSING))
    missing = _missing(context, acting)
    if missing is not None and context.at - acting.done_at <= context.thresholds.verify:
        return context.watch, ()
    return _ended(context, acting, missing)


def _died_again(context: Context, acting: OngoingAction, done_at: float) -> bool:
    """Whether it has come, and crashed since: there is nothing to wait for then.

    One that hung is seen to end too: that is the restart's own doing, unless it was done by then, or another was seen.
    """
    found, loss_at = context.watch.diagnosis, context.daemon.lifecycle.last_loss_at
    if found is None or found.condition is not Condition.CRASHED or loss_at is None or loss_at <= acting.began_at:
        return False
    another = identity_of(context.watch.process) != acting.before
    return acting.reason is ActionReason.CRASHED or loss_at > done_at or another


def _never_came(context: Context, since: float) -> bool:
    """Whether nothing is left of a restart that another run of the exporter had begun: no daemon takes so long."""
    found = context.watch.diagnosis
    crashed = found is not None and found.condition is Condition.CRASHED
    return crashed and not context.daemon.lifecycle.ever_ran and context.at - since > COMES_SECONDS


def _missing(context: Context, acting: OngoingAction) -> Reason | None:
    """Return what is missing of a restarted daemon; None if it answers and its process is another than before."""
    daemon = context.daemon
    if not context.lives or (daemon.lifecycle.state_since or 0.0) < acting.began_at:
        return Reason(ReasonCode.DAEMON_NOT_ANSWERING, seconds=context.thresholds.verify)
    now = identity_of(daemon.runtime.process)
    if acting.before is not None and now is None:
        return Reason(ReasonCode.ANSWERING_PROCESS_UNKNOWN)
    if acting.before is None or now != acting.before:
        return None
    return Reason(ReasonCode.OLD_PROCESS_PRESENT, pid=acting.before.pid)


def _ended(context: Context, acting: OngoingAction, problem: Reason | None) -> Evaluated:
    watch, name, at = context.watch, context.daemon.name, context.at
    result = ActionResult.SUCCEEDED if problem is None else ActionResult.FAILED
    watch = replace(with_count(watch, acting.kind, acting.reason, result), acting=None, problem=problem)
    if acting.kind in AGAINST_FAULTS and watch.escalation is not None:
        watch = replace(watch, escalation=replace(watch.escalation, at=acting.done_at or at))
    event = Event(
        at=at,
        event=EventName.WATCHDOG_ACTED,
        daemon=name,
        action=acting.kind,
        reason=acting.reason,
        result=result,
        problem=problem,
        evidence=acting.evidence,
    )
    if problem is None or acting.kind is not ActionKind.RESTART:
        return watch, (event,)
    watch = replace(watch, failures=watch.failures + 1)
    if watch.failures < restart.FAILED_IN_A_ROW:
        return watch, (event,)
    failed = Reason(ReasonCode.RESTARTS_FAILED, count=watch.failures)
    watch, opened = restart.opened(watch, name, at, failed)
    return watch, (event, *opened)
