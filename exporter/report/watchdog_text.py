"""The watchdog's diagnosis and actions as text."""

from collections.abc import Sequence

from exporter.model.daemon import Daemon
from exporter.model.identity import ProcessIdentity
from exporter.model.node import Node
from exporter.model.watchdog import HARMLESS, Condition, Diagnosis, WatchdogPhase, WatchdogState
from exporter.parse.printable import printable
from exporter.report.document import WatchdogSummary
from exporter.report.finding import Finding
from exporter.report.problems import CONDITION_PROBLEMS, DaemonProblem, of_phase
from exporter.report.reasons import reason_text, texts_of
from exporter.report.remedy import SUSPENDED, quarantine_cause
from exporter.report.text import (
    code_text,
    counted,
    duration_text,
    pid_text,
    process_text,
)

MOST_INDICATIONS = 8


def history_of(watch: WatchdogState) -> Sequence[str]:
    """Return how often a daemon was restarted recently, and the watchdog's phase unless it is idle."""
    restarts = [f"restarted {counted(len(watch.restarts), 'time')}"] if watch.restarts else []
    return restarts if watch.phase is WatchdogPhase.IDLE else [*restarts, of_phase(watch.phase).label]


def watchdog_summary(node: Node, daemon: Daemon) -> WatchdogSummary | None:
    """Return the watchdog's state of a daemon in words; None if the daemon is well and the watchdog is idle."""
    watch = node.watches.get(daemon.name)
    if watch is None:
        return None
    found, phase, last = watch.diagnosis, _phase_text(node, watch), watch.last_action
    harmless = found is None or found.condition in HARMLESS
    if harmless and phase is None:
        return None
    action = phase
    if action is None and last is not None:
        action = f"{'' if last.begun else 'would '}{code_text(last.kind)}: {code_text(last.reason)}"
    elif action is None and watch.reason is not None:
        action = reason_text(watch.reason)
    return WatchdogSummary(
        problem=not harmless,
        fault=found is not None and found.condition is Condition.FAULT,
        diagnosis=_diagnosis(daemon, found, node.at),
        indications="" if found is None else texts_of(found.indications[:MOST_INDICATIONS]),
        quarantine=_quarantine(node, daemon, watch),
        process=None if found is None or found.process is None else _process(node, found.process),
        action=action,
        suspended=watch.phase in SUSPENDED,
        observes=phase is None and last is not None and not last.begun,
        error=None if watch.problem is None else reason_text(watch.problem),
    )


def _quarantine(node: Node, daemon: Daemon, watch: WatchdogState) -> str | None:
    if watch.quarantine is None:
        return None
    values = {"cause": quarantine_cause(node, watch.quarantine)}
    since = watch.quarantine.at
    return Finding(DaemonProblem.QUARANTINED, at=node.at, since=since, daemon=daemon.name, values=values).text


def _diagnosis(daemon: Daemon, found: Diagnosis | None, now: float) -> str:
    problem = CONDITION_PROBLEMS[Condition.UNKNOWN if found is None else found.condition]
    if problem is DaemonProblem.WELL:
        return f"MPS daemon {printable(daemon.name)} is well"
    since = None if found is None or found.condition in HARMLESS else found.since
    server = None if found is None else found.server
    return Finding(problem, at=now, since=since, daemon=daemon.name, server=server).text


def _process(node: Node, identity: ProcessIdentity) -> str:
    """Return the process, without a name if its PID belongs to another process now."""
    process = node.processes.get(identity.pid)
    if process is None or process.start_ticks != identity.start_ticks:
        return pid_text(identity.pid)
    return process_text(identity.pid, process.command, process.user)


def _phase_text(node: Node, watch: WatchdogState) -> str | None:
    """Return what the watchdog does; None if it is idle."""
    match watch.phase:
        case WatchdogPhase.IDLE:
            return None
        case WatchdogPhase.ACTING:
            acting = watch.acting
            if acting is None:
                return "acts"
            action = f"{code_text(acting.kind)} ({code_text(acting.reason)})"
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
