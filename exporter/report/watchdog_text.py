"""The watchdog's diagnosis and actions as text."""

from collections.abc import Mapping, Sequence

from exporter.model.action import ActionKind
from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.reason import ReasonCode
from exporter.model.settings import Mode
from exporter.model.watchdog import HARMLESS, BlockReason, Condition, WatchdogPhase, WatchdogState
from exporter.report.problems import of_phase
from exporter.report.reasons import reason_text
from exporter.report.text import code_text, counted, duration_text
from exporter.watchdog.context import Policy
from exporter.watchdog.restart import restarts_left

MOST_INDICATIONS = 8

_MUST_WAIT = (
    ReasonCode.SERVERS_CANNOT_START,
    ReasonCode.PROGRAM_AT_FAULT,
    ReasonCode.STUCK_IN_KERNEL,
    ReasonCode.SESSION_HELD,
    ReasonCode.SERVER_MUST_CONTINUE,
)
"""In these cases, the watchdog acts in no mode."""

_ACTIONS: Mapping[str, str] = {
    ActionKind.RESTART: "restart the daemon",
    ActionKind.END_SERVER: "end the server",
    ActionKind.KILL_CLIENTS: "end the clients that block recovery",
    ActionKind.SHUT_DOWN_SERVER: "end the server",
    ActionKind.SET_LIMITS: "set the limits",
}

OBSERVES = 'it only observes (watchdog.mode = "observe")'

_RESTARTABLE = (Condition.UNRESPONSIVE, Condition.SUSPENDED)


def outlook(node: Node, daemon: Daemon, policy: Policy | None) -> str:
    """Return what the watchdog will do about the problem of a daemon: sentences; empty if that is not known.

    They hold in its mode, its budget and its permissions.
    """
    watch = node.watches.get(daemon.name, WatchdogState())
    phase, last, diagnosis = _phase_text(node, watch), watch.last_action, watch.diagnosis
    restart = daemon.ended or (diagnosis is not None and diagnosis.condition in _RESTARTABLE)
    if phase is not None:
        return f"The watchdog: {phase}."
    if policy is None:
        return ""
    if not daemon.declared.expected:
        return "The watchdog will not restart it, because it is not an expected daemon." if restart else ""
    problem = policy.lock_problem(daemon)
    if problem is BlockReason.ANOTHER_EXPORTER:
        return "Another exporter of this machine watches the daemon."
    if watch.reason is not None and watch.reason.code in _MUST_WAIT:
        return f"The watchdog does not act: {reason_text(watch.reason)}."
    if policy.mode_of(daemon) is Mode.OBSERVE:
        acts = policy.configured_mode_of(daemon) is Mode.ACT
        why = "it cannot lock the daemon" if acts else OBSERVES
        would = "" if last is None or last.begun else f" In act mode, it would {action_text(last.kind)} now."
        return f"The watchdog will not {'restart it' if restart else 'act'}: {why}.{would}"
    if watch.reason is None:
        return ""
    left = restarts_left(watch, policy.thresholds, node.at)
    if watch.reason.code is ReasonCode.HANG_TOO_RECENT and "server" not in watch.reason.parameters and not left:
        return "The watchdog will not restart it: the budget of restarts is used up."
    return f"The watchdog waits: {reason_text(watch.reason)}."


def action_text(kind: str) -> str:
    """Return an action as words: `restart the daemon`."""
    return _ACTIONS.get(kind, code_text(kind))


def history_of(watch: WatchdogState) -> Sequence[str]:
    """Return how often a daemon was restarted recently, and the watchdog's phase unless it is idle."""
    restarts = [f"restarted {counted(len(watch.restarts), 'time')}"] if watch.restarts else []
    return restarts if watch.phase is WatchdogPhase.IDLE else [*restarts, of_phase(watch.phase).label]


def watchdog_text(node: Node, daemon: Daemon) -> str | None:
    """Return what the watchdog does for a daemon; None if the daemon is well and the watchdog is idle."""
    watch = node.watches.get(daemon.name)
    if watch is None:
        return None
    phase, last, diagnosis = _phase_text(node, watch), watch.last_action, watch.diagnosis
    if phase is not None or diagnosis is None or diagnosis.condition in HARMLESS:
        return phase
    if last is not None:
        verb = "its last action was to" if last.begun else "in act mode, it would"
        return f"{verb} {action_text(last.kind)} ({code_text(last.reason)})"
    return None if watch.reason is None else reason_text(watch.reason)


def _phase_text(node: Node, watch: WatchdogState) -> str | None:
    """Return what the watchdog does; None if it is idle."""
    match watch.phase:
        case WatchdogPhase.IDLE:
            return None
        case WatchdogPhase.ACTING:
            acting = watch.acting
            if acting is None:
                return "acts"
            action = f"{action_text(acting.kind)} ({code_text(acting.reason)})"
            if acting.done_at is None:
                return f"{action}: in progress for {duration_text(node.at - acting.began_at)}"
            return f"{action}: done {duration_text(node.at - acting.done_at)} ago, effect not verified yet"
        case WatchdogPhase.BACKOFF:
            tried = f"restarted {counted(len(watch.restarts), 'time')} without success"
            if watch.not_before is None:
                return tried
            left = watch.not_before - node.at
            return f"{tried}; next restart {'now' if left <= 0 else f'in {duration_text(left)} or later'}"
        case WatchdogPhase.DEFERRED_TO_SYSTEMD:
            return "leaves the restart to systemd: the unit has a Restart= that applies"
        case WatchdogPhase.CIRCUIT_OPEN:
            since = _for(watch.circuit_opened_at, node.at)
            return f"restarts suspended{since} (circuit open), until an operator resumes it"
        case WatchdogPhase.QUARANTINED:
            return "restarts suspended (GPU quarantined), until an operator resumes it"
        case WatchdogPhase.STATE_LOST:
            return (
                f"the state directory has not been readable and writable{_for(watch.state_lost_at, node.at)},"
                f" so earlier restarts are unknown; restarts suspended until an operator resumes it"
            )


def _for(since: float | None, now: float) -> str:
    return "" if since is None else f" for {duration_text(now - since)}"
