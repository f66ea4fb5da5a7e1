"""The status document of a node."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from string import ascii_uppercase

from exporter.model.daemon import Daemon
from exporter.model.incident import Incident
from exporter.model.kernels import ClientKernels
from exporter.model.node import CollectorName, CollectorState, Node, SharingMode
from exporter.model.reason import LOG_BLOCKED
from exporter.model.server import Client, Server
from exporter.model.sharing import SharingStatus
from exporter.model.watchdog import WatchdogPhase, WatchdogState
from exporter.parse.printable import printable
from exporter.report.document import (
    VERSION,
    ActionCountStatus,
    ActionStatus,
    ClientStatus,
    CollectorStatus,
    DaemonStatus,
    FailureDomainStatus,
    GpuProcess,
    GpuStatus,
    LogStatus,
    ServerStatus,
    StatusDocument,
    WatchdogStatus,
)
from exporter.report.document_parts import MOST_LISTED, ROOT, IncidentStatus, Severity, seen_by
from exporter.report.finding import Finding, finding_statuses, severity_and_label, state_text
from exporter.report.incident_status import incident_status
from exporter.report.node_findings import findings
from exporter.report.problems import NodeProblem, of_phase
from exporter.report.process_status import by_number, client_status, filled, names_of, owner_of, printed, reason_status
from exporter.report.reasons import log_text, source_text
from exporter.report.remedy import address_of
from exporter.report.sharing_text import attribution_problem, reserved, sentences
from exporter.report.slowdowns import slowdown_sentences, slowdown_status
from exporter.report.status_text import counts_of, modes, with_summary
from exporter.report.text import SIMULATED, counted
from exporter.report.watchdog_text import watchdog_text
from exporter.state.devices import failure_domains, gpus_of_clients
from exporter.state.gpus import sharing_mode, used_bytes
from exporter.state.limits import clients_limit, memory_limits_by_gpu
from exporter.state.processes import client_id
from exporter.usage.last_minute import current_kernels
from exporter.view import MemoryByProcess, StatusInput, View, clients_of, gpu_name, memory_by_process
from exporter.watchdog import restart
from exporter.watchdog.context import Policy

RESTART_EXPORTER = "systemctl restart cuda-mps-exporter"

MOST_PAST = 10
"""Incidents that are over, besides those of the last hour."""

MOST_IN_LINE = 4
"""Problems in the line for the service manager."""

MODES = {
    SharingMode.IDLE: ("idle", Severity.UNKNOWN),
    SharingMode.EXCLUSIVE: ("one process, without MPS", Severity.UNKNOWN),
    SharingMode.TIME_SLICING: ("time slicing, without MPS", Severity.UNKNOWN),
    SharingMode.MPS: ("shared by MPS", Severity.WELL),
    SharingMode.MIG: ("MIG", Severity.UNKNOWN),
    SharingMode.MIXED: ("MPS, and processes that bypass it", Severity.WARNING),
    None: ("sharing unknown", Severity.UNKNOWN),
}


def document_of(node: Node, policy: Policy | None = None, host: str = "") -> StatusDocument:
    """Return the status of a node when it was last observed, as root sees it."""
    return status_document(StatusInput(node=node, at=node.at, host=host, policy=policy, viewer=ROOT))


def status_document(data: StatusInput, client: str | None = None) -> StatusDocument:
    """Return the status of a node, as its viewer may see it. With the id of a `client`, no other process is listed."""
    node, at, policy, view = data.node, data.at, data.policy, View(data.node)
    ids = ((each.pid, client_id(each, node.processes.get(each.pid))) for _, each in view.connected())
    only = None if client is None else {pid for pid, name in ids if name == client}
    found = findings_as_seen(data, view)
    domains, memory, known = _failure_domains(node), memory_by_process(node), data.known_incidents
    kernels = current_kernels(node)
    daemons = tuple(_daemon(data, each, found, domains, memory, kernels, only) for each in view.present())
    newest = sorted(known.values(), key=lambda each: -each.detected_at)
    past = [each.id for each in newest if not each.open]
    incidents = [each for each in newest if each.open or each.id in node.incidents or each.id in past[:MOST_PAST]]
    document = with_summary(
        StatusDocument(
            version=VERSION,
            severity=found[0].severity if found else Severity.WELL,
            summary="",
            findings=finding_statuses(found),
            at=at,
            host=printable(data.host),
            simulated=node.simulated,
            watchdog=None if policy is None else policy.mode,
            daemons=daemons,
            gpus=_gpus(view, found, daemons, only),
            failure_domains=domains,
            incidents=tuple(incident_status(each, at, address_of(node, each.daemon, policy)) for each in incidents),
            older_incidents=len(known) - len(incidents),
            collectors=tuple(_collector(name, source) for name, source in sorted(node.sources.items())),
            attribution_problem=attribution_problem(node, view.sharing.values()),
        )
    )
    return seen_by(ROOT if node.simulated else data.viewer, document)


def findings_as_seen(data: StatusInput, view: View | None = None) -> tuple[Finding, ...]:
    """Return all problems, also that the exporter is stalled. A `view` of the node, if given, is not made."""
    found = findings(data.node, data.at, data.policy, view)
    if data.stalled_seconds is None:
        return found
    since = data.at - data.stalled_seconds
    return (Finding(NodeProblem.EXPORTER_STALLED, at=data.at, since=since, commands=(RESTART_EXPORTER,)), *found)


def incident_as_seen(data: StatusInput, incident: Incident, clients: int = MOST_LISTED) -> IncidentStatus:
    """Return an incident as the viewer may see it, with at most so many `clients` of each kind."""
    address = address_of(data.node, incident.daemon, data.policy)
    document = incident_status(incident, data.at, address, clients=clients)
    return seen_by(ROOT if data.node.simulated else data.viewer, document)


def _failure_domains(node: Node) -> tuple[FailureDomainStatus, ...]:
    """Return all failure domains, in the order of daemons, servers and lowest PIDs. Their names are letters."""
    found = (
        (daemon, domain)
        for daemon in View(node).daemons()
        for domains in failure_domains(node, daemon).values()
        for domain in sorted(domains, key=lambda each: min(each.clients))
    )
    return tuple(
        filled(
            FailureDomainStatus,
            domain,
            name=_letter(number),
            daemon=printed(daemon.name),
            clients=tuple(sorted(domain.clients)),
            gpus=by_number(node, domain.gpus),
        )
        for number, (daemon, domain) in enumerate(found)
    )


def _letter(number: int) -> str:
    """Return A to Z, then AA and so on."""
    rest, last = divmod(number, len(ascii_uppercase))
    return (_letter(rest - 1) if rest else "") + ascii_uppercase[last]


def _daemon(
    data: StatusInput,
    daemon: Daemon,
    found: Sequence[Finding],
    domains: Sequence[FailureDomainStatus],
    memory: MemoryByProcess,
    kernels: Mapping[int, ClientKernels],
    only: Collection[int] | None,
) -> DaemonStatus:
    node, (severity, label) = data.node, severity_and_label(daemon, found)
    runtime, totals, limits, connections = daemon.runtime, daemon.totals, daemon.default_limits, daemon.connections
    of_daemon = [each for each in domains if each.daemon == printed(daemon.name)]
    domain_of = {pid: each.name for each in of_daemon for pid in each.clients}
    gpus = gpus_of_clients(node, daemon, daemon.clients)

    def client(each: Client) -> ClientStatus:
        pid = each.pid
        held, used = memory.get(pid, {}), gpus.get(pid, ())
        return client_status(node, each, held, used, domain_of.get(pid), kernels.get(pid))

    def server(each: Server) -> ServerStatus:
        running = node.processes.get(each.pid)
        user = names_of(node, each.pid).user or ("" if each.uid is None else str(each.uid))
        return filled(
            ServerStatus,
            each,
            user="all users" if daemon.serves_all_users else user,
            started_at=each.started_at if running is None else running.started,
            clients_limit=clients_limit(node, daemon, each),
            active_thread_ratio=daemon.thread_ratio(each.limits.active_thread_percentage),
            low_priority=bool(each.limits.client_priority),
            pinned_memory_limit_bytes=dict(memory_limits_by_gpu(node, daemon, each.limits.pinned_memory)),
            clients=tuple(client(of) for of in clients_of(daemon, each) if only is None or of.pid in only),
        )

    return filled(
        DaemonStatus,
        daemon,
        totals,
        runtime,
        daemon.declared,
        state=state_text(daemon),
        state_since=None if daemon.state is None else daemon.lifecycle.state_since,
        severity=severity,
        label=label,
        owner=owner_of(node, daemon),
        unit=printed(runtime.unit or daemon.declared.unit),
        foreign_uid=runtime.foreign_owner,
        static_partitions=daemon.has_static_partitions,
        active_thread_ratio=daemon.thread_ratio(limits.active_thread_percentage),
        pinned_memory_limit_bytes=dict(memory_limits_by_gpu(node, daemon, limits.pinned_memory)),
        client_count=len(daemon.clients),
        died=sum(totals.losses.values()),
        logs=tuple(_logs(daemon)),
        waiting=tuple(names_of(node, pid, connections.queued.get(pid)) for pid in sorted(connections.waiting)),
        watchdog=_watchdog(data, daemon, severity),
        servers=tuple(map(server, daemon.servers.values())),
    )


def _logs(daemon: Daemon) -> Iterable[LogStatus]:
    blocked = daemon.log.own_commands.blocked_since is not None
    for file, known in sorted(daemon.log.problems.items()):
        problem = LOG_BLOCKED if known is None and blocked else known
        if problem is not None:
            yield LogStatus(file=printable(file), problem=log_text(file, problem), blocked=known is None)


def _watchdog(data: StatusInput, daemon: Daemon, severity: Severity) -> WatchdogStatus | None:
    """Return the watchdog's state; an idle watchdog is not a good sign for a daemon that is not well."""
    node, policy, watch = data.node, data.policy, data.node.watches.get(daemon.name)
    if watch is None and (policy is None or not daemon.declared.expected):
        return None
    watch = watch or WatchdogState()
    found, quarantine, idle = watch.diagnosis, watch.quarantine, watch.phase is WatchdogPhase.IDLE
    definition = of_phase(watch.phase)
    return filled(
        WatchdogStatus,
        watch,
        found,
        mode=None if policy is None else policy.mode_of(daemon),
        state=watch.phase,
        label="idle" if idle else definition.label,
        severity=Severity.UNKNOWN if idle and severity is not Severity.WELL else definition.severity,
        text=watchdog_text(node, daemon),
        indications=() if found is None else printed(found.indications),
        process=None if found is None or found.process is None else found.process.pid,
        action=_action(watch),
        counts=tuple(filled(ActionCountStatus, each, action=each.kind) for each in watch.action_counts),
        restarts_left=None if policy is None else restart.restarts_left(watch, policy.thresholds, data.at),
        quarantined_at=None if quarantine is None else quarantine.at,
        quarantine_gpu=None if quarantine is None else printable(quarantine.gpu),
        quarantine_xid=None if quarantine is None else quarantine.xid,
    )


def _action(watch: WatchdogState) -> ActionStatus | None:
    acting, last = watch.acting, watch.last_action
    if acting is not None:
        return filled(ActionStatus, acting, action=acting.kind, begun=True)
    return None if last is None else filled(ActionStatus, last, action=last.kind)


def _gpus(
    view: View, found: Sequence[Finding], daemons: Iterable[DaemonStatus], only: Collection[int] | None
) -> tuple[GpuStatus, ...]:
    """Return the GPUs, in the order of their indices."""
    names = {each.pid: each for daemon in daemons for server in daemon.servers for each in server.clients}
    first_findings = {each.gpu: each for each in reversed(found)}
    roles = {client.pid: "client" for _, client in view.connected()}
    roles |= {server.pid: "server" for _, server in view.servers()}
    return tuple(
        _gpu(view, uuid, first_findings.get(uuid), roles, names, only) for uuid in by_number(view.node, view.node.gpus)
    )


def _gpu(
    view: View,
    uuid: str,
    finding: Finding | None,
    roles: Mapping[int, str],
    names: Mapping[int, ClientStatus],
    only: Collection[int] | None,
) -> GpuStatus:
    node, gpu, sharing = view.node, view.node.gpus[uuid], view.sharing.get(uuid)
    reading, mode = gpu.reading, sharing_mode(node, gpu)
    label, severity = MODES[mode]
    if finding is not None:
        label, severity = finding.definition.label, finding.severity
    if reading.problem is not None:
        label, severity = "cannot be read", Severity.UNKNOWN if finding is None else finding.severity
    held, used = used_bytes(reading), {} if sharing is None else sharing.shares
    clients = {} if sharing is None else {each.client.pid: each for each in sharing.clients}
    pids = sorted({*held, *gpu.outside, *clients}, key=lambda pid: (-held.get(pid, 0), pid))

    def process(pid: int) -> GpuProcess:
        usage = clients.get(pid)
        client, share = (None, used.get(pid)) if usage is None else (usage.client, usage.share)
        bandwidth, error = (None, None) if usage is None or usage.bandwidth is None else usage.bandwidth
        return filled(
            GpuProcess,
            names.get(pid) or names_of(node, pid),
            usage,
            client,
            share,
            role="bypassing" if pid in gpu.bypassing else roles.get(pid, "other"),
            memory_used_bytes=held.get(pid),
            sm_ratio=None if share is None else share.sm,
            sm_error_ratio=None if share is None else share.error,
            client=None if client is None else client_id(client, node.processes.get(pid)),
            dram_bandwidth_ratio=bandwidth,
            dram_bandwidth_error_ratio=error,
            slowdown=None if usage is None else slowdown_status(usage),
        )

    return filled(
        GpuStatus,
        reading,
        uuid=uuid,
        number=printable(gpu_name(node, uuid)),
        is_mig_instance=reading.mig is not None,
        mig_mode=bool(reading.mig_mode),
        severity=severity,
        label=label,
        mode=mode,
        problem=None if reading.problem is None else reason_status(reading.problem, CollectorName.NVML),
        utilization_ratio=None if reading.gpu_percent is None else reading.gpu_percent / 100,
        processes=tuple(process(pid) for pid in pids if only is None or pid in only),
        sharing=None if sharing is None else filled(SharingStatus, sharing, reserved=reserved(sharing)),
        sharing_sentences=() if sharing is None else (*sentences(node, sharing), *slowdown_sentences(node, sharing)),
    )


def _collector(name: str, source: CollectorState) -> CollectorStatus:
    last = source.last.problem
    return filled(
        CollectorStatus,
        source.last,
        name=printable(name),
        problem=source_text(name, source) or None,
        failed=last is not None,
        reasons=() if last is None else tuple(reason_status(each, name) for each in last.each),
        last_success_at=source.last_success,
    )


def summary_line(view: View, policy: Policy | None = None) -> str:
    """Return one line for the service manager. It is made at each publication, so without the whole document."""
    node, daemons = view.node, list(view.present())
    acting = [None if policy is None else policy.mode_of(each) for each in daemons if each.declared.expected]
    found = [each.text for each in findings(node, node.at, policy, view)]
    more = len(found) - MOST_IN_LINE
    parts = (
        SIMULATED if node.simulated else "",
        "" if policy is None else modes(policy.mode, acting),
        counts_of([(each.answers, len(each.clients), each.clients_known) for each in daemons]),
        *found[:MOST_IN_LINE],
        f"{counted(more, 'more problem')}" if more > 0 else "",
    )
    return "; ".join(filter(None, parts))
