"""Families of clients, of their kernel launches, of the workloads that they belong to, and of faults.

Only `cuda_mps_client_info` has a client's identity. The other families join it on `client`. The info of the last fault
has what a page needs; workloads have counters of their own.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from exporter.metrics.daemons import DAEMON, JOB
from exporter.metrics.family import NODE, Choice, Group, Items, Labels, Rows, Samples, Scope, Series, info, summed
from exporter.model.daemon import RECOVERY_SECONDS, Daemon
from exporter.model.identity import Confidence, WorkloadCounts, WorkloadIdentity, WorkloadKind
from exporter.model.incident import DEATHS, Incident, IncidentKind
from exporter.model.launches import LaunchCounts
from exporter.model.server import Client
from exporter.model.usage import Account, SharedAccount
from exporter.parse.printable import printable
from exporter.state.devices import failure_domains
from exporter.state.gpus import used_bytes
from exporter.state.processes import cgroup_of, pod_of, workload_of
from exporter.state.servers import in_crash_loop
from exporter.usage.accounting import memory_by_workload, workloads
from exporter.usage.last_minute import launch_counts, watched_ratio
from exporter.view import View


def _identities(view: View) -> Samples:
    """Read what is known of each client. `info` would be slower, and there can be many clients."""
    for daemon, client, client_id in view.clients:
        process = view.node.processes.get(client.pid)
        uid = "" if process is None or process.uid is None else str(process.uid)
        user, command = ("", "") if process is None else (process.user or "", process.command or "")
        known, pod = cgroup_of(process), pod_of(view.node, process)
        groups = (known.unit or "", known.container or "", known.pod_uid or "")
        names = ("", "") if pod is None else (pod.name, pod.namespace)
        job = (known.job_manager or "", known.job_id or "", known.job_slot or "", known.task or "")
        labels = (daemon.name, str(client.server), client_id, str(client.pid), uid, user, command)
        yield (*labels, *groups, *names, *job), 1


def _client_memory(view: View) -> Samples:
    used = [(gpu.reading.gpu, used_bytes(gpu.reading)) for gpu in view.node.gpus.values()]
    for daemon, client, client_id in view.clients:
        for gpu, by_pid in used:
            if client.pid in by_pid:
                yield (daemon.name, client_id, gpu), by_pid[client.pid]


def _failure_domain(view: View) -> Samples:
    """Count the other clients in each client's failure domain, which is found once for each daemon."""
    shown = view.clients
    others = {
        (name, pid): len(domain.clients) - 1
        for name, daemon in {daemon.name: daemon for daemon, *_ in shown}.items()
        for here in failure_domains(view.node, daemon).values()
        for domain in here
        for pid in domain.clients
    }
    for daemon, client, client_id in shown:
        if (daemon.name, client.pid) in others:
            yield (daemon.name, client_id), others[daemon.name, client.pid]


CLIENTS = Group(
    "Clients",
    "GPU memory by user",
    "sum by (user) (cuda_mps_client_memory_used_bytes\n"
    "  * on (job, instance, daemon, client) group_left (user) cuda_mps_client_info)",
    Series(
        "cuda_mps_client_info",
        (
            *("daemon", "server", "client", "pid", "uid", "user", "command", "unit", "client_container"),
            *("client_pod_uid", "client_pod", "client_namespace", *JOB, "job_slot", "task"),
        ),
        _identities,
    ).help("Identity of a connected client, always 1. Present from the age --client-min-age."),
    Series("cuda_mps_client_memory_used_bytes", ("daemon", "client", "gpu"), _client_memory).help(
        "GPU memory of the client, including its context, from NVML."
    ),
    Series("cuda_mps_client_failure_domain_clients", ("daemon", "client"), _failure_domain).help(
        "Other clients that a fatal fault of this client would end: they share GPUs with it, also indirectly. Absent "
        "if unknown."
    ),
    NODE.value("cuda_mps_exporter_clients_omitted", lambda view: view.omitted()).help(
        "Clients without series, because there are too many. Workload families count them."
    ),
)


_CLIENT: Scope[tuple[Daemon, Client]] = Scope(
    ("daemon", "client"),
    lambda view: (((daemon.name, client_id), (daemon, client)) for daemon, client, client_id in view.clients),
)
_PROBED: Scope[LaunchCounts] = _CLIENT.of(lambda view, each: launch_counts(view.node, each[1].pid))

LAUNCHES = Group(
    "Kernel launches (`--attribution=bpf`)",
    "kernel launches per second of each client",
    'rate(cuda_mps_client_kernel_launches_total{kind="kernel"}[5m])',
    _PROBED.values(
        "cuda_mps_client_kernel_launches_total",
        Choice("kind", ("graph", "kernel")),
        lambda each: {"graph": each.graphs, "kernel": each.kernels},
    ).help("Kernels and graphs (of many kernels) that the client launched. Absent if its libcuda is not watched."),
    _PROBED.value("cuda_mps_client_in_flight_seconds_total", lambda each: each.flight_ns / 1e9).help(
        "Seconds with work in flight, summed over streams: from a launch, a memset or a copy within the GPU on an idle "
        "stream to a synchronization. Absent if its libcuda is not watched."
    ),
    _CLIENT.of(lambda view, each: watched_ratio(view.node, each[1].pid))
    .value("cuda_mps_client_watched_ratio", float)
    .help(
        "Fraction of the last minute, or of the client's life, with counted launches: below 1 if probes were "
        "detached to limit their cost, 0 if its libcuda is not watched. Absent without working probes."
    ),
    NODE.value(
        "cuda_mps_exporter_launches_lost_total",
        lambda view: None if view.node.work is None else view.node.launch_history.lost,
    ).help("Launches not counted because a BPF map was full. Absent if no libcuda is watched."),
)


SHARED_KINDS = {
    SharedAccount.SERVER: "mps_server",
    SharedAccount.OTHERS: "others",
    SharedAccount.UNATTRIBUTED: "unattributed",
}
"""The label workload_kind of usage without a workload."""

WORKLOAD = (Choice("workload_kind", WorkloadKind), "workload")
ACCOUNT = (Choice("workload_kind", (*WorkloadKind, *SHARED_KINDS.values())), "workload")


def account_labels(account: Account) -> Labels:
    """Return the labels `ACCOUNT` of an account, which is not a closed one."""
    return (SHARED_KINDS[account], "") if isinstance(account, SharedAccount) else (account.kind, account.name)


def _workload_identities(view: View) -> Iterable[tuple[object, ...]]:
    """Return what is known of each workload with series. Names that print alike are one workload, as in `summed`."""
    identities = {**view.totals.identities, **view.node.usage_totals.identities}
    accounts: dict[Account, None] = dict.fromkeys((*view.node.accounts, *workloads(view.node).values()))
    for usage in view.totals.gpus.values():
        accounts.update(dict.fromkeys((*usage.memory_byte_ms, *(account for account, _ in usage.by_account))))
    accounts.pop(SharedAccount.CLOSED, None)
    found: dict[Labels, WorkloadIdentity] = {}
    for account in accounts:
        labels = tuple(map(printable, account_labels(account)))
        known = None if isinstance(account, SharedAccount) else identities.get(account)
        identity = known or WorkloadIdentity()
        found[labels] = found[labels].merged(identity) if labels in found else identity
    for labels, each in found.items():
        values = (each.namespace, each.pod, each.container, each.user, each.unit, each.job_manager, each.job_id)
        yield (*labels, *(value or "" for value in values), each.labels or {}), 1


def _account(name: str, count: Callable[[WorkloadCounts], int]) -> Series:
    return Series(
        name,
        WORKLOAD,
        lambda view: summed(((owner.kind, owner.name), count(each)) for owner, each in view.node.accounts.items()),
    )


WORKLOADS = Group(
    "Workloads",
    "workloads that were the main suspect of a fault in the last day",
    "increase(cuda_mps_workload_faults_suspected_total[1d]) > 0",
    Series(
        "cuda_mps_workload_clients",
        ("daemon", *WORKLOAD),
        lambda view: summed(
            ((daemon.name, owner.kind, owner.name), 1)
            for daemon, client in view.connected()
            if (owner := workload_of(view.node.processes.get(client.pid))) is not None
        ),
    ).help("Connected clients of the workload: the first known of job, pod (UID), task, container, unit, user."),
    Series(
        "cuda_mps_workload_memory_used_bytes",
        (*WORKLOAD, "gpu"),
        lambda view: summed(
            ((workload.kind, workload.name, gpu), amount)
            for gpu, held in memory_by_workload(view.node).items()
            for workload, amount in held.items()
        ),
    ).help("GPU memory of the workload's clients, including their contexts, from NVML."),
    _account("cuda_mps_workload_clients_connected_total", lambda each: each.connected).help(
        "Clients of the workload that connected. Those that exit within 0.3 s may be missing. Ends 20 minutes after "
        "its last client."
    ),
    _account("cuda_mps_workload_faults_affected_total", lambda each: each.faults_affected).help(
        "Faults that affected the workload's clients."
    ),
    _account("cuda_mps_workload_faults_suspected_total", lambda each: each.faults_suspected).help(
        "Faults with the workload's client as main suspect, with a confidence of 0.5 or more. A suspicion is no proof."
    ),
    Series(
        "cuda_mps_workload_faulted_clients_total",
        (*WORKLOAD, "suspect_workload", Choice("confidence", Confidence)),
        lambda view: summed(
            ((workload.kind, workload.name, *key), count)
            for workload, counts in view.node.accounts.items()
            for key, count in counts.faulted_clients.items()
        ),
    ).help(
        "Clients of the workload that faults affected, by main suspect as in cuda_mps_fault_info. Counted when the "
        "server has recovered. confidence is high from 0.8 and medium from 0.5 on. The first such fault adds a series."
    ),
)


IDENTITIES = Group(
    "Identity of workloads",
    "GPU memory of each namespace",
    "sum by (client_namespace) (cuda_mps_workload_memory_used_bytes\n"
    "  * on (job, instance, workload_kind, workload) group_left (client_namespace) cuda_mps_workload_info)",
    Series(
        "cuda_mps_workload_info",
        (*ACCOUNT, "client_namespace", "client_pod", "client_container", "user", "unit", *JOB),
        _workload_identities,
        more_labels=True,
    ).help(
        "Identity of each workload with series, always 1, with the labels of its pod as in cuda_mps_pod_labels. A "
        "label is empty if it is unknown, or if clients had different values. Ends with the workload's last series."
    ),
    Series(
        "cuda_mps_pod_labels",
        ("workload", "client_pod_uid", "client_pod", "client_namespace"),
        lambda view: (
            ((pod.uid, pod.uid, pod.name, pod.namespace, pod.labels), 1)
            for pod in view.node.pods.values()
            if pod.labels is not None
        ),
        more_labels=True,
    ).help(
        "Listed labels of a client's pod as label_NAME, read once, always 1. Absent if they could not be read. Ends "
        "20 minutes after the pod's last use."
    ),
)


def _last(view: View, *, is_fault: bool = True) -> Items[Incident]:
    """Return each daemon's last fault, or its last death, of those that are remembered."""
    last = {each.daemon: each for each in view.node.incidents.values() if each.is_fault is is_fault}
    incidents = (last[daemon.name] for daemon in view.daemons() if daemon.name in last)
    return (((each.daemon, each.id), each) for each in incidents)


_FAULTS = [kind for kind in IncidentKind if kind not in DEATHS]
_LAST: Scope[Incident] = Scope(("daemon", "incident"), _last)
_DEATHS: Scope[Incident] = Scope(
    ("daemon", "incident", Choice("kind", DEATHS)),
    lambda view: (((*labels, each.kind), each) for labels, each in _last(view, is_fault=False)),
)


def _fault_infos(view: View) -> Rows:
    for labels, incident in _last(view):
        suspect = incident.suspect
        known = (None, None) if suspect is None else (suspect.client.workload_label, f"{suspect.confidence:.2f}")
        yield (*labels, incident.kind, *known)


def _affected_workloads(view: View) -> Samples:
    affected = (
        (labels, incident.client_details[pid].workload)
        for labels, incident in _last(view)
        for pid in incident.affected
        if pid in incident.client_details
    )
    return summed(((*labels, owner.kind, owner.name), 1) for labels, owner in affected if owner is not None)


def _blocking(view: View) -> Samples:
    blocking: Counter[tuple[str, int]] = Counter()
    for incident in view.node.incidents.values():
        blocking[incident.daemon, incident.server] += len(incident.blockers)
    return (((daemon.name, str(server.pid)), blocking[daemon.name, server.pid]) for daemon, server in view.servers())


def _recoveries(view: View) -> Iterable[tuple[object, ...]]:
    for labels, daemon in DAEMON.items(view):
        recoveries = daemon.totals.fault_recoveries
        within = zip(map(floatToGoString, RECOVERY_SECONDS), recoveries.within, strict=True)
        yield labels, [*within, ("+Inf", recoveries.count)], recoveries.seconds


def _with_exemplars(name: str, count: Callable[[Daemon], int]) -> Series:
    """Return a counter of daemons. Its exemplar is the daemon's last incident; only OpenMetrics shows it."""

    def samples(view: View) -> Iterable[tuple[object, ...]]:
        last = {incident.daemon: incident for _, incident in _last(view)}
        for labels, daemon in DAEMON.items(view):
            incident = last.get(daemon.name)
            if incident is None:
                yield labels, count(daemon)
            else:
                exemplar = Exemplar({"incident": printable(incident.id)}, 1, incident.detected_at + view.clock_step)
                yield labels, count(daemon), None, None, exemplar

    return Series(name, DAEMON.labels, samples)


FAULTS = Group(
    "Faults",
    "faults of each daemon in the last day",
    "increase(cuda_mps_faults_total[1d]) > 0",
    _with_exemplars("cuda_mps_faults_total", lambda each: each.totals.faults).help(
        "Times that a server entered FAULT after a fatal GPU error, however briefly."
    ),
    DAEMON.time("cuda_mps_fault_last_timestamp_seconds", lambda each: each.connections.last_fault_at).help(
        "Unix time at which a server last entered FAULT."
    ),
    _with_exemplars("cuda_mps_fault_affected_clients_total", lambda each: each.totals.fault_affected).help(
        "Clients affected by faults, because they share a GPU with the cause, also indirectly."
    ),
    info(
        "cuda_mps_fault_info",
        ("daemon", "incident", Choice("kind", _FAULTS), "suspect_workload", "confidence"),
        _fault_infos,
    ).help(
        "The daemon's last fault, until one hour after its end. suspect_workload is kind/name or pid/N, confidence 0 "
        "to 1; both are empty without a suspect."
    ),
    _LAST.time("cuda_mps_incident_timestamp_seconds", lambda each: each.started_at).help(
        "Unix time at which the daemon's last fault began, until one hour after its end."
    ),
    _DEATHS.time("cuda_mps_death_timestamp_seconds", lambda each: each.started_at).help(
        "Unix time of the last death of the daemon or of one of its servers, until one hour after its end."
    ),
    _LAST.value("cuda_mps_fault_last_affected_clients", lambda each: len(each.affected) or None).help(
        "Clients affected by the last fault, until one hour after its end. Absent if unknown."
    ),
    Series("cuda_mps_fault_last_affected_workload_clients", (*_LAST.labels, *WORKLOAD), _affected_workloads).help(
        "Clients of the workload affected by the last fault, until one hour after its end."
    ),
    Series("cuda_mps_fault_blocking_clients", ("daemon", "server"), _blocking).help(
        "Affected clients that still run. Until they exit, the server refuses new clients."
    ),
    Series("cuda_mps_fault_recovery_seconds", ("daemon",), _recoveries, histogram=True).help(
        "Histogram of the duration of faults, until all contexts were destroyed."
    ),
    DAEMON.value("cuda_mps_client_faults_contained_total", lambda each: each.totals.faults_contained).help(
        "Faults that affected only their cause, such as a device-side assert."
    ),
    DAEMON.value("cuda_mps_server_crash_loops_total", lambda each: each.totals.crash_loops).help(
        "Times that servers began to exit repeatedly before they were ready."
    ),
    DAEMON.of(lambda view, each: in_crash_loop(each, view.node.at))
    .value("cuda_mps_server_crash_loop", bool)
    .help("Whether servers exit repeatedly before they are ready."),
)
