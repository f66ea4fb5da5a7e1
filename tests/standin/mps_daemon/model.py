"""Data types: clients, their requests and states."""

import re
from dataclasses import dataclass, field
from enum import StrEnum


class State(StrEnum):
    """A server's state. The first three are replies of ``get_server_status``."""

    INITIALIZING = "INITIALIZING"
    ACTIVE = "ACTIVE"
    FAULT = "FAULT"
    LEAVING = "LEAVING"


class Outcome(StrEnum):
    """Result of a process that wants to be a client."""

    PENDING = "pending"
    ACTIVE = "active"
    REFUSED = "refused"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A process that wants to be a client."""

    pid: int
    uid: int
    devices: tuple[int, ...]
    command: str = ""
    """argv[0] as `ps` shows it; empty: that of the process."""


@dataclass(slots=True)
class Limits:
    """Thread percentage, pinned memory by device, and priority: a daemon's defaults or a server's limits."""

    active_thread_percentage: float = 100.0
    pinned_memory: dict[int, str] = field(default_factory=dict)
    client_priority: int = 0

    def copy(self) -> "Limits":
        """Return the limits of a new server."""
        return Limits(self.active_thread_percentage, dict(self.pinned_memory), self.client_priority)


@dataclass(slots=True)
class Client:
    """A client of a server. Context 0 is its connection; the others are CUDA contexts, one for each device."""

    pid: int
    number: int
    contexts: dict[int, int] = field(default_factory=dict)
    """The device of each CUDA context."""
    limits: Limits = field(default_factory=Limits)
    """The limits of its server when it connected. Later ones do not apply."""
    command: str = ""

    @property
    def devices(self) -> frozenset[int]:
        """The GPUs that it uses."""
        return frozenset(self.contexts.values())

    def label(self, context: int) -> str:
        """Return the name of a context in the server's log."""
        return f"{{PID: {self.pid}, Context ID: {context}}}"


def failure_domain(clients: list[Client], devices: frozenset[int]) -> tuple[list[Client], frozenset[int]]:
    """Return the clients and devices that a fault on ``devices`` affects, directly and through shared GPUs."""
    victims = [client for client in clients if client.devices & devices]
    reached = devices.union(*(client.devices for client in victims))
    return (victims, devices) if reached == devices else failure_domain(clients, reached)


def bytes_of(size: str) -> int:
    """Return ``3G`` in bytes; 0 for an invalid size, because the daemon accepts anything."""
    match = re.fullmatch(r"(\d+)([KMG]?)", size.upper())
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]] if match else 0
