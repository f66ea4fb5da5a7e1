"""What each diagnosis calls for. A condition that passes by itself, or that an operator wants, is left alone."""

from exporter.core.watchdog import faults, quarantine, restarting
from exporter.core.watchdog.matter import Matter
from exporter.core.watchdog.resolve import Deed, Resolve, Wait
from exporter.model.action import ActionKind, ActionReason, EndProcess, Role, SaveEvidence
from exporter.model.diagnosis import Condition, Diagnosis
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import AllowedAction, Mode
from exporter.model.watch import WatchState


def resolved(matter: Matter) -> Resolve:
    """What is to be done for a daemon for which nothing is being done."""
    found = matter.watch.diagnosis
    if matter.watch.quarantine is not None:
        return Wait(reason=quarantine.reason(matter.watch.quarantine), state=WatchState.QUARANTINED)
    if matter.watch.lost_at is not None and matter.mode is Mode.ACT:
        return Wait(reason=Reason(ReasonCode.STATE_LOST), state=WatchState.STATE_LOST)
    if found is None:
        return None
    match found.condition:
        case Condition.CRASHED:
            return restarting.crashed(matter, found.since)
        case Condition.UNRESPONSIVE:
            return faults.unblocked(matter) or restarting.hung(matter, found.since)
        case Condition.SUSPENDED:
            return restarting.hung(matter, found.since)
        case Condition.SERVER_SUSPENDED:
            return _server_hangs(matter, found, ReasonCode.SERVER_MUST_CONTINUE)
        case Condition.SERVER_UNRESPONSIVE:
            return faults.unblocked(matter) or _server_hangs(matter, found, ReasonCode.SERVER_MUST_END)
        case Condition.FAULT:
            return faults.remedied(matter)
        case _:
            return _left_alone(found)


def _server_hangs(matter: Matter, found: Diagnosis, remedy: ReasonCode) -> Resolve:
    """End a server that hangs, if the configuration allows it and /proc has shown that it is the daemon's server."""
    after, culprit = matter.rules.hung_after, found.culprit
    if AllowedAction.END_HUNG_SERVER not in matter.rules.allow or culprit is None:
        return Wait(reason=Reason(remedy, server=found.server))
    if matter.at - found.since < after:
        return Wait(reason=Reason(ReasonCode.HANG_TOO_RECENT, server=found.server, seconds=after))
    if culprit not in matter.watch.children:
        return Wait(reason=Reason(ReasonCode.SERVER_PARENT_UNKNOWN, server=found.server, state=found.condition))
    if found.condition is Condition.SERVER_UNRESPONSIVE and len(matter.watch.children) > 1:
        return Wait(reason=Reason(ReasonCode.HUNG_SERVER_AMBIGUOUS, server=found.server))
    end = EndProcess(identity=culprit, role=Role.SERVER)
    answers = f"server {culprit.pid} {culprit.start_ticks}"
    return Deed(kind=ActionKind.END_SERVER, reason=ActionReason.HUNG, steps=(SaveEvidence(), end), answers=answers)


def _left_alone(found: Diagnosis) -> Wait | None:
    code = _LEFT_ALONE.get(found.condition)
    if code is None:
        return None
    pid = found.culprit.pid if found.culprit is not None and found.condition in _WITH_CULPRIT else None
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
