"""Codes of reasons, each with its English text: what indicates something, why the watchdog waits, why something failed.

State, events, JSON and files on disk have codes. `report/reasons.py` fills in the texts.
"""

# ruff: noqa: ISC004 - a text of two lines has no parentheses of its own

from enum import StrEnum
from typing import Self


class ReasonCode(StrEnum):
    """Every reason, in groups.

    A text has the parameters of its code in braces, as `{name}` or `{name:format}`. A part in square brackets is
    shown if all its parameters are known. Of alternatives (`[...|...]`), the first such one is shown, else the
    last. After the text follow the names of further parameters, which only programs read.
    """

    _value_: str
    text: str
    unseen: tuple[str, ...]

    def __new__(cls, code: str, text: str, *unseen: str) -> Self:
        """Make a member whose value is `code`."""
        member = str.__new__(cls, code)
        member._value_, member.text, member.unseen = code, text, unseen
        return member

    @classmethod
    def _missing_(cls, _value: object) -> "ReasonCode":
        """Read a code of a later version, so that its files can be read."""
        return cls.UNSPECIFIED

    # Indications of a diagnosis: the end of a daemon
    PROCESS_GONE = "process_gone", "[process {pid}|its process] has exited"
    NO_DAEMON_FOUND = "no_daemon_found", "nvidia-cuda-mps-control finds no daemon"
    LOG_ENDS_WITHOUT_QUIT = "log_ends_without_quit", "its log ends without a quit"
    NO_LISTENER = "no_listener", "no process listens on its control socket"
    PID_FILE_LEFT = "pid_file_left", "its pid file still exists"
    NO_PID_FILE_LEFT = "no_pid_file_left", "its pid file was removed, as after a quit"
    UNIT_FAILED = "unit_failed", "{unit} has failed ({text})"
    UNIT_RESTARTING = "unit_restarting", "systemd is about to restart {unit}"
    UNIT_ENDED = "unit_ended", "{unit} is inactive and ended without an error"
    UNIT_STOP_TIMED_OUT = "unit_stop_timed_out", "{unit} was stopped and did not end in time"
    QUIT_RECEIVED = "quit_received", "it received a quit"
    NOT_STARTED_SINCE_STOP = "not_started_since_stop", "it was stopped and has not been started since"
    NEVER_RAN = "never_ran", "nothing indicates that it ever ran"

    # Indications of a diagnosis: a daemon that does not answer
    DAEMON_UNANSWERING = "daemon_unanswering", "the daemon does not answer"
    DAEMON_NOT_WAITING = "daemon_not_waiting", "the daemon works and does not wait for that server"
    COMMANDS_UNANSWERED = "commands_unanswered", "its commands get no answer"
    COMMANDS_REFUSED = "commands_refused", "it refuses commands while another session is open"
    CONNECTIONS_UNANSWERED = (
        "connections_unanswered",
        "the exporter's own connections get no answer[ (it waits in {wait_channel})]",
    )
    CONNECTIONS_ANSWERED = "connections_answered", "it answers the exporter's own connections"
    PROGRAM_UNANSWERED = "program_unanswered", "nvidia-cuda-mps-control gets no answer"
    PROCESS_ALIVE = "process_alive", "[process {pid}|its process] is alive"
    PROCESS_SUSPENDED = "process_suspended", "process {pid} is suspended (state {state})"
    PROCESS_STUCK_IN_KERNEL = (
        "process_stuck_in_kernel",
        "process {pid} sleeps in the kernel (state D[, {wait_channel}])",
    )
    SERVER_SUSPENDED = "server_suspended", "server {server} is suspended (state {state})"
    SERVER_QUERIED = "server_queried", "the first of these queries server {server}"
    LOG_ENDS_WITH_QUERY = (
        "log_ends_with_query",
        "its log, which any user can write, ends with a query to server {server}",
    )
    SESSION_OPEN = "session_open", "[process {pid}|a process] of [{user}|{uid}] is connected to it"

    # Indications of a diagnosis: a server
    SERVER_IN_FAULT = "server_in_fault", "server {server} is in FAULT"
    FAULT_PERSISTS = "fault_persists", "all affected clients have disconnected and the server does not recover"
    AFFECTED_CLIENTS_CONNECTED = "affected_clients_connected", "it waits for the end of [{pids}|the affected clients]"
    SERVERS_EXITED_EARLY = (
        "servers_exited_early",
        "its last {count} servers exited before they were ready[ within {seconds} s]",
    )
    NO_SERVER_STARTED = "no_server_started", "no server has started since"

    # Indications of a suspect
    CONTEXTS_ENDED_BEFORE_FAULT = (
        "contexts_ended_before_fault",
        "its contexts ended {seconds:ms} before the fault, as when a client ends while a kernel runs",
    )
    INSTRUCTION_FETCH_FAILED = (
        "instruction_fetch_failed",
        "instructions could not be fetched, as for such a kernel ({hits} of {trials} trials)",
    )
    ONE_OF_DISCONNECTED = "one_of_disconnected", "it is one of {count} clients that disconnected then"
    OUT_OF_MEMORY_KILLED = "out_of_memory_killed", "the kernel killed it because memory ran out"
    KILLED_BY_SIGNAL = "killed_by_signal", "signal {signal} ended it"
    EXITED_WITH_CODE = "exited_with_code", "it exited with code {exit_code}"
    WORKER_IN_RESET = (
        "worker_in_reset",
        "its worker was in reset when it disconnected, as after a trap ({hits} of {trials} trials)",
    )
    ONLY_AFFECTED_CLIENT = "only_affected_client", "it is the only affected client"
    ONE_OF_AFFECTED = "one_of_affected", "it is one of {count} affected clients"
    NAMED_BY_LOG = "named_by_log", "the log names it, which is no better than chance"
    NAMED_BY_XID = "named_by_xid", "the Xid names it, which is no better than chance"
    WORK_IN_FLIGHT = "work_in_flight", "it had work in flight[, last launched {seconds:.1f} s before]"
    NO_WORK_IN_FLIGHT = (
        "no_work_in_flight",
        "it had no work in flight when the fault occurred[: its last launch was {seconds:.1f} s before]",
    )
    ONLY_WORK_IN_FLIGHT = (
        "only_work_in_flight",
        "all other affected clients had no work in flight (inferred, not measured)",
    )
    ADDRESS_INSIDE_RANGE = (
        "address_inside_range",
        "the faulting address is in a {range_bytes:size} range that it reserves ({hits} of {trials} trials)",
    )
    ADDRESS_NEAR_RANGE = (
        "address_near_range",
        "the faulting address is {distance:size} {place} a {range_bytes:size} range that it reserves"
        " ({hits} of {trials} trials)",
    )
    ONE_OF_ALIKE = "one_of_alike", "{count} clients have the same ranges there, as if forked from one process"
    ADDRESS_RANGES_UNREAD = "address_ranges_unread", "the address ranges of {count} clients are not known completely"
    LOG_UNRELIABLE = "log_unreliable", "the log contradicts other sources or lacks lines: a user may have forged it"

    # Why the watchdog waits: what it knows is not enough, or the problem may pass
    STATE_LOST = "state_lost", "the watchdog's state could not be read or written: the number of restarts is unknown"
    HANG_TOO_RECENT = (
        "hang_too_recent",
        "[server {server} hangs, which may pass: it is ended after {seconds} s|it hangs, which may pass: it is"
        " restarted after {seconds} s at the earliest]",
    )
    PROCESS_CONTINUED = (
        "process_continued",
        "its process was suspended and continues: the exporter first checks that it answers",
    )
    HANG_UNCONFIRMED = "hang_unconfirmed", "it does not answer, and no second indication shows that it hangs"
    PROCESS_UNKNOWN = "process_unknown", "its process is not known, so it cannot be ended"
    CLIENTS_UNKNOWN = (
        "clients_unknown",
        "the clients of [server {server}|the daemon] are not known yet: the watchdog does not end it",
    )
    REMEDY_TAKES_EFFECT = "remedy_takes_effect", "the watchdog waits for the effect of {action:words}"

    # Why the watchdog waits: another party acts, or must act
    GPU_NEEDS_RESET = "gpu_needs_reset", "{xid}: [{gpu}|a GPU] needs a reset"
    GPU_NEEDS_REBOOT = "gpu_needs_reboot", "{xid}: [{gpu}|a GPU] needs a reboot of the machine"
    STOPPED_BY_OPERATOR = "stopped_by_operator", "an operator stopped it: the watchdog does not start it"
    NEVER_SEEN = "never_seen", "it has never run: the watchdog does not start it for the first time"
    PROGRAM_AT_FAULT = "program_at_fault", "nvidia-cuda-mps-control hangs, not the daemon: a restart would not help"
    SESSION_HELD = (
        "session_held",
        "[process {pid}|an unknown process] is connected to the daemon: close that session or connection",
    )
    STUCK_IN_KERNEL = (
        "stuck_in_kernel",
        "[process {pid}|a process] sleeps in the kernel, where no signal reaches it: a reboot may be necessary",
    )
    SERVERS_CANNOT_START = (
        "servers_cannot_start",
        "its servers cannot start, and a restart would not help: see server.log",
    )
    FAULT_WAITS_FOR_CLIENTS = (
        "fault_waits_for_clients",
        "server {server} recovers after the exit of [{pids}|the affected clients]",
    )
    FAULT_NEEDS_SERVER_END = (
        "fault_needs_server_end",
        "server {server} does not recover and must be ended: `status` has the command",
    )
    SERVER_MUST_CONTINUE = "server_must_continue", "server {server} is suspended: SIGCONT continues it"
    SERVER_MUST_END = "server_must_end", "server {server} does not answer its daemon: SIGKILL ends it and its clients"
    RESTARTED_BY_SYSTEMD = "restarted_by_systemd", "systemd restarts {unit} by itself"
    UNIT_STOPPING = "unit_stopping", "systemd is stopping {unit}: the watchdog does not prevent that"

    # Why the watchdog waits: the action is not permitted, or would do harm
    CIRCUIT_OPEN = "circuit_open", "its circuit is open until an operator resumes the daemon"
    RESTARTS_DID_NOT_HELP = "restarts_did_not_help", "{count:restart} in {seconds} s did not help for long"
    BACKOFF = "backoff", "{count:restart} in {seconds} s did not help for long: the next one is delayed"
    CLIENTS_UNAFFECTED = (
        "clients_unaffected",
        "[server {server}|the daemon] serves {pids}, which the fault did not affect: the watchdog does not end it",
    )
    SERVER_PARENT_UNKNOWN = (
        "server_parent_unknown",
        "server {server} {state:remedy}; /proc has not shown that it is a child of this daemon",
    )
    HUNG_SERVER_AMBIGUOUS = (
        "hung_server_ambiguous",
        "server {server} does not answer its daemon: SIGKILL ends it and its clients; there are several servers,"
        " and only the log names this one",
    )
    FOREIGN_DIRECTORY = "foreign_directory", "its pipe directory belongs to UID {uid}, who must not run this daemon"
    NO_RESTART_METHOD = "no_restart_method", "no restart method is configured: set `unit` or `restart_command`"
    DAEMON_IN_CONTAINER = "daemon_in_container", "it ran in a container, where `restart_command` cannot start it"
    POD_DELETION_NOT_ALLOWED = (
        "pod_deletion_not_allowed",
        "a pod runs it: set `watchdog.allow` with `delete_pod`, or delete the pod",
    )
    POD_NAME_UNKNOWN = "pod_name_unknown", "a pod runs it, and the name of the pod is unknown: mount /var/log/pods"
    SYSTEMD_UNREACHABLE = "systemd_unreachable", "the state of {unit} is unknown: systemd cannot be reached"
    UNIT_STATE_UNKNOWN = "unit_state_unknown", "the state of {unit} is unknown, so the daemon might not start again"
    UNIT_UNREADABLE = "unit_unreadable", "the state of {unit} cannot be read[ ({state:words})][: {text:.128}]"
    UNIT_NOT_LOADED = (
        "unit_not_loaded",
        "systemd has {unit} as [{state}|unknown]: configure the daemon's `unit` or `restart_command`",
    )
    START_LIMIT_HIT = (
        "start_limit_hit",
        "systemd has given up on {unit} (start-limit-hit): run `systemctl reset-failed {unit}`, then start it",
    )

    # Why a circuit breaker opened or closed
    RESTARTS_FAILED = "restarts_failed", "{count:restart} did not bring it back"
    OPERATOR_RESUMED = "operator_resumed", "an operator resumed it"
    WELL_FOR_WINDOW = "well_for_window", "it has been well for {seconds} s"

    # Limits
    MEMORY_LIMIT_DIFFERS = (
        "memory_limit_differs",
        "memory limit of device {device} is [{found:GiB}|unlimited], not {wanted:GiB}",
    )
    THREAD_PERCENTAGE_DIFFERS = (
        "thread_percentage_differs",
        "active thread percentage is [{found}|unknown] %, not {wanted} %",
    )
    PRIORITY_DIFFERS = "priority_differs", "client priority is [{found}|unknown], not {wanted}"
    LIMIT_COMMAND_INEFFECTIVE = (
        "limit_command_ineffective",
        "'{command}' was sent {count} times without effect; it is sent once in {seconds} s from now on",
    )
    CONNECTED_BEFORE_LIMITS = (
        "connected_before_limits",
        "they connected before its limits were in force, and are not held to them",
    )

    # Problems of an action: its result
    NO_RESULT = "no_result", "the action did not report a result"
    EXPORTER_RESTARTED = "exporter_restarted", "the exporter was restarted before the action reported a result"
    DAEMON_MISSING = (
        "daemon_missing",
        "the exporter was restarted before the action reported a result, and no daemon runs",
    )
    DAEMON_ENDED_AGAIN = "daemon_ended_again", "it started and ended again"
    DAEMON_NOT_ANSWERING = "daemon_not_answering", "it has not answered within {seconds} s"
    ANSWERING_PROCESS_UNKNOWN = "answering_process_unknown", "the process that answers is not known"
    OLD_PROCESS_PRESENT = "old_process_present", "process {pid} still runs"

    # Problems of an action: it was not begun, or was broken off
    EXPORTER_STOPPING = "exporter_stopping", "the exporter is stopping"
    ACTION_UNDER_WAY = "action_under_way", "another action for this daemon is under way"
    TOO_MANY_ACTIONS = "too_many_actions", "actions for {count} other daemons are under way"
    NO_THREAD = "no_thread", "no thread could be started: {text}"

    # Problems of an action: a command to the control daemon
    COMMAND_TIMED_OUT = "command_timed_out", "{command}: no answer within {seconds} s"
    COMMAND_WITHOUT_DAEMON = "command_without_daemon", "{command}: there is no daemon"
    COMMAND_BLOCKED_BY_SESSION = (
        "command_blocked_by_session",
        "{command}: the daemon refuses it while another session is open",
    )
    COMMAND_NOT_SENT = "command_not_sent", "{command}: it cannot be sent[ (exit code {exit_code})][: {text:.128}]"
    COMMAND_NOT_PERMITTED = (
        "command_not_permitted",
        "{command}: the daemon obeys root and the user who started it: the exporter needs CAP_SETUID and"
        " CAP_SETGID to send it as that user (drop-in act.conf of its unit)",
    )
    COMMAND_WITHOUT_SERVER = "command_without_server", "{command}: the daemon no longer has that server"
    COMMAND_UNKNOWN = (
        "command_unknown",
        "{command}: the daemon does not know this command: its version is not supported",
    )

    # Problems of an action: a process to end
    PROCESS_NOT_IN_NAMESPACE = "process_not_in_namespace", "process {pid} is not in this PID namespace"
    PROCESS_NOT_OPENED = "process_not_opened", "process {pid} cannot be opened[: {text}]"
    PROCESS_NOT_KILLABLE = (
        "process_not_killable",
        "process {pid} cannot be ended: this needs CAP_KILL (drop-in act.conf)",
    )
    PROCESS_NOT_ENDED = (
        "process_not_ended",
        "process {pid} was killed and has not ended: it may sleep in the kernel (state D in /proc/{pid}/stat)",
    )

    # Problems of an action: a unit or a program to start
    API_SERVER_UNKNOWN = "api_server_unknown", "no API server is known: the exporter does not run in a pod"
    API_SERVER_UNREACHABLE = "api_server_unreachable", "the API server cannot be used: {text}"
    POD_DELETION_FORBIDDEN = (
        "pod_deletion_forbidden",
        "the API server does not permit the exporter to delete pod {pod}: add its namespace to"
        " `restartPods.namespaces` of the Helm chart",
    )
    POD_NOT_DELETED = "pod_not_deleted", "the API server did not delete pod {pod} ({state})[: {text:.128}]"
    UNIT_NAME_INVALID = "unit_name_invalid", "'{unit}' is not the name of a service"
    UNIT_TIMED_OUT = (
        "unit_timed_out",
        "systemd did not restart {unit} within {seconds} s: see `systemctl status {unit}`",
    )
    UNIT_NOT_PERMITTED = (
        "unit_not_permitted",
        "systemd does not let the exporter restart {unit}: the polkit rule (50-cuda-mps-exporter.rules) must name"
        " this unit",
    )
    UNIT_NOT_FOUND = "unit_not_found", "systemd does not know {unit}: correct the daemon's `unit` in the configuration"
    UNIT_MASKED = "unit_masked", "{unit} is masked: run `systemctl unmask {unit}` if it is to run"
    UNIT_STARTED_TOO_OFTEN = (
        "unit_started_too_often",
        "{unit} was started too often (StartLimitBurst=): remove the cause, then run `systemctl reset-failed {unit}`",
    )
    UNIT_WITHOUT_SYSTEMD = (
        "unit_without_systemd",
        "systemd does not run or cannot be reached: configure `restart_command` instead of {unit}",
    )
    UNIT_DID_NOT_START = "unit_did_not_start", "{unit} did not start: see `journalctl -u {unit}`"
    UNIT_NOT_RESTARTED = (
        "unit_not_restarted",
        "systemctl could not restart {unit}[ (exit code {exit_code})][: {text:.128}]",
    )
    NO_PROGRAM = "no_program", "`restart_command` is empty"
    PROGRAM_NOT_STARTED = "program_not_started", "{command} cannot be started[: {text}]"
    PROGRAM_NOT_ENDED = (
        "program_not_ended",
        "{command} did not end within {seconds} s: it must start the daemon in the background (-d)",
    )
    PROGRAM_FAILED = "program_failed", "{command} failed[ (exit code {exit_code})][: {text:.128}]"
    USER_NOT_PERMITTED = (
        "user_not_permitted",
        "{command} cannot be started: the exporter needs CAP_SETUID and CAP_SETGID to start a process as UID"
        " [{uid}|unknown] (drop-in act.conf of its unit)",
    )
    USER_NOT_CONFIGURED = (
        "user_not_configured",
        "the daemon is not started as UID [{uid}|unknown]: the configuration does not name that user",
    )
    DIRECTORY_OF_OTHER_USER = "directory_of_other_user", "{path} belongs to UID {uid}, who must not run this daemon"

    # Problems of saved evidence
    EVIDENCE_BUSY = "evidence_busy", "earlier evidence is still being saved: the disk does not answer"
    EVIDENCE_TIMED_OUT = "evidence_timed_out", "saving takes longer than {seconds} s"
    EVIDENCE_NOT_WRITTEN = "evidence_not_written", "{text}"

    # Problems of collectors: these are also values of a label of `cuda_mps_exporter_source_problem_info`
    PAUSED = "paused", "paused: the NVIDIA driver is closed. To read the GPUs again, run `cuda-mps-exporter resume`"
    DRIVER_WITHDRAWN = (
        "driver_withdrawn",
        "closed until the new driver runs: the GPU operator removed {subject} to unload the driver",
    )
    STILL_RUNNING = "still_running", "no result for {seconds:.0f} s"
    NOT_TRIED = "not_tried", "not read, because other readings took {seconds:.0f} s"
    TIMEOUT = "timeout", "{subject}: no answer within {seconds:g} s"
    PERMISSION_DENIED = "permission_denied", "{subject} cannot be read[: {detail}]"
    NOT_FOUND = "not_found", "{subject} does not exist", "detail"
    NOT_READABLE = "not_readable", "{subject} cannot be read[: {detail}]"
    WRONG_FILE_TYPE = "wrong_file_type", "{subject} cannot be read: it is not the expected type of file"
    COMMAND_NOT_STARTED = "command_not_started", "{subject} cannot be started[: {detail}]"
    COMMAND_FAILED = "command_failed", "{subject} failed[ with exit code {exit_code}][: {detail}]"
    PROGRAM_MISSING = (
        "program_missing",
        "{subject} was not found. Install the driver's programs. A container gets it from the NVIDIA runtime,"
        " with the driver capability compute; in Kubernetes, set gpuAccess of the Helm chart",
    )
    SERVER_STOPPED = (
        "server_stopped",
        "{subject} was not sent: server {pid} is stopped, and the daemon would wait for it",
    )
    LOG_BLOCKED = "log_blocked", "blocked: commands that the daemon answered do not appear in it"
    LOG_TO_STDOUT = (
        "log_to_stdout",
        "the daemon runs in the foreground (-f), and its standard output is neither stdout.log nor a journal",
    )
    RECORDS_LOST = (
        "records_lost",
        "the kernel overwrote records of {subject} before they were read: Xids may be missing",
    )
    PROCESS_NOT_READABLE = (
        "process_not_readable",
        "control daemon {pid} cannot be located: its environment is not readable",
    )
    PROCESSES_NOT_READABLE = (
        "processes_not_readable",
        "it is unknown whether process {pid} runs. Check that /proc is mounted, shows processes of other users"
        " (hidepid=), and that the exporter has free file descriptors (LimitNOFILE=)",
    )
    TOO_MANY_DAEMONS = (
        "too_many_daemons",
        "more control daemons run than are followed, and some of {detail} are ignored (at most {limits:0} of one"
        " user or container, and {limits:1} of all). End those that are not needed",
    )
    DIRECTORY_HANGS = (
        "directory_hangs",
        "a directory does not answer, for example on a file server that is gone; daemons there are not found",
    )
    DIRECTORY_SHARED = (
        "directory_shared",
        "daemon {subject} is not followed: its pipe directory is that of daemon {detail}. Remove one of the two"
        " from the configuration",
    )
    NOT_SUPPORTED = "not_supported", "this node does not support {subject}", "pid"
    DRIVER_NOT_LOADED = (
        "driver_not_loaded",
        "NVML: {detail}. The NVIDIA driver is not loaded; check it with nvidia-smi",
        "subject",
    )
    DRIVER_MISMATCH = (
        "driver_mismatch",
        "NVML: {detail}. Reload the driver's kernel modules, or reboot the node",
        "subject",
    )
    LIBRARY_MISSING = (
        "library_missing",
        "NVML: {detail}. Install libnvidia-ml.so.1; a container needs it from the NVIDIA runtime",
        "subject",
    )
    CONTAINER_WITHOUT_GPUS = (
        "container_without_gpus",
        "NVML: {detail}. The node has GPUs, but the exporter's container has none. In Kubernetes, set gpuAccess"
        " of the Helm chart; elsewhere, start the container with --gpus all",
        "subject",
    )
    DRIVER_NOT_OPEN = "driver_not_open", "the NVIDIA driver is not open: see the problem of nvml"
    DRIVER_HANGS = (
        "driver_hangs",
        "a call into the NVIDIA driver has not returned, so the driver cannot be opened again",
    )
    DRIVER_ERROR = "driver_error", "[{subject:gpu}: ]NVML: {detail}. Check the driver with nvidia-smi"
    GPU_LOST = "gpu_lost", "[{subject:gpu}: ]NVML: {detail}. The GPU does not respond, or needs a reset"
    IMPLAUSIBLE = "implausible", "NVML returned {detail} for {subject}, which cannot be true, and which is ignored"
    GPU_NOT_REPORTED = "gpu_not_reported", "NVML works, and no longer lists the GPU"
    DUPLICATE_UUID = "duplicate_uuid", "GPUs {detail} have the same UUID {subject}, so only the first is read"
    PROBES_REFUSED = "probes_refused", "launches cannot be counted[: {detail}]"
    LIBRARY_NOT_WATCHED = "library_not_watched", "some launches cannot be counted[: {detail}]"
    PACKAGE_MISSING = (
        "package_missing",
        "the Python package {subject} is missing. Install the exporter with its extra: pip install"
        " 'cuda-mps-exporter[kubernetes]'",
    )
    PACKAGE_CONFLICT = (
        "package_conflict",
        "the Python package {subject} hides the module of nvidia-ml-py. Uninstall {subject}, then install"
        " nvidia-ml-py again: pip uninstall {subject}; pip install --force-reinstall nvidia-ml-py",
    )
    CALL_FAILED = "call_failed", "{subject} failed: {detail}"
    ANSWER_TOO_LARGE = "answer_too_large", "{subject}: the answer is too large"
    UNEXPECTED_ERROR = (
        "unexpected_error",
        "[unexpected {text}|the exporter has a defect: {detail}. Report it with the exporter's log]",
        "subject",
    )
    UNSPECIFIED = "unspecified", "[{text}|{detail}]", "subject"
    """A code of a later version."""


COLLECTOR_CODES = tuple(ReasonCode)[tuple(ReasonCode).index(ReasonCode.PAUSED) :]
"""Why a collection can fail, in whole or in part."""
