"""Families about clients. Who a client is stands on its info alone; the others join it on `client`."""

from exporter.core.domains import domains
from exporter.core.identity import used_bytes
from exporter.core.workloads import belonging_of, pod_of
from exporter.metrics.family import Labels, Samples, gauge
from exporter.model.observation import ProcessReading
from exporter.view import View

OWNERS = (
    "unit",
    "client_container",
    "client_pod_uid",
    "client_pod",
    "client_namespace",
    "slurm_job_id",
    "slurm_job_sluid",
)
"""To whom a client belongs, as far as it is known; with a prefix where Prometheus may put labels of its own."""


def _info(view: View) -> Samples:
    for daemon, client, client_id in view.clients():
        process = view.node.processes.get(client.pid)
        yield (daemon.name, str(client.server), client_id, str(client.pid), *_who(process), *_owners(view, process)), 1


def _who(process: ProcessReading | None) -> Labels:
    if process is None:
        return "", "", ""
    return "" if process.uid is None else str(process.uid), process.user or "", process.command or ""


def _owners(view: View, process: ProcessReading | None) -> Labels:
    owners, pod = belonging_of(process), pod_of(view.node, process)
    return (
        owners.unit or "",
        owners.container or "",
        owners.pod_uid or "",
        "" if pod is None else pod.name,
        "" if pod is None else pod.namespace,
        owners.slurm_job_id or "",
        owners.slurm_job_sluid or "",
    )


def _memory(view: View) -> Samples:
    used = [(gpu.reading.gpu, used_bytes(gpu.reading)) for gpu in view.node.gpus.values()]
    for daemon, client, client_id in view.clients():
        for gpu, by_pid in used:
            if client.pid in by_pid:
                yield (daemon.name, client_id, gpu), by_pid[client.pid]


def _failure_domain(view: View) -> Samples:
    """The domains are worked out once for a daemon, and not for each client."""
    shown = tuple(view.clients())
    others = {
        (name, pid): len(domain.clients) - 1
        for name, daemon in {daemon.name: daemon for daemon, *_ in shown}.items()
        for here in domains(view.node, daemon).values()
        for domain in here
        for pid in domain.clients
    }
    for daemon, client, client_id in shown:
        if (daemon.name, client.pid) in others:
            yield (daemon.name, client_id), others[daemon.name, client.pid]


FAMILIES = (
    gauge(
        "cuda_mps_client_info",
        ("daemon", "server", "client", "pid", "uid", "user", "command", *OWNERS),
        "Who a connected client is, once it is of the age that --client-min-age sets; join on client.",
        _info,
    ),
    gauge(
        "cuda_mps_client_memory_used_bytes",
        ("daemon", "client", "gpu"),
        "GPU memory that the client uses, its context included, as NVML last read it.",
        _memory,
    ),
    gauge(
        "cuda_mps_client_failure_domain_clients",
        ("daemon", "client"),
        "How many other clients a fatal fault of this one would end: those that share a GPU with it on its server, and "
        "those that share one with them. Absent where it cannot be told on which GPUs it is.",
        _failure_domain,
    ),
    gauge(
        "cuda_mps_exporter_clients_omitted",
        (),
        "Clients without series of their own because there are too many; the families by workload count them too.",
        lambda view: (((), view.omitted()),),
    ),
)
