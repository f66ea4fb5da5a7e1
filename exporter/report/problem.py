"""The definition of a problem: its code, its severity and its texts."""

from dataclasses import dataclass
from enum import StrEnum

RUNBOOKS = "alerts/runbooks"

RUN_DOCTOR = "Run `cuda-mps-exporter doctor`: it reports what the exporter lacks."

ON_NODE = (" on {node}", " of {node}")
"""Parts of a summary that only alerts show."""


class Severity(StrEnum):
    """How urgent a problem is: one scale for alerts, dashboards, `status`, the page and `doctor`."""

    WELL = "well"
    UNKNOWN = "unknown"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """The position on the scale; a higher one is more urgent."""
        return tuple(Severity).index(self)

    @property
    def words(self) -> str:
        """The name of the severity in a sentence."""
        return "not known yet" if self is Severity.UNKNOWN else self.value


class FindingCode(StrEnum):
    """Each problem that a node can have; `WELL` is the absence of problems."""

    WELL = "well"

    DAEMON_DEAD = "daemon_dead"
    DAEMON_NEVER_STARTED = "daemon_never_started"
    DAEMON_ENDED = "daemon_ended"
    DAEMON_STOPPED = "daemon_stopped"
    DAEMON_DIED = "daemon_died"
    DAEMON_DIED_WITH_CLIENTS = "daemon_died_with_clients"
    DAEMON_RESTARTED = "daemon_restarted"
    DAEMON_STARTING = "daemon_starting"
    DAEMON_UNKNOWN = "daemon_unknown"
    DAEMON_STATE_UNKNOWN = "daemon_state_unknown"
    DAEMON_NOT_QUERIED = "daemon_not_queried"
    DAEMON_UNSUPPORTED = "daemon_unsupported"
    DAEMON_HUNG = "daemon_hung"
    DAEMON_SUSPENDED = "daemon_suspended"
    DAEMON_STUCK_IN_DRIVER = "daemon_stuck_in_driver"
    DAEMON_HELD = "daemon_held"
    CONTROL_PROGRAM_HUNG = "control_program_hung"
    PID_FILE_WRONG = "pid_file_wrong"
    FOREIGN_DIRECTORY = "foreign_directory"

    SERVER_FAULT = "server_fault"
    FAULT = "fault"
    SERVER_SUSPENDED = "server_suspended"
    SERVER_HUNG = "server_hung"
    SERVER_CRASH_LOOP = "server_crash_loop"
    WORKLOAD_OFTEN_SUSPECTED = "workload_often_suspected"

    GPU_RESET_NEEDED = "gpu_reset_needed"
    HARDWARE_XID = "hardware_xid"
    GPU_XID = "gpu_xid"
    GPU_LOST = "gpu_lost"
    GPU_UNREADABLE = "gpu_unreadable"
    WORKLOAD_FILLS_MEMORY = "workload_fills_memory"

    CLIENTS_WAITING = "clients_waiting"
    CLIENTS_REFUSED = "clients_refused"
    CLIENT_SLOTS_NEARLY_FULL = "client_slots_nearly_full"
    CLIENT_SLOTS_FULL = "client_slots_full"
    PROCESS_BYPASSING = "process_bypassing"
    PROCESS_BYPASSING_AFTER_LOSS = "process_bypassing_after_loss"
    LIMITS_DRIFTED = "limits_drifted"

    LOG_GROWING = "log_growing"
    LOG_BLOCKED = "log_blocked"
    LOG_CONTRADICTED = "log_contradicted"
    LOG_NOT_FOLLOWED = "log_not_followed"

    CIRCUIT_OPEN = "circuit_open"
    QUARANTINED = "quarantined"
    WATCHDOG_STATE_LOST = "watchdog_state_lost"
    WATCHDOG_BLOCKED = "watchdog_blocked"
    ANOTHER_EXPORTER = "another_exporter"
    NO_LOCK = "no_lock"
    WATCHDOG_ACTING = "watchdog_acting"
    RESTART_DELAYED = "restart_delayed"
    RESTART_LEFT_TO_SYSTEMD = "restart_left_to_systemd"

    NOTHING_COLLECTED = "nothing_collected"
    EXPORTER_DOWN = "exporter_down"
    EXPORTER_STALLED = "exporter_stalled"
    EXPORTER_CANNOT_COLLECT = "exporter_cannot_collect"
    EXPORTER_PAUSED = "exporter_paused"
    CONFIG_RELOAD_FAILED = "config_reload_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """The definition of a problem, which all texts about it use.

    Placeholders in braces are filled from a finding's values, or from an alert's labels. `meaning` and `remedy` have
    none, since the alert's description and its runbook contain them as they are.
    """

    severity: Severity

    label: str
    """Two or three words: the state of a daemon or GPU on the page, and the problem in a dashboard's table."""

    summary: str
    """One line that names the problem, the daemon or GPU, and the node. It is the title of the alert."""

    meaning: str
    """What the problem is, and what it means for clients."""

    remedy: str
    """What to do about it, before any commands for the daemon concerned."""

    summary_since: str = ""
    """The summary if `{since}`, the duration so far, is known. Empty: the same as `summary`."""

    detail: str = ""
    """What is added to the summary if the finding has these values."""

    alert: str | None = None
    """The alert that has the texts of this definition."""

    runbook: str | None = None
    """The page that explains the problem, if it is not that of `alert`."""

    fails: bool = True
    """Whether `status` exits with code 1 while the problem exists."""

    @property
    def page(self) -> str | None:
        """The file of the runbook."""
        name = self.runbook or self.alert
        return None if name is None else f"{RUNBOOKS}/{name}.md"
