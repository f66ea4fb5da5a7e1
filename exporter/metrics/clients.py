"""Families of clients, of their kernel launches, and of the workloads that they belong to.

Only `cuda_mps_client_info` has a client's identity. The other families join it on `client`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable

from exporter.metrics.family import NODE, Choice, Items, Labels, Samples, Scope, family, group
from exporter.model.identity import WorkloadCounts, WorkloadKind
from exporter.model.launches import LaunchCounts
from exporter.parse.printable import printable
from exporter.state.failure_domains import failure_domains
from exporter.state.gpus import used_bytes
from exporter.state.processes import cgroup_of, pod_of, workload_of
from exporter.usage.launch_history import launch_counts, watched_fraction
from exporter.usage.sampling import memory_by_workload
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
        job = (known.slurm_job_id or "", known.slurm_job_sluid or "", known.task or "")
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


CLIENTS = group(
    "Clients",
    "GPU memory by user",
    "sum by (user) (cuda_mps_client_memory_used_bytes\n"
    "  * on (job, instance, daemon, client) group_left (user) cuda_mps_client_info)",
    family(
        "cuda_mps_client_info",
        (
            *("daemon", "server", "client", "pid", "uid", "user", "command", "unit", "client_container"),
            *("client_pod_uid", "client_pod", "client_namespace", "slurm_job_id", "slurm_job_sluid", "task"),
        ),
        _identities,
    ),
    "Identity of a connected client, always 1. It appears when the client has the age --client-min-age.",
    family("cuda_mps_client_memory_used_bytes", ("daemon", "client", "gpu"), _client_memory),
    "GPU memory that the client uses, including its context, from NVML.",
    family("cuda_mps_client_failure_domain_clients", ("daemon", "client"), _failure_domain),
    "Other clients that a fatal fault of this client would end, because they share GPUs with it, directly or "
    "through others. Absent if unknown.",
    NODE.value("cuda_mps_exporter_clients_omitted", lambda view: view.omitted()),
    "Clients without their own series because there are too many. The workload families count them.",
)


def _probed(view: View) -> Items[LaunchCounts]:
    """Return the counts of each client that the libcuda probes watch."""
    for daemon, client, client_id in view.clients:
        found = launch_counts(view.node, client.pid)
        if found is not None:
            yield (daemon.name, client_id), found


_PROBED: Scope[LaunchCounts] = Scope(("daemon", "client"), _probed)

LAUNCHES = group(
    "Kernel launches (`--attribution=bpf`)",
    "kernel launches per second of each client",
    'rate(cuda_mps_client_kernel_launches_total{kind="kernel"}[5m])',
    _PROBED.values(
        "cuda_mps_client_kernel_launches_total",
        Choice("kind", ("graph", "kernel")),
        lambda each: {"graph": each.graphs, "kernel": each.kernels},
    ),
    "Kernels and graphs (many kernels each) that the client launched. Absent if its libcuda is not watched.",
    _PROBED.value("cuda_mps_client_in_flight_seconds_total", lambda each: each.flight_ns / 1e9),
    "Seconds with work in flight, summed over streams: from a launch on an idle stream until a "
    "synchronization returns. Absent if libcuda is not watched.",
    NODE.value(
        "cuda_mps_exporter_launches_lost_total",
        lambda view: None if view.node.work is None else view.node.launch_history.lost,
    ),
    "Kernel launches that were not counted because a BPF map was full. Absent if no libcuda is watched.",
    NODE.value("cuda_mps_exporter_attribution_watched_ratio", lambda view: watched_fraction(view.node)),
    "Fraction of the last minute in which the clients' libcuda was watched. Less than 1 if the probes rested "
    "to limit their cost, 0 if no process uses CUDA. Absent without working probes.",
)


def _workload_clients(view: View) -> Samples:
    """Count clients. Workloads with equal printable names are one, because no two series may have the same labels."""
    counts: Counter[Labels] = Counter()
    for daemon, client in view.connected():
        workload = workload_of(view.node.processes.get(client.pid))
        if workload is not None:
            counts[daemon.name, workload.kind, printable(workload.name)] += 1
    return counts.items()


def _workload_memory(view: View) -> Samples:
    totals: defaultdict[Labels, int] = defaultdict(int)
    for gpu, held in memory_by_workload(view.node).items():
        for workload, amount in held.items():
            totals[workload.kind, printable(workload.name), gpu] += amount
    return totals.items()


def _account(count: Callable[[WorkloadCounts], int]) -> Callable[[View], Samples]:
    def samples(view: View) -> Samples:
        totals: Counter[Labels] = Counter()
        for workload, account in view.node.accounts.items():
            totals[workload.kind, printable(workload.name)] += count(account)
        return totals.items()

    return samples


_WORKLOAD = (Choice("workload_kind", WorkloadKind), "workload")

WORKLOADS = group(
    "Workloads",
    "workloads that were the likely cause of a fault in the last day",
    "increase(cuda_mps_workload_faults_suspected_total[1d]) > 0",
    family("cuda_mps_workload_clients", ("daemon", *_WORKLOAD), _workload_clients),
    "Connected clients of the workload: a Slurm job, pod (by UID), task (Amazon ECS, Nomad), container, unit or user, "
    "the first that is known.",
    family("cuda_mps_workload_memory_used_bytes", (*_WORKLOAD, "gpu"), _workload_memory),
    "GPU memory that the workload's clients use, including their contexts, from NVML.",
    family("cuda_mps_workload_clients_connected_total", _WORKLOAD, _account(lambda each: each.connected)),
    "Clients of the workload that connected. The series ends one hour after the workload's last client.",
    family("cuda_mps_workload_faults_affected_total", _WORKLOAD, _account(lambda each: each.faults_affected)),
    "Faults that affected clients of the workload.",
    family("cuda_mps_workload_faults_suspected_total", _WORKLOAD, _account(lambda each: each.faults_suspected)),
    "Faults that a client of the workload most likely caused, with a confidence of at least 0.5.",
)
