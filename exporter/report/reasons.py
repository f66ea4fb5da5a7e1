"""English text of each reason code."""

from collections.abc import Callable, Iterable, Mapping

from exporter.model.reason import PARAMETERS, Reason, ReasonCode
from exporter.model.watchdog import Condition
from exporter.parse.kernel_log import xid_meaning
from exporter.parse.printable import LONGEST_PROBLEM, LONGEST_TEXT, printable
from exporter.report.text import counted, external_text

_UNPERMITTED = "the exporter needs CAP_SETUID and CAP_SETGID to send it as that user (drop-in act.conf of its unit)"

_FIXED: Mapping[ReasonCode, str] = {
    # Indications of a diagnosis: the end of a daemon
    ReasonCode.PROCESS_GONE: "process {pid} has exited",
    ReasonCode.NO_DAEMON_FOUND: "nvidia-cuda-mps-control finds no daemon",
    ReasonCode.LOG_ENDS_WITHOUT_QUIT: "its log ends without a quit",
    ReasonCode.NO_LISTENER: "no process listens on its control socket",
    ReasonCode.PID_FILE_LEFT: "its pid file still exists",
    ReasonCode.NO_PID_FILE_LEFT: "its pid file was removed, as after a quit",
    ReasonCode.UNIT_FAILED: "{unit} has failed ({text})",
    ReasonCode.UNIT_RESTARTING: "systemd is about to restart {unit}",
    ReasonCode.UNIT_ENDED: "{unit} is inactive and ended without an error",
    ReasonCode.UNIT_STOP_TIMED_OUT: "{unit} was stopped and did not end in time",
    ReasonCode.QUIT_RECEIVED: "it received a quit",
    ReasonCode.NOT_STARTED_SINCE_STOP: "it was stopped and has not been started since",
    ReasonCode.NEVER_RAN: "nothing indicates that it ever ran",
    # Indications of a diagnosis: a daemon that does not answer
    ReasonCode.DAEMON_UNANSWERING: "the daemon does not answer",
    ReasonCode.DAEMON_NOT_WAITING: "the daemon works and does not wait for that server",
    ReasonCode.COMMANDS_UNANSWERED: "its commands get no answer",
    ReasonCode.COMMANDS_REFUSED: "it refuses commands while another session is open",
    ReasonCode.CONNECTIONS_ANSWERED: "it answers the exporter's own connections",
    ReasonCode.PROGRAM_UNANSWERED: "nvidia-cuda-mps-control gets no answer",
    ReasonCode.PROCESS_ALIVE: "process {pid} is alive",
    ReasonCode.PROCESS_SUSPENDED: "process {pid} is suspended (state {state})",
    ReasonCode.SERVER_SUSPENDED: "server {server} is suspended (state {state})",
    ReasonCode.SERVER_QUERIED: "the first of these queries server {server}",
    ReasonCode.LOG_ENDS_WITH_QUERY: "its log, which any user can write, ends with a query to server {server}",
    # Indications of a diagnosis: a server
    ReasonCode.SERVER_IN_FAULT: "server {server} is in FAULT",
    ReasonCode.FAULT_PERSISTS: "all affected clients have disconnected and the server does not recover",
    ReasonCode.NO_SERVER_STARTED: "no server has started since",
    # Indications of a suspect
    ReasonCode.INSTRUCTION_FETCH_FAILED: "instructions could not be fetched, as for such a kernel ({trials})",
    ReasonCode.ONE_OF_DISCONNECTED: "it is one of {count} clients that disconnected then",
    ReasonCode.OUT_OF_MEMORY_KILLED: "the kernel killed it because memory ran out",
    ReasonCode.KILLED_BY_SIGNAL: "signal {signal} ended it",
    ReasonCode.EXITED_WITH_CODE: "it exited with code {exit_code}",
    ReasonCode.WORKER_IN_RESET: "its worker was in reset when it disconnected, as after a trap ({trials})",
    ReasonCode.ONLY_AFFECTED_CLIENT: "it is the only affected client",
    ReasonCode.ONE_OF_AFFECTED: "it is one of {count} affected clients",
    ReasonCode.NAMED_BY_LOG: "the log names it, which is no better than chance",
    ReasonCode.NAMED_BY_XID: "the Xid names it, which is no better than chance",
    ReasonCode.ONLY_WORK_IN_FLIGHT: "all other affected clients had no work in flight (inferred, not measured)",
    ReasonCode.LOG_UNRELIABLE: "the log contradicts other sources or lacks lines: a user may have forged it",
    # Why the watchdog waits: what it knows is not enough, or the problem may pass
    ReasonCode.STATE_LOST: "the watchdog's state could not be read or written: the number of restarts is unknown",
    ReasonCode.PROCESS_CONTINUED: "its process was suspended and continues: the exporter first checks that it answers",
    ReasonCode.HANG_UNCONFIRMED: "it does not answer, and no second indication shows that it hangs",
    ReasonCode.PROCESS_UNKNOWN: "its process is not known, so it cannot be ended",
    # Why the watchdog waits: another party acts, or must act
    ReasonCode.STOPPED_BY_OPERATOR: "an operator stopped it: the watchdog does not start it",
    ReasonCode.NEVER_SEEN: "it has never run: the watchdog does not start it for the first time",
    ReasonCode.PROGRAM_AT_FAULT: "nvidia-cuda-mps-control hangs, not the daemon: a restart would not help",
    ReasonCode.SERVERS_CANNOT_START: "its servers cannot start, and a restart would not help: see server.log",
    ReasonCode.FAULT_NEEDS_SERVER_END: "server {server} does not recover and must be ended: `status` has the command",
    ReasonCode.RESTARTED_BY_SYSTEMD: "systemd restarts {unit} by itself",
    ReasonCode.UNIT_STOPPING: "systemd is stopping {unit}: the watchdog does not prevent that",
    # Why the watchdog waits: the action is not permitted, or would do harm
    ReasonCode.CIRCUIT_OPEN: "its circuit is open until an operator resumes the daemon",
    ReasonCode.RESTARTS_DID_NOT_HELP: "{restarts} in {seconds} s did not help for long",
    ReasonCode.BACKOFF: "{restarts} in {seconds} s did not help for long: the next one is delayed",
    ReasonCode.FOREIGN_DIRECTORY: "its pipe directory belongs to UID {uid}, who must not run this daemon",
    ReasonCode.NO_RESTART_METHOD: "no restart method is configured: set `unit` or `restart_command`",
    ReasonCode.DAEMON_IN_CONTAINER: "it ran in a container, where `restart_command` cannot start it",
    ReasonCode.POD_DELETION_NOT_ALLOWED: "a pod runs it: set `watchdog.allow` with `delete_pod`, or delete the pod",
    ReasonCode.POD_NAME_UNKNOWN: "a pod runs it, and the name of the pod is unknown: mount /var/log/pods",
    ReasonCode.SYSTEMD_UNREACHABLE: "the state of {unit} is unknown: systemd cannot be reached",
    ReasonCode.UNIT_STATE_UNKNOWN: "the state of {unit} is unknown, so the daemon might not start again",
    ReasonCode.START_LIMIT_HIT: "systemd has given up on {unit} (start-limit-hit): run"
    " `systemctl reset-failed {unit}`, then start it",
    # Why a circuit breaker opened or closed
    ReasonCode.RESTARTS_FAILED: "{restarts} did not bring it back",
    ReasonCode.OPERATOR_RESUMED: "an operator resumed it",
    ReasonCode.WELL_FOR_WINDOW: "it has been well for {seconds} s",
    # Limits
    ReasonCode.MEMORY_LIMIT_DIFFERS: "memory limit of device {device} is {found_bytes}, not {wanted_bytes}",
    ReasonCode.THREAD_PERCENTAGE_DIFFERS: "active thread percentage is {found} %, not {wanted} %",
    ReasonCode.PRIORITY_DIFFERS: "client priority is {found}, not {wanted}",
    ReasonCode.LIMIT_COMMAND_INEFFECTIVE: "'{command}' was sent {count} times without effect; it is sent once in"
    " {seconds} s from now on",
    ReasonCode.CONNECTED_BEFORE_LIMITS: "they connected before its limits were in force, and are not held to them",
    # Problems of an action: its result
    ReasonCode.NO_RESULT: "the action did not report a result",
    ReasonCode.EXPORTER_RESTARTED: "the exporter was restarted before the action reported a result",
    ReasonCode.DAEMON_MISSING: "the exporter was restarted before the action reported a result, and no daemon runs",
    ReasonCode.DAEMON_ENDED_AGAIN: "it started and ended again",
    ReasonCode.DAEMON_NOT_ANSWERING: "it has not answered within {seconds} s",
    ReasonCode.ANSWERING_PROCESS_UNKNOWN: "the process that answers is not known",
    ReasonCode.OLD_PROCESS_PRESENT: "process {pid} still runs",
    # Problems of an action: it was not begun, or was broken off
    ReasonCode.EXPORTER_STOPPING: "the exporter is stopping",
    ReasonCode.ACTION_UNDER_WAY: "another action for this daemon is under way",
    ReasonCode.TOO_MANY_ACTIONS: "actions for {count} other daemons are under way",
    ReasonCode.NO_THREAD: "no thread could be started: {text}",
    ReasonCode.UNEXPECTED_ERROR: "unexpected {text}",
    # Problems of an action: a command to the control daemon
    ReasonCode.COMMAND_TIMED_OUT: "{command}: no answer within {seconds} s",
    ReasonCode.COMMAND_WITHOUT_DAEMON: "{command}: there is no daemon",
    ReasonCode.COMMAND_BLOCKED_BY_SESSION: "{command}: the daemon refuses it while another session is open",
    ReasonCode.COMMAND_NOT_SENT: "{command}: it cannot be sent{output}",
    ReasonCode.COMMAND_NOT_PERMITTED: "{command}: the daemon obeys root and the user who started it: " + _UNPERMITTED,
    ReasonCode.COMMAND_WITHOUT_SERVER: "{command}: the daemon no longer has that server",
    ReasonCode.COMMAND_UNKNOWN: "{command}: the daemon does not know this command: its version is not supported",
    # Problems of an action: a process to end
    ReasonCode.PROCESS_NOT_IN_NAMESPACE: "process {pid} is not in this PID namespace",
    ReasonCode.PROCESS_NOT_OPENED: "process {pid} cannot be opened: {text}",
    ReasonCode.PROCESS_NOT_KILLABLE: "process {pid} cannot be ended: this needs CAP_KILL (drop-in act.conf)",
    ReasonCode.PROCESS_NOT_ENDED: "process {pid} was killed and has not ended: it may sleep in the kernel (state D in"
    " /proc/{pid}/stat)",
    # Problems of an action: a unit or a program to start
    ReasonCode.API_SERVER_UNKNOWN: "no API server is known: the exporter does not run in a pod",
    ReasonCode.API_SERVER_UNREACHABLE: "the API server cannot be used: {text}",
    ReasonCode.POD_DELETION_FORBIDDEN: "the API server does not permit the exporter to delete pod {pod}: add its"
    " namespace to `restartPods.namespaces` of the Helm chart",
    ReasonCode.POD_NOT_DELETED: "the API server did not delete pod {pod} ({state}){output}",
    ReasonCode.UNIT_NAME_INVALID: "'{unit}' is not the name of a service",
    ReasonCode.UNIT_TIMED_OUT: "systemd did not restart {unit} within {seconds} s: see `systemctl status {unit}`",
    ReasonCode.UNIT_NOT_PERMITTED: "systemd does not let the exporter restart {unit}: the polkit rule"
    " (50-cuda-mps-exporter.rules) must name this unit",
    ReasonCode.UNIT_NOT_FOUND: "systemd does not know {unit}: correct the daemon's `unit` in the configuration",
    ReasonCode.UNIT_MASKED: "{unit} is masked: run `systemctl unmask {unit}` if it is to run",
    ReasonCode.UNIT_STARTED_TOO_OFTEN: "{unit} was started too often (StartLimitBurst=): remove the cause, then run"
    " `systemctl reset-failed {unit}`",
    ReasonCode.UNIT_WITHOUT_SYSTEMD: "systemd does not run or cannot be reached: configure `restart_command`"
    " instead of {unit}",
    ReasonCode.UNIT_DID_NOT_START: "{unit} did not start: see `journalctl -u {unit}`",
    ReasonCode.UNIT_NOT_RESTARTED: "systemctl could not restart {unit}{output}",
    ReasonCode.NO_PROGRAM: "`restart_command` is empty",
    ReasonCode.PROGRAM_NOT_STARTED: "{command} cannot be started: {text}",
    ReasonCode.PROGRAM_NOT_ENDED: "{command} did not end within {seconds} s: it must start the daemon in the"
    " background (-d)",
    ReasonCode.PROGRAM_FAILED: "{command} failed{output}",
    ReasonCode.USER_NOT_PERMITTED: "{command} cannot be started: the exporter needs CAP_SETUID and CAP_SETGID to start"
    " a process as UID {uid} (drop-in act.conf of its unit)",
    ReasonCode.USER_NOT_CONFIGURED: "the daemon is not started as UID {uid}: the configuration does not name that user",
    ReasonCode.DIRECTORY_OF_OTHER_USER: "{path} belongs to UID {uid}, who must not run this daemon",
    # Problems of saved evidence
    ReasonCode.EVIDENCE_BUSY: "earlier evidence is still being saved: the disk does not answer",
    ReasonCode.EVIDENCE_TIMED_OUT: "saving takes longer than {seconds} s",
    ReasonCode.EVIDENCE_NOT_WRITTEN: "{text}",
    ReasonCode.UNKNOWN: "{text}",
}
"""Texts that have the parameters of their reason in braces."""


def text_of(reason: Reason) -> str:
    """Return a reason in English, on one line."""
    special = _SPECIAL.get(reason.code)
    text = _FIXED[reason.code].format_map(_parameters(reason)) if special is None else special(reason)
    return printable(text, LONGEST_PROBLEM)


def texts_of(reasons: Iterable[Reason]) -> str:
    """Return several reasons in English, on one line, each of at most `LONGEST_TEXT` characters."""
    return "; ".join(text_of(each)[:LONGEST_TEXT] for each in reasons)


def reason_object(reason: Reason) -> dict[str, object]:
    """Return a reason for a program: its code and its parameters, each text on one line."""
    known = reason.as_json()
    return {name: printable(each, LONGEST_PROBLEM) if type(each) is str else each for name, each in known.items()}


def _parameters(reason: Reason) -> Mapping[str, str]:
    """Return the parameters as texts, and those that are derived from them."""
    known = {name: _shown(name, getattr(reason, name)) for name in PARAMETERS}
    return {
        **known,
        "trials": f"{reason.hits} of {reason.trials} trials",
        "restarts": counted(reason.count or 0, "restart"),
        "output": _output(reason),
        "found_bytes": _size(reason.found),
        "wanted_bytes": _size(reason.wanted),
    }


def _shown(name: str, value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, float):
        return f"{value:g}"
    return external_text(str(value), LONGEST_PROBLEM if name == "text" else LONGEST_TEXT)


def _output(reason: Reason) -> str:
    """Return how a program ended: its exit code and the last line of its output, as far as these are known."""
    exit_code = "" if reason.exit_code is None else f" (exit code {reason.exit_code})"
    return exit_code if reason.text is None else f"{exit_code}: {printable(reason.text)}"


def _size(limit: float | None) -> str:
    return "unlimited" if limit is None else f"{limit / 2**30:.4g} GiB"


def _pids(reason: Reason, otherwise: str) -> str:
    if not reason.pids:
        return otherwise
    return f"PID{'s' if len(reason.pids) > 1 else ''} {', '.join(map(str, reason.pids))}"


def _must_continue(reason: Reason) -> str:
    return f"server {reason.server} is suspended: SIGCONT continues it"


def _must_end(reason: Reason) -> str:
    return f"server {reason.server} does not answer its daemon: SIGKILL ends it and its clients"


def _parent_unknown(reason: Reason) -> str:
    remedy = _must_continue if reason.state == Condition.SERVER_SUSPENDED else _must_end
    return f"{remedy(reason)}; /proc has not shown that it is a child of this daemon"


def _connections_unanswered(reason: Reason) -> str:
    channel = "" if reason.wait_channel is None else f" (it waits in {printable(reason.wait_channel)})"
    return f"the exporter's own connections get no answer{channel}"


def _stuck_in_kernel(reason: Reason) -> str:
    channel = "" if reason.wait_channel is None else f", {printable(reason.wait_channel)}"
    return f"process {reason.pid} sleeps in the kernel (state D{channel})"


def _process_stuck(reason: Reason) -> str:
    process = "a process" if reason.pid is None else f"process {reason.pid}"
    return f"{process} sleeps in the kernel, where no signal reaches it: a reboot may be necessary"


def _session_open(reason: Reason) -> str:
    user = reason.uid if reason.user is None else printable(reason.user)
    process = "a process" if reason.pid is None else f"process {reason.pid}"
    return f"{process} of {user} is connected to it"


def _session_held(reason: Reason) -> str:
    process = "an unknown process" if reason.pid is None else f"process {reason.pid}"
    return f"{process} is connected to the daemon: close that session or connection"


def _servers_exited(reason: Reason) -> str:
    within = "" if reason.seconds is None else f" within {reason.seconds:g} s"
    return f"its last {reason.count} servers exited before they were ready{within}"


def _contexts_ended(reason: Reason) -> str:
    before = round((reason.seconds or 0.0) * 1000)
    return f"its contexts ended {before} ms before the fault, as when a client ends while a kernel runs"


def _in_flight(reason: Reason) -> str:
    return "it had work in flight" + (
        "" if reason.seconds is None else f", last launched {reason.seconds:.1f} s before"
    )


def _nothing_in_flight(reason: Reason) -> str:
    last = "" if reason.seconds is None else f": its last launch was {reason.seconds:.1f} s before"
    return f"it had no work in flight when the fault occurred{last}"


def _hang_too_recent(reason: Reason) -> str:
    after = f"{reason.seconds or 0.0:g} s"
    if reason.server is None:
        return f"it hangs, which may pass: it is restarted after {after} at the earliest"
    return f"server {reason.server} hangs, which may pass: it is ended after {after}"


def _served(reason: Reason) -> str:
    return "the daemon" if reason.server is None else f"server {reason.server}"


def _gpu_needs(reason: Reason) -> str:
    known = None if reason.xid is None else xid_meaning(reason.xid)
    xid = f"Xid {reason.xid}" if known is None else f"Xid {reason.xid} ({known.meaning})"
    needs = "a reset" if reason.code is ReasonCode.GPU_NEEDS_RESET else "a reboot of the machine"
    return f"{xid}: {printable(reason.gpu or 'a GPU')} needs {needs}"


def _unit_not_loaded(reason: Reason) -> str:
    state = "unknown" if reason.state is None else printable(reason.state)
    return f"systemd has {printable(reason.unit or '')} as {state}: configure the daemon's `unit` or `restart_command`"


def _unit_unreadable(reason: Reason) -> str:
    why = "" if reason.state is None else f" ({printable(reason.state).replace('_', ' ')})"
    text = "" if reason.text is None else f": {printable(reason.text)}"
    return f"the state of {printable(reason.unit or '')} cannot be read{why}{text}"


_SPECIAL: Mapping[ReasonCode, Callable[[Reason], str]] = {
    ReasonCode.CONNECTIONS_UNANSWERED: _connections_unanswered,
    ReasonCode.PROCESS_STUCK_IN_KERNEL: _stuck_in_kernel,
    ReasonCode.SESSION_OPEN: _session_open,
    ReasonCode.AFFECTED_CLIENTS_CONNECTED: lambda reason: (
        f"it waits for the end of {_pids(reason, 'the affected clients')}"
    ),
    ReasonCode.SERVERS_EXITED_EARLY: _servers_exited,
    ReasonCode.CONTEXTS_ENDED_BEFORE_FAULT: _contexts_ended,
    ReasonCode.WORK_IN_FLIGHT: _in_flight,
    ReasonCode.NO_WORK_IN_FLIGHT: _nothing_in_flight,
    ReasonCode.HANG_TOO_RECENT: _hang_too_recent,
    ReasonCode.CLIENTS_UNKNOWN: lambda reason: (
        f"the clients of {_served(reason)} are not known yet: the watchdog does not end it"
    ),
    ReasonCode.REMEDY_TAKES_EFFECT: lambda reason: (
        f"the watchdog waits for the effect of {(reason.action or 'an action').replace('_', ' ')}"
    ),
    ReasonCode.GPU_NEEDS_RESET: _gpu_needs,
    ReasonCode.GPU_NEEDS_REBOOT: _gpu_needs,
    ReasonCode.SESSION_HELD: _session_held,
    ReasonCode.STUCK_IN_KERNEL: _process_stuck,
    ReasonCode.FAULT_WAITS_FOR_CLIENTS: lambda reason: (
        f"server {reason.server} recovers after the exit of {_pids(reason, 'the affected clients')}"
    ),
    ReasonCode.SERVER_MUST_CONTINUE: _must_continue,
    ReasonCode.SERVER_MUST_END: _must_end,
    ReasonCode.CLIENTS_UNAFFECTED: lambda reason: (
        f"{_served(reason)} serves {_pids(reason, 'clients')}, which the fault did not affect: the watchdog does not"
        " end it"
    ),
    ReasonCode.SERVER_PARENT_UNKNOWN: _parent_unknown,
    ReasonCode.HUNG_SERVER_AMBIGUOUS: lambda reason: (
        f"{_must_end(reason)}; there are several servers, and only the log names this one"
    ),
    ReasonCode.UNIT_NOT_LOADED: _unit_not_loaded,
    ReasonCode.UNIT_UNREADABLE: _unit_unreadable,
}
"""Texts with parts that depend on the parameters."""
