"""Families of GPUs and Xids, of their use by workloads, and of capacity.

A GPU that NVML could not read has no values; it is only reported as not up. An Xid that never occurred has a 0 as long
as the kernel log or NVML's events can be read. A count stays, also when both sources fail or the GPU is gone.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from math import fsum

from exporter.metrics.clients import ACCOUNT, WORKLOAD, account_labels
from exporter.metrics.family import NODE, Choice, Group, Items, Labels, Rows, Samples, Scope, Series, info, summed
from exporter.model.contention import Resource
from exporter.model.identity import WorkloadKind
from exporter.model.incident import XidCount
from exporter.model.node import CollectorName, Gpu, Node, SharingMode
from exporter.model.observation import GpuReading
from exporter.model.usage import GpuUsage, Method, Share, SharedAccount, Usage
from exporter.parse.kernel_log import REBOOT, RESET
from exporter.parse.printable import printable
from exporter.state.devices import serving_daemons
from exporter.state.gpus import sharing_mode
from exporter.state.processes import workload_of
from exporter.state.xids import WELL_KNOWN, unresolved
from exporter.usage.capacity import Bound, ClientUsage, GpuSharing
from exporter.usage.last_minute import fresh_splits
from exporter.view import View, gpu_name

COMPUTE_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")

MAX_BYPASSING = 128


_GPU: Scope[Gpu] = Scope(
    ("gpu",),
    lambda view: (((gpu.reading.gpu,), gpu) for gpu in view.node.gpus.values() if gpu.reading.problem is None),
)
"""The GPUs that could be read."""
_READING: Scope[GpuReading] = _GPU.of(lambda _, gpu: gpu.reading)
_XID: Scope[XidCount] = Scope(("gpu", "xid"), lambda view: view.node.xids.counts.items())


def _infos(view: View) -> Rows:
    for each in (gpu.reading for gpu in view.node.gpus.values()):
        index = each.index if each.mig is None else gpu_name(view.node, each.gpu)
        yield each.gpu, index, each.name, each.pci_bus_id


def _instances(view: View) -> Rows:
    for gpu in view.node.gpus.values():
        mig = gpu.reading.mig
        if mig is not None:
            yield gpu.reading.gpu, mig.parent, mig.gpu_instance, mig.compute_instance, mig.profile


def _driver(view: View) -> Rows:
    """Read the driver's version. All GPUs have one driver; after an upgrade, the last reading has its version."""
    readings = [each for _, each in _READING.items(view) if each.driver_version is not None]
    last = max(readings, key=lambda reading: reading.at, default=None)
    return [] if last is None else [(last.driver_version, last.cuda_version)]


def _bypassing_counts(view: View) -> Samples:
    for labels, gpu in _GPU.items(view):
        if gpu.bypassing_known:
            names = [daemon.name for daemon in serving_daemons(view.node, gpu.reading)] or [""]
            counts = Counter(gpu.bypassing_processes[pid].daemon for pid in gpu.bypassing)
            yield from (((name, *labels), counts[name]) for name in names)


def _bypassing(view: View) -> Rows:
    """Return the identities of the bypassing processes on each GPU; of too many, those that were seen first."""
    node = view.node
    found = sorted(
        (gpu.bypassing_processes[pid].first_seen, uuid, pid)
        for uuid, gpu in node.gpus.items()
        if gpu.bypassing_known
        for pid in gpu.bypassing
    )
    pids = set(list(dict.fromkeys(pid for *_, pid in found))[:MAX_BYPASSING])
    for _, uuid, pid in (each for each in found if each[-1] in pids):
        process = node.processes.get(pid)
        workload = workload_of(process)
        named = (None, None) if process is None else (process.user, process.command)
        owner = (None, None) if workload is None else (workload.kind, workload.name)
        yield uuid, pid, *named, *owner


GPUS = Group(
    "GPUs",
    "GPUs with CUDA processes that bypass MPS",
    "cuda_mps_bypassing_processes > 0",
    Series(
        "cuda_mps_gpu_up",
        ("gpu",),
        lambda view: (((gpu.reading.gpu,), gpu.reading.problem is None) for gpu in view.node.gpus.values()),
    ).help("Whether NVML could read the GPU."),
    info("cuda_mps_gpu_info", ("gpu", "index", "name", "pci_bus_id"), _infos).help(
        "The GPU or MIG instance, always 1. index is NVML's; an instance has GPU/GPU instance/compute instance."
    ),
    info("cuda_mps_gpu_mig_info", ("gpu", "parent", "gpu_instance", "compute_instance", "profile"), _instances).help(
        "The MIG instance gpu of the GPU parent, always 1."
    ),
    _READING.value("cuda_mps_gpu_mig_sms", lambda each: None if each.mig is None else each.mig.sms).help(
        "SMs of the MIG instance."
    ),
    info("cuda_mps_driver_info", ("driver", "cuda"), _driver).help(
        "Version of the NVIDIA driver, and its newest supported CUDA; always 1."
    ),
    _GPU.value("cuda_mps_gpu_discarded_values_total", lambda each: each.discarded).help(
        "Impossible values of NVML, such as 4 MW, that were ignored."
    ),
    _GPU.of(lambda view, gpu: sharing_mode(view.node, gpu))
    .state("cuda_mps_gpu_sharing_mode", Choice("mode", SharingMode), str)
    .help("How processes share the GPU; exactly one mode is 1. Absent if unknown."),
    _READING.state("cuda_mps_gpu_compute_mode", Choice("mode", COMPUTE_MODES), lambda each: each.compute_mode).help(
        "NVML's compute mode; exactly one mode is 1."
    ),
    _READING.value(
        "cuda_mps_gpu_memory_used_bytes", lambda each: None if each.instances else each.memory_used_bytes
    ).help(
        "GPU memory in use, more than the sum over processes. With MIG, only instances have it: of several compute "
        "instances in a GPU instance, the first."
    ),
    _READING.value(
        "cuda_mps_gpu_memory_total_bytes", lambda each: None if each.instances else each.memory_total_bytes
    ).help("GPU memory. With MIG, as in cuda_mps_gpu_memory_used_bytes."),
    _READING.value("cuda_mps_gpu_sm_utilization_ratio", lambda each: each.sm_utilization).help(
        "Fraction of SM capacity used between the last two readings, from GPM."
    ),
    _READING.value("cuda_mps_gpu_dram_bandwidth_ratio", lambda each: each.dram_bandwidth).help(
        "Fraction of memory bandwidth used between the last two readings, from GPM."
    ),
    _READING.value(
        "cuda_mps_gpu_power_watts",
        lambda each: None if each.power_milliwatts is None else each.power_milliwatts / 1000,
    ).help("Power draw of the board."),
    _GPU.value(
        "cuda_mps_gpu_energy_joules_total",
        lambda each: (
            None if each.reading.energy_millijoules is None or each.energy is None else each.energy.total / 1000
        ),
    ).help("Energy of the GPU since the driver was loaded, at least."),
    Series("cuda_mps_bypassing_processes", ("daemon", "gpu"), _bypassing_counts).help(
        "CUDA processes that bypass the daemon on a GPU that it serves or should serve. A process counts on each "
        "of its GPUs."
    ),
    info(
        "cuda_mps_bypassing_process_info",
        ("gpu", "pid", "user", "command", Choice("workload_kind", ("", *WorkloadKind)), "workload"),
        _bypassing,
    ).help("CUDA process that bypasses MPS on a GPU, always 1. Only the first 128 processes."),
)


def _xids(view: View) -> Samples:
    zeros = ((gpu, str(number)) for gpu in view.node.gpus for number in WELL_KNOWN)
    found = dict.fromkeys(zeros, 0) if _can_be_read(view.node) else {}
    found.update({key: count.total for key, count in view.node.xids.counts.items()})
    return found.items()


def _can_be_read(node: Node) -> bool:
    """Return whether Xids can be read. A recording may lack the sources: then a counted Xid shows it."""
    sources = [node.sources[name] for name in (CollectorName.KERNEL, CollectorName.NVML_EVENTS) if name in node.sources]
    if not sources:
        return bool(node.xids.counts)
    return any(source.last.problem is None for source in sources)


XIDS = Group(
    "Xids (errors of the NVIDIA driver)",
    "Xids of the last hour",
    "increase(cuda_mps_xid_errors_total[1h]) > 0",
    Series("cuda_mps_xid_errors_total", ("gpu", "xid"), _xids).help(
        "Xids from the kernel log or NVML, each counted once. gpu is the PCI address if no UUID is known."
    ),
    _XID.time("cuda_mps_xid_last_timestamp_seconds", lambda count: count.last_at).help(
        "Unix time of the last such Xid."
    ),
    Series(
        "cuda_mps_gpu_hardware_xid_timestamp_seconds",
        ("gpu", "xid", Choice("action", (RESET, REBOOT, ""))),
        lambda view: (((xid.gpu, str(xid.xid), xid.action), xid.at + view.clock_step) for xid in unresolved(view.node)),
    ).help(
        "Unix time of an Xid that no program causes, while it is a problem: with an action, until a reset or an "
        "operator's resume; else for an hour. Absent while a quarantine reports it."
    ),
    NODE.value(
        "cuda_mps_exporter_fault_addresses_unrecognized_total",
        lambda view: view.node.xids.addresses_unrecognized if _can_be_read(view.node) else None,
    ).help("Xids 31 without a faulting address in a known form."),
)


SM_PARTS, ENERGY_PARTS, MEMORY_PARTS = 1_000_000, 1000, 1000
"""Microseconds in a second, millijoules in a joule, milliseconds in a second: totals are integers."""


def _sm_usage(view: View) -> Items[GpuUsage]:
    """Return the usage of the GPUs: without GPM, only what was estimated by launches."""
    for uuid, usage in view.totals.gpus.items():
        gpu = view.node.gpus.get(uuid)
        if usage.total.sm_us or (gpu is not None and gpu.has_gpm):
            yield (uuid,), usage


_USAGE: Scope[GpuUsage] = Scope(("gpu",), lambda view: (((gpu,), usage) for gpu, usage in view.totals.gpus.items()))
_SM_USAGE: Scope[GpuUsage] = Scope(("gpu",), _sm_usage)


def _contention(name: str, of: Callable[[Usage], int]) -> Series:
    """Return what the workloads lost to each other, or cost each other, if probes counted their launches."""

    def samples(view: View) -> Samples:
        amounts = (
            ((gpu, *account_labels(account)), of(used))
            for gpu, usage in view.totals.gpus.items()
            for (account, method), used in usage.by_account.items()
            if account is not SharedAccount.CLOSED and (of(used) or method in (Method.FLIGHT, Method.LAUNCHES))
        )
        return summed(amounts, SM_PARTS)

    return Series(name, ("gpu", *ACCOUNT), samples)


def _used(name: str, of: Callable[[Usage], int], parts: int, scope: Scope[GpuUsage]) -> Series:
    def amounts(view: View) -> Iterable[tuple[Labels, int]]:
        for labels, usage in scope.items(view):
            for (account, method), used in usage.by_account.items():
                if account is not SharedAccount.CLOSED and (used.sm_us or used.energy_mj):
                    yield (*labels, *account_labels(account), "" if method is None else method.value), of(used)

    labels = ("gpu", *ACCOUNT, Choice("method", ("", *Method)))
    return Series(name, labels, lambda view: summed(amounts(view), parts))


def _closed(of: Callable[[Usage], int], parts: int) -> Callable[[GpuUsage], float]:
    return lambda usage: (
        sum(of(used) for (account, _), used in usage.by_account.items() if account is SharedAccount.CLOSED) / parts
    )


def _memory(view: View) -> Samples:
    amounts = (
        ((gpu, *account_labels(account)), amount)
        for gpu, usage in view.totals.gpus.items()
        for account, amount in usage.memory_byte_ms.items()
        if account is not SharedAccount.CLOSED
    )
    return summed(amounts, MEMORY_PARTS)


def _shares(view: View) -> Items[Share]:
    splits = fresh_splits(view.node)
    for daemon, client, client_id in view.clients:
        for gpu, split in splits.items():
            if (share := split.since_begin(client.pid)) is not None:
                yield (daemon.name, client_id, gpu), share


def _usages(view: View) -> Items[ClientUsage]:
    shown = {(daemon.name, client.pid): client_id for daemon, client, client_id in view.clients}
    for gpu, sharing in view.sharing.items():
        for each in sharing.clients:
            client_id = shown.get((each.daemon, each.client.pid))
            if client_id is not None:
                yield (each.daemon, client_id, gpu), each


_CLIENT_USAGE: Scope[ClientUsage] = Scope(("daemon", "client", "gpu"), _usages)
_SLOWDOWN = _CLIENT_USAGE.of(lambda _, each: each.slowdown)
_BANDWIDTH = _CLIENT_USAGE.of(lambda _, each: each.bandwidth)
_SHARE: Scope[Share] = Scope(("daemon", "client", "gpu"), _shares)

USAGE = Group(
    "Usage totals and SM time",
    "SM time of each workload in the last day, in hours of a whole GPU",
    "sum by (workload_kind, workload) (increase(cuda_mps_workload_sm_seconds_total[1d])) / 3600",
    _used("cuda_mps_workload_sm_seconds_total", lambda used: used.sm_us, SM_PARTS, _SM_USAGE).help(
        "SM time of the workload, in seconds of the whole GPU, if certain enough. Ends 20 minutes after the last use."
    ),
    _used("cuda_mps_workload_energy_joules_total", lambda used: used.energy_mj, ENERGY_PARTS, _USAGE).help(
        "Energy of the GPU, divided in proportion to SM time. Unattributed if that is unknown."
    ),
    Series("cuda_mps_workload_memory_byte_seconds_total", ("gpu", *ACCOUNT), _memory).help(
        "GPU memory of the workload multiplied by time: 3.6e12 is a gigabyte for an hour."
    ),
    _SM_USAGE.value("cuda_mps_gpu_sm_seconds_total", lambda each: each.total.sm_us / SM_PARTS).help(
        "SM time of the GPU: the sum over workloads and ended series. Without GPM, estimated."
    ),
    _USAGE.value("cuda_mps_gpu_accounted_energy_joules_total", lambda each: each.total.energy_mj / ENERGY_PARTS).help(
        "Energy of the GPU while the exporter ran, the sum over workloads and ended series."
    ),
    _SM_USAGE.value("cuda_mps_gpu_closed_sm_seconds_total", _closed(lambda used: used.sm_us, SM_PARTS)).help(
        "SM time of workloads with ended series."
    ),
    _USAGE.value("cuda_mps_gpu_closed_energy_joules_total", _closed(lambda used: used.energy_mj, ENERGY_PARTS)).help(
        "Energy of workloads with ended series."
    ),
    _SHARE.values(
        "cuda_mps_client_sm_utilization_ratio", Choice("method", Method), lambda each: {each.method: each.sm}
    ).help(
        "Fraction of SM capacity that the client used in the last minute, or since its first use. Absent if unknown."
    ),
    _SHARE.value("cuda_mps_client_sm_utilization_error_ratio", lambda each: each.error).help(
        "Standard error of the client's SM utilization, including time for which it is unknown."
    ),
    Series(
        "cuda_mps_gpu_sm_unattributed_ratio",
        ("gpu",),
        lambda view: (((gpu,), split.unattributed) for gpu, split in fresh_splits(view.node).items() if split.measured),
    ).help("Fraction of SM capacity used in the last minute, but attributed to no process. Absent without GPM."),
)


def _workload_limit(name: str, of: Callable[[ClientUsage], float | None]) -> Series:
    """Return the sum of a limit over a workload's clients on a GPU, if it is known and set for all."""

    def samples(view: View) -> Samples:
        limits: defaultdict[Labels, list[float | None]] = defaultdict(list)
        for gpu, sharing in view.sharing.items():
            for each in sharing.clients:
                workload = workload_of(view.node.processes.get(each.client.pid))
                if workload is not None:
                    limits[workload.kind, printable(workload.name), gpu].append(of(each))
        for labels, values in limits.items():
            known = [value for value in values if value is not None]
            if len(known) == len(values):
                yield labels, fsum(known)

    return Series(name, (*WORKLOAD, "gpu"), samples)


_CAPACITY: Scope[GpuSharing] = Scope(("gpu",), lambda view: (((gpu,), found) for gpu, found in view.sharing.items()))


_SLOWED = (*_CLIENT_USAGE.labels, Choice("resource", ("", *Resource)), "neighbour")


def _slowed(view: View) -> Rows:
    ids = {client.pid: client_id for _, client, client_id in view.clients}
    for labels, usage in _CLIENT_USAGE.items(view):
        if usage.slowdown is not None and usage.is_slowed:
            neighbour = view.sharing[labels[-1]].main_neighbour(usage.slowdown)
            yield *labels, usage.slowdown.resource, ids.get(neighbour[0]) if neighbour else None


CONTENTION = Group(
    "Slowdown by neighbours (`--attribution=bpf`)",
    "clients that take more than twice as long as alone",
    "cuda_mps_client_slowdown_ratio - 2 * cuda_mps_client_slowdown_error_ratio > 2",
    _SLOWDOWN.value("cuda_mps_client_slowdown_ratio", lambda each: None if each.at_least else each.ratio).help(
        "Time that the client's work took in the last minute, divided by its time on a quiet GPU. Absent if unknown. "
        "Without GPM, a change of its own work looks the same."
    ),
    _SLOWDOWN.value("cuda_mps_client_slowdown_error_ratio", lambda each: each.error_ratio).help(
        "Standard error of the slowdown, or of its lower bound."
    ),
    _SLOWDOWN.value("cuda_mps_client_slowdown_least_ratio", lambda each: each.ratio if each.at_least else None).help(
        "Lower bound of the slowdown, if the client never had a quiet GPU, or if its own work may have changed."
    ),
    info("cuda_mps_client_slowdown_info", _SLOWED, _slowed).help(
        "Resource that a clearly slowed client waits for, and the neighbour that uses most of it, a value of the label "
        "client; always 1. Empty if unknown."
    ),
    _BANDWIDTH.value("cuda_mps_client_dram_bandwidth_ratio", lambda each: each.part).help(
        "Estimated fraction of memory bandwidth that the client used in the last minute. Needs GPM."
    ),
    _BANDWIDTH.value("cuda_mps_client_dram_bandwidth_error_ratio", lambda each: each.error).help(
        "Standard error of the client's fraction of memory bandwidth."
    ),
    _CAPACITY.value("cuda_mps_gpu_sharing_gain_ratio", lambda each: each.sharing_gain_ratio).help(
        "Clients' worth of work that the GPU did in the last minute. Clearly below 1, they may finish earlier one "
        "after another. Absent if unknown for half of the minute."
    ),
    _contention("cuda_mps_workload_contention_seconds_total", lambda used: used.lost_us).help(
        "Time by which slowdown delayed the workload, at least."
    ),
    _contention("cuda_mps_workload_contention_caused_seconds_total", lambda used: used.caused_us).help(
        "Time by which the workload delayed others, by its part in the use of a resource that was used up."
    ),
)

CAPACITY = Group(
    "Capacity",
    "how many more clients fit on each GPU at most",
    "min by (job, instance, gpu) (cuda_mps_gpu_clients_fit)"
    ' and on (job, instance, gpu) cuda_mps_gpu_clients_fit{bound="memory"}',
    _CAPACITY.values("cuda_mps_gpu_clients_fit", Choice("bound", Bound), lambda each: each.headroom.by_resource).help(
        "Further clients, similar to those on the GPU, that fit by this bound. Absent if unknown."
    ),
    _CAPACITY.value("cuda_mps_gpu_thread_percentage_committed_ratio", lambda each: each.threads_committed_ratio).help(
        "Sum of the fractions of threads, in whole SMs, that the GPU's clients may use. Absent if one is unknown: a "
        "process without a limit in its environment may have set one itself."
    ),
    _CAPACITY.value("cuda_mps_gpu_pinned_memory_committed_ratio", lambda each: each.memory_committed_ratio).help(
        "Sum of the clients' memory limits, divided by the GPU's memory. Absent if any of them is unknown or not set."
    ),
    _workload_limit("cuda_mps_workload_active_thread_ratio", lambda each: each.active_thread_ratio).help(
        "Fraction of the GPU's threads that each of the workload's clients may use at most, summed: the smaller limit "
        "of its server and its environment, in whole SMs. Absent if one is unknown."
    ),
    _workload_limit("cuda_mps_workload_pinned_memory_limit_bytes", lambda each: each.memory_limit_bytes).help(
        "GPU memory that each of the workload's clients may allocate at most, summed: the smaller limit of its server "
        "and its environment. Absent if one is unknown or not set."
    ),
)

CLIENTS = (USAGE, CONTENTION, CAPACITY)
"""Families of what the clients of GPUs use."""
