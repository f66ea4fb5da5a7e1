"""Families by owner: they stand where clients come and go too fast, or are too many, for series of their own."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from exporter.core.identity import used_bytes
from exporter.core.workloads import workload_of
from exporter.metrics.family import Labels, Samples, counter, gauge
from exporter.model.daemon import Daemon
from exporter.model.server import Client
from exporter.model.workload import Account
from exporter.parse.printable import printable
from exporter.view import View


def _owned(view: View) -> Iterable[tuple[Daemon, Client, Labels]]:
    """The clients whose owner is known, each with its daemon and its owner's labels.

    Names that look the same once they can be shown are one owner, since no two series may.
    """
    for daemon, client in view.connected():
        workload = workload_of(view.node.processes.get(client.pid))
        if workload is not None:
            yield daemon, client, (workload.kind, printable(workload.name))


def _clients(view: View) -> Samples:
    return Counter((daemon.name, *workload) for daemon, _, workload in _owned(view)).items()


def _memory(view: View) -> Samples:
    used = [(gpu.reading.gpu, used_bytes(gpu.reading)) for gpu in view.node.gpus.values()]
    totals: defaultdict[Labels, int] = defaultdict(int)
    owners = {client.pid: workload for _, client, workload in _owned(view)}
    for gpu, by_pid in used:
        for pid in owners.keys() & by_pid:
            totals[(*owners[pid], gpu)] += by_pid[pid]
    return totals.items()


def _counted(count: Callable[[Account], int]) -> Callable[[View], Samples]:
    def samples(view: View) -> Samples:
        totals: Counter[Labels] = Counter()
        for workload, account in view.node.accounts.items():
            totals[workload.kind, printable(workload.name)] += count(account)
        return totals.items()

    return samples


FAMILIES = (
    gauge(
        "cuda_mps_workload_clients",
        ("daemon", "workload_kind", "workload"),
        "Connected clients of an owner: a Slurm job, pod (by UID), container, unit or user, the first that is known.",
        _clients,
    ),
    gauge(
        "cuda_mps_workload_memory_used_bytes",
        ("workload_kind", "workload", "gpu"),
        "GPU memory that an owner's clients use, their contexts included, as NVML last read it.",
        _memory,
    ),
    counter(
        "cuda_mps_workload_clients_connected_total",
        ("workload_kind", "workload"),
        "Clients of an owner that have connected; it ends when the owner has had none for an hour.",
        _counted(lambda account: account.connected),
    ),
    counter(
        "cuda_mps_workload_faults_affected_total",
        ("workload_kind", "workload"),
        "Faults that hit clients of an owner, each once; whoever did it.",
        _counted(lambda account: account.faults_affected),
    ),
    counter(
        "cuda_mps_workload_faults_suspected_total",
        ("workload_kind", "workload"),
        "Faults of which a client of an owner was the likeliest cause, with a confidence of at least 0.5.",
        _counted(lambda account: account.faults_suspected),
    ),
)
