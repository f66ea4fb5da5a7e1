"""What each diagnosis calls for."""

from collections.abc import Iterator

from exporter.model.action import ActionKind, ActionReason, EndProcess, Role, SaveEvidence
from exporter.model.event import Event, EventName
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import AllowedAction, Mode
from exporter.model.values import replace
from exporter.model.watchdog import Condition, Diagnosis, Quarantine, WatchdogPhase
from exporter.parse.kernel_log import RECOVERY_XID
from exporter.parse.xid_catalogue import REBOOT, RESET, exonerates, xid_meaning
from exporter.state import gpus
from exporter.watchdog import fault_remedies, restart
from exporter.watchdog.context import Context, Decision, Evaluated, PlannedAction, Wait


def quarantined(context: Context) -> Evaluated:
    """The watch, in quarantine where a GPU of the daemon's asks for it."""
    if context.watch.quarantine is not None:
        return context.watch, ()
    since = context.watch.resumed_at or 0.0
    asking = (each for each in _demands(context) if each.at > since)
    found = max(asking, key=lambda each: each.at, default=None)
    if found is None:
        return context.watch, ()
    event = Event(
        at=context.at,
        event=EventName.DAEMON_QUARANTINED,
        daemon=context.daemon.name,
        gpu=found.gpu,
        xid=found.xid,
        reason=reason(found),
    )
    return replace(context.watch, quarantine=found), (event,)


def reason(quarantine: Quarantine) -> Reason:
    """Return what the GPU needs."""
    code = ReasonCode.GPU_NEEDS_RESET if quarantine.action == RESET else ReasonCode.GPU_NEEDS_REBOOT
    return Reason(code, xid=quarantine.xid, gpu=quarantine.gpu)


def _demands(context: Context) -> Iterator[Quarantine]:
    """What the driver says outright, and what NVIDIA's catalogue does of Xids that no program can cause."""
    xids = context.node.xids
    for gpu, demand in xids.recovery_actions.items():
        if _serves(context, gpu):
            yield Quarantine(at=demand.at, xid=RECOVERY_XID, gpu=gpu, action=demand.action)
    for (gpu, number), count in xids.counts.items():
        action = _action(number)
        if action is not None and _serves(context, gpu):
            yield Quarantine(at=count.last_at, xid=int(number), gpu=gpu, action=action)


def _action(number: str) -> str | None:
    known = xid_meaning(int(number)) if number.isdecimal() else None
    if known is None or not exonerates(int(number)):
        return None
    return known.action if known.action in (RESET, REBOOT) else None


def _serves(context: Context, gpu: str) -> bool:
    known = context.node.gpus.get(gpu)
    if known is None:
        return gpu in context.daemon.runtime.devices.values()
    return gpus.served(context.daemon, known.reading)


def decided(context: Context) -> Decision:
    """What is to be done for a daemon for which nothing is being done."""
    found = context.watch.diagnosis
    if context.watch.quarantine is not None:
        return Wait(reason=reason(context.watch.quarantine), phase=WatchdogPhase.QUARANTINED)
    if context.watch.state_lost_at is not None and context.mode is Mode.ACT:
        return Wait(reason=Reason(ReasonCode.STATE_LOST), phase=WatchdogPhase.STATE_LOST)
    if found is None:
        return None
    match found.condition:
        case Condition.CRASHED:
            return restart.crashed(context, found.since)
        case Condition.UNRESPONSIVE:
            return fault_remedies.unblocked(context) or restart.hung(context, found.since)
        case Condition.SUSPENDED:
            return restart.hung(context, found.since)
        case Condition.SERVER_SUSPENDED:
            return _server_hangs(context, found, ReasonCode.SERVER_MUST_CONTINUE)
        case Condition.SERVER_UNRESPONSIVE:
            return fault_remedies.unblocked(context) or _server_hangs(context, found, ReasonCode.SERVER_MUST_END)
        case Condition.FAULT:
            return fault_remedies.remedied(context)
        case _:
            return _left_alone(found)


def _server_hangs(context: Context, found: Diagnosis, remedy: ReasonCode) -> Decision:
    """End a server that hangs, if the configuration allows it and /proc has shown that it is the daemon's server."""
    after, process = context.thresholds.hung_after, found.process
    if AllowedAction.END_HUNG_SERVER not in context.thresholds.allow or process is None:
        return Wait(reason=Reason(remedy, server=found.server))
    if context.at - found.since < after:
        return Wait(reason=Reason(ReasonCode.HANG_TOO_RECENT, server=found.server, seconds=after))
    if process not in context.watch.children:
        return Wait(reason=Reason(ReasonCode.SERVER_PARENT_UNKNOWN, server=found.server, state=found.condition))
    if found.condition is Condition.SERVER_UNRESPONSIVE and len(context.watch.children) > 1:
        return Wait(reason=Reason(ReasonCode.HUNG_SERVER_AMBIGUOUS, server=found.server))
    end = EndProcess(identity=process, role=Role.SERVER)
    answers = f"server {process.pid} {process.start_ticks}"
    return PlannedAction(
        kind=ActionKind.END_SERVER, reason=ActionReason.HUNG, steps=(SaveEvidence(), end), answers=answers
    )


def _left_alone(found: Diagnosis) -> Wait | None:
    code = _LEFT_ALONE.get(found.condition)
    if code is None:
        return None
    pid = found.process.pid if found.process is not None and found.condition in _WITH_CULPRIT else None
    return Wait(reason=Reason(code, pid=pid))


_LEFT_ALONE = {
    Condition.STOPPED: ReasonCode.STOPPED_BY_OPERATOR,
    Condition.NEVER_SEEN: ReasonCode.NEVER_SEEN,
    Condition.PROGRAM_UNRESPONSIVE: ReasonCode.PROGRAM_AT_FAULT,
    Condition.HELD: ReasonCode.SESSION_HELD,
    Condition.STUCK_IN_DRIVER: ReasonCode.STUCK_IN_KERNEL,
    Condition.CRASH_LOOP: ReasonCode.SERVERS_CANNOT_START,
}
_WITH_CULPRIT = (Condition.HELD, Condition.STUCK_IN_DRIVER)
