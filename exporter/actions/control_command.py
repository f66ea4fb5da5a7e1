"""Gives a control daemon a command, and says whether it was obeyed."""

from exporter.actions.patience import Patience
from exporter.clock import Clock
from exporter.model.observation import ControlReply
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

_WORDS = {
    CommandRefusal.NOT_ALLOWED: "the daemon obeys the user who started it, and root: the exporter needs CAP_SETUID and"
    " CAP_SETGID to ask as that user (the unit's drop-in act.conf)",
    CommandRefusal.NO_SUCH_SERVER: "the daemon has no such server any more",
    CommandRefusal.UNKNOWN_COMMAND: "the daemon does not know this command: its version is not supported",
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


def problem_of(reply: ControlReply) -> str | None:
    """Why a command was not obeyed, for who must act; None where nothing says that it was not."""
    match query_outcome(reply.exit_code, reply.stderr):
        case QueryOutcome.TIMED_OUT:
            problem = f"no answer within {deadline_of(reply.command):g} s"
        case QueryOutcome.NO_DAEMON:
            problem = "there is no daemon"
        case QueryOutcome.REFUSED:
            problem = "somebody's open session keeps all others out"
        case QueryOutcome.UNUSABLE:
            problem = f"it cannot be asked: {_said(reply)}"
        case QueryOutcome.ANSWERED:
            denied = parse_refusal(reply.stdout)
            if denied is None:
                return None
            problem = _WORDS[denied]
    return f"{printable(reply.command)}: {problem}"


def _said(reply: ControlReply) -> str:
    lines = (reply.stderr.strip() or reply.stdout.strip() or f"exit code {reply.exit_code}").splitlines()
    return printable(lines[-1])
