"""What the watchdog does about each diagnosis."""

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
from exporter.watchdog import fault_remedies, restart_budget
from exporter.watchdog.context import Context, Decision, Evaluated, PlannedAction, Wait


def quarantine(context: Context) -> Evaluated:
    """Put the daemon into quarantine if one of its GPUs needs a reset or a reboot."""
    watch = context.watch
    if watch.quarantine is not None:
        return watch, ()
    new = (each for each in _demands(context) if each.at > (watch.resumed_at or 0.0))
    found = max(new, key=lambda each: each.at, default=None)
    if found is None:
        return watch, ()
    event = Event(
        at=context.at,
        event=EventName.DAEMON_QUARANTINED,
        daemon=context.daemon.name,
        gpu=found.gpu,
        xid=found.xid,
        reason=_need(found),
    )
    return replace(watch, quarantine=found), (event,)


def _need(found: Quarantine) -> Reason:
    code = ReasonCode.GPU_NEEDS_RESET if found.action == RESET else ReasonCode.GPU_NEEDS_REBOOT
    return Reason(code, xid=found.xid, gpu=found.gpu)


def _demands(context: Context) -> Iterator[Quarantine]:
    """Yield what the driver demands, and what NVIDIA's catalogue demands after Xids that no program can cause."""
    xids = context.node.xids
    for gpu, demand in xids.recovery_actions.items():
        if _serves(context, gpu):
            yield Quarantine(at=demand.at, xid=RECOVERY_XID, gpu=gpu, action=demand.action)
    for (gpu, number), count in xids.counts.items():
        known = xid_meaning(int(number)) if number.isdecimal() else None
        if known is None or known.action not in (RESET, REBOOT) or not exonerates(int(number)):
            continue
        if _serves(context, gpu):
            yield Quarantine(at=count.last_at, xid=int(number), gpu=gpu, action=known.action)


def _serves(context: Context, gpu: str) -> bool:
    known = context.node.gpus.get(gpu)
    if known is None:
        return gpu in context.daemon.runtime.devices.values()
    return gpus.uses_gpu(context.node, context.daemon, gpu)


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
        case Condition.CRASHED:
            return restart_budget.restart_crashed(context, found.since)
        case Condition.UNRESPONSIVE:
            return fault_remedies.kill_blockers(context) or restart_budget.restart_hung(context, found.since)
        case Condition.SUSPENDED:
            return restart_budget.restart_hung(context, found.since)
        case Condition.SERVER_SUSPENDED:
            return _end_hung_server(context, found, ReasonCode.SERVER_MUST_CONTINUE)
        case Condition.SERVER_UNRESPONSIVE:
            kill = fault_remedies.kill_blockers(context)
            return kill or _end_hung_server(context, found, ReasonCode.SERVER_MUST_END)
        case Condition.FAULT:
            return fault_remedies.remedy_fault(context)
        case _:
            return _no_remedy(found)


def _end_hung_server(context: Context, found: Diagnosis, remedy: ReasonCode) -> Decision:
    """End a server that hangs, if the configuration permits it and /proc has shown that it is the daemon's server."""
    after, process = context.thresholds.hung_after, found.process
    if AllowedAction.END_HUNG_SERVER not in context.thresholds.allow or process is None:
        return Wait(reason=Reason(remedy, server=found.server))
    if context.at - found.since < after:
        return Wait(reason=Reason(ReasonCode.HANG_TOO_RECENT, server=found.server, seconds=after))
    if process not in context.watch.children:
        return Wait(reason=Reason(ReasonCode.SERVER_PARENT_UNKNOWN, server=found.server, state=found.condition))
    if found.condition is Condition.SERVER_UNRESPONSIVE and len(context.watch.children) > 1:
        return Wait(reason=Reason(ReasonCode.HUNG_SERVER_AMBIGUOUS, server=found.server))
    steps = (SaveEvidence(), EndProcess(identity=process, role=Role.SERVER))
    cause = f"server {process.pid} {process.start_ticks}"
    return PlannedAction(kind=ActionKind.END_SERVER, reason=ActionReason.HUNG, steps=steps, cause=cause)


def _no_remedy(found: Diagnosis) -> Wait | None:
    code = _NO_REMEDY.get(found.condition)
    if code is None:
        return None
    named = found.process if found.condition in (Condition.HELD, Condition.STUCK_IN_DRIVER) else None
    return Wait(reason=Reason(code, pid=None if named is None else named.pid))


_NO_REMEDY = {
    Condition.STOPPED: ReasonCode.STOPPED_BY_OPERATOR,
    Condition.NEVER_SEEN: ReasonCode.NEVER_SEEN,
    Condition.PROGRAM_UNRESPONSIVE: ReasonCode.PROGRAM_AT_FAULT,
    Condition.HELD: ReasonCode.SESSION_HELD,
    Condition.STUCK_IN_DRIVER: ReasonCode.STUCK_IN_KERNEL,
    Condition.CRASH_LOOP: ReasonCode.SERVERS_CANNOT_START,
}
"""Why the watchdog waits in a condition that passes, or that only others can end."""
