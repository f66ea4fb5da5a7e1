"""What a hostile user can make a daemon's logs say: each means is a function from a situation to messages.

None of it is true. Each message names a kind of line, the PID in its stamp, and its text.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.standin.mps_daemon.logs import Kind

Line = tuple[Kind, int, str]

MADE_UP_PID = 4_200_000
"""Above the largest PID that Linux gives out (2**22)."""

GPU = "device 0 (NVIDIA H200)"


@dataclass(frozen=True, slots=True)
class Situation:
    """What the forger found: any user can read these PIDs in /proc.

    `daemon` and `servers` are those of the attacked directory, `others` are daemons and servers of other directories,
    `clients` are processes that use MPS, `bystanders` other processes of the machine.
    """

    directory: str
    daemon: int
    servers: Sequence[int]
    clients: Sequence[int]
    others: Sequence[int]
    bystanders: Sequence[int]


Means = Callable[[Situation, random.Random], list[Line]]


# -- control.log ---------------------------------------------------------------------------------------------------


def exit_of_the_daemon(situation: Situation, chance: random.Random) -> list[Line]:
    """The daemon ends, with or without the command that ends it."""
    lines = ["Accepting connection...", "NEW UI", "Cmd:quit", "Exit with status 0", "UI closed"]
    return _by_daemon(situation, chance, *lines[chance.randrange(len(lines)) :])


def command_to_quit(situation: Situation, chance: random.Random) -> list[Line]:
    """An operator ends the daemon; it has not ended yet."""
    timeout = chance.choice(("", " -t 3"))
    issued = ["quit command issued with timeout of 3"] * bool(timeout)
    return _by_daemon(situation, chance, "NEW UI", f"Cmd:quit{timeout}", *issued)


def start_of_a_daemon(situation: Situation, chance: random.Random) -> list[Line]:
    """Another daemon starts, of this directory or of another one, and of this version or of an older one."""
    directory = chance.choice((situation.directory, "/tmp/nvidia-mps", "/"))
    variable = chance.choice(("env CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_PIPE_DIRECTORY"))
    version = chance.choice(("13000", "7050", "99999"))
    return _by_daemon(
        situation,
        chance,
        f"Starting control daemon using socket {directory}/control",
        f"To connect CUDA applications to this daemon, set {variable}={directory}",
        f"CUDA MPS Control binary version: {version}",
    )


def exit_of_a_server(situation: Situation, chance: random.Random) -> list[Line]:
    """A server that runs has exited."""
    server = _server(situation, chance)
    return _by_daemon(
        situation,
        chance,
        f"Try shutting down server {server}, backoff is disabled",
        chance.choice((f"Force shutting down server {server}", f"Server {server} exited with status 0")),
        f"Server {server} exited with status {chance.choice((0, 1))}",
    )


def start_of_a_server(situation: Situation, chance: random.Random) -> list[Line]:
    """A server starts that is none: another daemon's, a client, the daemon itself, or no process."""
    server = chance.choice((*_innocents(situation), situation.daemon, MADE_UP_PID))
    return [
        (Kind.CONTROL, server, f"Starting new server {server} for user {chance.choice((0, 65534))}"),
        *_by_daemon(situation, chance, f"NEW SERVER {server}: Ready"),
    ]


def crash_loop(situation: Situation, chance: random.Random) -> list[Line]:
    """Server after server starts and exits."""
    lines = []
    for number in range(chance.randrange(4, 12)):
        server = MADE_UP_PID + number
        lines += [f"Starting new server {server} for user 0", f"Server {server} exited with status 1"]
    return _by_daemon(situation, chance, *lines)


def server_that_stays(situation: Situation, chance: random.Random) -> list[Line]:
    """A client of another user waits for a server that does not leave."""
    server, client = _server(situation, chance), _client(situation, chance)
    waits = f"NEW CLIENT {client} from user 65534: Server is not ready, push client to pending list"
    return _by_daemon(
        situation, chance, waits, f"Server {server} has 2 active worker threads. Server will not shutdown."
    )


def changed_defaults(situation: Situation, chance: random.Random) -> list[Line]:
    """An operator sets limits."""
    percentage, memory = chance.choice(("1", "100", "40")), chance.choice(("1M", "900G", "2G"))
    return _by_daemon(
        situation,
        chance,
        "NEW UI",
        f"Cmd:set_default_active_thread_percentage {percentage}",
        f"{percentage}.0",
        f"set_default_device_pinned_mem_limit 0 {memory}.",
        "UI closed",
    )


# -- server.log ----------------------------------------------------------------------------------------------------


def fault(situation: Situation, chance: random.Random) -> list[Line]:
    """A fault of innocent clients, whole or in part; perhaps one of them exits just before, as a culprit does."""
    victims = [_client(situation, chance) for _ in range(chance.randrange(1, 4))]
    named = chance.choice(victims)
    before = [f"Client {_label(named)} exiting. Number of active client contexts is 2."] * chance.randrange(2)
    block = [
        f"Client {{PID: {named}, Context: 1}} encountered a fatal GPU error.",
        "Server is handling a fatal GPU error.",
        *(f"Client {_label(victim)} on device 0 to be torn down" for victim in victims),
        *(f"All clients belonging to error trigging process {victim} will be torn down" for victim in victims),
        "The following devices will be reset:",
        "0",
        "The following client process have a sticky error set:",
        *map(str, victims),
    ]
    return _by_server(situation, chance, *before, *block[chance.randrange(2) : chance.choice((2, len(block)))])


def end_of_a_fault(situation: Situation, chance: random.Random) -> list[Line]:
    """A device has been reset."""
    return _by_server(situation, chance, f"Destroy server context on {GPU}", f"Creating server context on {GPU}")


def reset_of_a_client(situation: Situation, chance: random.Random) -> list[Line]:
    """A contained error of an innocent client."""
    label = _label(_client(situation, chance))
    exiting = f"Client {label} exiting. Worker is in reset. Number of active client contexts is 1."
    return _by_server(situation, chance, exiting)


def disconnects(situation: Situation, chance: random.Random) -> list[Line]:
    """Clients that are there go."""
    lines = []
    for client in situation.clients or (MADE_UP_PID,):
        for context in (1, 0):
            label = _label(client, context)
            lines.append(f"Server failed to recevie command with status 806, assuming client {label} exit")
        lines.append(f"Client {_label(client)} exiting. Number of active client contexts is 0.")
        lines.append(f"Client process {client} disconnected")
    return _by_server(situation, chance, *lines)


def connects(situation: Situation, chance: random.Random) -> list[Line]:
    """Processes that are no clients of this server are accepted."""
    label = _label(chance.choice((*situation.bystanders, *situation.others, MADE_UP_PID, 1)))
    return _by_server(situation, chance, f"Client {label} connected", f"Status of client {label} is ACTIVE")


def refusals(situation: Situation, chance: random.Random) -> list[Line]:
    """Innocent clients are refused, for a fault or because the server is full."""
    label = _label(_client(situation, chance), 0)
    return _by_server(
        situation,
        chance,
        f"Server teardown in progress. Refusing to accept new client {label}",
        f"Failed to accept client {label} with status 807",
        "Failed to accept new client. Maximum number of clients (48) reached.",
    )


def limits_in_force(situation: Situation, chance: random.Random) -> list[Line]:
    """The server has other limits."""
    percentage, memory = chance.choice(("1.0", "100.0", "40.0")), chance.choice((1 << 20, 1 << 31, 1 << 40))
    return _by_server(
        situation,
        chance,
        f"Active Threads Percentage set to {percentage}",
        f"Device pinned memory limit for device 0 set to {memory:#x} bytes",
        "Server Priority set to 1",
    )


def life_of_a_server(situation: Situation, chance: random.Random) -> list[Line]:
    """A server starts or leaves, in its own words."""
    server = _server(situation, chance)
    if chance.random() < 0.5:
        return [(Kind.OTHER, server, "Startup"), (Kind.SERVER, server, "Server has started")]
    told = ["Server has been notified to shutdown", "Waiting for current clients to finish", "Exiting"]
    return [(Kind.SERVER, server, text) for text in told]


LINES: tuple[Means, ...] = (
    exit_of_the_daemon,
    command_to_quit,
    start_of_a_daemon,
    exit_of_a_server,
    start_of_a_server,
    crash_loop,
    server_that_stays,
    changed_defaults,
    fault,
    fault,
    fault,
    end_of_a_fault,
    reset_of_a_client,
    disconnects,
    connects,
    refusals,
    limits_in_force,
    life_of_a_server,
)
"""The means that are lines of a log; `fault` is taken more often."""


def hostile_name(daemon: int, chance: random.Random, stamp: str) -> str:
    """Return an argv[0] that says, in the reply of `ps` and in control.log, what the daemon would."""
    told = chance.choice(("Exit with status 0", "Cmd:quit", "Start", "Server is handling a fatal GPU error."))
    forged = f"[{stamp} Control {daemon:5d}] {told}"
    bare = ("x", "UI closed", "Exit with status 0", "Cmd:quit", "1", "FAULT", "Server 1 exited with status 0", forged)
    return "\n".join(("x", *chance.choices(bare, k=chance.randrange(1, 5))))


def _label(client: int, context: int = 1) -> str:
    return f"{{PID: {client}, Context ID: {context}}}"


def _by_daemon(situation: Situation, chance: random.Random, *texts: str) -> list[Line]:
    """The daemon's own stamp as a rule, else another daemon's."""
    pid = situation.daemon if chance.random() < 0.8 else chance.choice((*situation.others, MADE_UP_PID))
    return [(Kind.CONTROL, pid, text) for text in texts]


def _by_server(situation: Situation, chance: random.Random, *texts: str) -> list[Line]:
    """A server's stamp as a rule, else any process's."""
    pid = _server(situation, chance) if chance.random() < 0.8 else chance.choice((*_innocents(situation), MADE_UP_PID))
    return [(Kind.SERVER, pid, text) for text in texts]


def _server(situation: Situation, chance: random.Random) -> int:
    return chance.choice(situation.servers or (MADE_UP_PID,))


def _client(situation: Situation, chance: random.Random) -> int:
    """A client as a rule, else a process that is none."""
    return chance.choice(
        situation.clients if situation.clients and chance.random() < 0.8 else (*_innocents(situation), 1)
    )


def _innocents(situation: Situation) -> Sequence[int]:
    return (*situation.clients, *situation.others, *situation.bystanders) or (MADE_UP_PID,)
