"""The status of a node as one value, which terminal, page and JSON render."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from string import ascii_uppercase

from exporter.model.daemon import Daemon, DaemonState
from exporter.model.event import Event
from exporter.model.gpu import Gpu, SharingMode
from exporter.model.incident import Incident
from exporter.model.node import Node
from exporter.model.observation import GpuUuid, ProcessReading
from exporter.model.server import Client, Server
from exporter.model.settings import Mode
from exporter.model.usage import Sample
from exporter.model.values import replace
from exporter.model.watchdog import WatchdogState
from exporter.parse.printable import printable
from exporter.report.finding import Finding, severity_and_label
from exporter.report.findings import findings
from exporter.report.problem import NodeProblem, Severity
from exporter.report.text import display_name, listed, workload_text
from exporter.report.watchdog_text import WatchdogSummary, watchdog_summary
from exporter.state.bypassing import sharing_mode
from exporter.state.failure_domains import FailureDomain, failure_domains
from exporter.state.limits import clients_limit, memory_limits_by_gpu
from exporter.state.processes import client_id, pod_of, workload_of
from exporter.usage.allocation import AllocatedShares, allocation
from exporter.usage.capacity import GpuSharing, gpu_sharing
from exporter.view import MemoryByProcess, View, clients_of, gpu_name, memory_by_process
from exporter.watchdog.context import Policy

RESTART_EXPORTER = "systemctl restart cuda-mps-exporter"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLabel:
    """The names of a process; unknown ones are empty. A PID that could not be translated is a question mark."""

    pid: str
    command: str = ""
    user: str = ""
    workload: str = ""

    @property
    def name(self) -> str:
        """The command, or else the user."""
        return self.command or self.user or "unknown"


def waiting_label(node: Node, pid: int, uid: int | None) -> ProcessLabel:
    """Return the names of a client that waits for its turn. Of one with a hidden PID, the UID is known."""
    label = process_label(node, pid)
    return replace(label, user=f"UID {uid}") if label.user in ("", None) and uid is not None else label


def process_label(node: Node, pid: int) -> ProcessLabel:
    """Return the names of the process that has this PID now."""
    process, shown = node.processes.get(pid), str(pid) if pid > 0 else "?"
    if process is None:
        return ProcessLabel(pid=shown)
    pod = pod_of(node, process)
    return ProcessLabel(
        pid=shown,
        command=display_name(process.command),
        user=display_name(process.user),
        workload=workload_text(workload_of(process), None if pod is None else pod.name),
    )


@dataclass(frozen=True, slots=True)
class NamedDomain:
    """A failure domain of a daemon, and its name: a letter."""

    letter: str
    daemon: Daemon
    domain: FailureDomain


def named_domains(node: Node) -> Sequence[NamedDomain]:
    """Return all failure domains, in the order of daemons, servers and lowest PIDs."""
    found = (
        (daemon, domain)
        for daemon in View(node).daemons()
        for domains in failure_domains(node, daemon).values()
        for domain in sorted(domains, key=lambda each: min(each.clients))
    )
    return [NamedDomain(_letter(number), daemon, domain) for number, (daemon, domain) in enumerate(found)]


def by_index(node: Node, uuids: Iterable[str]) -> Sequence[str]:
    """Return GPUs in the order of their indices, each before its MIG instances."""

    def place(uuid: str) -> tuple[tuple[int, str], ...]:
        return tuple((len(part), part) for part in gpu_name(node, uuid).split("/"))

    return sorted(uuids, key=place)


def gpus_text(node: Node, uuids: Iterable[str]) -> str:
    """Return the names of GPUs: `GPU 0`, `GPUs 0 and 1`."""
    names = [printable(gpu_name(node, uuid)) for uuid in by_index(node, uuids)]
    return f"GPU{'s' if len(names) > 1 else ''} {listed(names)}"


def _letter(number: int) -> str:
    """Return A to Z, then AA and so on."""
    rest, last = divmod(number, len(ascii_uppercase))
    return (_letter(rest - 1) if rest else "") + ascii_uppercase[last]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusInput:
    """The node at a time, on the machine `host`, with its incidents and events, the newest first."""

    node: Node
    at: float
    host: str = ""
    incidents: Sequence[Incident] = ()
    events: Sequence[Event] = ()
    """Those of the timeline."""

    samples: Sequence[Sample] = ()
    """The oldest first."""

    policy: Policy | None = None
    """None if there is no watchdog."""

    stalled_seconds: float | None = None
    """For how long the exporter's main loop has not run; None if it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientView:
    """A client of a server."""

    client: Client
    id: str
    label: ProcessLabel
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

    memory_limits: Iterable[tuple[GpuUuid, int]]
    """The GPU and the bytes of each memory limit."""

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
    memory_limits: Iterable[tuple[GpuUuid, int]]
    waiting: Mapping[int, ProcessLabel]
    watch: WatchdogState | None
    mode: Mode | None
    watchdog: WatchdogSummary | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuView:
    """A GPU: how it is shared, and the problem that it has."""

    uuid: GpuUuid
    gpu: Gpu
    mode: SharingMode | None
    sharing: GpuSharing | None
    finding: Finding | None

    bypassing: Mapping[int, int | None]
    """Bytes of each process that bypasses MPS, by PID."""

    shares: Mapping[str, AllocatedShares]
    """Its shares that Kubernetes allocates, by resource."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusView(StatusInput):
    """The status of a node at a moment."""

    findings: tuple[Finding, ...]
    daemons: tuple[DaemonView, ...]
    gpus: tuple[GpuView, ...]
    domains: tuple[NamedDomain, ...]

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
    if data.stalled_seconds is not None:
        since = data.at - data.stalled_seconds
        stalled = Finding(NodeProblem.EXPORTER_STALLED, at=data.at, since=since, commands=(RESTART_EXPORTER,))
        found = (stalled, *found)
    domains, memory = named_domains(node), memory_by_process(node)
    return StatusView(
        **{each.name: getattr(data, each.name) for each in fields(data)},
        findings=found,
        daemons=tuple(_daemon(node, daemon, data.policy, found, domains, memory) for daemon in View(node).daemons()),
        gpus=_gpus(node, found, memory),
        domains=tuple(domains),
    )


def _daemon(
    node: Node,
    daemon: Daemon,
    policy: Policy | None,
    found: Sequence[Finding],
    domains: Sequence[NamedDomain],
    memory: MemoryByProcess,
) -> DaemonView:
    severity, label = severity_and_label(daemon, found)
    domain_of = {pid: each for each in domains if each.daemon is daemon for pid in each.domain.clients}
    any_shared = any(len(each.domain.clients) > 1 for each in domains)

    def client(each: Client) -> ClientView:
        process, domain = node.processes.get(each.pid), domain_of.get(each.pid)
        return ClientView(
            client=each,
            id=client_id(each, process),
            label=process_label(node, each.pid),
            process=process,
            memory=memory.get(each.pid, {}),
            domain=None if domain is None else domain.domain,
            letter=domain.letter if domain is not None and any_shared else "",
        )

    def server(each: Server) -> ServerView:
        process = node.processes.get(each.pid)
        user = process_label(node, each.pid).user or ("" if each.uid is None else str(each.uid))
        if daemon.has_static_partitions:
            each = replace(each, limits=replace(each.limits, active_thread_percentage=None))
        return ServerView(
            server=each,
            user="all users" if daemon.serves_all_users else user,
            clients=tuple(map(client, clients_of(daemon, each))),
            clients_limit=clients_limit(node, daemon, each),
            started_at=each.started_at if process is None else process.started,
            memory_limits=memory_limits_by_gpu(node, daemon, each.limits.pinned_memory),
            answering=daemon.state is DaemonState.UP,
        )

    return DaemonView(
        daemon=daemon,
        severity=severity,
        label=label,
        findings=tuple(each for each in found if each.daemon == daemon.name),
        servers=tuple(map(server, daemon.servers.values())),
        memory_limits=memory_limits_by_gpu(node, daemon, daemon.default_limits.pinned_memory),
        waiting={
            pid: waiting_label(node, pid, daemon.connections.queued.get(pid))
            for pid in sorted(daemon.connections.waiting)
        },
        watch=node.watches.get(daemon.name),
        mode=None if policy is None else policy.mode_of(daemon),
        watchdog=watchdog_summary(node, daemon),
    )


def _gpus(node: Node, found: Sequence[Finding], memory: MemoryByProcess) -> tuple[GpuView, ...]:
    shared, allocated = gpu_sharing(node), allocation(node)
    first_findings = {each.gpu: each for each in reversed(found)}
    return tuple(
        GpuView(
            uuid=uuid,
            gpu=gpu,
            mode=sharing_mode(node, gpu),
            sharing=shared.get(uuid),
            finding=first_findings.get(uuid),
            bypassing={pid: memory.get(pid, {}).get(uuid) for pid in gpu.bypassing},
            shares=allocated.get(uuid, {}),
        )
        for uuid, gpu in node.gpus.items()
    )
