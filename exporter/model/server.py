"""MPS servers and their clients, as the reducer remembers them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from exporter.model.observation import GpuUuid


class ServerState(StrEnum):
    """How an MPS server is, in the words of `get_server_status` (Volta and later)."""

    INITIALIZING = "initializing"
    ACTIVE = "active"
    FAULT = "fault"


class RefusalReason(StrEnum):
    """Why a new client was turned away."""

    LIMIT = "limit"
    FAULT = "fault"
    OTHER = "other"


class DisconnectReason(StrEnum):
    """What ended a client's connection."""

    EXIT = "exit"
    SERVER_GONE = "server_gone"
    DAEMON_GONE = "daemon_gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A process connected to an MPS server.

    `contexts` are those that it is known to have; `gpus` are where they are, or were until a moment ago, as far as the
    log told. `in_reset` says that the server called a worker of it in reset; `exit_requested_at` is when an operator
    had the server end it. `listed_at` is when the daemon was last asked for its clients, and named this one.
    """

    pid: int
    server: int
    connected_at: float
    missing_since: float | None = None
    contexts: frozenset[int] = frozenset()
    gpus: frozenset[GpuUuid] = frozenset()
    in_reset: bool = False
    exit_requested_at: float | None = None
    listed_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnect:
    """A client whose contexts have all ended, lately. The stamp is the log's own time, which orders its lines.

    `stamp` is when the last of them ended, `at` when that was read. `in_reset` says that the server called its worker
    in reset, and `terminated` that an operator had the server end it. `contexts` are those whose end was logged. It is
    `doubtful` if the end of one was logged twice: a server writes each line once, so a tenant may have forged one.
    """

    pid: int
    server: int
    at: float
    stamp: str
    gpus: frozenset[GpuUuid] = frozenset()
    in_reset: bool = False
    terminated: bool = False
    contexts: frozenset[int] = frozenset()
    logged_twice: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextCreation:
    """A context that a server is about to accept, and the GPU on which it is, as soon as the log told."""

    pid: int
    context: int
    gpu: GpuUuid | None = None


class BlockSection(StrEnum):
    """Which list of a fault's block is being written."""

    NOTHING = "nothing"
    DEVICES = "devices"
    STICKY_ERROR = "sticky_error"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultLogBlock:
    """What a server's log told of its last fault, as far as it was read. `stamp` is the log's own time of its begin.

    `named` is the client of whom it said `encountered a fatal GPU error`, for memory faults alone: not always the
    culprit. `torn` has the clients to be torn down, `victims` those with a sticky error set, `devices` the daemon's
    ordinals of those to be reset; `listing` is the list that is being written. `confirmed` is whether another source
    than the log shows that there was a fault.
    """

    at: float
    stamp: str
    named: int | None = None
    torn_down: frozenset[int] = frozenset()
    devices: frozenset[int] = frozenset()
    sticky_error: tuple[int, ...] = ()
    section: BlockSection = BlockSection.NOTHING
    confirmed: bool = False

    @property
    def clients(self) -> frozenset[int]:
        """The clients that the fault hit, as far as the block names them."""
        return self.torn_down.union(self.sticky_error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """An MPS server. `state` is None until something has told it.

    `block` is what its log told of its last fault; `encountered` has, by the log's own time, the client that it named
    just before. `making` is the context that it is about to accept, `reset_stamp` the log's time at which the server's
    own context on a device was last destroyed. `told_to_leave` says that its daemon has tried to shut it down.
    `pinned_memory_limits` are bytes by the daemon's device ordinals; `limits_told_at` is when its log told its limits,
    the priority of its clients last. `fault_told_at` is when its daemon last said that it is in FAULT. `nameless` says
    that it has clients whom its daemon cannot name. `listed` is whether its daemon has listed it.
    """

    pid: int
    started_at: float
    uid: int | None = None
    state: ServerState | None = None
    state_since: float | None = None
    clients_limit: int | None = None
    fault_suspected_at: float | None = None
    fault_reported_at: float | None = None
    devices_to_reset: frozenset[int] | None = None
    fault_block: FaultLogBlock | None = None
    fatal_error: tuple[str, int] | None = None
    pending_context: ContextCreation | None = None
    reset_stamp: str | None = None
    connecting: frozenset[int] = frozenset()
    listed: bool = False
    has_hidden_pids: bool = False
    refused_client: int | None = None
    missing_since: float | None = None
    shutdown_requested: bool = False
    active_thread_percentage: float | None = None
    pinned_memory_limits: Mapping[int, int] = field(default_factory=dict)
    client_priority: int | None = None
    limits_logged_at: float | None = None
