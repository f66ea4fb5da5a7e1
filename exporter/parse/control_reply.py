"""Commands and replies of `nvidia-cuda-mps-control`, measured on R580 (protocol 2; `protocol3.py` has protocol 3).

The exit code is 0 for a wrong PID and an unknown command too. Parsers return None if a reply is of another form.
"""

import re
from collections.abc import Callable, Collection, Mapping
from enum import Enum, auto

from exporter.model.dialect import MODULES, PROTOCOL_2, PROTOCOL_3
from exporter.model.observation import ControlReply
from exporter.model.server import ServerState

LIST_SERVERS = PROTOCOL_2.list_servers
SERVER_STATUS = "get_server_status"
LIST_CLIENTS = "get_client_list"
THREADS = "get_active_thread_percentage"
PINNED_MEMORY = "get_device_pinned_mem_limit"
DEFAULT_THREADS = "get_default_active_thread_percentage"
DEFAULT_PINNED_MEMORY = "get_default_device_pinned_mem_limit"
DEFAULT_PRIORITY = "get_default_client_priority"
DEVICE_QUERY = PROTOCOL_2.list_devices
LIST_PROCESSES = "ps"
LIST_DEVICE_CLIENTS = "get_device_client_list"
QUIT = "quit"
VERSION_FLAG = "-v"
"""Not a command but a flag of the program: it does not reach the daemon."""

EXPORTER_QUERIES = frozenset(
    (
        *(LIST_SERVERS, SERVER_STATUS, LIST_CLIENTS, THREADS, PINNED_MEMORY),
        *(DEFAULT_THREADS, DEFAULT_PINNED_MEMORY, DEFAULT_PRIORITY, "device_query"),
    )
)
"""The first words of the commands that the exporter sends to read values."""

_NEVER_EMPTY = frozenset((SERVER_STATUS, THREADS, DEFAULT_THREADS, DEFAULT_PRIORITY, "device_query"))
"""Queries whose answer has text (measured, R580)."""

_QUERY_ONE_SERVER = frozenset((SERVER_STATUS, LIST_CLIENTS, LIST_DEVICE_CLIENTS, THREADS, PINNED_MEMORY))
_QUERY_ALL_SERVERS = frozenset((LIST_PROCESSES, LIST_DEVICE_CLIENTS, "device_query"))

PID_ARGUMENTS: Mapping[str, int] = {
    **dict.fromkeys((SERVER_STATUS, LIST_CLIENTS, THREADS, PINNED_MEMORY, "shutdown_server"), 1),
    **dict.fromkeys(("set_active_thread_percentage", "set_device_pinned_mem_limit"), 1),
    "terminate_client": 2,
}
"""How many of a command's first arguments are PIDs."""

MAX_LISTED_PIDS = 1024  # How many PIDs of one list are read. A server has at most 60 on each GPU (NVIDIA's MPS guide).
_MISSING_SERVER = re.compile(r"Server (\d{1,10}) not found!?")
_SERVER = re.compile(r"Server \d{1,10}")
_PID = re.compile(r"[1-9][0-9]{0,8}")
_LISTED_PID = re.compile(rf"{_PID.pattern}|0")
_NUMBER = re.compile(r"[0-9]{1,10}")
_DEVICE = re.compile(r"[0-9]{1,3}")
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


class QueryOutcome(Enum):
    """What a query of the control daemon shows about the daemon itself."""

    ANSWERED = auto()
    NO_DAEMON = auto()
    REFUSED = auto()
    TIMED_OUT = auto()
    UNUSABLE = auto()
    """The client program cannot be used at all."""


def query_outcome(reply: ControlReply) -> QueryOutcome:
    """Return the outcome of a query."""
    if reply.exit_code is None:
        return QueryOutcome.TIMED_OUT
    if reply.exit_code == 0:
        never_empty = reply.command.partition(" ")[0] in _NEVER_EMPTY
        return QueryOutcome.REFUSED if never_empty and is_empty_answer(reply) else QueryOutcome.ANSWERED
    if "Cannot find MPS control daemon process" in reply.stderr:
        return QueryOutcome.NO_DAEMON
    refused = "Cannot send command to MPS control daemon process" in reply.stderr
    return QueryOutcome.REFUSED if refused else QueryOutcome.UNUSABLE


def is_empty_answer(reply: ControlReply) -> bool:
    """Return whether a query had exit code 0 and no output, so that it may have been refused.

    While another session is open, some refused commands end so (measured, R580). Some answers are empty too.
    """
    return reply.exit_code == 0 and not reply.stdout.strip() and reply.command.partition(" ")[0] in EXPORTER_QUERIES


class CommandRefusal(Enum):
    """Why the daemon did not carry out a command. The exit code is 0 (measured, R580)."""

    NOT_ALLOWED = auto()  # the daemon obeys only root and the user who started it
    NO_SUCH_SERVER = auto()
    UNKNOWN_COMMAND = auto()


def parse_refusal(stdout: str) -> CommandRefusal | None:
    """Return why the daemon did not carry out a command; None if the reply is not a refusal."""
    if "Insufficient privileges" in stdout or "Not enough privilege" in stdout:
        return CommandRefusal.NOT_ALLOWED
    if parse_missing_server(stdout) is not None:
        return CommandRefusal.NO_SUCH_SERVER
    return CommandRefusal.UNKNOWN_COMMAND if stdout.startswith("Unknown command") else None


def servers_queried(command: str, servers: Collection[int]) -> frozenset[int]:
    """Return the servers that the daemon queries, and waits for, to answer a command (measured, R580).

    With protocol 3, that is not known. So each command but the list of servers counts as one that queries all servers.
    """
    verb, *words = command.split() or [""]
    if verb in MODULES:
        return frozenset() if command == PROTOCOL_3.list_servers else frozenset(servers)
    if verb in _QUERY_ONE_SERVER and words:
        return frozenset(pid for pid in servers if str(pid) == words[0])
    return frozenset(servers) if verb in _QUERY_ALL_SERVERS else frozenset()


def query_changed_by(command: str) -> str | None:
    """Return the query of the limit that a command sets; None if the command sets no limit."""
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
        case ["server" | "namespace", "set", *_]:
            return PROTOCOL_3.list_namespaces
        case _:
            return None


def translate_command(command: str, inner: Callable[[int], int | None]) -> str:
    """Return a command with the PIDs of another PID namespace. A PID that does not exist there becomes 0."""
    verb, *words = command.split()
    count = PID_ARGUMENTS.get(verb, 0)
    pids = (str(inner(int(word)) or 0) if word.removeprefix("-").isdecimal() else word for word in words[:count])
    return " ".join((verb, *pids, *words[count:]))


def numbers_in_text(text: str) -> tuple[int, ...]:
    """Return the distinct integers of a text, in order. Each may be a PID."""
    return tuple(dict.fromkeys(map(int, _NUMBER.findall(text))))


def parse_pid_list(stdout: str) -> tuple[int, ...] | None:
    """Return the first `MAX_LISTED_PIDS` PIDs; 0 is one of a namespace that the daemon cannot see (measured, R580)."""
    words = stdout.split(maxsplit=MAX_LISTED_PIDS)[:MAX_LISTED_PIDS]
    if not all(_LISTED_PID.fullmatch(word) for word in words):
        return None
    return tuple(dict.fromkeys(map(int, words)))


def parse_server_state(stdout: str) -> ServerState | None:
    """Return the state in a reply to `get_server_status`."""
    return ServerState.__members__.get(stdout.strip().upper())


def parse_missing_server(stdout: str) -> int | None:
    """Return the PID of the server that the daemon does not have."""
    found = (_MISSING_SERVER.fullmatch(line.strip()) for line in stdout.splitlines())
    return next((int(each[1]) for each in found if each is not None), None)


def parse_version(stdout: str) -> str | None:
    """Return the version in the reply to `nvidia-cuda-mps-control -v`, 13000 for CUDA 13.0."""
    found = re.search(r"version:? +(\d{4,6})\b", stdout)
    return found[1] if found else None


def parse_priority(stdout: str) -> int | None:
    """Return the priority of clients: 0 is normal, 1 is below normal."""
    return {"0": 0, "1": 1}.get(stdout.strip())


def is_device_uuid(text: str) -> bool:
    """Return whether a text is the UUID of a GPU or of a MIG instance."""
    return _UUID.fullmatch(text) is not None


def parse_devices(stdout: str) -> Mapping[int, str]:
    """Return the UUIDs of the GPUs by the daemon's ordinals; empty if the reply is of another form.

    A row begins with the ordinal, and has the whole UUID in one of its cells. The other cells are ignored. The daemon's
    devices come first, under `Default`; the devices of each server follow (measured, R580).
    """
    found: dict[int, str] = {}
    for line in stdout.splitlines():
        if _SERVER.fullmatch(line.strip()):
            break
        ordinal, *cells = (cell.strip() for cell in line.split(","))
        uuids = [cell for cell in cells if is_device_uuid(cell)]
        if _DEVICE.fullmatch(ordinal) and len(uuids) == 1 and uuids[0] not in found.values():
            found.setdefault(int(ordinal), uuids[0])
    return found
