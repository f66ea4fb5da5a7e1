"""The catalogue of problems: each problem that a node can have is defined here, and nowhere else.

Alerts, runbooks, dashboards, `status`, the page, the JSON and `doctor` take their texts and severities from this table,
or tests compare them with it. Conditions of daemons, phases of the watchdog and reasons why it is blocked map to it.
"""

from collections.abc import Mapping
from enum import StrEnum

from exporter.model.watchdog import BlockReason, Condition, WatchdogPhase
from exporter.report.daemon_problems import DAEMON_PROBLEMS
from exporter.report.node_problems import NODE_PROBLEMS
from exporter.report.problem import Definition, FindingCode

PROBLEMS: Mapping[FindingCode, Definition] = {**DAEMON_PROBLEMS, **NODE_PROBLEMS}

CONDITION_CODES: Mapping[Condition, FindingCode] = {
    Condition.WELL: FindingCode.WELL,
    Condition.STARTING: FindingCode.DAEMON_STARTING,
    Condition.UNKNOWN: FindingCode.DAEMON_UNKNOWN,
    Condition.CRASHED: FindingCode.DAEMON_DEAD,
    Condition.STOPPED: FindingCode.DAEMON_STOPPED,
    Condition.NEVER_SEEN: FindingCode.DAEMON_NEVER_STARTED,
    Condition.UNRESPONSIVE: FindingCode.DAEMON_HUNG,
    Condition.SUSPENDED: FindingCode.DAEMON_SUSPENDED,
    Condition.STUCK_IN_DRIVER: FindingCode.DAEMON_STUCK_IN_DRIVER,
    Condition.SERVER_SUSPENDED: FindingCode.SERVER_SUSPENDED,
    Condition.SERVER_UNRESPONSIVE: FindingCode.SERVER_HUNG,
    Condition.PROGRAM_UNRESPONSIVE: FindingCode.CONTROL_PROGRAM_HUNG,
    Condition.HELD: FindingCode.DAEMON_HELD,
    Condition.FAULT: FindingCode.SERVER_FAULT,
    Condition.CRASH_LOOP: FindingCode.SERVER_CRASH_LOOP,
}

PHASE_CODES: Mapping[WatchdogPhase, FindingCode] = {
    WatchdogPhase.IDLE: FindingCode.WELL,
    WatchdogPhase.ACTING: FindingCode.WATCHDOG_ACTING,
    WatchdogPhase.BACKOFF: FindingCode.RESTART_DELAYED,
    WatchdogPhase.QUARANTINED: FindingCode.QUARANTINED,
    WatchdogPhase.CIRCUIT_OPEN: FindingCode.CIRCUIT_OPEN,
    WatchdogPhase.DEFERRED_TO_SYSTEMD: FindingCode.RESTART_LEFT_TO_SYSTEMD,
    WatchdogPhase.STATE_LOST: FindingCode.WATCHDOG_STATE_LOST,
}

BLOCK_CODES: Mapping[BlockReason, FindingCode] = {
    BlockReason.ANOTHER_EXPORTER: FindingCode.ANOTHER_EXPORTER,
    BlockReason.NO_LOCK: FindingCode.NO_LOCK,
    BlockReason.STATE_LOST: FindingCode.WATCHDOG_STATE_LOST,
    BlockReason.FOREIGN_DIRECTORY: FindingCode.FOREIGN_DIRECTORY,
}


class Situation(StrEnum):
    """What changes the remedy of a problem: the watchdog acts already, or something prevents the general remedy."""

    WATCHDOG_ACTS = "watchdog_acts"
    WATCHDOG_REPORTS = "watchdog_reports"
    WATCHDOG_OBSERVES = "watchdog_observes"
    RESTARTS_SUSPENDED = "restarts_suspended"
    STEPS_FOLLOW = "steps_follow"
    CANNOT_QUERY = "cannot_query"
    SERVER_STUCK = "server_stuck"
    CLIENTS_ENDING = "clients_ending"
    FAULT_WITHOUT_INCIDENT = "fault_without_incident"
    UNSUPPORTED = "unsupported"
    LOG_TO_STDOUT = "log_to_stdout"


ADDED = (Situation.WATCHDOG_REPORTS, Situation.WATCHDOG_OBSERVES)
"""Situations in which nothing is done: the general remedy follows their text."""

REMEDIES: Mapping[Situation, str] = {
    Situation.WATCHDOG_ACTS: "The watchdog: {watchdog}.",
    Situation.WATCHDOG_REPORTS: "The watchdog: {watchdog}.",
    Situation.WATCHDOG_OBSERVES: "The watchdog only observes: {watchdog}.",
    Situation.RESTARTS_SUSPENDED: "The watchdog: {watchdog}. {cause}",
    Situation.STEPS_FOLLOW: "Take these steps, in this order.",
    Situation.CANNOT_QUERY: "Fix what prevents the exporter from querying the daemon: `cuda-mps-exporter doctor` "
    "reports what is missing.",
    Situation.SERVER_STUCK: "All of its clients have exited, and it does not recover. End the server: the daemon "
    "starts another one.",
    Situation.CLIENTS_ENDING: "Wait: the clients that the fault hit are exiting.",
    Situation.FAULT_WITHOUT_INCIDENT: "Look in the table for the clients of that server.",
    Situation.UNSUPPORTED: "Nothing: of this daemon, the exporter reads only the process.",
    Situation.LOG_TO_STDOUT: "Append (>>) the daemon's standard output to the file stdout.log in its log directory, as "
    "nvidia-cuda-mps.service does. Or start the daemon with -d instead of -f. Both need a restart, which ends clients.",
}


def of_phase(phase: WatchdogPhase) -> Definition:
    """Return the definition of a phase of the watchdog."""
    return PROBLEMS[PHASE_CODES[phase]]
