"""MPS servers and their clients, as the reducer remembers them."""

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from exporter.model.identity import ProcessIdentity
from exporter.model.observation import GpuUuid
from exporter.model.settings import Limits
from exporter.model.values import frozen


class ServerState(StrEnum):
    """State of an MPS server, as `get_server_status` names it (Volta and later)."""

    INITIALIZING = "initializing"
    ACTIVE = "active"
    FAULT = "fault"


class RefusalReason(StrEnum):
    """Why a server refused a new client."""

    LIMIT = "limit"
    FAULT = "fault"
    OTHER = "other"


class DisconnectReason(StrEnum):
    """Why a client disconnected. Only the last two are losses."""

    EXIT = "exit"
    TERMINATED = "terminated"
    EVICTED = "evicted"
    OUT_OF_MEMORY = "out_of_memory"
    SHUT_DOWN = "shut_down"
    SERVER_GONE = "server_gone"
    DAEMON_GONE = "daemon_gone"


@frozen
class Client:
    """A process connected to an MPS server."""

    pid: int
    server: int
    connected_at: float
    missing_since: float | None = None  # Since when lists of clients lack it.
    contexts: frozenset[int] = frozenset()
    gpus: frozenset[GpuUuid] = frozenset()  # GPUs of its current or last contexts, as far as the log reports them.
    gpu_added_at: float = 0.0  # When the log reported the last of these.
    in_reset: bool = False  # Whether the server reported a worker of the client in reset.
    exit_requested_at: float | None = None  # When the server requested the client to end.
    out_of_memory: bool = False  # Whether the kernel killed it for lack of memory.
    listed_at: float | None = None  # When the last query was sent that listed the client.
    namespace: str | None = None  # Its namespace of the server, with protocol 3.
    limits: Limits | None = None
    """What its server's limits were at its connection, or at most, if a command may have changed them since."""
    exited_at: float | None = None
    """When it was first known to be connected although its process has exited: another one holds its connection."""
    holders: tuple[ProcessIdentity, ...] | None = None  # Those that were found last to hold it; None if not known.


@frozen
class Disconnect:
    """A client after the recent end of all its contexts."""

    pid: int
    server: int
    at: float
    stamp: str  # Time in the log of the end of the last context. It gives the order of the lines.
    gpus: frozenset[GpuUuid] = frozenset()
    in_reset: bool = False  # Whether the server reported a worker of the client in reset.
    terminated: bool = False  # Whether an operator requested the server to end the client.
    contexts: frozenset[int] = frozenset()  # Contexts that the log reports as ended.
    logged_twice: bool = False
    """Whether the end of a context was logged twice. A server writes each line once, so one may be forged."""


@frozen
class ContextCreation:
    """A context that a server is about to accept, and its GPU once the log reports it."""

    pid: int
    context: int
    gpu: GpuUuid | None = None


class BlockSection(StrEnum):
    """The list in a fault log block that the next lines continue."""

    NOTHING = "nothing"
    DEVICES = "devices"
    STICKY_ERROR = "sticky_error"


@frozen
class FaultLogBlock:
    """What a server's log reported of its last fault so far."""

    at: float
    stamp: str  # Time in the log of the first line.
    named: int | None = None
    """The client that `encountered a fatal GPU error`. Only memory faults name one; it may not be the cause."""
    torn_down: frozenset[int] = frozenset()  # Clients to be torn down.
    devices: frozenset[int] = frozenset()  # Ordinals of the devices to be reset.
    sticky_error: tuple[int, ...] = ()  # Clients with a sticky error.
    section: BlockSection = BlockSection.NOTHING
    confirmed: bool = False  # Whether another source than the log shows the fault.

    @property
    def clients(self) -> frozenset[int]:
        """The affected clients that the block names."""
        return self.torn_down.union(self.sticky_error)


@frozen
class Server:
    """An MPS server."""

    pid: int
    started_at: float
    uid: int | None = None
    name: str | None = None  # Its name, with protocol 3.
    state: ServerState | None = None
    state_since: float | None = None
    clients_limit: int | None = None
    fault_suspected_at: float | None = None  # When the daemon reported FAULT and no other source had confirmed it.
    fault_reported_at: float | None = None  # When the daemon last reported FAULT.
    devices_to_reset: frozenset[int] | None = None
    fault_block: FaultLogBlock | None = None
    fatal_error: tuple[str, int] | None = None
    """Time in the log and client of the last `encountered a fatal GPU error`, until a fault log block begins."""
    pending_context: ContextCreation | None = None
    reset_stamp: str | None = None  # Time in the log when the server's own context on a device was last destroyed.
    connecting: frozenset[int] = frozenset()  # Clients that are not accepted yet.
    listed: bool = False  # Whether the daemon has listed the server.
    clients_known: bool = False
    """Whether all its clients were known once: by a list, or because its start was observed."""
    has_hidden_pids: bool = False  # Whether the daemon shows clients of the server with PID 0.
    refused_client: int | None = None  # The client that was last refused because of a teardown.
    missing_since: float | None = None  # Since when lists of servers lack it.
    shutdown_requested: bool = False  # Whether the daemon requested the server to shut down.
    limits: Limits = field(default_factory=Limits)
    limits_logged_at: float | None = None  # When the server began to log its limits; the priority comes last.
    namespaces: Mapping[str, Limits] = field(default_factory=dict)
    """Limits of its namespaces, with protocol 3. Those of the default one are also its `limits`."""

    def limits_of(self, client: Client) -> Limits:
        """Return the limits that the server gives a client: those of its namespace, with protocol 3.

        A change of the server's limits does not reach the clients that are connected (measured, R580).
        """
        if client.limits is not None:
            return client.limits
        return self.limits if client.namespace is None else self.namespaces.get(client.namespace, Limits())
