"""The status of a node as one value, which terminal, page and JSON render."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from exporter.model.daemon import Daemon, DaemonState
from exporter.model.event import Event
from exporter.model.gpu import Gpu, SharingMode
from exporter.model.incident import Incident
from exporter.model.node import Node
from exporter.model.observation import DaemonName, GpuUuid, ProcessReading
from exporter.model.problem import Problem
from exporter.model.server import Client, Server
from exporter.model.settings import Mode
from exporter.model.watchdog import WatchdogState
from exporter.parse.printable import printable
from exporter.report.finding import Finding, standing
from exporter.report.findings import findings
from exporter.report.identity import Who, who
from exporter.report.problem import FindingCode, Severity
from exporter.report.problem_text import source_text
from exporter.report.text import Line, line_of, listed
from exporter.report.watchdog_text import Account, account
from exporter.state.failure_domains import FailureDomain, failure_domains, gpus_of_clients
from exporter.state.gpus import by_its_ordinals, sharing_mode
from exporter.state.servers import clients_limit
from exporter.state.transition import client_id
from exporter.usage.capacity import GpuSharing, gpu_sharing
from exporter.view import MemoryByProcess, View, clients_of, gpu_name, memory_by_process
from exporter.watchdog.context import Policy

MOST_NAMED = 4
"""So many of those who join GPUs are named."""


@dataclass(frozen=True, slots=True)
class NamedDomain:
    """A domain, and what it is called in one showing."""

    letter: str
    daemon: Daemon
    domain: FailureDomain


def domain_names(found: Sequence[NamedDomain]) -> Mapping[tuple[DaemonName, int], str]:
    """The letter of each client's domain; empty where nobody would take anybody along."""
    if all(len(each.domain.clients) == 1 for each in found):
        return {}
    return {(each.daemon.name, pid): each.letter for each in found for pid in each.domain.clients}


def named_domains(node: Node) -> Sequence[NamedDomain]:
    """All domains, in the order of their daemons, servers and eldest PIDs."""
    found = (
        (daemon, domain)
        for daemon in View(node).daemons()
        for here in failure_domains(node, daemon).values()
        for domain in sorted(here, key=lambda each: min(each.clients))
    )
    return [NamedDomain(_letter(number), daemon, domain) for number, (daemon, domain) in enumerate(found)]


def joined(node: Node, found: Sequence[NamedDomain]) -> Iterable[Line]:
    """Of each domain of several clients on several GPUs: who joins these, and what would keep them apart."""
    for each in found:
        if len(each.domain.gpus) > 1 and len(each.domain.clients) > 1:
            clients, gpus = len(each.domain.clients), gpus_text(node, each.domain.gpus)
            yield line_of(
                f"domain {each.letter}: {clients} clients on {gpus} fall together: a fatal fault of one ends all"
            )
            advice = "a daemon for each GPU keeps them apart; a client then has one GPU"
            yield line_of(f"  joined by {_bridges(node, each)}; {advice}")


def _bridges(node: Node, told: NamedDomain) -> str:
    found = gpus_of_clients(node, told.daemon, sorted(told.domain.clients))
    bridges = [f"{_who(node, pid)} on {gpus_text(node, gpus)}" for pid, gpus in found.items() if len(gpus) > 1]
    more = [f"{len(bridges) - MOST_NAMED} more"] if len(bridges) > MOST_NAMED else []
    return listed([*bridges[:MOST_NAMED], *more])


def _who(node: Node, pid: int) -> str:
    command = who(node, pid).command
    return f"{pid} ({command})" if command else str(pid)


def by_index(node: Node, uuids: Iterable[str]) -> Sequence[str]:
    """GPUs in the order of their indices."""
    return sorted(uuids, key=lambda uuid: (len(gpu_name(node, uuid)), gpu_name(node, uuid)))


def gpus_text(node: Node, uuids: Iterable[str]) -> str:
    """Which GPUs: `GPU 0`, `GPUs 0 and 1`."""
    names = [printable(gpu_name(node, uuid)) for uuid in by_index(node, uuids)]
    return f"GPU{'s' if len(names) > 1 else ''} {listed(names)}"


def _letter(number: int) -> str:
    """A to Z, then AA and on."""
    rest, last = divmod(number, len(ascii_uppercase))
    return (_letter(rest - 1) if rest else "") + ascii_uppercase[last]


RESTART_EXPORTER = "systemctl restart cuda-mps-exporter"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusInput:
    """What a status is made of: the node at a moment, on the machine `host`, and its history, the newest first."""

    node: Node
    at: float
    host: str = ""
    incidents: Sequence[Incident] = ()
    events: Sequence[Event] = ()

    policy: Policy | None = None
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

    domain: FailureDomain | None
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
    watch: WatchdogState | None
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
    policy: Policy | None
    findings: tuple[Finding, ...]
    daemons: tuple[DaemonView, ...]
    gpus: tuple[GpuView, ...]
    domains: tuple[NamedDomain, ...]
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


def view_of(node: Node, policy: Policy | None = None) -> StatusView:
    """Return the status of a node when it was last observed."""
    return status_view(StatusInput(node=node, at=node.at, policy=policy, incidents=tuple(node.incidents.values())))


def status_view(data: StatusInput) -> StatusView:
    """Return everything that is shown of a node."""
    node, found = data.node, findings(data.node, data.at, data.policy)
    domains, used = tuple(named_domains(node)), memory_by_process(node)
    named = domain_names(domains)
    stalled = () if data.stalled_seconds is None else (_stalled(data.at, data.stalled_seconds),)
    return StatusView(
        node=node,
        at=data.at,
        host=data.host,
        policy=data.policy,
        findings=(*stalled, *found),
        daemons=tuple(
            _daemon(node, daemon, data.policy, found, domains, named, used) for daemon in View(node).daemons()
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
    policy: Policy | None,
    found: Sequence[Finding],
    domains: Sequence[NamedDomain],
    named: Mapping[tuple[DaemonName, int], str],
    used: MemoryByProcess,
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
        mode=None if policy is None else policy.mode_of(daemon),
        account=account(node, daemon),
    )


def _limits(node: Node, daemon: Daemon, limits: Mapping[int, int]) -> Mapping[int, tuple[GpuUuid, int]]:
    gpus = by_its_ordinals(node, daemon)
    return {device: (gpus[device], limit) for device, limit in sorted(limits.items()) if device in gpus}


def _gpus(node: Node, found: Sequence[Finding], used: MemoryByProcess) -> tuple[GpuView, ...]:
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
