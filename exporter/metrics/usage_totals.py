"""Families of usage totals, of the SM time in the last minute, and of capacity."""

from collections import defaultdict
from collections.abc import Callable, Iterable

from exporter.metrics.family import Choice, Items, Labels, Samples, Scope, family, group
from exporter.model.identity import WorkloadKind
from exporter.model.usage import Account, GpuUsage, Method, Share, SharedAccount, Usage
from exporter.parse.printable import printable
from exporter.usage.capacity import Bound, GpuSharing, thread_ratio
from exporter.usage.last_minute import fresh_splits
from exporter.view import View

SHARED_ACCOUNTS = {
    SharedAccount.SERVER: "mps_server",
    SharedAccount.OTHERS: "others",
    SharedAccount.UNATTRIBUTED: "unattributed",
}
"""The label workload_kind of an account without a workload."""

SM_PARTS, ENERGY_PARTS, MEMORY_PARTS = 1_000_000, 1000, 1000
"""Microseconds in a second, millijoules in a joule, milliseconds in a second: totals are integers."""


def _with_sm_time(view: View) -> Items[GpuUsage]:
    """Return the usage of the GPUs with known SM time: without GPM, only of those with estimates by launches."""
    for uuid, usage in view.gpu_usage():
        gpu = view.node.gpus.get(uuid)
        if usage.total.sm_us or (gpu is not None and gpu.has_gpm):
            yield (uuid,), usage


_GPU: Scope[GpuUsage] = Scope(("gpu",), lambda view: (((gpu,), usage) for gpu, usage in view.gpu_usage()))
_GPU_SM: Scope[GpuUsage] = Scope(("gpu",), _with_sm_time)


def _labels(account: Account) -> Labels:
    return (
        (SHARED_ACCOUNTS[account], "")
        if isinstance(account, SharedAccount)
        else (account.kind, printable(account.name))
    )


def _summed(amounts: Iterable[tuple[Labels, int]], parts: int) -> Samples:
    """Add up amounts with equal labels: names can be equal once they are printable. Integers keep the sum exact."""
    totals: defaultdict[Labels, int] = defaultdict(int)
    for labels, amount in amounts:
        totals[labels] += amount
    return ((labels, amount / parts) for labels, amount in totals.items())


def _used(of: Callable[[Usage], int], parts: int, gpus: Scope[GpuUsage]) -> Callable[[View], Samples]:
    """Read the usage of each account, by method."""

    def amounts(view: View) -> Iterable[tuple[Labels, int]]:
        for labels, usage in gpus.items(view):
            for (account, method), used in usage.by_account.items():
                if account is not SharedAccount.CLOSED:
                    yield (*labels, *_labels(account), "" if method is None else method.value), of(used)

    return lambda view: _summed(amounts(view), parts)


def _closed(of: Callable[[Usage], int], parts: int) -> Callable[[GpuUsage], float]:
    """Read the usage of workloads with ended series."""
    return lambda usage: (
        sum(of(used) for (account, _), used in usage.by_account.items() if account is SharedAccount.CLOSED) / parts
    )


def _memory(view: View) -> Samples:
    amounts = (
        ((gpu, *_labels(account)), amount)
        for gpu, usage in view.gpu_usage()
        for account, amount in usage.memory_byte_ms.items()
        if account is not SharedAccount.CLOSED
    )
    return _summed(amounts, MEMORY_PARTS)


def _shares(view: View) -> Items[Share]:
    splits = fresh_splits(view.node)
    for daemon, client, client_id in view.clients:
        for gpu, split in splits.items():
            if client.pid in split.shares:
                yield (daemon.name, client_id, gpu), split.shares[client.pid]


_SHARE: Scope[Share] = Scope(("daemon", "client", "gpu"), _shares)
_WORKLOAD = (Choice("workload_kind", (*WorkloadKind, *SHARED_ACCOUNTS.values())), "workload")

USAGE = group(
    "Usage totals and SM time",
    "SM time of each workload in the last day, in hours of a whole GPU",
    "sum by (workload_kind, workload) (increase(cuda_mps_workload_sm_seconds_total[1d])) / 3600",
    family(
        "cuda_mps_workload_sm_seconds_total",
        ("gpu", *_WORKLOAD, Choice("method", ("", *Method))),
        _used(lambda used: used.sm_us, SM_PARTS, _GPU_SM),
    ),
    "SM time of the workload, in seconds of the whole GPU. The series ends a day after the last use.",
    family(
        "cuda_mps_workload_energy_joules_total",
        ("gpu", *_WORKLOAD, Choice("method", ("", *Method))),
        _used(lambda used: used.energy_mj, ENERGY_PARTS, _GPU),
    ),
    "Energy of the GPU, divided among workloads in proportion to SM time. Unattributed if that is unknown.",
    family("cuda_mps_workload_memory_byte_seconds_total", ("gpu", *_WORKLOAD), _memory),
    "GPU memory of the workload's processes, multiplied by time: 3.6e12 is a gigabyte for an hour.",
    _GPU_SM.value("cuda_mps_gpu_sm_seconds_total", lambda usage: usage.total.sm_us / SM_PARTS),
    "SM time of the GPU: the sum over workloads and ended series. Without GPM, that of the estimates by launches.",
    _GPU.value("cuda_mps_gpu_accounted_energy_joules_total", lambda usage: usage.total.energy_mj / ENERGY_PARTS),
    "Energy of the GPU while the exporter ran: the sum over workloads and ended series.",
    _GPU_SM.value("cuda_mps_gpu_closed_sm_seconds_total", _closed(lambda used: used.sm_us, SM_PARTS)),
    "SM time of workloads with ended series.",
    _GPU.value("cuda_mps_gpu_closed_energy_joules_total", _closed(lambda used: used.energy_mj, ENERGY_PARTS)),
    "Energy of workloads with ended series.",
    _SHARE.values(
        "cuda_mps_client_sm_utilization_ratio", Choice("method", Method), lambda share: {share.method: share.sm}
    ),
    "Fraction of the GPU's SM capacity that the client used in the last minute. Absent if unknown.",
    _SHARE.value("cuda_mps_client_sm_utilization_error_ratio", lambda share: share.error),
    "Standard error of the client's SM utilization, including the time for which it is unknown.",
    family(
        "cuda_mps_gpu_sm_unattributed_ratio",
        ("gpu",),
        lambda view: (((gpu,), split.unattributed) for gpu, split in fresh_splits(view.node).items() if split.measured),
    ),
    "Fraction of SM capacity used in the last minute that could not be attributed to a process. Absent without GPM.",
)

_CAPACITY: Scope[GpuSharing] = Scope(("gpu",), lambda view: (((gpu,), use) for gpu, use in view.sharing.items()))


def _client_threads(view: View) -> Samples:
    for daemon, client, client_id in view.clients:
        ratio = thread_ratio(view.node, daemon, client)
        if ratio is not None:
            yield (daemon.name, client_id), ratio


def _client_memory_limit(view: View) -> Samples:
    shown = {(daemon.name, client.pid): client_id for daemon, client, client_id in view.clients}
    for gpu, sharing in view.sharing.items():
        for client in sharing.clients:
            client_id = shown.get((client.daemon, client.client.pid))
            if client_id is not None and client.memory_limit is not None:
                yield (client.daemon, client_id, gpu), client.memory_limit


CAPACITY = group(
    "Capacity",
    "how many more clients fit on each GPU at most",
    "min by (job, instance, gpu) (cuda_mps_gpu_clients_fit)"
    ' and on (job, instance, gpu) cuda_mps_gpu_clients_fit{bound="memory"}',
    _CAPACITY.values("cuda_mps_gpu_clients_fit", Choice("bound", Bound), lambda sharing: sharing.headroom.by_bound),
    "Number of further clients, similar to those on the GPU, that fit by this bound. Absent if unknown.",
    _CAPACITY.value("cuda_mps_gpu_thread_percentage_committed_ratio", lambda sharing: sharing.threads_committed),
    "Sum of the fractions of the GPU's threads that its clients may use. Absent if the limit of a client is unknown.",
    _CAPACITY.value("cuda_mps_gpu_pinned_memory_committed_ratio", lambda sharing: sharing.memory_committed),
    "Sum of the memory limits of the GPU's clients, divided by its memory. Absent if a client's limit is unknown or "
    "not set.",
    family("cuda_mps_client_active_thread_ratio", ("daemon", "client"), _client_threads),
    "Fraction of a GPU's threads that the client may use: the smaller limit of its server and of its own environment. "
    "Absent if unknown.",
    family("cuda_mps_client_pinned_memory_limit_bytes", ("daemon", "client", "gpu"), _client_memory_limit),
    "GPU memory that the client may allocate: the smallest limit of its server and of its own environment. Absent if "
    "unknown or not set.",
)
