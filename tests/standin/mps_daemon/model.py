"""The nouns: clients, what they ask for, and what became of it."""

import re
from dataclasses import dataclass, field
from enum import StrEnum


class State(StrEnum):
    """A server's state; the first three are what ``get_server_status`` says."""

    INITIALIZING = "INITIALIZING"
    ACTIVE = "ACTIVE"
    FAULT = "FAULT"
    LEAVING = "LEAVING"


class Outcome(StrEnum):
    """What became of a process that wanted to be a client."""

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
    """Thread percentage, pinned memory by device and priority: a daemon's defaults, or a server's own."""

    active_thread_percentage: float = 100.0
    pinned_memory: dict[int, str] = field(default_factory=dict)
    client_priority: int = 0

    def copy(self) -> "Limits":
        """What a new server takes from the daemon's defaults."""
        return Limits(self.active_thread_percentage, dict(self.pinned_memory), self.client_priority)


@dataclass(slots=True)
class Client:
    """A client of a server. Context 0 is its connection; 1 and up are CUDA contexts, one a device."""

    pid: int
    number: int
    contexts: dict[int, int] = field(default_factory=dict)
    """The device of each CUDA context."""
    limits: Limits = field(default_factory=Limits)
    """Those that its server had when it connected: later ones are not its own."""
    command: str = ""

    @property
    def devices(self) -> frozenset[int]:
        """The GPUs that it uses."""
        return frozenset(self.contexts.values())

    def label(self, context: int) -> str:
        """How the server's log names one of its contexts."""
        return f"{{PID: {self.pid}, Context ID: {context}}}"


def failure_domain(clients: list[Client], devices: frozenset[int]) -> tuple[list[Client], frozenset[int]]:
    """Whom a fault on ``devices`` reaches: the clients on them, those that share a GPU with these, and so on."""
    victims = [client for client in clients if client.devices & devices]
    reached = devices.union(*(client.devices for client in victims))
    return (victims, devices) if reached == devices else failure_domain(clients, reached)


def bytes_of(size: str) -> int:
    """``3G`` in bytes; 0 for what is no size, since the daemon accepts anything."""
    match = re.fullmatch(r"(\d+)([KMG]?)", size.upper())
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]] if match else 0
