"""Sentences of earlier versions, as codes: they are in state files up to version 4 and in recordings of FORMAT 1.

The named groups of a pattern are the parameters of the code. Nothing is added here: today's version writes codes.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from exporter.model.reason import Reason, ReasonCode

LONGEST_SENTENCE = 8192
"""Characters of the longest text that is compared with the patterns."""

_MOST = 2**63
"""A larger number cannot be read back (`plain.py`)."""

_SERVED = r"(?:the daemon|server (?P<server>\d+))"
_RESTARTS = r"(?P<count>\d+) restarts? within (?P<seconds>[\d.e+-]+) s did not help for long"
_TRIALS = r"\((?P<hits>\d+) of (?P<trials>\d+) trials\)"
_SUSPENDED = r"server (?P<server>-?\d+|None) was stopped: .+ lets it go on"
_UNRESPONSIVE = r"server (?P<server>-?\d+|None) does not answer its daemon: .+ ends it, and its clients"
_NOT_A_CHILD = r"; /proc has not shown that it is a child of this daemon"
_OUTPUT = r"(?:exit code (?P<exit_code>-?\d+)|(?P<text>.*))"
_SECONDS = r"(?P<seconds>[\d.e+-]+) s"
_PID = r"process (?P<pid>-?\d+)"
_SIZE = r"(?:unlimited|(?P<{}_gib>[\d.e+-]+) GiB)"

_PATTERNS: tuple[tuple[ReasonCode, str], ...] = (
    # Indications of a diagnosis
    (ReasonCode.PROCESS_GONE, rf"{_PID} is gone"),
    (ReasonCode.NO_DAEMON_FOUND, r"nvidia-cuda-mps-control finds no daemon"),
    (ReasonCode.LOG_ENDS_WITHOUT_QUIT, r"its log ends without a quit"),
    (ReasonCode.NO_LISTENER, r"nobody listens on its socket"),
    (ReasonCode.PID_FILE_LEFT, r"its pid file was left behind"),
    (ReasonCode.NO_PID_FILE_LEFT, r"it left no pid file behind, as after a quit"),
    (ReasonCode.UNIT_FAILED, r"(?P<unit>\S+) has failed \((?P<text>.*)\)"),
    (ReasonCode.UNIT_RESTARTING, r"(?P<unit>\S+) is to be restarted by systemd"),
    (ReasonCode.UNIT_ENDED, r"(?P<unit>\S+) is inactive, and ended in success"),
    (ReasonCode.UNIT_STOP_TIMED_OUT, r"(?P<unit>\S+) was stopped, and did not end in time"),
    (ReasonCode.QUIT_RECEIVED, r"it was told to go"),
    (ReasonCode.NOT_STARTED_SINCE_STOP, r"it was stopped, and has not been started since"),
    (ReasonCode.NEVER_RAN, r"there is no trace that it ever ran"),
    (ReasonCode.DAEMON_UNANSWERING, r"(?:it|the daemon|its daemon) answers nobody"),
    (ReasonCode.DAEMON_NOT_WAITING, r"its daemon is sound, and asks it nothing"),
    (ReasonCode.COMMANDS_UNANSWERED, r"its commands get no answer"),
    (ReasonCode.COMMANDS_REFUSED, r"its commands are refused, as long as somebody's session is open"),
    (
        ReasonCode.CONNECTIONS_UNANSWERED,
        r"nor do the exporter's own connections(?:: it waits in (?P<wait_channel>.+))?",
    ),
    (ReasonCode.CONNECTIONS_ANSWERED, r"the daemon answers connections without it"),
    (ReasonCode.PROGRAM_UNANSWERED, r"commands through the control program get no answer"),
    (ReasonCode.PROCESS_ALIVE, rf"{_PID} lives"),
    (ReasonCode.PROCESS_SUSPENDED, rf"{_PID} was stopped \(state (?P<state>.*)\)"),
    (
        ReasonCode.PROCESS_STUCK_IN_KERNEL,
        rf"{_PID} sleeps in the kernel \(state D(?:, (?P<wait_channel>.+))?\)",
    ),
    (ReasonCode.SERVER_SUSPENDED, r"server (?P<server>-?\d+) was stopped \(state (?P<state>.*)\)"),
    (ReasonCode.SERVER_QUERIED, r"the first of these asks server (?P<server>\d+)"),
    (
        ReasonCode.LOG_ENDS_WITH_QUERY,
        r"its log, which every user can write, ends with a command that asks server (?P<server>\d+)",
    ),
    (ReasonCode.SESSION_OPEN, rf"{_PID} \((?:(?P<uid>\d+)|None|(?P<user>.+))\) has a session open"),
    (ReasonCode.SERVER_IN_FAULT, r"server (?P<server>-?\d+) is in FAULT"),
    (ReasonCode.FAULT_PERSISTS, r"all whom it hit have let go, and it does not recover"),
    (
        ReasonCode.AFFECTED_CLIENTS_CONNECTED,
        r"it waits for (?:those whom it hit|(?P<pids>[\d, -]+)) to let go",
    ),
    (ReasonCode.SERVERS_EXITED_EARLY, r"its last (?P<count>\d+) servers exited before they were ready"),
    (ReasonCode.SERVERS_EXITED_EARLY, rf"(?P<count>\d+) starts in {_SECONDS}"),
    (ReasonCode.NO_SERVER_STARTED, r"no server has started since"),
    # Indications of a suspect
    (
        ReasonCode.CONTEXTS_ENDED_BEFORE_FAULT,
        r"its contexts ended (?P<ms>-?\d+) ms before the fault, as those of a client that goes with a kernel in flight",
    ),
    (ReasonCode.INSTRUCTION_FETCH_FAILED, rf"instructions could not be fetched, as of such a kernel {_TRIALS}"),
    (ReasonCode.ONE_OF_DISCONNECTED, r"it is one of (?P<count>\d+) that left then"),
    (ReasonCode.OUT_OF_MEMORY_KILLED, r"the kernel killed it for want of memory"),
    (ReasonCode.KILLED_BY_SIGNAL, r"it was ended by signal (?P<signal>\d+)"),
    (ReasonCode.EXITED_WITH_CODE, r"it exited with code (?P<exit_code>\d+)"),
    (ReasonCode.WORKER_IN_RESET, rf"its worker was in reset when it left, as of one that trapped {_TRIALS}"),
    (ReasonCode.ONLY_AFFECTED_CLIENT, r"it is the only client that was hit"),
    (ReasonCode.ONE_OF_AFFECTED, r"it is one of (?P<count>\d+) that were hit"),
    (ReasonCode.NAMED_BY_LOG, r"the log names it, which says no more than chance"),
    (ReasonCode.NAMED_BY_XID, r"the Xid names it, which says no more than chance"),
    (ReasonCode.WORK_IN_FLIGHT, rf"it had work in flight(?:, last launched {_SECONDS} before)?"),
    (
        ReasonCode.NO_WORK_IN_FLIGHT,
        rf"it had nothing in flight when the fault struck(?:: its last launch was {_SECONDS} before)?",
    ),
    (
        ReasonCode.ONLY_WORK_IN_FLIGHT,
        r"of all others that were hit it is known that they had nothing in flight \(inferred, not measured\)",
    ),
    (
        ReasonCode.LOG_UNRELIABLE,
        r"the log contradicts other sources or lacks lines: a tenant may have forged it",
    ),
    # Why the watchdog waits
    (
        ReasonCode.STATE_LOST,
        r"the watchdog's state could not be read or written: how often the daemon was restarted is unknown",
    ),
    (ReasonCode.HANG_TOO_RECENT, rf"it hangs, which may pass: it is restarted no sooner than after {_SECONDS}"),
    (
        ReasonCode.HANG_TOO_RECENT,
        rf"server (?P<server>-?\d+|None) hangs, which may pass: it is ended after {_SECONDS}",
    ),
    (ReasonCode.PROCESS_CONTINUED, r"it was stopped, and is let go on: it is asked first whether it answers"),
    (ReasonCode.HANG_UNCONFIRMED, r"it does not answer, and no second witness says that it hangs"),
    (ReasonCode.PROCESS_UNKNOWN, r"it is not known which process it is, so that it cannot be ended"),
    (ReasonCode.CLIENTS_UNKNOWN, rf"it is not known yet whom {_SERVED} serves: it is left alone"),
    (ReasonCode.REMEDY_TAKES_EFFECT, r"(?P<action>\w+) has its time to help"),
    (ReasonCode.GPU_NEEDS_RESET, r"Xid (?P<xid>\d+)(?: \([^)]*\))?: (?P<gpu>.+) needs a reset"),
    (ReasonCode.GPU_NEEDS_REBOOT, r"Xid (?P<xid>\d+)(?: \([^)]*\))?: (?P<gpu>.+) needs a reboot of the machine"),
    (ReasonCode.STOPPED_BY_OPERATOR, r"an operator stopped it: it is left alone"),
    (ReasonCode.NEVER_SEEN, r"it was never seen to run: it is left to whoever starts it"),
    (
        ReasonCode.PROGRAM_AT_FAULT,
        r"the control program is at fault, not the daemon: a restart would not help",
    ),
    (
        ReasonCode.SESSION_HELD,
        rf"(?:nobody is seen who|{_PID}) has a session open: to close that is all it takes",
    ),
    (
        ReasonCode.STUCK_IN_KERNEL,
        rf"(?:nobody is seen who|{_PID}) sleeps in the kernel, where no signal reaches it: it may take a reboot",
    ),
    (
        ReasonCode.SERVERS_CANNOT_START,
        r"its servers cannot start, and a restart would feed that: server\.log says why",
    ),
    (
        ReasonCode.FAULT_WAITS_FOR_CLIENTS,
        r"server (?P<server>-?\d+) recovers when (?:those whom the fault hit|(?P<pids>[\d, -]+)) let go",
    ),
    (
        ReasonCode.FAULT_NEEDS_SERVER_END,
        r"server (?P<server>-?\d+) does not recover and must be ended: `status` has the command",
    ),
    (ReasonCode.SERVER_MUST_CONTINUE, _SUSPENDED),
    (ReasonCode.SERVER_MUST_END, _UNRESPONSIVE),
    (
        ReasonCode.SERVER_PARENT_UNKNOWN,
        rf"(?:{_SUSPENDED}|{_UNRESPONSIVE.replace('<server>', '<server_hung>')}){_NOT_A_CHILD}",
    ),
    (
        ReasonCode.HUNG_SERVER_AMBIGUOUS,
        rf"{_UNRESPONSIVE}; of several servers, the log alone says that this one hangs",
    ),
    (ReasonCode.RESTARTED_BY_SYSTEMD, r"systemd restarts (?P<unit>\S+) by itself"),
    (ReasonCode.UNIT_STOPPING, r"systemd is stopping (?P<unit>\S+): it is left to whoever wants that"),
    (ReasonCode.CIRCUIT_OPEN, r"the circuit breaker is open until an operator resumes the daemon"),
    (ReasonCode.RESTARTS_DID_NOT_HELP, _RESTARTS),
    (ReasonCode.BACKOFF, rf"{_RESTARTS}: the next one has to wait"),
    (
        ReasonCode.CLIENTS_UNAFFECTED,
        rf"{_SERVED} serves (?P<pids>[\d, -]+), whom no fault hit: it is left alone",
    ),
    (
        ReasonCode.FOREIGN_DIRECTORY,
        r"its pipe directory belongs to UID (?P<uid>\d+), who must not run this daemon",
    ),
    (ReasonCode.NO_RESTART_METHOD, r"nothing says how it is restarted: name its unit, or restart_command"),
    (ReasonCode.DAEMON_IN_CONTAINER, r"it ran in a container, where restart_command cannot start it"),
    (ReasonCode.SYSTEMD_UNREACHABLE, r"nobody tells how (?P<unit>\S+) is: there is no systemd that could be asked"),
    (ReasonCode.UNIT_STATE_UNKNOWN, r"nobody tells how (?P<unit>\S+) is: it might not come back"),
    (ReasonCode.UNIT_UNREADABLE, r"(?P<unit>\S+) cannot be looked at: (?P<text>.*)"),
    (
        ReasonCode.UNIT_NOT_LOADED,
        r"(?P<unit>\S+) is (?:not known|(?P<state>\S+)) to systemd: name the daemon's unit, or restart_command",
    ),
    (ReasonCode.START_LIMIT_HIT, r"systemd has given up on (?P<unit>\S+) \(start-limit-hit\): .*"),
    # Why a circuit breaker opened or closed
    (ReasonCode.RESTARTS_FAILED, r"(?P<count>\d+) restarts did not bring it back"),
    (ReasonCode.OPERATOR_RESUMED, r"an operator said resume"),
    (ReasonCode.WELL_FOR_WINDOW, rf"it has been well for {_SECONDS}"),
    # Limits
    (
        ReasonCode.MEMORY_LIMIT_DIFFERS,
        rf"memory on device (?P<device>\d+) is {_SIZE.format('found')}, not {_SIZE.format('wanted')}",
    ),
    (
        ReasonCode.THREAD_PERCENTAGE_DIFFERS,
        r"active threads are (?P<found>[\d.e+-]+) %, not (?P<wanted>[\d.e+-]+) %",
    ),
    (ReasonCode.PRIORITY_DIFFERS, r"client priority is (?:None|(?P<found>\d+)), not (?P<wanted>\d+)"),
    (
        ReasonCode.LIMIT_COMMAND_INEFFECTIVE,
        rf"'(?P<command>.*)' was given (?P<count>\d+) times and does not help; it is given once in {_SECONDS}",
    ),
    (ReasonCode.CONNECTED_BEFORE_LIMITS, r"connected before its limits were in force, and not held to them"),
    # Problems of an action
    (ReasonCode.NO_RESULT, r"nothing was heard of it any more"),
    (ReasonCode.EXPORTER_RESTARTED, r"the exporter ended before it was told of"),
    (ReasonCode.DAEMON_MISSING, r"the exporter ended before it was told of, and there is no daemon"),
    (ReasonCode.DAEMON_ENDED_AGAIN, r"it came, and was gone again"),
    (ReasonCode.DAEMON_NOT_ANSWERING, rf"it has not answered within {_SECONDS}"),
    (ReasonCode.ANSWERING_PROCESS_UNKNOWN, r"it is not known which process answers"),
    (ReasonCode.OLD_PROCESS_PRESENT, rf"{_PID} is still there"),
    (ReasonCode.EXPORTER_STOPPING, r"(?:it was broken off: )?the exporter was told to stop"),
    (ReasonCode.ACTION_UNDER_WAY, r"something else is being done for this daemon"),
    (ReasonCode.TOO_MANY_ACTIONS, r"something is being done for (?P<count>\d+) other daemons"),
    (ReasonCode.NO_THREAD, r"there is no thread for it: (?P<text>.*)"),
    (ReasonCode.UNEXPECTED_ERROR, r"unexpected (?P<text>\w+: .*)"),
    (ReasonCode.COMMAND_TIMED_OUT, rf"(?P<command>[^:]+): no answer within {_SECONDS}"),
    (ReasonCode.COMMAND_WITHOUT_DAEMON, r"(?P<command>[^:]+): there is no daemon"),
    (ReasonCode.COMMAND_BLOCKED_BY_SESSION, r"(?P<command>[^:]+): somebody's open session keeps all others out"),
    (ReasonCode.COMMAND_NOT_SENT, rf"(?P<command>[^:]+): it cannot be asked: {_OUTPUT}"),
    (
        ReasonCode.COMMAND_NOT_PERMITTED,
        r"(?P<command>[^:]+): the daemon obeys the user who started it, and root: .*",
    ),
    (ReasonCode.COMMAND_WITHOUT_SERVER, r"(?P<command>[^:]+): the daemon has no such server any more"),
    (ReasonCode.COMMAND_UNKNOWN, r"(?P<command>[^:]+): the daemon does not know this command: .*"),
    (ReasonCode.PROCESS_NOT_IN_NAMESPACE, rf"{_PID} is none of this PID namespace"),
    (ReasonCode.PROCESS_NOT_OPENED, rf"{_PID} cannot be held: (?P<text>.*)"),
    (ReasonCode.PROCESS_NOT_KILLABLE, rf"{_PID} may not be ended: it takes CAP_KILL .*"),
    (ReasonCode.PROCESS_NOT_ENDED, rf"{_PID} was killed and has not ended: .*"),
    (ReasonCode.UNIT_NAME_INVALID, r"'(?P<unit>.*)' is no name of a service"),
    (ReasonCode.UNIT_TIMED_OUT, rf"systemd did not restart (?P<unit>\S+) within {_SECONDS}: .*"),
    (ReasonCode.UNIT_NOT_PERMITTED, r"systemd may not restart (?P<unit>\S+) for the exporter: .*"),
    (ReasonCode.UNIT_NOT_FOUND, r"systemd knows no (?P<unit>\S+): .*"),
    (ReasonCode.UNIT_MASKED, r"(?P<unit>\S+) is masked: .*"),
    (ReasonCode.UNIT_STARTED_TOO_OFTEN, r"(?P<unit>\S+) was started too often \(.*"),
    (
        ReasonCode.UNIT_WITHOUT_SYSTEMD,
        r"systemd does not run, or cannot be reached: configure a command in place of (?P<unit>\S+)",
    ),
    (ReasonCode.UNIT_DID_NOT_START, r"(?P<unit>\S+) did not start: see journalctl .*"),
    (ReasonCode.UNIT_NOT_RESTARTED, rf"systemctl could not restart (?P<unit>\S+): {_OUTPUT}"),
    (ReasonCode.NO_PROGRAM, r"there is no command to run"),
    (
        ReasonCode.USER_NOT_PERMITTED,
        r"(?P<command>.+) cannot be started: it takes CAP_SETUID and CAP_SETGID to start a process as UID (?P<uid>\d+)",
    ),
    (ReasonCode.PROGRAM_NOT_STARTED, r"'?(?P<command>[^']+?)'? cannot be started: (?P<text>.*)"),
    (ReasonCode.PROGRAM_NOT_ENDED, rf"(?P<command>.+) did not end within {_SECONDS}: .*"),
    (
        ReasonCode.PROGRAM_FAILED,
        r"(?P<command>.+) failed \(exit code (?P<exit_code>-?\d+)\): (?:exit code -?\d+|(?P<text>.*))",
    ),
    (
        ReasonCode.USER_NOT_CONFIGURED,
        r"the daemon is not started as UID (?P<uid>\d+|None): the configuration does not name that user",
    ),
    (ReasonCode.DIRECTORY_OF_OTHER_USER, r"(?P<path>.+) belongs to UID (?P<uid>\d+), who must not run this daemon"),
)

_COMPILED = tuple((code, re.compile(pattern, re.DOTALL)) for code, pattern in _PATTERNS)

_CONVERSIONS: Mapping[str, tuple[str, Callable[[str], object]]] = MappingProxyType(
    {
        **{
            name: (name, int)
            for name in ("pid", "server", "uid", "signal", "exit_code", "count", "hits", "trials", "xid", "device")
        },
        **{name: (name, float) for name in ("seconds", "found", "wanted")},
        "server_hung": ("server", int),
        "pids": ("pids", lambda text: tuple(int(each) for each in text.split(", "))),
        "ms": ("seconds", lambda text: int(text) / 1000),
        "found_gib": ("found", lambda text: float(text) * 2**30),
        "wanted_gib": ("wanted", lambda text: float(text) * 2**30),
    }
)
"""The parameter that a group gives, and how; all other groups are texts of the same name."""


def reason_of(sentence: str) -> Reason | None:
    """Return the code and parameters of a sentence; None if it is not a sentence of an earlier version."""
    if len(sentence) > LONGEST_SENTENCE:
        return None
    for code, pattern in _COMPILED:
        match = pattern.fullmatch(sentence)
        if match is not None:
            return _reason(code, match.groupdict())
    return None


def reason_or_unknown(sentence: str) -> Reason:
    """Return the code and parameters of a sentence, or the code `unknown` with the sentence."""
    return reason_of(sentence) or Reason(ReasonCode.UNKNOWN, text=sentence)


def _reason(code: ReasonCode, groups: Mapping[str, str | None]) -> Reason | None:
    parameters: dict[str, object] = {}
    for group, text in groups.items():
        if text is None or text == "None":
            continue
        name, convert = _CONVERSIONS.get(group, (group, str))
        try:
            value = convert(text)
        except ValueError:
            return None
        numbers = value if isinstance(value, tuple) else (value,)
        if any(isinstance(each, int | float) and not abs(each) <= _MOST for each in numbers):
            return None
        parameters[name] = value
    if code is ReasonCode.SERVER_PARENT_UNKNOWN:
        hung = groups["server_hung"] is not None
        parameters["state"] = "server_unresponsive" if hung else "server_suspended"
    return Reason(code, **parameters)  # type: ignore[arg-type]
