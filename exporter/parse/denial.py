"""Replies by which a control daemon says no to a command, all of them with exit code 0 (measured, R580)."""

from enum import Enum, auto

from exporter.parse.control_reply import missing_server

_NOT_ALLOWED = ("Insufficient privileges", "Not enough privilege")


class Denial(Enum):
    """Why a command was not obeyed."""

    NOT_ALLOWED = auto()
    """Only the user who started the daemon is, and root."""
    NO_SUCH_SERVER = auto()
    UNKNOWN_COMMAND = auto()


def denial(stdout: str) -> Denial | None:
    """Why the daemon has not done what it was told to; None where it says nothing of the kind."""
    if any(words in stdout for words in _NOT_ALLOWED):
        return Denial.NOT_ALLOWED
    if missing_server(stdout) is not None:
        return Denial.NO_SUCH_SERVER
    if stdout.startswith("Unknown command"):
        return Denial.UNKNOWN_COMMAND
    return None
