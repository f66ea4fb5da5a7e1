"""The status of a node as one value, from which the terminal, the page and the JSON are rendered.

`status_view` is the only place that derives these values. Renderers choose, order and format them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exporter.core.client_slots import clients_limit
from exporter.core.devices import by_its_ordinals
from exporter.core.domains import Domain
from exporter.core.identity import client_id
from exporter.core.sharing import sharing_mode
from exporter.core.watchdog.orders import Orders
from exporter.model.daemon import Daemon, DaemonState
from exporter.model.event import Event
from exporter.model.gpu import Gpu, SharingMode
from exporter.model.incident import Incident
from exporter.model.node import Node
from exporter.model.observation import DaemonName, GpuUuid, ProcessReading
from exporter.model.problem import Problem
from exporter.model.server import Client, Server
from exporter.model.settings import Mode
from exporter.model.watch import Watch
from exporter.report.finding import Finding, standing
from exporter.report.findings import findings
from exporter.report.problem import FindingCode, Severity
from exporter.telling.problem_text import source_text
from exporter.telling.status_domains import Lettered, lettered, letters
from exporter.telling.watchdog_text import Account, account
from exporter.telling.who import Who, who
from exporter.usage.capacity import GpuSharing, gpu_sharing
from exporter.view import Memory, View, clients_of, memory

RESTART_EXPORTER = "systemctl restart cuda-mps-exporter"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusInput:
    """What a status is made of: the node at a moment, on the machine `host`, and its history, the newest first."""

    node: Node
    at: float
    host: str = ""
    incidents: Sequence[Incident] = ()
    events: Sequence[Event] = ()

    orders: Orders | None = None
    """The watchdog's; None if there is no watchdog."""

    stalled_seconds: float | None = None
    """For how long the exporter's main loop has not run; None if it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientView:
    """A client of a server."""

    client: Client
    id: str
    who: Who
    process: ProcessReading | None

    memory: Mapping[GpuUuid, int]
    """Bytes on each GPU."""

    domain: Domain | None
    """The clients that a fatal fault of this one would end; None if that is unknown."""

    letter: str
    """The name of that failure domain; empty if no domain has several clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerView:
    """A server of a daemon."""

    server: Server
    user: str
    clients: tuple[ClientView, ...]
    clients_limit: int | None
    started_at: float

    memory_limits: Mapping[int, tuple[GpuUuid, int]]
    """The GPU and the bytes of each memory limit, by the daemon's device ordinal."""

    answering: bool
    """Whether the daemon answers, so that the server's state is current."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonView:
    """A daemon with its servers."""

    daemon: Daemon
    severity: Severity
    label: str
    findings: tuple[Finding, ...]
    servers: tuple[ServerView, ...]
    memory_limits: Mapping[int, tuple[GpuUuid, int]]
    waiting: Mapping[int, Who]
    watch: Watch | None
    mode: Mode | None

    account: Account | None
    """The watchdog's diagnosis and actions in words; None if there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuView:
    """A GPU: how it is shared, and the problem that it has."""

    uuid: GpuUuid
    gpu: Gpu
    mode: SharingMode | None
    fitness: GpuSharing | None
    finding: Finding | None

    bypassing: Mapping[int, int | None]
    """Bytes of each process that bypasses MPS, by PID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorView:
    """A collector: its error, when it last succeeded, and how long its last collection took."""

    name: str
    problem: Problem | None

    text: str
    """The error in words; empty if there is none."""

    last_success: float | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusView:
    """The status of a node at a moment."""

    node: Node
    at: float
    host: str
    orders: Orders | None
    findings: tuple[Finding, ...]
    daemons: tuple[DaemonView, ...]
    gpus: tuple[GpuView, ...]
    domains: tuple[Lettered, ...]
    collectors: tuple[CollectorView, ...]
    incidents: Sequence[Incident]
    events: Sequence[Event]
    stalled: bool

    @property
    def severity(self) -> Severity:
        """The most urgent problem's."""
        return self.findings[0].severity if self.findings else Severity.WELL

    @property
    def fails(self) -> bool:
        """Whether `status` exits with code 1."""
        return any(each.fails for each in self.findings)


def view_of(node: Node, orders: Orders | None = None) -> StatusView:
    """Return the status of a node when it was last observed."""
    return status_view(StatusInput(node=node, at=node.at, orders=orders, incidents=tuple(node.incidents.values())))


def status_view(data: StatusInput) -> StatusView:
    """Return everything that is shown of a node."""
    node, found = data.node, findings(data.node, data.at, data.orders)
    domains, used = tuple(lettered(node)), memory(node)
    named = letters(domains)
    stalled = () if data.stalled_seconds is None else (_stalled(data.at, data.stalled_seconds),)
    return StatusView(
        node=node,
        at=data.at,
        host=data.host,
        orders=data.orders,
        findings=(*stalled, *found),
        daemons=tuple(
            _daemon(node, daemon, data.orders, found, domains, named, used) for daemon in View(node).daemons()
        ),
        gpus=_gpus(node, found, used),
        domains=domains,
        collectors=tuple(
            CollectorView(
                name=name,
                problem=source.last.problem,
                text=source_text(name, source) if source.problems else "",
                last_success=source.last_success,
                seconds=source.last.seconds,
            )
            for name, source in sorted(node.sources.items())
        ),
        incidents=data.incidents,
        events=data.events,
        stalled=data.stalled_seconds is not None,
    )


def _stalled(at: float, seconds: float) -> Finding:
    return Finding(code=FindingCode.EXPORTER_STALLED, at=at, since=at - seconds, commands=(RESTART_EXPORTER,))


def _daemon(
    node: Node,
    daemon: Daemon,
    orders: Orders | None,
    found: Sequence[Finding],
    domains: Sequence[Lettered],
    named: Mapping[tuple[DaemonName, int], str],
    used: Memory,
) -> DaemonView:
    severity, label = standing(daemon, found)
    falls_with = {pid: each.domain for each in domains if each.daemon is daemon for pid in each.domain.clients}

    def client(each: Client) -> ClientView:
        process = node.processes.get(each.pid)
        return ClientView(
            client=each,
            id=client_id(each, process),
            who=who(node, each.pid),
            process=process,
            memory=used.get(each.pid, {}),
            domain=falls_with.get(each.pid),
            letter=named.get((daemon.name, each.pid), ""),
        )

    def server(each: Server) -> ServerView:
        process = node.processes.get(each.pid)
        return ServerView(
            server=each,
            user=who(node, each.pid).user or ("" if each.uid is None else str(each.uid)),
            clients=tuple(map(client, clients_of(daemon, each))),
            clients_limit=clients_limit(node, daemon, each),
            started_at=each.started_at if process is None else process.started,
            memory_limits=_limits(node, daemon, each.pinned_memory_limits),
            answering=daemon.state is DaemonState.UP,
        )

    return DaemonView(
        daemon=daemon,
        severity=severity,
        label=label,
        findings=tuple(each for each in found if each.daemon == daemon.name),
        servers=tuple(map(server, daemon.servers.values())),
        memory_limits=_limits(node, daemon, daemon.default_limits.pinned_memory),
        waiting={pid: who(node, pid) for pid in sorted(daemon.connections.waiting)},
        watch=node.watches.get(daemon.name),
        mode=None if orders is None else orders.mode_of(daemon),
        account=account(node, daemon),
    )


def _limits(node: Node, daemon: Daemon, limits: Mapping[int, int]) -> Mapping[int, tuple[GpuUuid, int]]:
    gpus = by_its_ordinals(node, daemon)
    return {device: (gpus[device], limit) for device, limit in sorted(limits.items()) if device in gpus}


def _gpus(node: Node, found: Sequence[Finding], used: Memory) -> tuple[GpuView, ...]:
    shared, ill = gpu_sharing(node), {each.gpu: each for each in reversed(found)}
    return tuple(
        GpuView(
            uuid=uuid,
            gpu=gpu,
            mode=sharing_mode(node, gpu),
            fitness=shared.get(uuid),
            finding=ill.get(uuid),
            bypassing={pid: used.get(pid, {}).get(uuid) for pid in gpu.bypassing},
        )
        for uuid, gpu in node.gpus.items()
    )
