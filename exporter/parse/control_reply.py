"""Replies of `nvidia-cuda-mps-control`, measured on R580 (protocol 2).

The exit code says little: a wrong PID and an unknown command exit with 0.
"""

import re
from enum import Enum, auto

from exporter.model.node import ServerState

LIST_SERVERS = "get_server_list"
SERVER_STATUS = "get_server_status"
LIST_CLIENTS = "get_client_list"
QUIT = "quit"
VERSION = "-v"
"""Not a command but a flag of the binary: it does not reach the daemon."""

_NOT_FOUND = re.compile(r"Server (\d{1,10}) not found!?")
_PID = re.compile(r"[1-9][0-9]{0,8}")
_STATES = {"ACTIVE": ServerState.ACTIVE, "INITIALIZING": ServerState.INITIALIZING, "FAULT": ServerState.FAULT}


class Verdict(Enum):
    """What an attempt to ask the control daemon says about the daemon itself."""

    ANSWERED = auto()
    NO_DAEMON = auto()
    REFUSED = auto()
    TIMED_OUT = auto()
    UNUSABLE = auto()


def verdict(exit_code: int | None, stderr: str) -> Verdict:
    """Tell an answer from a refusal, silence, a missing daemon, and a client binary that cannot be used at all."""
    if exit_code is None:
        return Verdict.TIMED_OUT
    if exit_code == 0:
        return Verdict.ANSWERED
    if "Cannot find MPS control daemon process" in stderr:
        return Verdict.NO_DAEMON
    if "Cannot send command to MPS control daemon process" in stderr:
        return Verdict.REFUSED
    return Verdict.UNUSABLE


def pids(stdout: str) -> tuple[int, ...] | None:
    """The PIDs of a list, one a line; None where the reply is something else."""
    words = stdout.split()
    if not all(_PID.fullmatch(word) for word in words):
        return None
    return tuple(dict.fromkeys(map(int, words)))


def server_state(stdout: str) -> ServerState | None:
    """The state in a reply to `get_server_status`; None where the word is not known."""
    return _STATES.get(stdout.strip().upper())


def missing_server(stdout: str) -> int | None:
    """The PID of the server that the daemon says it does not have; None where it says no such thing."""
    for line in stdout.splitlines():
        found = _NOT_FOUND.fullmatch(line.strip())
        if found is not None:
            return int(found[1])
    return None


def version(stdout: str) -> str | None:
    """The number in the reply to `nvidia-cuda-mps-control -v`, 13000 for CUDA 13.0."""
    found = re.search(r"version:? +(\d{4,6})\b", stdout)
    return found[1] if found else None
