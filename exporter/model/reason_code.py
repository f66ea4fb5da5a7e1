"""Codes of reasons, each with its English text: what indicates something, why the watchdog waits, why something failed.

State, events, JSON and files on disk have codes. `report/reasons.py` fills in the texts.
"""

# ruff: noqa: ISC004 - a text of two lines has no parentheses of its own

from enum import StrEnum, auto
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
    PROCESS_GONE = auto(), "[process {pid}|its process] has exited"
    NO_DAEMON_FOUND = auto(), "nvidia-cuda-mps-control finds no daemon"
    LOG_ENDS_WITHOUT_QUIT = auto(), "its log ends without a quit"
    NO_LISTENER = auto(), "no process listens on its control socket"
    PID_FILE_LEFT = auto(), "its pid file still exists"
    NO_PID_FILE_LEFT = auto(), "its pid file was removed, as after a quit"
    UNIT_FAILED = auto(), "{unit} has failed ({text})"
    UNIT_RESTARTING = auto(), "systemd is about to restart {unit}"
    UNIT_ENDED = auto(), "{unit} is inactive and ended without an error"
    UNIT_STOP_TIMED_OUT = auto(), "{unit} was stopped and did not end in time"
    QUIT_RECEIVED = auto(), "it received a quit"
    NOT_STARTED_SINCE_STOP = auto(), "it was stopped and has not been started since"
    NEVER_RAN = auto(), "nothing indicates that it ever ran"

    # Indications of a diagnosis: a daemon that does not answer
    DAEMON_UNANSWERING = auto(), "the daemon does not answer"
    DAEMON_NOT_WAITING = auto(), "the daemon works and does not wait for that server"
    COMMANDS_UNANSWERED = auto(), "its commands get no answer"
    COMMANDS_REFUSED = auto(), "it refuses commands while another session is open"
    CONNECTIONS_UNANSWERED = auto(), "the exporter's own connections get no answer[ (it waits in {wait_channel})]"
    CONNECTIONS_ANSWERED = auto(), "it answers the exporter's own connections"
    PROGRAM_UNANSWERED = auto(), "nvidia-cuda-mps-control gets no answer"
    PROCESS_ALIVE = auto(), "[process {pid}|its process] is alive"
    PROCESS_SUSPENDED = auto(), "process {pid} is suspended (state {state})"
    PROCESS_STUCK_IN_KERNEL = auto(), "process {pid} sleeps in the kernel (state D[, {wait_channel}])"
    SERVER_SUSPENDED = auto(), "server {server} is suspended (state {state})"
    SERVER_QUERIED = auto(), "the first of these queries server {server}"
    LOG_ENDS_WITH_QUERY = auto(), "its log, which any user can write, ends with a query to server {server}"
    SESSION_OPEN = auto(), "[process {pid}|a process] of [{user}|{uid}] is connected to it"

    # Indications of a diagnosis: a server
    SERVER_IN_FAULT = auto(), "server {server} is in FAULT"
    FAULT_PERSISTS = auto(), "all affected clients have disconnected and the server does not recover"
    AFFECTED_CLIENTS_CONNECTED = auto(), "it waits for the end of [{pids}|the affected clients]"
    SERVERS_EXITED_EARLY = auto(), "its last {count} servers exited before they were ready[ within {seconds} s]"
    NO_SERVER_STARTED = auto(), "no server has started since"

    # Indications of a suspect
    CONTEXTS_ENDED_BEFORE_FAULT = (
        auto(),
        "its contexts ended {seconds:ms} before the fault, as when a client ends while a kernel runs",
    )
    KERNEL_LEFT_BEHIND = (
        auto(),
        "the same access failed {seconds:.1f} s before, right after its contexts had ended during a kernel",
    )
    INSTRUCTION_FETCH_FAILED = (
        auto(),
        "instructions could not be fetched, as for such a kernel ({hits} of {trials} trials)",
    )
    ONE_OF_DISCONNECTED = auto(), "it is one of {count} clients that disconnected then"
    ENDED_BY_COMMAND = auto(), "a control command ended it[, sent by process {pid}][ of user {user}]"
    OUT_OF_MEMORY_KILLED = auto(), "the kernel killed it because memory ran out"
    KILLED_BY_SIGNAL = auto(), "signal {signal} ended it"
    EXITED_WITH_CODE = auto(), "it exited with code {exit_code}"
    WORKER_IN_RESET = (
        auto(),
        "its worker was in reset when it disconnected, as after a trap ({hits} of {trials} trials)",
    )
    ONLY_AFFECTED_CLIENT = auto(), "it is the only affected client"
    ONE_OF_AFFECTED = auto(), "it is one of {count} affected clients"
    NAMED_BY_LOG = auto(), "the log names it, which is no better than chance"
    NAMED_BY_XID = auto(), "the Xid names it, which is no better than chance"
    WORK_IN_FLIGHT = auto(), "it had work in flight[, last launched {seconds:.1f} s before]"
    NO_WORK_IN_FLIGHT = (
        auto(),
        "it had no work in flight when the fault occurred[: its last launch was {seconds:.1f} s before]",
    )
    ONLY_NEW_KERNEL = (
        auto(),
        "only it had a kernel in flight that had never completed before ({hits} of {trials} trials)",
    )
    ONLY_WORK_IN_FLIGHT = auto(), "all other affected clients had no work in flight (inferred, not measured)"
    ADDRESS_INSIDE_RANGE = (
        auto(),
        "the faulting address is in a {range_bytes:size} range that it reserves[ ({hits} of {trials} trials)]",
    )
    ADDRESS_NEAR_RANGE = (
        auto(),
        "the faulting address is {distance:size} {place} a {range_bytes:size} range that it reserves"
        "[ ({hits} of {trials} trials)]",
    )
    ADDRESS_WEAK = auto(), "this alone names no client: [{distance:size} is far|CUDA chooses it alike in all processes]"
    ONE_OF_ALIKE = auto(), "the address fits {count} clients equally, as after a fork"
    ADDRESS_RANGES_UNREAD = auto(), "the address ranges of {count} clients are not known completely"
    NOT_LISTED_AS_AFFECTED = auto(), "it was connected, and the log does not list it as affected"
    WITH_CORE_DUMPS = (
        auto(),
        "GPU core dumps were on: calls of the cause may have succeeded, so an error is no sign of the cause",
    )
    CORE_DUMPS_ON = auto(), "they are on in the environment of {pids}[ and of {count:client} more]"
    CORE_DUMPS_UNKNOWN = auto(), "the environment of {count} clients is not known"
    LOG_UNRELIABLE = auto(), "the log contradicts other sources or lacks lines: a user may have forged it"

    # Why the watchdog waits: what it knows is not enough, or the problem may pass
    STATE_LOST = auto(), "the watchdog's state could not be read or written: the number of restarts is unknown"
    HANG_TOO_RECENT = (
        auto(),
        "[server {server} may answer again; it is ended after {seconds} s|the daemon may answer again; it is restarted"
        " after {seconds} s at the earliest]",
    )
    HANG_OBSERVED = (
        auto(),
        "[server {server} may answer again; it will not be ended (observe mode)|the daemon may answer again; it will"
        " not be restarted (observe mode)]",
    )
    PROCESS_CONTINUED = auto(), "its process was suspended and continues: the exporter first checks that it answers"
    HANG_UNCONFIRMED = auto(), "it does not answer, and no second indication shows that it hangs"
    PROCESS_UNKNOWN = auto(), "its process is not known, so it cannot be ended"
    CLIENTS_UNKNOWN = (
        auto(),
        "the clients of [server {server}|the daemon] are not known yet: the watchdog does not end it",
    )
    REMEDY_TAKES_EFFECT = auto(), "the watchdog waits for the effect of {action:words}"

    # Why the watchdog waits: another party acts, or must act
    GPU_NEEDS_RESET = auto(), "{xid}: [{gpu}|a GPU] needs a reset"
    GPU_NEEDS_REBOOT = auto(), "{xid}: [{gpu}|a GPU] needs a reboot of the machine"
    STOPPED_BY_OPERATOR = auto(), "an operator stopped it: the watchdog does not start it"
    NEVER_SEEN = auto(), "it has never run: the watchdog does not start it for the first time"
    PROGRAM_AT_FAULT = auto(), "nvidia-cuda-mps-control hangs, not the daemon: a restart would not help"
    SESSION_HELD = (
        auto(),
        "[process {pid}|an unknown process] is connected to the daemon: close that session or connection",
    )
    STUCK_IN_KERNEL = (
        auto(),
        "[process {pid}|a process] sleeps in the kernel, where no signal reaches it: a reboot may be necessary",
    )
    SERVERS_CANNOT_START = auto(), "its servers cannot start, and a restart would not help: see server.log"
    FAULT_WAITS_FOR_CLIENTS = auto(), "server {server} recovers after the exit of [{pids}|the affected clients]"
    FAULT_NEEDS_SERVER_END = auto(), "server {server} does not recover and must be ended: `status` has the command"
    SERVER_MUST_CONTINUE = auto(), "server {server} is suspended: SIGCONT continues it"
    SERVER_MUST_END = auto(), "server {server} does not answer its daemon: SIGKILL ends it and its clients"
    RESTARTED_BY_SYSTEMD = auto(), "systemd restarts {unit} by itself"
    UNIT_STOPPING = auto(), "systemd is stopping {unit}: the watchdog does not prevent that"

    # Why the watchdog waits: the action is not permitted, or would do harm
    CIRCUIT_OPEN = auto(), "its circuit is open until an operator resumes the daemon"
    RESTARTS_DID_NOT_HELP = auto(), "{count:restart} in {seconds} s did not help for long"
    BACKOFF = auto(), "{count:restart} in {seconds} s did not help for long: the next one is delayed"
    CLIENTS_UNAFFECTED = (
        auto(),
        "[server {server}|the daemon] serves {pids}, which the fault did not affect: the watchdog does not end it",
    )
    SERVER_PARENT_UNKNOWN = (
        auto(),
        "server {server} {state:remedy}; /proc has not shown that it is a child of this daemon",
    )
    HUNG_SERVER_AMBIGUOUS = (
        auto(),
        "server {server} does not answer its daemon: SIGKILL ends it and its clients; there are several servers,"
        " and only the log names this one",
    )
    DIRECTORY_TAKEN = auto(), "another daemon, perhaps of another node, has its pipe directory"
    FOREIGN_DIRECTORY = auto(), "its pipe directory belongs to UID {uid}, who must not run this daemon"
    NO_RESTART_METHOD = auto(), "no restart method is configured: set `unit` or `restart_command`"
    DAEMON_IN_CONTAINER = auto(), "it ran in a container, where `restart_command` cannot start it"
    POD_DELETION_NOT_ALLOWED = auto(), "a pod runs it: set `watchdog.allow` with `delete_pod`, or delete the pod"
    POD_NAME_UNKNOWN = auto(), "a pod runs it, and the name of the pod is unknown: mount /var/log/pods"
    SYSTEMD_UNREACHABLE = auto(), "the state of {unit} is unknown: systemd cannot be reached"
    UNIT_STATE_UNKNOWN = auto(), "the state of {unit} is unknown, so the daemon might not start again"
    UNIT_UNREADABLE = auto(), "the state of {unit} cannot be read[ ({state:words})][: {text:.128}]"
    UNIT_NOT_LOADED = (
        auto(),
        "systemd has {unit} as [{state}|unknown]: configure the daemon's `unit` or `restart_command`",
    )
    START_LIMIT_HIT = (
        auto(),
        "systemd has given up on {unit} (start-limit-hit): run `systemctl reset-failed {unit}`, then start it",
    )

    # Why a circuit breaker opened or closed
    RESTARTS_FAILED = auto(), "{count:restart} did not bring it back"
    OPERATOR_RESUMED = auto(), "an operator resumed it"
    WELL_FOR_WINDOW = auto(), "it has been well for {seconds} s"

    # Limits
    MEMORY_LIMIT_DIFFERS = auto(), "memory limit of device {device} is [{found:GiB}|unlimited], not {wanted:GiB}"
    THREAD_PERCENTAGE_DIFFERS = auto(), "active thread percentage is [{found}|unknown] %, not {wanted} %"
    PRIORITY_DIFFERS = auto(), "client priority is [{found}|unknown], not {wanted}"
    LIMIT_COMMAND_INEFFECTIVE = (
        auto(),
        "'{command}' was sent {count} times without effect; it is sent once in {seconds} s from now on",
    )
    CONNECTED_BEFORE_LIMITS = auto(), "clients keep the limits that the server had when they connected"

    # Problems of an action: its result
    NO_RESULT = auto(), "the action did not report a result"
    EXPORTER_RESTARTED = auto(), "the exporter was restarted before the action reported a result"
    DAEMON_MISSING = auto(), "the exporter was restarted before the action reported a result, and no daemon runs"
    DAEMON_ENDED_AGAIN = auto(), "it started and ended again"
    DAEMON_NOT_ANSWERING = auto(), "it has not answered within {seconds} s"
    ANSWERING_PROCESS_UNKNOWN = auto(), "the process that answers is not known"
    OLD_PROCESS_PRESENT = auto(), "process {pid} still runs"

    # Problems of an action: it was not begun, or was broken off
    EXPORTER_STOPPING = auto(), "the exporter is stopping"
    ACTION_UNDER_WAY = auto(), "another action for this daemon is under way"
    TOO_MANY_ACTIONS = auto(), "actions for {count} other daemons are under way"
    NO_THREAD = auto(), "no thread could be started: {text}"

    # Problems of an action: a command to the control daemon
    COMMAND_TIMED_OUT = auto(), "{command}: no answer within {seconds} s"
    COMMAND_WITHOUT_DAEMON = auto(), "{command}: there is no daemon"
    COMMAND_BLOCKED_BY_SESSION = auto(), "{command}: the daemon refuses it while another session is open"
    COMMAND_NOT_SENT = auto(), "{command}: it cannot be sent[ (exit code {exit_code})][: {text:.128}]"
    COMMAND_NOT_PERMITTED = (
        auto(),
        "{command}: the daemon obeys root and the user who started it: the exporter needs CAP_SETUID and"
        " CAP_SETGID to send it as that user (drop-in act.conf of its unit)",
    )
    COMMAND_WITHOUT_SERVER = auto(), "{command}: the daemon no longer has that server"
    COMMAND_UNKNOWN = auto(), "{command}: the daemon does not know this command: its version is not supported"

    # Problems of an action: a process to end
    PROCESS_NOT_IN_NAMESPACE = auto(), "process {pid} is not in this PID namespace"
    PROCESS_NOT_OPENED = auto(), "process {pid} cannot be opened[: {text}]"
    PROCESS_NOT_KILLABLE = auto(), "process {pid} cannot be ended: this needs CAP_KILL (drop-in act.conf)"
    PROCESS_NOT_ENDED = (
        auto(),
        "process {pid} was killed and has not ended: it may sleep in the kernel (state D in /proc/{pid}/stat)",
    )

    # Problems of an action: a unit or a program to start
    POD_DELETION_FORBIDDEN = (
        auto(),
        "the API server does not permit the exporter to delete pod {pod}: add its namespace to"
        " `restartPods.namespaces` of the Helm chart",
    )
    POD_NOT_DELETED = auto(), "the API server did not delete pod {pod} ({state})[: {text:.128}]"
    UNIT_NAME_INVALID = auto(), "'{unit}' is not the name of a service"
    UNIT_TIMED_OUT = auto(), "systemd did not restart {unit} within {seconds} s: see `systemctl status {unit}`"
    UNIT_NOT_PERMITTED = (
        auto(),
        "systemd does not let the exporter restart {unit}: the polkit rule (50-cuda-mps-exporter.rules) must name"
        " this unit",
    )
    UNIT_NOT_FOUND = auto(), "systemd does not know {unit}: correct the daemon's `unit` in the configuration"
    UNIT_MASKED = auto(), "{unit} is masked: run `systemctl unmask {unit}` if it is to run"
    UNIT_STARTED_TOO_OFTEN = (
        auto(),
        "{unit} was started too often (StartLimitBurst=): remove the cause, then run `systemctl reset-failed {unit}`",
    )
    UNIT_WITHOUT_SYSTEMD = (
        auto(),
        "systemd does not run or cannot be reached: configure `restart_command` instead of {unit}",
    )
    UNIT_DID_NOT_START = auto(), "{unit} did not start: see `journalctl -u {unit}`"
    UNIT_NOT_RESTARTED = auto(), "systemctl could not restart {unit}[ (exit code {exit_code})][: {text:.128}]"
    NO_PROGRAM = auto(), "`restart_command` is empty"
    PROGRAM_NOT_STARTED = auto(), "{command} cannot be started[: {text}]"
    PROGRAM_NOT_ENDED = (
        auto(),
        "{command} did not end within {seconds} s: it must start the daemon in the background (-d)",
    )
    PROGRAM_FAILED = auto(), "{command} failed[ (exit code {exit_code})][: {text:.128}]"
    USER_NOT_PERMITTED = (
        auto(),
        "{command} cannot be started: the exporter needs CAP_SETUID and CAP_SETGID to start a process as UID"
        " [{uid}|unknown] (drop-in act.conf of its unit)",
    )
    USER_NOT_CONFIGURED = (
        auto(),
        "the daemon is not started as UID [{uid}|unknown]: the configuration does not name that user",
    )
    DIRECTORY_OF_OTHER_USER = auto(), "{path} belongs to UID {uid}, who must not run this daemon"

    # Problems of saved evidence
    EVIDENCE_BUSY = auto(), "earlier evidence is still being saved: the disk does not answer"
    EVIDENCE_TIMED_OUT = auto(), "saving takes longer than {seconds} s"
    EVIDENCE_NOT_WRITTEN = auto(), "{text}"

    # Problems of collectors: these are also values of a label of `cuda_mps_exporter_source_problem_info`
    PAUSED = auto(), "paused: the NVIDIA driver is closed. To read the GPUs again, run `cuda-mps-exporter resume`"
    DRIVER_WITHDRAWN = (
        auto(),
        "closed until the new driver runs: the GPU operator removed {subject} to unload the driver",
    )
    STILL_RUNNING = auto(), "no result for {seconds:.0f} s"
    NOT_TRIED = auto(), "not read, because other readings took {seconds:.0f} s"
    TIMEOUT = auto(), "{subject}: no answer within {seconds:g} s"
    PERMISSION_DENIED = auto(), "{subject} cannot be read[: {detail}]"
    NOT_FOUND = auto(), "{subject} does not exist", "detail"
    NOT_READABLE = auto(), "{subject} cannot be read[: {detail}]"
    WRONG_FILE_TYPE = auto(), "{subject} cannot be read: it is not the expected type of file"
    COMMAND_NOT_STARTED = auto(), "{subject} cannot be started[: {detail}]"
    COMMAND_FAILED = auto(), "{subject} failed[ with exit code {exit_code}][: {detail}]"
    PROGRAM_MISSING = (
        auto(),
        "{subject} was not found. Install the driver's programs. A container gets it from the NVIDIA runtime,"
        " with the driver capability compute; in Kubernetes, set gpuAccess of the Helm chart",
    )
    SERVER_STOPPED = auto(), "{subject} was not sent: server {pid} is stopped, and the daemon would wait for it"
    LOG_BLOCKED = auto(), "blocked: commands that the daemon answered do not appear in it"
    LOG_TO_STDOUT = (
        auto(),
        "the daemon runs in the foreground (-f), and its standard output is neither stdout.log nor a journal",
    )
    RECORDS_LOST = auto(), "the kernel overwrote records of {subject} before they were read: Xids may be missing"
    PROCESS_NOT_READABLE = auto(), "control daemon {pid} cannot be located: its environment is not readable"
    PROCESSES_NOT_READABLE = (
        auto(),
        "it is unknown whether process {pid} runs. Check that /proc is mounted, shows processes of other users"
        " (hidepid=), and that the exporter has free file descriptors (LimitNOFILE=)",
    )
    TOO_MANY_DAEMONS = (
        auto(),
        "more control daemons run than are followed, and some of {detail} are ignored (at most {limits:0} of one"
        " user or container, and {limits:1} of all). End those that are not needed",
    )
    DIRECTORY_HANGS = (
        auto(),
        "a directory does not answer, for example on a file server that is gone; daemons there are not found",
    )
    DIRECTORY_SHARED = (
        auto(),
        "daemon {subject} is not followed: its pipe directory is that of daemon {detail}. Remove one of the two"
        " from the configuration",
    )
    NOT_SUPPORTED = auto(), "this node does not support {subject}", "pid"
    DRIVER_NOT_LOADED = auto(), "NVML: {detail}. The NVIDIA driver is not loaded; check it with nvidia-smi", "subject"
    DRIVER_MISMATCH = (
        auto(),
        "NVML: {detail}. Reload the driver's kernel modules, or reboot the node; if nvidia-smi works there, restart the"
        " exporter",
        "subject",
    )
    LIBRARY_MISSING = (
        auto(),
        "NVML: {detail}. Install libnvidia-ml.so.1 of this architecture; a container needs it from the NVIDIA runtime",
        "subject",
    )
    LIBRARY_UNUSABLE = (
        auto(),
        "NVML: {detail}. Replace this file by the libnvidia-ml.so.1 of the loaded driver",
        "subject",
    )
    CONTAINER_WITHOUT_GPUS = (
        auto(),
        "NVML: {detail}. The node has GPUs, but the exporter's container has none. In Kubernetes, set gpuAccess"
        " of the Helm chart; elsewhere, start the container with --gpus all",
        "subject",
    )
    DRIVER_NOT_OPEN = auto(), "the NVIDIA driver is not open: see the problem of nvml"
    DRIVER_HANGS = auto(), "a call into the NVIDIA driver has not returned, so the driver cannot be opened again"
    DRIVER_ERROR = auto(), "[{subject:gpu}: ]NVML: {detail}. Check the driver with nvidia-smi"
    GPU_LOST = auto(), "[{subject:gpu}: ]NVML: {detail}. The GPU does not respond, or needs a reset"
    IMPLAUSIBLE = auto(), "NVML returned {detail} for {subject}, which cannot be true, and which is ignored"
    GPU_NOT_REPORTED = auto(), "NVML works, and no longer lists the GPU"
    DUPLICATE_UUID = auto(), "GPUs {detail} have the same UUID {subject}, so only the first is read"
    PROBES_REFUSED = auto(), "launches cannot be counted[: {detail}]"
    LIBRARY_NOT_WATCHED = auto(), "some launches cannot be counted[: {detail}]"
    PACKAGE_CONFLICT = (
        auto(),
        "the Python package {subject} hides the module of nvidia-ml-py. Uninstall {subject}, then install"
        " nvidia-ml-py again: pip uninstall {subject}; pip install --force-reinstall nvidia-ml-py",
    )
    CALL_FAILED = auto(), "{subject} failed: {detail}"
    API_SERVER_UNKNOWN = auto(), "no API server is known: the exporter does not run in a pod"
    API_SERVER_UNREACHABLE = auto(), "the API server cannot be used: {text}"
    UNEXPECTED_ERROR = (
        auto(),
        "[unexpected {text}|the exporter has a defect: {detail}. Report it with the exporter's log]",
        "subject",
    )
    UNSPECIFIED = auto(), "[{text}|{detail}]", "subject"  # A code of a later version.


COLLECTOR_CODES = tuple(ReasonCode)[tuple(ReasonCode).index(ReasonCode.PAUSED) :]
"""Why a collection can fail, in whole or in part."""
