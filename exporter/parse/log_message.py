"""What lines of control.log and server.log can say."""

from dataclasses import dataclass

from exporter.parse.limit_message import DefaultMemoryLimitSet as DefaultMemoryLimitSet
from exporter.parse.limit_message import PinnedMemoryLimitTold as PinnedMemoryLimitTold
from exporter.parse.limit_message import PriorityTold as PriorityTold
from exporter.parse.limit_message import ThreadsTold as ThreadsTold


@dataclass(frozen=True, slots=True)
class DaemonStarting:
    """A control daemon begins its life."""


@dataclass(frozen=True, slots=True)
class Version:
    """The daemon or a server names its version, 13000 for CUDA 13.0."""

    version: str


@dataclass(frozen=True, slots=True)
class ProtocolTold:
    """The daemon's MPS protocol: 2, or 3 (from R615 on)."""

    protocol: int


@dataclass(frozen=True, slots=True)
class DaemonExiting:
    """The daemon ends because it was told to."""


@dataclass(frozen=True, slots=True)
class CommandIssued:
    """Somebody gave the daemon a command."""

    text: str


@dataclass(frozen=True, slots=True)
class CommandDenied:
    """A command was not obeyed: whoever gave it may not give it."""


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """The session that gave commands has ended."""


@dataclass(frozen=True, slots=True)
class ServerStarting:
    """The daemon starts a server for a user."""

    server: int
    uid: int


@dataclass(frozen=True, slots=True)
class ServerReady:
    """A server accepts clients; `server` is None where the line's writer is the server."""

    server: int | None


@dataclass(frozen=True, slots=True)
class ServerExited:
    """A server has exited."""

    server: int


@dataclass(frozen=True, slots=True)
class ServerStays:
    """A server that should leave for another user cannot: it has clients."""

    server: int


@dataclass(frozen=True, slots=True)
class ServerToldToLeave:
    """The daemon tries to shut a server down: for a quit, by an operator's wish, or for another user's turn."""

    server: int


@dataclass(frozen=True, slots=True)
class ClientQueued:
    """A client is told to wait, for a server's start or for its turn."""

    pid: int
    uid: int


@dataclass(frozen=True, slots=True)
class ClientForwarded:
    """A client is sent on to the server."""

    pid: int


@dataclass(frozen=True, slots=True)
class ClientConnecting:
    """A client has reached the server. It is not yet accepted: refused clients get this line too."""

    pid: int
    context: int


@dataclass(frozen=True, slots=True)
class ClientActive:
    """A client's context is accepted: it is connected."""

    pid: int
    context: int = 1


@dataclass(frozen=True, slots=True)
class ContextExited:
    """A client's context has ended (up to R515, which then does not tell the PID of a process that has left)."""

    pid: int
    context: int


@dataclass(frozen=True, slots=True)
class ClientDisconnected:
    """A client's process has left."""

    pid: int


@dataclass(frozen=True, slots=True)
class ClientLimitReached:
    """A client was turned away because all places are taken; the line does not name it."""

    limit: int


@dataclass(frozen=True, slots=True)
class ClientTurnedAway:
    """A client was turned away because the server is in FAULT; `ClientRejected` follows with the status."""

    pid: int


@dataclass(frozen=True, slots=True)
class ClientRejected:
    """A client was turned away with a CUDA error: 807 while the server is in FAULT."""

    pid: int
    status: int


@dataclass(frozen=True, slots=True)
class FaultHandled:
    """The server handles a fatal GPU error: it is in FAULT."""


@dataclass(frozen=True, slots=True)
class ClientEncountered:
    """A client is named with a fatal GPU error, just before a memory fault: not always the culprit (measured, R580)."""

    pid: int


@dataclass(frozen=True, slots=True)
class ClientToBeTornDown:
    """A client's context is to be torn down because of a fault."""

    pid: int


@dataclass(frozen=True, slots=True)
class ContextExiting:
    """A client's context ends; `in_reset`: its worker is in reset, as after an assert or a trap of its own (R580)."""

    pid: int
    context: int
    in_reset: bool


@dataclass(frozen=True, slots=True)
class ExitRequested:
    """The server has a client end, because an operator wanted it (`terminate_client`)."""

    pid: int


@dataclass(frozen=True, slots=True)
class DeviceAssociated:
    """The context that is being made is on this GPU."""

    gpu: str


@dataclass(frozen=True, slots=True)
class DevicesFollow:
    """The ordinals of the devices to be reset follow, one a line."""


@dataclass(frozen=True, slots=True)
class VictimsFollow:
    """The PIDs of the clients with a sticky error follow, one a line."""


@dataclass(frozen=True, slots=True)
class Number:
    """A bare number: an item of a list, or an echo of a reply."""

    value: int


@dataclass(frozen=True, slots=True)
class ContextDestroyed:
    """The server's own context on a device is gone: the last victim there has left."""

    device: int


@dataclass(frozen=True, slots=True)
class ContextCreated:
    """The server makes its own context on a device."""

    device: int


@dataclass(frozen=True, slots=True)
class Noise:
    """A line that is known and says nothing that is needed."""


@dataclass(frozen=True, slots=True)
class Unrecognized:
    """A line that no rule knows."""


Message = (
    DaemonStarting
    | Version
    | ProtocolTold
    | DaemonExiting
    | CommandIssued
    | CommandDenied
    | SessionClosed
    | ServerStarting
    | ServerReady
    | ServerExited
    | ServerStays
    | ServerToldToLeave
    | ClientQueued
    | ClientForwarded
    | ClientConnecting
    | ClientActive
    | ContextExited
    | ClientDisconnected
    | ClientLimitReached
    | ClientTurnedAway
    | ClientRejected
    | FaultHandled
    | ClientEncountered
    | ClientToBeTornDown
    | ContextExiting
    | ExitRequested
    | DeviceAssociated
    | DevicesFollow
    | VictimsFollow
    | Number
    | ContextDestroyed
    | ContextCreated
    | ThreadsTold
    | PinnedMemoryLimitTold
    | PriorityTold
    | DefaultMemoryLimitSet
    | Noise
    | Unrecognized
)
