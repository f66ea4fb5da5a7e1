"""Messages of control.log and server.log, each with the wordings that report it, since 2013.

Sources: measured on R580 (CUDA 13.0); NVIDIA's MPS guide (2013, 2022, R615); users' reports (2021 to 2026). A pattern
matches a whole message, so that text quoted in another message cannot pass for a message of its own.

The fields `pid` and `server` are PIDs; `context` is the number of a client's CUDA context; `device` is an ordinal.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, dataclass_transform

from exporter.model.dialect import PROTOCOL_2, PROTOCOL_3
from exporter.model.values import make_frozen


@dataclass_transform(frozen_default=True)
class Message:
    """What one line reports. Each kind of message is a frozen dataclass."""

    def __init_subclass__(cls) -> None:
        make_frozen(cls, slots=False, kw_only=False)


class ServerMessage(Message):
    """A message about a server."""

    server: int


class ClientMessage(Message):
    """A message about a client process."""

    pid: int


class DeviceMessage(Message):
    """A message about a device."""

    device: int


class Unrecognized(Message):
    """A line that no rule matches."""


Rule = tuple[str, Callable[[tuple[str, ...]], Message]]
"""A pattern, in which case is ignored, and the function that makes the message of its groups."""

DAEMON_RULES: list[Rule] = []
SERVER_RULES: list[Rule] = []
ECHO_RULES: list[Rule] = []
"""Replies, which the daemon echoes into its log line by line (measured, R580), and items of lists."""

_M = TypeVar("_M", bound=type[Message])


def _line(rules: list[Rule], pattern: str, *converters: Callable[[str], Any], **fields: Any) -> Callable[[_M], _M]:
    """Decorate a message with a rule: `pattern`, converters of its groups (int by default), and constant fields."""

    def add(message: _M) -> _M:
        build = partial(message, **fields) if fields else message

        def convert(groups: tuple[str, ...]) -> Message:
            return build(*(to(group) for to, group in zip(converters, groups, strict=True)))

        rules.append((pattern, convert if converters else lambda groups: build(*map(int, groups))))
        return message

    return add


_daemon_line = partial(_line, DAEMON_RULES)
_server_line = partial(_line, SERVER_RULES)

_CONTEXT = r"\{(?:PID: )?(-?\d{1,10}), (?:Context(?: ID)?: )?(-?\d{1,10})\}"
"""PID and context of a client: `{PID: 508, Context ID: 1}`, up to R565 `{508, 1}`."""

_CLIENT = r"\{(?:PID: )?(-?\d{1,10}), (?:Context(?: ID)?: )?-?\d{1,10}\}"
_NUMBER = r"(\d{1,10})"
_UUID = r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"

# -- Clients of a server. The rules of the most frequent lines are first. ------------------------------------------


@_server_line(rf"Status of client {_CONTEXT} is ACTIVE")
@_server_line(rf"New client {_NUMBER} connected")
class ClientActive(ClientMessage):
    """The server accepted a client's context: the client is connected."""

    context: int = 1


@_server_line(rf"Client {_CONTEXT} connected")
class ClientConnecting(ClientMessage):
    """A client reached the server. The server has not accepted it yet: refused clients have this line too."""

    context: int


@_server_line(rf"Client (?:process )?{_NUMBER} disconnected")
class ClientDisconnected(ClientMessage):
    """A client process has disconnected."""


@_server_line(rf"Client {_CONTEXT} exit")
class ContextExited(ClientMessage):
    """A client's context has ended. Up to R515 the PID is unusable if the process has already exited."""

    context: int


@_server_line(rf"Client {_CONTEXT} exiting\.( Worker is in reset\.)?.{{0,200}}", int, int, bool)
class ContextExiting(ClientMessage):
    """A client's context ends. `in_reset`: its worker is in reset, as after the client's own assert or trap (R580)."""

    context: int
    in_reset: bool


@_server_line(rf"Failed to accept new client\. Maximum number of clients \({_NUMBER}\) reached\.")
class ClientLimitReached(Message):
    """The server refused a client because it has the maximum number of clients. The line does not name the client."""

    limit: int


@_server_line(rf"Server teardown in progress\. Refusing to accept new client {_CLIENT}")
class ClientRefusedInTeardown(ClientMessage):
    """The server refused a client because it is in FAULT. `ClientNotAccepted` follows with the status."""


@_server_line(rf"Failed to accept client {_CLIENT} with status {_NUMBER}")
class ClientNotAccepted(ClientMessage):
    """The server refused a client with a CUDA error: 807 if the server is in FAULT."""

    status: int


@_server_line(rf"MPS server requesting client {_CLIENT} to exit")
class ClientExitRequested(ClientMessage):
    """The server ends a client: an operator ran `terminate_client`, or memory is short (protocol 3)."""


@_server_line(rf"Device .{{0,200}} \(uuid ({_UUID})\) is associated", str)
class DeviceAssociated(Message):
    """The UUID of the GPU of the context that the server creates."""

    gpu: str


# -- Faults of a server --------------------------------------------------------------------------------------------


@_server_line(r"Server is handling a fatal GPU error\.")
class HandlingFatalError(Message):
    """The server handles a fatal GPU error: it is in FAULT."""


@_server_line(rf"Client {_CLIENT} encountered a fatal GPU error\.")
class ClientFatalError(ClientMessage):
    """A client encountered a fatal GPU error, just before a memory fault. Not always the cause (measured, R580)."""


@_server_line(rf"Client {_CLIENT} on .{{0,200}} to be torn down")
class ClientToBeTornDown(ClientMessage):
    """The server ends a client's context because of a fault."""


@_server_line(r"The following devices(?: will be reset:)?")
class ResetDevicesFollow(Message):
    """The ordinals of the devices that the server resets follow, one in a line."""


@_server_line(r"The following clients?(?: process)? have a sticky error set:")
class StickyErrorClientsFollow(Message):
    """The PIDs of the clients with a sticky error follow, one in a line."""


@_server_line(rf"Destroy server context on device {_NUMBER}(?: \(.{{0,200}}\))?")
class ServerContextDestroyed(DeviceMessage):
    """The server destroyed its own context on a device: the last affected client on it has exited."""


@_server_line(rf"Creating server context on device {_NUMBER}(?: \(.{{0,200}}\))?")
class ServerContextCreated(DeviceMessage):
    """The server creates its own context on a device."""


# A server failed to start, or has no free file descriptor. The daemon reports its exit (2013 to 2026).
@_server_line(r"(?:MPS server )?(failed to start(?: : .{1,200})?)", str)
@_server_line(r"(?:MPS Server )?(failed to create/open SHM segment\.)", str)
@_server_line(r"(Driver initialization failed with: .{1,200})", str)
@_server_line(r"(MPS is only supported on .{1,200})", str)
@_server_line(r"(Invalid CUDA_VISIBLE_DEVICES.{0,400})", str)
class ServerStartFailed(Message):
    """Why a server cannot start."""

    text: str


# -- Limits of each client of a server -----------------------------------------------------------------------------


@_server_line(r"Active ?Threads ?Percentage set to (\d{1,3}(?:\.\d{1,12})?)", float)
class ThreadPercentageSet(Message):
    """The active thread percentage."""

    percentage: float


@_server_line(
    r"Device pinned memory limit for device (\d{1,4}) set to 0x([0-9a-f]{1,16}) bytes", int, partial(int, base=16)
)
class PinnedMemoryLimitSet(DeviceMessage):
    """The device memory limit, in bytes. `device` is the daemon's ordinal."""

    limit: int


@_server_line(rf"(?:Server|Client) Priority set to {_NUMBER}")
class PrioritySet(Message):
    """The priority: 0 is normal, 1 is below normal."""

    priority: int


# -- Control daemon ------------------------------------------------------------------------------------------------


@_daemon_line(rf"NEW CLIENT {_NUMBER} from user {_NUMBER}: Server already exists")
class ClientForwarded(ClientMessage):
    """The daemon forwards a client to its server."""

    uid: int


@_daemon_line(rf"NEW CLIENT {_NUMBER} from user {_NUMBER}: Server is not ready, push client to pending list")
class ClientQueued(ClientMessage):
    """A client waits for a server to start, or for its user's turn."""

    uid: int


@_daemon_line(rf"Starting new server {_NUMBER} for user {_NUMBER}")
class ServerStarting(ServerMessage):
    """The daemon starts a server for a user."""

    uid: int


@_daemon_line(rf"NEW SERVER {_NUMBER}: Ready")
@_server_line(r"(?:Server has started|MPS Server is started)", server=None)
class ServerReady(Message):
    """A server accepts clients; `server` is None if the server itself wrote the line."""

    server: int | None


@_daemon_line(rf"Server {_NUMBER} exited with status \d+")
class ServerExited(ServerMessage):
    """A server has exited."""


@_daemon_line(rf"Server {_NUMBER} has \d+ active worker threads\. Server will not shutdown\.")
class ServerWillNotShutDown(ServerMessage):
    """A server does not shut down for another user's client, because it still has clients."""


@_daemon_line(rf"Try shutting down server {_NUMBER}, backoff is (?:en|dis)abled")
@_daemon_line(rf"Force shutting down server {_NUMBER}")
class ServerShutdownRequested(ServerMessage):
    """The daemon shuts a server down: for a `quit` or another command, or for another user's client."""


@_daemon_line(r"Cmd:((?s:.*))", str)
class CommandReceived(Message):
    """The daemon received a control command. Any user can send one."""

    text: str


@_daemon_line(r"Not enough privilege to execute .{1,80} command")
class CommandDenied(Message):
    """The daemon refused a command because its sender has insufficient privileges."""


@_daemon_line(r"UI closed")
class SessionClosed(Message):
    """The control session that sent commands has ended."""


@_daemon_line(r"(?:Starting control daemon using socket .{1,4096}|Start)")
class DaemonStarting(Message):
    """A control daemon starts."""


@_daemon_line(r"Exit with status \d+")
class DaemonExiting(Message):
    """The daemon exits after a `quit`."""


@_daemon_line(r"CUDA MPS Control binary version: (\d{1,10})", str)
@_server_line(r"CUDA MPS Server for .{1,80} Binary version: (\d{1,10})", str)
class VersionReported(Message):
    """The version of the daemon or of a server, 13000 for CUDA 13.0."""

    version: str


_SET = r"To connect CUDA applications to this daemon, set {}CUDA_MPS_PIPE_DIRECTORY=.{{0,4096}}"


@_daemon_line(_SET.format("env "), protocol=PROTOCOL_2.number)
@_daemon_line(_SET.format(""), protocol=PROTOCOL_3.number)
class ProtocolReported(Message):
    """The daemon's MPS protocol."""

    protocol: int


# -- Other lines: last, because some of these patterns also match messages above -----------------------------------


@partial(_line, ECHO_RULES)(_NUMBER)
class BareNumber(Message):
    """A line with nothing but a number: an item of a list, or an echo of a reply."""

    value: int


class Noise(Message):
    """A known line without a value for the exporter."""


@_server_line(r"Client (?:process )?disconnected(?:\. Number of active client contexts is \d+)?")
class UnnamedDisconnect(Noise):
    """A client has disconnected. Before R580, the line does not name it."""


def _noise(*patterns: str) -> Rule:
    return "|".join(f"(?:{pattern})" for pattern in patterns), lambda _groups: Noise()


DAEMON_RULES.append(
    _noise(
        r"Accepting connection\.\.\.|Unable to accept connection|Unable to read new connection type information|NEW UI",
        r"User did not send valid credentials|Insufficient privileges for UID .{1,200}",
        r"Using log directory: .{1,4096}|quit command issued with timeout of \d+",
        r"Control will try shutting down server \d+ again in at most \d+ms",
        # A server failed to start. The next line reports its exit (2024).
        r"Server encountered a fatal exception\. Shutting down",
    )
)
SERVER_RULES.append(
    _noise(
        rf"Received new client request(?: for {_CONTEXT})?|Creating worker thread(?: for client {_CONTEXT})?",
        r"Worker created|Device .{0,200} \(uuid .{0,80}\) is associated",
        rf"Server failed to rece\w+ command with status \d+, assuming client {_CONTEXT} exit",
        r"Receive command failed, assuming client exit",
        rf"Status of client {_CONTEXT} is INACTIVE|Priority level of client \{{{_NUMBER}\}} is: \d+ ?",
        r"All clients belonging to error trigging process \d+ will be torn down|Client termination succeeded\.",
        rf"Server failed to send reply with status \d+, for client {_CONTEXT}",
        r"Received device query command\. There are \d+ devices|Display Driver version: .{1,80}",
        r"(?:MPS Server )?connecting to control daemon on socket: .{1,4096}|(?:Server|Client) Priority set to -\d+",
        r"Startup|Initializing server process|Exiting|Waiting for current clients to finish",
        r"Server has been notified to shutdown|Server was unable to shutdown due to \d+ active clients",
        r"Created (?:anonymous|named) shared memory region .{1,400}",
    )
)
ECHO_RULES.append(
    _noise(
        r"ACTIVE|FAULT|INITIALIZING|\d+\.\d+|\d+[KMG]|",
        r'Server (?:\d+ )?not found!?|Unknown command ".*"|Invalid percentage, expected between .{1,40}',
        r"PID +ID +SERVER +DEVICE +NAMESPACE +COMMAND *|\d+ +\d+ +\d+ +GPU-\S+ +\d+ +.*|\[\d+\] [0-9a-f:.]+, .{1,200}",
        # device_query --csv. Later versions may add columns.
        rf"\d{{1,4}} *,(?:[^,]{{0,80}},){{0,4}} *{_UUID} *(?:,[^,]{{0,80}}){{0,8}}",
        r"Device Ordinal *,[A-Za-z ,]{0,200}|Default|Server \d{1,10}",
        r"set_default_device_pinned_mem_limit .{1,80}|No default pinned memory limit set for the device!",
        # lspart (guide, release 615).
        r" *(?:GPU|chunks?)(?: +(?:partition|free|used|clients|chunks?|SM)){3,6} *",
        r"(?:GPU|MIG)-[0-9a-f-]{1,40} +[\w+/=-]{1,64}(?: +(?:\d{1,4}|-|yes|no)){3,5} *",
    )
)
