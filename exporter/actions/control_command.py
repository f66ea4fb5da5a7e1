"""Commands to a control daemon, and why one was not obeyed."""

from exporter.actions.patience import Patience
from exporter.clock import Clock
from exporter.model.observation import ControlReply
from exporter.model.reason import Reason, ReasonCode
from exporter.parse.control_reply import CommandRefusal, QueryOutcome, parse_refusal, query_outcome
from exporter.parse.printable import printable
from exporter.sources.control import ControlClient

DEADLINE_SECONDS = 5.0
_LONG_DEADLINES = {"shutdown_server": 10.0}
"""The daemon asks the server first, which may have to wait for its clients; meanwhile nobody else is answered."""
_FORCED_SECONDS = 20.0

APPEARS_SECONDS = 1.0
"""How long a daemon that was just started may take until it listens."""
_AGAIN_SECONDS = 0.02

_DENIALS = {
    CommandRefusal.NOT_ALLOWED: ReasonCode.COMMAND_NOT_PERMITTED,
    CommandRefusal.NO_SUCH_SERVER: ReasonCode.COMMAND_WITHOUT_SERVER,
    CommandRefusal.UNKNOWN_COMMAND: ReasonCode.COMMAND_UNKNOWN,
}


def deadline_of(command: str) -> float:
    """How many seconds a command may take."""
    verb, *words = command.split() or [""]
    return _FORCED_SECONDS if "-f" in words else _LONG_DEADLINES.get(verb, DEADLINE_SECONDS)


def give(client: ControlClient, command: str, *, clock: Clock, patience: Patience, appearing: bool) -> ControlReply:
    """Give a command, again while a daemon that is `appearing` is not there yet; the last reply."""
    ends = clock.monotonic() + APPEARS_SECONDS
    while True:
        reply = client.ask(command)
        absent = query_outcome(reply.exit_code, reply.stderr) is QueryOutcome.NO_DAEMON
        if not (appearing and absent) or patience.over or clock.monotonic() >= ends:
            return reply
        patience.rest(_AGAIN_SECONDS)


def problem_of(reply: ControlReply) -> Reason | None:
    """Return why a command was not obeyed; None if nothing indicates that it was not."""
    command = printable(reply.command)
    match query_outcome(reply.exit_code, reply.stderr):
        case QueryOutcome.TIMED_OUT:
            return Reason(ReasonCode.COMMAND_TIMED_OUT, command=command, seconds=deadline_of(reply.command))
        case QueryOutcome.NO_DAEMON:
            return Reason(ReasonCode.COMMAND_WITHOUT_DAEMON, command=command)
        case QueryOutcome.REFUSED:
            return Reason(ReasonCode.COMMAND_BLOCKED_BY_SESSION, command=command)
        case QueryOutcome.UNUSABLE:
            code, text = reply.exit_code, _last_line(reply)
            return Reason(ReasonCode.COMMAND_NOT_SENT, command=command, exit_code=code, text=text)
        case QueryOutcome.ANSWERED:
            denied = parse_refusal(reply.stdout)
            return None if denied is None else Reason(_DENIALS[denied], command=command)


def _last_line(reply: ControlReply) -> str | None:
    lines = (reply.stderr.strip() or reply.stdout.strip()).splitlines()
    return printable(lines[-1]) if lines else None
