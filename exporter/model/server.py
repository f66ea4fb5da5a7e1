"""MPS servers and their clients, as they are remembered."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


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


class DepartureReason(StrEnum):
    """What ended a client's connection."""

    EXIT = "exit"
    SERVER_GONE = "server_gone"
    DAEMON_GONE = "daemon_gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A process connected to an MPS server."""

    pid: int
    server: int
    connected_at: float
    missing_since: float | None = None
    contexts: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """An MPS server. `state` is None until something has told it.

    `pinned_memory_limits` are bytes by the daemon's device ordinals; `limits_told_at` is when its log told its limits.
    """

    pid: int
    started_at: float
    uid: int | None = None
    state: ServerState | None = None
    state_since: float | None = None
    clients_limit: int | None = None
    fault_suspected_at: float | None = None
    devices_to_reset: frozenset[int] | None = None
    listing_devices: bool = False
    connecting: frozenset[int] = frozenset()
    refusing: int | None = None
    missing_since: float | None = None
    active_thread_percentage: float | None = None
    pinned_memory_limits: Mapping[int, int] = field(default_factory=dict)
    limits_told_at: float | None = None
