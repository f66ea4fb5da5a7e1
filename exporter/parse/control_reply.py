"""Replies of `nvidia-cuda-mps-control`, measured on R580 (protocol 2).

The exit code says little: a wrong PID and an unknown command exit with 0.
"""

import re
from collections.abc import Collection, Mapping
from enum import Enum, auto
from math import isfinite

from exporter.model.server import ServerState
from exporter.parse.byte_size import byte_size

LIST_SERVERS = "get_server_list"
SERVER_STATUS = "get_server_status"
LIST_CLIENTS = "get_client_list"
THREADS = "get_active_thread_percentage"
PINNED_MEMORY = "get_device_pinned_mem_limit"
DEFAULT_THREADS = "get_default_active_thread_percentage"
DEFAULT_PINNED_MEMORY = "get_default_device_pinned_mem_limit"
DEFAULT_PRIORITY = "get_default_client_priority"
DEVICES = "device_query --csv"
PROCESSES = "ps"
LIST_DEVICE_CLIENTS = "get_device_client_list"
QUIT = "quit"
VERSION = "-v"
"""Not a command but a flag of the binary: it does not reach the daemon."""

QUESTIONS = frozenset(
    (
        *(LIST_SERVERS, SERVER_STATUS, LIST_CLIENTS, THREADS, PINNED_MEMORY),
        *(DEFAULT_THREADS, DEFAULT_PINNED_MEMORY, DEFAULT_PRIORITY, "device_query"),
    )
)
"""The first words of the exporter's own questions."""

_ASK_ONE = frozenset((SERVER_STATUS, LIST_CLIENTS, LIST_DEVICE_CLIENTS, THREADS, PINNED_MEMORY))
_ASK_ALL = frozenset((PROCESSES, LIST_DEVICE_CLIENTS, "device_query"))

MOST_LISTED = 1024
"""How many PIDs of one list are read; a server takes 60 clients at most (NVIDIA's MPS guide)."""

_NOT_FOUND = re.compile(r"Server (\d{1,10}) not found!?")
_SERVER = re.compile(r"Server \d{1,10}")
_PID = re.compile(r"[1-9][0-9]{0,8}")
_LISTED = re.compile(rf"{_PID.pattern}|0")
_DEVICE = re.compile(r"[0-9]{1,3}")
_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_PRIORITIES = {"0": 0, "1": 1}
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


def servers_asked(command: str, servers: Collection[int]) -> frozenset[int]:
    """Return those of a daemon's servers that it asks, and waits for, in order to answer a command (measured, R580)."""
    verb, *words = command.split() or [""]
    if verb in _ASK_ONE and words:
        return frozenset(pid for pid in servers if str(pid) == words[0])
    return frozenset(servers) if verb in _ASK_ALL else frozenset()


def pids(stdout: str) -> tuple[int, ...] | None:
    """The PIDs of a list, one a line, the first `MOST_LISTED` of them; None where the reply is something else.

    0 is whoever lives where the daemon does not see him (measured, R580).
    """
    words = stdout.split(maxsplit=MOST_LISTED)[:MOST_LISTED]
    if not all(_LISTED.fullmatch(word) for word in words):
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


def percentage(stdout: str) -> float | None:
    """A share of a GPU's threads, in percent; None where the reply is something else."""
    try:
        share = float(stdout)
    except ValueError:
        return None
    return share if isfinite(share) and 0 < share <= 100 else None


def memory_limit(stdout: str) -> int | None:
    """A limit in bytes; None where none is set, or the reply is something else."""
    return byte_size(stdout)


def priority(stdout: str) -> int | None:
    """The priority of clients: 0, normal, or 1, below it; None where the reply is something else."""
    return _PRIORITIES.get(stdout.strip())


def devices(stdout: str) -> Mapping[int, str]:
    """The GPUs' UUIDs by the daemon's ordinals; empty where the reply is something else.

    A row begins with the ordinal and has the whole UUID in one of its cells; the others are left alone. The daemon's
    own come first, under `Default`, then those of each server (measured, R580).
    """
    found: dict[int, str] = {}
    for line in stdout.splitlines():
        if _SERVER.fullmatch(line.strip()):
            break
        ordinal, *cells = (cell.strip() for cell in line.split(","))
        uuids = [cell for cell in cells if _UUID.fullmatch(cell)]
        if _DEVICE.fullmatch(ordinal) and len(uuids) == 1 and uuids[0] not in found.values():
            found.setdefault(int(ordinal), uuids[0])
    return found


def question_changed_by(command: str) -> str | None:
    """The question whose answer a command may change: that about the limit which it sets; None for all others."""
    match command.split():
        case ["set_default_active_thread_percentage", *_]:
            return DEFAULT_THREADS
        case ["set_active_thread_percentage", pid, *_] if _PID.fullmatch(pid):
            return f"{THREADS} {int(pid)}"
        case ["set_default_device_pinned_mem_limit", device, *_] if _DEVICE.fullmatch(device):
            return f"{DEFAULT_PINNED_MEMORY} {int(device)}"
        case ["set_device_pinned_mem_limit", pid, device, *_] if _PID.fullmatch(pid) and _DEVICE.fullmatch(device):
            return f"{PINNED_MEMORY} {int(pid)} {int(device)}"
        case ["set_default_client_priority", *_]:
            return DEFAULT_PRIORITY
        case _:
            return None
