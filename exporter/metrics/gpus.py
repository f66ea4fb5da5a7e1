"""Families of GPUs and of Xids. A GPU that NVML could not read has no values; it is only reported as not up.

An Xid that never occurred has a 0 as long as the kernel log or NVML's events can be read. A count stays, also when
both sources fail or the GPU is gone.
"""

from exporter.metrics.family import Choice, Items, Rows, Samples, Scope, family, group, info
from exporter.model.gpu import Gpu, SharingMode, XidCount
from exporter.model.identity import WorkloadKind
from exporter.model.node import CollectorName, Node
from exporter.model.observation import GpuReading
from exporter.state.bypassing import sharing_mode
from exporter.state.processes import workload_of
from exporter.state.xids import WELL_KNOWN
from exporter.view import View, gpu_name

COMPUTE_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")

MAX_BYPASSING = 128


def _gpus(view: View) -> Items[Gpu]:
    """Return the GPUs that could be read."""
    return (((gpu.reading.gpu,), gpu) for gpu in view.node.gpus.values() if gpu.reading.problem is None)


_GPU: Scope[Gpu] = Scope(("gpu",), _gpus)
_READING: Scope[GpuReading] = Scope(("gpu",), lambda view: ((gpu, each.reading) for gpu, each in _gpus(view)))
_SHARING: Scope[SharingMode | None] = Scope(
    ("gpu",), lambda view: ((gpu, sharing_mode(view.node, each)) for gpu, each in _gpus(view))
)
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


def _energy(gpu: Gpu) -> float | None:
    return None if gpu.reading.energy_millijoules is None or gpu.energy is None else gpu.energy.total / 1000


def _power(reading: GpuReading) -> float | None:
    return None if reading.power_milliwatts is None else reading.power_milliwatts / 1000


def _bypassing(view: View) -> Rows:
    """Return the identities of the bypassing processes; of too many, those that were seen first."""
    node = view.node
    found = sorted(
        (gpu.bypassing_processes[pid].first_seen, uuid, pid)
        for uuid, gpu in node.gpus.items()
        if gpu.bypassing_known
        for pid in gpu.bypassing
    )
    for _, uuid, pid in found[:MAX_BYPASSING]:
        process = node.processes.get(pid)
        workload = workload_of(process)
        named = (None, None) if process is None else (process.user, process.command)
        owner = (None, None) if workload is None else (workload.kind, workload.name)
        yield uuid, pid, *named, *owner


GPUS = group(
    "GPUs",
    "GPUs with CUDA processes that bypass MPS",
    "cuda_mps_bypassing_processes > 0",
    family(
        "cuda_mps_gpu_up",
        ("gpu",),
        lambda view: (((gpu.reading.gpu,), gpu.reading.problem is None) for gpu in view.node.gpus.values()),
    ),
    "Whether NVML could read the GPU.",
    info("cuda_mps_gpu_info", ("gpu", "index", "name", "pci_bus_id"), _infos),
    "The GPU or MIG instance, always 1. index is NVML's; that of an instance is GPU/GPU instance/compute instance.",
    info("cuda_mps_gpu_mig_info", ("gpu", "parent", "gpu_instance", "compute_instance", "profile"), _instances),
    "The MIG instance gpu of the GPU parent, always 1.",
    _READING.value("cuda_mps_gpu_mig_sms", lambda each: None if each.mig is None else each.mig.sms),
    "SMs of the MIG instance.",
    info("cuda_mps_driver_info", ("driver", "cuda"), _driver),
    "Version of the NVIDIA driver, and of the newest CUDA that it supports; always 1.",
    _GPU.value("cuda_mps_gpu_discarded_values_total", lambda each: each.discarded),
    "Values of NVML that could not be true, such as 4 MW, and were ignored.",
    _SHARING.state("cuda_mps_gpu_sharing_mode", Choice("mode", SharingMode), lambda mode: mode),
    "How processes share the GPU; exactly one mode is 1. Absent if unknown.",
    _READING.state("cuda_mps_gpu_compute_mode", Choice("mode", COMPUTE_MODES), lambda each: each.compute_mode),
    "NVML's compute mode of the GPU; exactly one mode is 1.",
    _READING.value("cuda_mps_gpu_memory_used_bytes", lambda each: None if each.instances else each.memory_used_bytes),
    "GPU memory in use. It exceeds the sum over the processes. With MIG, each instance has its own, and the GPU none. "
    "If several compute instances share a GPU instance, the first one has its memory.",
    _READING.value("cuda_mps_gpu_memory_total_bytes", lambda each: None if each.instances else each.memory_total_bytes),
    "GPU memory. For MIG as in cuda_mps_gpu_memory_used_bytes.",
    _READING.value("cuda_mps_gpu_sm_utilization_ratio", lambda each: each.sm_utilization),
    "Fraction of SM capacity used between the last two readings, from GPM.",
    _READING.value("cuda_mps_gpu_dram_bandwidth_ratio", lambda each: each.dram_bandwidth),
    "Fraction of memory bandwidth used between the last two readings, from GPM.",
    _READING.value("cuda_mps_gpu_power_watts", _power),
    "Power draw of the board.",
    _GPU.value("cuda_mps_gpu_energy_joules_total", _energy),
    "Energy that the GPU has used at least since the driver was loaded.",
    _GPU.value("cuda_mps_bypassing_processes", lambda each: len(each.bypassing) if each.bypassing_known else None),
    "CUDA processes that bypass MPS on a GPU that a known daemon serves or should serve.",
    info(
        "cuda_mps_bypassing_process_info",
        ("gpu", "pid", "user", "command", Choice("workload_kind", ("", *WorkloadKind)), "workload"),
        _bypassing,
    ),
    "Identity of a CUDA process that bypasses MPS, always 1. At most 128 processes, the first that were seen.",
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


XIDS = group(
    "Xids (errors of the NVIDIA driver)",
    "Xids of the last hour",
    "increase(cuda_mps_xid_errors_total[1h]) > 0",
    family("cuda_mps_xid_errors_total", ("gpu", "xid"), _xids),
    "Xids from the kernel log or NVML, each counted once. gpu is the PCI address if the UUID is unknown.",
    _XID.time("cuda_mps_xid_last_timestamp_seconds", lambda count: count.last_at),
    "Unix time at which the Xid was last reported.",
)
