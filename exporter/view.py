"""A view of the node for metrics and reports: which daemons and clients are shown, and its history.

Each daemon has a share of the history: a flood of one daemon's log displaces nothing of another daemon.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Protocol

from exporter.model.daemon import Daemon
from exporter.model.event import TIMELINE, Event
from exporter.model.incident import Incident
from exporter.model.node import Node, expected_daemons, select_fairly
from exporter.model.observation import GpuUuid
from exporter.model.server import Client, Server
from exporter.model.usage import Sample, UsageTotals
from exporter.model.watchdog import RecoveredState
from exporter.state.gpus import used_bytes
from exporter.state.processes import client_id
from exporter.usage.allocation import Allocation, allocation
from exporter.usage.capacity import GpuSharing, gpu_sharing
from exporter.usage.sampling import with_sample
from exporter.watchdog.context import Policy

MemoryByProcess = Mapping[int, Mapping[str, int]]
"""Bytes that each process uses, by its PID and by GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryStatus:
    """Whether incidents and events are written to disk, and how many events were dropped from a full queue."""

    writable: bool
    events_dropped: int


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

    @cached_property
    def allocation(self) -> Allocation:
        """The shares of each GPU that Kubernetes allocates."""
        return allocation(self.node)

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


MAX_INCIDENTS = 200
MAX_EVENTS = 1000
MAX_TIMELINE = 200
"""Events of the timeline that log lines cannot cause in any number; there may be as many others."""
SPARE = 10
"""There may be one tenth more events than `MAX_EVENTS`. So they are not counted again at each new one."""


class Store(Protocol):
    """Storage that outlives the process."""

    @property
    def status(self) -> HistoryStatus:
        """Whether it can be written."""

    @property
    def usage_totals(self) -> UsageTotals | None:
        """The usage totals to show, which no restart decreases; None: those of the node."""

    def add(self, node: Node, events: Sequence[Event], samples: Sequence[Sample] = ()) -> None:
        """Store the result of a cycle, without waiting."""

    @property
    def has_watchdog_states(self) -> bool:
        """Whether all earlier watchdog states could be read, and new ones can be written."""

    def recovered_state(self) -> RecoveredState | None:
        """Return the watchdog states, once, if they were unavailable at the start and are available now."""


class History:
    """The last incidents and events, newest first. One thread adds to them, and any thread may read them.

    `timeline` has the events of the page's timeline: other events do not displace them. The oldest sample is the first.
    """

    def __init__(
        self,
        incidents: Iterable[Incident] = (),
        events: Iterable[Event] = (),
        samples: Iterable[Sample] = (),
        *,
        max_incidents: int = MAX_INCIDENTS,
        max_events: int = MAX_EVENTS,
    ) -> None:
        """Begin with these, in any order. An open incident is never dropped."""
        self._max_incidents = max_incidents
        self._max_events = max_events
        self._added: Mapping[str, Incident] = {}
        self.incidents = self._newest({incident.id: incident for incident in incidents})
        newest = sorted(events, key=lambda event: -event.at)
        self.events = self._shares(newest)
        self.timeline = _timeline(newest)
        self.samples = tuple(sorted(samples, key=lambda sample: sample.at))

    def add(self, node: Node, events: Sequence[Event]) -> tuple[Sample, ...]:
        """Add the result of a cycle; an incident replaces its earlier state. Return the new sample, if one is due."""
        if node.incidents is not self._added:
            self._added = node.incidents
            by_id = {**{incident.id: incident for incident in self.incidents}, **node.incidents}
            self.incidents = self._newest(by_id, expected_daemons(node))
        if events:
            self.events = (*reversed(events), *self.events)
            if len(self.events) > self._max_events + self._max_events // SPARE:
                self.events = self._shares(self.events, expected_daemons(node))
            new = [event for event in reversed(events) if event.event in TIMELINE]
            if new:
                self.timeline = _timeline((*new, *self.timeline), expected_daemons(node))
        before, self.samples = self.samples, with_sample(self.samples, node)
        return () if self.samples is before else self.samples[-1:]

    def _shares(self, events: Sequence[Event], expected: Collection[str] = ()) -> tuple[Event, ...]:
        return select_fairly(events, self._max_events, lambda event: event.daemon, expected)

    def _newest(self, by_id: Mapping[str, Incident], expected: Collection[str] = ()) -> tuple[Incident, ...]:
        ordered = sorted(by_id.values(), key=lambda incident: -incident.detected_at)
        selected = select_fairly(ordered, self._max_incidents, lambda incident: incident.daemon, expected)
        ids = {incident.id for incident in selected}
        return tuple(incident for incident in ordered if incident.id in ids or incident.open)


def _timeline(newest: Sequence[Event], expected: Collection[str] = ()) -> tuple[Event, ...]:
    timeline = [event for event in newest if event.event in TIMELINE]
    if len(timeline) <= 2 * MAX_TIMELINE:
        return tuple(timeline)
    selected = (
        select_fairly(
            [event for event in timeline if event.event.traits.frequent is frequent],
            MAX_TIMELINE - MAX_TIMELINE // SPARE,
            lambda event: event.daemon,
            expected,
        )
        for frequent in (False, True)
    )
    return tuple(sorted(chain.from_iterable(selected), key=lambda event: -event.at))
