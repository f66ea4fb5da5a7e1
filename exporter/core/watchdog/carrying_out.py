"""The effect of a decision on the watch: an event and a count first; in `observe`, nothing else."""

from exporter.core.watchdog import budget
from exporter.core.watchdog.matter import Matter
from exporter.core.watchdog.resolve import Deed, Resolve, Wait
from exporter.core.watchdog.tallies import counted
from exporter.model.action import Action, ActionKind, ActionReason, ActionResult
from exporter.model.diagnosis import Condition
from exporter.model.event import Event, EventName
from exporter.model.identity import identity_of
from exporter.model.replace import replace, revised
from exporter.model.settings import Mode
from exporter.model.watch import Acting, LastAction, Watch, WatchState

Decided = tuple[Watch, tuple[Event, ...], Action | None]


def carried_out(matter: Matter, resolve: Resolve) -> Decided:
    """The watch, and what there is to tell; in `act`, the action too."""
    match resolve:
        case Deed() if _is_done(matter, resolve):
            return replace(matter.watch, state=WatchState.IDLE), (), None
        case Deed() if matter.mode is Mode.OBSERVE:
            return _observed(matter, resolve)
        case Deed():
            return _begun(matter, resolve)
        case Wait():
            return _waiting(matter, resolve)
        case None:
            return _content(matter), (), None


def _key(matter: Matter, deed: Deed) -> str:
    return f"{matter.mode.value}: {deed.kind.value} {deed.answers}"


def _is_done(matter: Matter, deed: Deed) -> bool:
    """A restart that did not help may be tried again: for that there is a budget."""
    again = deed.kind is ActionKind.RESTART and matter.mode is Mode.ACT
    return not again and matter.watch.intention == _key(matter, deed)


def _observed(matter: Matter, deed: Deed) -> Decided:
    watch = counted(matter.watch, deed.kind, deed.reason, ActionResult.OBSERVED)
    last = LastAction(kind=deed.kind, reason=deed.reason, begun=False)
    watch = replace(watch, state=WatchState.IDLE, intention=_key(matter, deed), last_action=last, reason=None)
    return watch, (_event(matter, EventName.WATCHDOG_WOULD_ACT, deed.kind, deed.reason),), None


def _begun(matter: Matter, deed: Deed) -> Decided:
    watch, uid = matter.watch, None if matter.watch.process is None else matter.watch.process.uid
    if deed.kind is ActionKind.RESTART:
        watch = replace(watch, restarts=(*watch.restarts, matter.at), last_restart_at=matter.at)
    watch = replace(
        watch,
        intention=_key(matter, deed),
        need=None,
        not_before=None,
        rung=watch.rung if deed.rung is None else deed.rung,
    )
    action = Action(daemon=matter.daemon.name, kind=deed.kind, reason=deed.reason, steps=deed.steps, uid=uid)
    return begun(replace(matter, watch=watch), action)


def begun(matter: Matter, action: Action) -> Decided:
    """Return the watch with an action that is under way from now on."""
    before = identity_of(matter.watch.process)
    acting = Acting(kind=action.kind, reason=action.reason, began_at=matter.at, before=before)
    last = LastAction(kind=action.kind, reason=action.reason, begun=True)
    watch = replace(matter.watch, state=WatchState.ACTING, acting=acting, last_action=last, reason=None)
    return watch, (_event(matter, EventName.WATCHDOG_ACTS, action.kind, action.reason),), action


def _waiting(matter: Matter, wait: Wait) -> Decided:
    """Report the reason once, however long it lasts."""
    watch = replace(matter.watch, state=wait.state, need=wait.need, not_before=wait.until)
    if wait.reason is None or wait.reason == watch.reason:
        return watch, (), None
    watch = replace(watch, reason=wait.reason, last_action=None)
    if wait.state is WatchState.CIRCUIT_OPEN and watch.opened_at is None:
        return *budget.opened(watch, matter.daemon.name, matter.at, wait.reason), None
    found = watch.diagnosis
    waits = Event(
        at=matter.at,
        event=EventName.WATCHDOG_WAITS,
        daemon=matter.daemon.name,
        server=None if found is None else found.server,
        reason=wait.reason,
        state=None if found is None else found.condition,
    )
    return watch, (waits,), None


def _content(matter: Matter) -> Watch:
    """Nothing is to be done; where it is well, whatever comes next is new."""
    watch = matter.watch
    if matter.condition is Condition.WELL:
        watch = revised(watch, intention=None, reason=None, last_action=None, problem=None, need=None, not_before=None)
    return revised(watch, state=WatchState.IDLE if watch.opened_at is None else WatchState.CIRCUIT_OPEN)


def _event(matter: Matter, name: EventName, kind: ActionKind, reason: ActionReason) -> Event:
    found = matter.watch.diagnosis
    return Event(
        at=matter.at,
        event=name,
        daemon=matter.daemon.name,
        action=kind,
        reason=reason,
        server=None if found is None else found.server,
        pid=None if found is None or found.culprit is None else found.culprit.pid,
        indications=None if found is None else found.indications or None,
    )
