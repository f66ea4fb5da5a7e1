"""What each diagnosis calls for. What heals by itself, or is somebody's will, is left alone, and said so."""

from exporter.core.watchdog import faults, quarantine, restarting
from exporter.core.watchdog.matter import Matter
from exporter.core.watchdog.resolve import Deed, Resolve, Wait
from exporter.model.action import ActionKind, EndProcess, Role, SaveEvidence
from exporter.model.diagnosis import Condition, Diagnosis
from exporter.model.settings import AllowedAction, Mode
from exporter.model.watch import WatchState

_STATE_LOST = "the watchdog's state could not be read or written: how often the daemon was restarted is unknown"


def resolved(matter: Matter) -> Resolve:
    """What is to be done for a daemon for which nothing is being done."""
    found = matter.watch.diagnosis
    if matter.watch.quarantine is not None:
        return Wait(why=quarantine.why(matter.watch.quarantine), state=WatchState.QUARANTINED)
    if matter.watch.lost_at is not None and matter.mode is Mode.ACT:
        return Wait(why=_STATE_LOST, state=WatchState.STATE_LOST)
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
            return _server_hangs(matter, found, f"was stopped: {_kill('CONT', found.server)} lets it go on")
        case Condition.SERVER_UNRESPONSIVE:
            why = f"does not answer its daemon: {_kill('KILL', found.server)} ends it, and its clients"
            return faults.unblocked(matter) or _server_hangs(matter, found, why)
        case Condition.FAULT:
            return faults.remedied(matter)
        case _:
            return _left_alone(found)


def _kill(signal: str, pid: int | None) -> str:
    """Name a signal, with its command if the PID is one of this namespace: `kill` takes another number for a group."""
    return f"SIG{signal}" if pid is None or pid <= 1 else f"`kill -{signal} {pid}`"


def _server_hangs(matter: Matter, found: Diagnosis, why: str) -> Resolve:
    """End a server that hangs, if the configuration allows it and /proc has shown that it is the daemon's server."""
    after, culprit = matter.rules.hung_after, found.culprit
    if AllowedAction.END_HUNG_SERVER not in matter.rules.allow or culprit is None:
        return Wait(why=f"server {found.server} {why}")
    if matter.at - found.since < after:
        return Wait(why=f"server {found.server} hangs, which may pass: it is ended after {after:g} s")
    if culprit not in matter.watch.children:
        return Wait(why=f"server {found.server} {why}; /proc has not shown that it is a child of this daemon")
    if found.condition is Condition.SERVER_UNRESPONSIVE and len(matter.watch.children) > 1:
        return Wait(why=f"server {found.server} {why}; of several servers, the log alone says that this one hangs")
    end = EndProcess(identity=culprit, role=Role.SERVER)
    answers = f"server {culprit.pid} {culprit.start_ticks}"
    return Deed(kind=ActionKind.END_SERVER, reason=restarting.HUNG, steps=(SaveEvidence(), end), answers=answers)


def _left_alone(found: Diagnosis) -> Wait | None:
    who = "nobody is seen who" if found.culprit is None else f"process {found.culprit.pid}"
    why = {
        Condition.STOPPED: "an operator stopped it: it is left alone",
        Condition.NEVER_SEEN: "it was never seen to run: it is left to whoever starts it",
        Condition.PROGRAM_UNRESPONSIVE: "the control program is at fault, not the daemon: a restart would not help",
        Condition.HELD: f"{who} has a session open: to close that is all it takes",
        Condition.STUCK_IN_DRIVER: f"{who} sleeps in the kernel, where no signal reaches it: it may take a reboot",
        Condition.CRASH_LOOP: "its servers cannot start, and a restart would feed that: server.log says why",
    }.get(found.condition)
    return None if why is None else Wait(why=why)
