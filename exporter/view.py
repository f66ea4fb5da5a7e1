"""A view of the node for those who show it: what there is to tell of, and how it is named and written."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from exporter.model.accounting import GpuUsage, UsageTotals
from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.observation import GpuUuid
from exporter.model.server import Client, Server
from exporter.state.transition import client_id, used_bytes
from exporter.usage.capacity import GpuSharing, gpu_sharing
from exporter.watchdog.context import Policy

Memory = Mapping[int, Mapping[str, int]]
"""Bytes that each process uses, by its PID and by GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigStatus:
    """Whether the configuration could be used when it was last read, and when it last could, since the epoch."""

    successful: bool
    last_success: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryStatus:
    """Whether incidents and events are kept on disk, and how many events were not because too many waited for it."""

    writable: bool
    events_dropped: int


@dataclass(frozen=True)
class View:
    """The node at a moment, and how old a client must be to have series of its own, in seconds.

    `clock_step` is by how many seconds the wall clock has been set since the exporter started. At most `max_clients`
    have series of their own; they are counted all the same. `configuration` is None
    where none was read, as in a replay, `history` where none is kept, and `log_records_dropped` if no thread writes the
    exporter's own log. `paused` says that the driver was let go of.
    `policy` are the watchdog's, None where there is none. `ledger` are the books as they may be shown, None where that
    is as the node has them. `accept_failures` are those of each server of the exporter, by its name.
    """

    node: Node
    client_min_age: float = 0.0
    clock_step: float = 0.0
    max_clients: int = 512
    configuration: ConfigStatus | None = None
    paused: bool = False
    history: HistoryStatus | None = None
    log_records_dropped: int | None = None
    policy: Policy | None = None
    ledger: UsageTotals | None = None
    accept_failures: Mapping[str, int] = field(default_factory=dict)

    def books(self) -> Iterable[tuple[GpuUuid, GpuUsage]]:
        """The book of each GPU."""
        ledger = self.node.usage_totals if self.ledger is None else self.ledger
        return ledger.gpus.items()

    @cached_property
    def fitness(self) -> Mapping[GpuUuid, GpuSharing]:
        """How well each GPU is shared that has MPS clients: found out once, as several families ask."""
        return gpu_sharing(self.node)

    def daemons(self) -> Iterable[Daemon]:
        """The daemons that there is something to tell of."""
        return (daemon for daemon in self.node.daemons.values() if daemon.is_reported(self.node.at))

    def servers(self) -> Iterable[tuple[Daemon, Server]]:
        """All servers, each with its daemon."""
        return ((daemon, server) for daemon in self.daemons() for server in daemon.servers.values())

    def connected(self) -> Iterable[tuple[Daemon, Client]]:
        """All clients, each with its daemon."""
        return ((daemon, client) for daemon in self.daemons() for client in daemon.clients.values())

    def clients(self) -> Iterable[tuple[Daemon, Client, str]]:
        """The clients that have series of their own, each with its daemon and its id."""
        return self._named

    @cached_property
    def _named(self) -> Sequence[tuple[Daemon, Client, str]]:
        """The same: found out once, as every family of clients asks."""
        return [
            (daemon, client, client_id(client, self.node.processes.get(client.pid))) for daemon, client in self._shown()
        ]

    def omitted(self) -> int:
        """How many clients have none because there are too many."""
        return max(0, len(self._grown()) - self.max_clients)

    def _shown(self) -> Iterable[tuple[Daemon, Client]]:
        """Those that have been connected longest, so that nobody who comes puts out another."""
        grown = self._grown()
        if len(grown) <= self.max_clients:
            return grown
        return sorted(grown, key=lambda each: (each[1].connected_at, each[1].pid))[: self.max_clients]

    def _grown(self) -> Sequence[tuple[Daemon, Client]]:
        return [(daemon, client) for daemon, client in self.connected() if self._age(client) >= self.client_min_age]

    def _age(self, client: Client) -> float:
        process = self.node.processes.get(client.pid)
        born = client.connected_at if process is None else min(process.started, client.connected_at)
        return self.node.at - born


def memory(node: Node) -> Memory:
    """Bytes that each process uses, by its PID and by GPU."""
    found: dict[int, dict[str, int]] = {}
    for uuid, gpu in node.gpus.items():
        for pid, used in used_bytes(gpu.reading).items():
            found.setdefault(pid, {})[uuid] = used
    return found


def gpu_name(node: Node, uuid: str) -> str:
    """A GPU as people call it on this machine: by its index, where that is known."""
    gpu = node.gpus.get(uuid)
    return uuid if gpu is None or gpu.reading.index is None else str(gpu.reading.index)


def clients_of(daemon: Daemon, server: Server) -> Sequence[Client]:
    """The clients of one of a daemon's servers."""
    return [client for client in daemon.clients.values() if client.server == server.pid]
