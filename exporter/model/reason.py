"""Reasons as codes with parameters: what indicates something, why the watchdog waits, why an action failed.

State, events, JSON and files on disk have codes. `report/reasons.py` turns them into English.
"""

from dataclasses import KW_ONLY, dataclass, fields
from enum import StrEnum


class ReasonCode(StrEnum):
    """Every reason, in groups."""

    # Indications of a diagnosis: the end of a daemon
    PROCESS_GONE = "process_gone"
    NO_DAEMON_FOUND = "no_daemon_found"
    LOG_ENDS_WITHOUT_QUIT = "log_ends_without_quit"
    NO_LISTENER = "no_listener"
    PID_FILE_LEFT = "pid_file_left"
    NO_PID_FILE_LEFT = "no_pid_file_left"
    UNIT_FAILED = "unit_failed"
    UNIT_RESTARTING = "unit_restarting"
    UNIT_ENDED = "unit_ended"
    UNIT_STOP_TIMED_OUT = "unit_stop_timed_out"
    QUIT_RECEIVED = "quit_received"
    NOT_STARTED_SINCE_STOP = "not_started_since_stop"
    NEVER_RAN = "never_ran"

    # Indications of a diagnosis: a daemon that does not answer
    DAEMON_UNANSWERING = "daemon_unanswering"
    DAEMON_NOT_WAITING = "daemon_not_waiting"
    COMMANDS_UNANSWERED = "commands_unanswered"
    COMMANDS_REFUSED = "commands_refused"
    CONNECTIONS_UNANSWERED = "connections_unanswered"
    CONNECTIONS_ANSWERED = "connections_answered"
    PROGRAM_UNANSWERED = "program_unanswered"
    PROCESS_ALIVE = "process_alive"
    PROCESS_SUSPENDED = "process_suspended"
    PROCESS_STUCK_IN_KERNEL = "process_stuck_in_kernel"
    SERVER_SUSPENDED = "server_suspended"
    SERVER_QUERIED = "server_queried"
    LOG_ENDS_WITH_QUERY = "log_ends_with_query"
    SESSION_OPEN = "session_open"

    # Indications of a diagnosis: a server
    SERVER_IN_FAULT = "server_in_fault"
    FAULT_PERSISTS = "fault_persists"
    AFFECTED_CLIENTS_CONNECTED = "affected_clients_connected"
    SERVERS_EXITED_EARLY = "servers_exited_early"
    NO_SERVER_STARTED = "no_server_started"

    # Indications of a suspect
    CONTEXTS_ENDED_BEFORE_FAULT = "contexts_ended_before_fault"
    INSTRUCTION_FETCH_FAILED = "instruction_fetch_failed"
    ONE_OF_DISCONNECTED = "one_of_disconnected"
    OUT_OF_MEMORY_KILLED = "out_of_memory_killed"
    KILLED_BY_SIGNAL = "killed_by_signal"
    EXITED_WITH_CODE = "exited_with_code"
    WORKER_IN_RESET = "worker_in_reset"
    ONLY_AFFECTED_CLIENT = "only_affected_client"
    ONE_OF_AFFECTED = "one_of_affected"
    NAMED_BY_LOG = "named_by_log"
    NAMED_BY_XID = "named_by_xid"
    WORK_IN_FLIGHT = "work_in_flight"
    NO_WORK_IN_FLIGHT = "no_work_in_flight"
    ONLY_WORK_IN_FLIGHT = "only_work_in_flight"
    LOG_UNRELIABLE = "log_unreliable"

    # Why the watchdog waits: what it knows is not enough, or the problem may pass
    STATE_LOST = "state_lost"
    HANG_TOO_RECENT = "hang_too_recent"
    PROCESS_CONTINUED = "process_continued"
    HANG_UNCONFIRMED = "hang_unconfirmed"
    PROCESS_UNKNOWN = "process_unknown"
    CLIENTS_UNKNOWN = "clients_unknown"
    REMEDY_TAKES_EFFECT = "remedy_takes_effect"

    # Why the watchdog waits: another party acts, or must act
    GPU_NEEDS_RESET = "gpu_needs_reset"
    GPU_NEEDS_REBOOT = "gpu_needs_reboot"
    STOPPED_BY_OPERATOR = "stopped_by_operator"
    NEVER_SEEN = "never_seen"
    PROGRAM_AT_FAULT = "program_at_fault"
    SESSION_HELD = "session_held"
    STUCK_IN_KERNEL = "stuck_in_kernel"
    SERVERS_CANNOT_START = "servers_cannot_start"
    FAULT_WAITS_FOR_CLIENTS = "fault_waits_for_clients"
    FAULT_NEEDS_SERVER_END = "fault_needs_server_end"
    SERVER_MUST_CONTINUE = "server_must_continue"
    SERVER_MUST_END = "server_must_end"
    RESTARTED_BY_SYSTEMD = "restarted_by_systemd"
    UNIT_STOPPING = "unit_stopping"

    # Why the watchdog waits: the action is not permitted, or would do harm
    CIRCUIT_OPEN = "circuit_open"
    RESTARTS_DID_NOT_HELP = "restarts_did_not_help"
    BACKOFF = "backoff"
    CLIENTS_UNAFFECTED = "clients_unaffected"
    SERVER_PARENT_UNKNOWN = "server_parent_unknown"
    HUNG_SERVER_AMBIGUOUS = "hung_server_ambiguous"
    FOREIGN_DIRECTORY = "foreign_directory"
    NO_RESTART_METHOD = "no_restart_method"
    DAEMON_IN_CONTAINER = "daemon_in_container"
    POD_DELETION_NOT_ALLOWED = "pod_deletion_not_allowed"
    POD_NAME_UNKNOWN = "pod_name_unknown"
    SYSTEMD_UNREACHABLE = "systemd_unreachable"
    UNIT_STATE_UNKNOWN = "unit_state_unknown"
    UNIT_UNREADABLE = "unit_unreadable"
    UNIT_NOT_LOADED = "unit_not_loaded"
    START_LIMIT_HIT = "start_limit_hit"

    # Why a circuit breaker opened or closed
    RESTARTS_FAILED = "restarts_failed"
    OPERATOR_RESUMED = "operator_resumed"
    WELL_FOR_WINDOW = "well_for_window"

    # Limits
    MEMORY_LIMIT_DIFFERS = "memory_limit_differs"
    THREAD_PERCENTAGE_DIFFERS = "thread_percentage_differs"
    PRIORITY_DIFFERS = "priority_differs"
    LIMIT_COMMAND_INEFFECTIVE = "limit_command_ineffective"
    CONNECTED_BEFORE_LIMITS = "connected_before_limits"

    # Problems of an action: its result
    NO_RESULT = "no_result"
    EXPORTER_RESTARTED = "exporter_restarted"
    DAEMON_MISSING = "daemon_missing"
    DAEMON_ENDED_AGAIN = "daemon_ended_again"
    DAEMON_NOT_ANSWERING = "daemon_not_answering"
    ANSWERING_PROCESS_UNKNOWN = "answering_process_unknown"
    OLD_PROCESS_PRESENT = "old_process_present"

    # Problems of an action: it was not begun, or was broken off
    EXPORTER_STOPPING = "exporter_stopping"
    ACTION_UNDER_WAY = "action_under_way"
    TOO_MANY_ACTIONS = "too_many_actions"
    NO_THREAD = "no_thread"
    UNEXPECTED_ERROR = "unexpected_error"

    # Problems of an action: a command to the control daemon
    COMMAND_TIMED_OUT = "command_timed_out"
    COMMAND_WITHOUT_DAEMON = "command_without_daemon"
    COMMAND_BLOCKED_BY_SESSION = "command_blocked_by_session"
    COMMAND_NOT_SENT = "command_not_sent"
    COMMAND_NOT_PERMITTED = "command_not_permitted"
    COMMAND_WITHOUT_SERVER = "command_without_server"
    COMMAND_UNKNOWN = "command_unknown"

    # Problems of an action: a process to end
    PROCESS_NOT_IN_NAMESPACE = "process_not_in_namespace"
    PROCESS_NOT_OPENED = "process_not_opened"
    PROCESS_NOT_KILLABLE = "process_not_killable"
    PROCESS_NOT_ENDED = "process_not_ended"

    # Problems of an action: a unit or a program to start
    API_SERVER_UNKNOWN = "api_server_unknown"
    API_SERVER_UNREACHABLE = "api_server_unreachable"
    POD_DELETION_FORBIDDEN = "pod_deletion_forbidden"
    POD_NOT_DELETED = "pod_not_deleted"
    UNIT_NAME_INVALID = "unit_name_invalid"
    UNIT_TIMED_OUT = "unit_timed_out"
    UNIT_NOT_PERMITTED = "unit_not_permitted"
    UNIT_NOT_FOUND = "unit_not_found"
    UNIT_MASKED = "unit_masked"
    UNIT_STARTED_TOO_OFTEN = "unit_started_too_often"
    UNIT_WITHOUT_SYSTEMD = "unit_without_systemd"
    UNIT_DID_NOT_START = "unit_did_not_start"
    UNIT_NOT_RESTARTED = "unit_not_restarted"
    NO_PROGRAM = "no_program"
    PROGRAM_NOT_STARTED = "program_not_started"
    PROGRAM_NOT_ENDED = "program_not_ended"
    PROGRAM_FAILED = "program_failed"
    USER_NOT_PERMITTED = "user_not_permitted"
    USER_NOT_CONFIGURED = "user_not_configured"
    DIRECTORY_OF_OTHER_USER = "directory_of_other_user"

    # Problems of saved evidence
    EVIDENCE_BUSY = "evidence_busy"
    EVIDENCE_TIMED_OUT = "evidence_timed_out"
    EVIDENCE_NOT_WRITTEN = "evidence_not_written"

    UNKNOWN = "unknown"
    """A code of a later version."""


@dataclass(frozen=True, slots=True)
class Reason:
    """A code with the parameters that apply to it; all others are None.

    `text` only ever comes from outside: an error of the system, of systemctl or of a program. `hits` of `trials` are
    how often an indication was right. `found` and `wanted` are a limit in its own unit (bytes, percent, priority).
    """

    code: ReasonCode
    _: KW_ONLY
    pid: int | None = None
    pids: tuple[int, ...] | None = None
    server: int | None = None
    uid: int | None = None
    user: str | None = None
    unit: str | None = None
    state: str | None = None
    wait_channel: str | None = None
    signal: int | None = None
    exit_code: int | None = None
    seconds: float | None = None
    count: int | None = None
    hits: int | None = None
    trials: int | None = None
    xid: int | None = None
    gpu: str | None = None
    device: int | None = None
    found: float | None = None
    wanted: float | None = None
    action: str | None = None
    command: str | None = None
    path: str | None = None
    pod: str | None = None
    text: str | None = None

    def parameters(self) -> dict[str, object]:
        """Return the parameters that are known, by name."""
        values = ((name, getattr(self, name)) for name in PARAMETERS)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values if value is not None}

    def as_json(self) -> dict[str, object]:
        """Return the reason as an object for JSON."""
        return {"code": self.code, **self.parameters()}


PARAMETERS = tuple(each.name for each in fields(Reason) if each.name != "code")
"""The names of all parameters."""
