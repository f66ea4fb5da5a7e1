"""A view of the node for metrics and reports: which daemons and clients are shown."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from exporter.history import HistoryStatus, Points, Sample
from exporter.model.daemon import Daemon
from exporter.model.event import Event
from exporter.model.incident import Incident
from exporter.model.node import Node
from exporter.model.observation import GpuUuid
from exporter.model.server import Client, Server
from exporter.model.usage import UsageTotals
from exporter.model.values import frozen
from exporter.state.gpus import used_bytes
from exporter.state.processes import client_id
from exporter.usage.capacity import GpuSharing, gpu_sharing
from exporter.watchdog.context import Policy

MemoryByProcess = Mapping[int, Mapping[str, int]]
"""Bytes that each process uses, by its PID and by GPU."""


@dataclass(frozen=True)
class View:
    """The node at one time, with the settings and states of the exporter that metrics show.

    `clock_step` is by how many seconds the wall clock has been set since the exporter started. `config_valid`,
    `history`, `policy` and `log_records_dropped` are None if a replay or a mode of the exporter has none.
    `accept_failures` are those of each server of the exporter, by its name.
    """

    node: Node

    client_min_age: float = 0.0
    """A client has its own series after so many seconds."""

    clock_step: float = 0.0

    max_clients: int = 512
    """At most so many clients have their own series; the others are only counted."""

    config_valid: bool | None = None
    """Whether the configuration was valid when it was last read."""
    paused: bool = False
    history: HistoryStatus | None = None
    log_records_dropped: int | None = None
    policy: Policy | None = None

    usage_totals: UsageTotals | None = None
    """The totals that are on disk; None: those of the node."""

    accept_failures: Mapping[str, int] = field(default_factory=dict)

    @property
    def totals(self) -> UsageTotals:
        """The totals to show."""
        return self.node.usage_totals if self.usage_totals is None else self.usage_totals

    @cached_property
    def sharing(self) -> Mapping[GpuUuid, GpuSharing]:
        """How the clients share each GPU that has any. Several metric families use it, so it is computed once."""
        return gpu_sharing(self.node)

    def daemons(self) -> Iterable[Daemon]:
        """Return the daemons that are shown."""
        return (daemon for daemon in self.node.daemons.values() if daemon.is_reported(self.node.at))

    def present(self) -> Iterable[Daemon]:
        """Return the daemons that run or should run, and those that were lost."""
        return (daemon for daemon in self.daemons() if not daemon.is_over)

    def servers(self) -> Iterable[tuple[Daemon, Server]]:
        """Return all servers, each with its daemon."""
        return ((daemon, server) for daemon in self.daemons() for server in daemon.servers.values())

    def connected(self) -> Iterable[tuple[Daemon, Client]]:
        """Return all clients, each with its daemon."""
        return ((daemon, client) for daemon in self.daemons() for client in daemon.clients.values())

    @cached_property
    def clients(self) -> Sequence[tuple[Daemon, Client, str]]:
        """The clients with their own series, each with its daemon and its id.

        If there are too many, these are the longest connected, so that a new client does not replace another.
        """
        shown = self._old_enough
        if len(shown) > self.max_clients:
            shown = sorted(shown, key=lambda item: (item[1].connected_at, item[1].pid))[: self.max_clients]
        processes = self.node.processes
        return [(daemon, client, client_id(client, processes.get(client.pid))) for daemon, client in shown]

    def omitted(self) -> int:
        """Return how many clients have no series of their own because there are too many."""
        return max(0, len(self._old_enough) - self.max_clients)

    @cached_property
    def _old_enough(self) -> Sequence[tuple[Daemon, Client]]:
        return [(daemon, client) for daemon, client in self.connected() if self._age(client) >= self.client_min_age]

    def _age(self, client: Client) -> float:
        process = self.node.processes.get(client.pid)
        started = client.connected_at if process is None else min(process.started, client.connected_at)
        return self.node.at - started


def memory_by_process(node: Node) -> MemoryByProcess:
    """Return the bytes that each process uses, by its PID and by GPU."""
    by_pid: dict[int, dict[str, int]] = {}
    for uuid, gpu in node.gpus.items():
        for pid, used in used_bytes(gpu.reading).items():
            by_pid.setdefault(pid, {})[uuid] = used
    return by_pid


def gpu_name(node: Node, uuid: str) -> str:
    """Return the index of a GPU, or its UUID if the index is unknown. A MIG instance also has its two numbers."""
    gpu = node.gpus.get(uuid)
    if gpu is not None and gpu.reading.mig is not None:
        mig = gpu.reading.mig
        return f"{gpu_name(node, mig.parent)}/{mig.gpu_instance}/{mig.compute_instance}"
    return uuid if gpu is None or gpu.reading.index is None else str(gpu.reading.index)


def clients_of(daemon: Daemon, server: Server) -> Sequence[Client]:
    """Return the clients of one of the daemon's servers."""
    return [client for client in daemon.clients.values() if client.server == server.pid]


@frozen
class StatusInput:
    """The node at a time, on the machine `host`, with incidents, also earlier ones, and events, the newest first."""

    node: Node
    at: float
    host: str = ""
    incidents: Sequence[Incident] = ()
    events: Sequence[Event] = ()
    """Those of the timeline."""

    samples: Sequence[Sample] = ()
    """The oldest first."""

    recent: Points = ()
    """The last ten minutes of each client and GPU."""

    policy: Policy | None = None
    """None if there is no watchdog."""

    stalled_seconds: float | None = None
    """For how long the exporter's main loop has not run; None if it runs."""

    viewer: int | None = None
    """The UID of the user who sees the status; None: unknown, who sees no kernels."""

    @property
    def known_incidents(self) -> Mapping[str, Incident]:
        """All incidents, by ID."""
        return {each.id: each for each in (*self.node.incidents.values(), *self.incidents)}
