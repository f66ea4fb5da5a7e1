"""Families about GPUs. A GPU that NVML could not read has no values, only that it is not up."""

from collections.abc import Callable, Iterable

from exporter.core.meters import ECC_CORRECTED, ECC_UNCORRECTED, ENERGY
from exporter.core.sharing import sharing_mode
from exporter.metrics.family import Samples, counter, gauge
from exporter.model.gpu import Gpu, SharingMode
from exporter.model.observation import GpuReading
from exporter.view import View

COMPUTE_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")

CLOCKS_EVENT_REASONS = (
    "gpu_idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clock_setting",
)
"""In the order of their bits, from 1 (nvml.h, nvmlClocksEventReason...)."""


def _read(view: View) -> Iterable[Gpu]:
    return (gpu for gpu in view.node.gpus.values() if gpu.reading.problem is None)


def _value(of: Callable[[GpuReading], float | None], per: float = 1) -> Callable[[View], Samples]:
    """One value of each GPU, where it is told, in `per` parts of the base unit."""

    def samples(view: View) -> Samples:
        for gpu in _read(view):
            value = of(gpu.reading)
            if value is not None:
                yield (gpu.reading.gpu,), value / per

    return samples


def _info(view: View) -> Samples:
    for gpu in view.node.gpus.values():
        reading = gpu.reading
        index = "" if reading.index is None else str(reading.index)
        yield (reading.gpu, index, reading.name or "", reading.pci_bus_id or ""), 1


def _driver(view: View) -> Samples:
    """One driver serves all GPUs; right after an upgrade, the last reading knows best which."""
    readings = [gpu.reading for gpu in _read(view) if gpu.reading.driver_version is not None]
    if readings:
        last = max(readings, key=lambda reading: reading.at)
        yield (last.driver_version or "", last.cuda_version or ""), 1


def _bypassing(view: View) -> Samples:
    for gpu in _read(view):
        if gpu.judged:
            yield (gpu.reading.gpu,), len(gpu.bypassing)


def _sharing_mode(view: View) -> Samples:
    for gpu in _read(view):
        mode = sharing_mode(view.node, gpu)
        if mode is not None:
            yield from (((gpu.reading.gpu, each), each is mode) for each in SharingMode)


def _compute_mode(view: View) -> Samples:
    for gpu in _read(view):
        mode = gpu.reading.compute_mode
        if mode is not None:
            yield from (((gpu.reading.gpu, each), each == mode) for each in COMPUTE_MODES)


def _clocks_event_reasons(view: View) -> Samples:
    for gpu in _read(view):
        reasons = gpu.reading.clocks_event_reasons
        if reasons is not None:
            for bit, reason in enumerate(CLOCKS_EVENT_REASONS):
                yield (gpu.reading.gpu, reason), reasons >> bit & 1


def _energy(view: View) -> Samples:
    for gpu in _read(view):
        if gpu.reading.energy_millijoules is not None:
            yield (gpu.reading.gpu,), gpu.meters[ENERGY].total / 1000


def _ecc_errors(view: View) -> Samples:
    for gpu in _read(view):
        if gpu.reading.ecc_corrected is not None:
            yield (gpu.reading.gpu, "corrected"), gpu.meters[ECC_CORRECTED].total
        if gpu.reading.ecc_uncorrected is not None:
            yield (gpu.reading.gpu, "uncorrected"), gpu.meters[ECC_UNCORRECTED].total


def _supported(view: View) -> Samples:
    for gpu in _read(view):
        yield from (((gpu.reading.gpu, reading), given) for reading, given in gpu.supported.items())


FAMILIES = (
    gauge(
        "cuda_mps_gpu_up",
        ("gpu",),
        "Whether NVML could read the GPU.",
        lambda view: (((gpu.reading.gpu,), gpu.reading.problem is None) for gpu in view.node.gpus.values()),
    ),
    gauge(
        "cuda_mps_gpu_info",
        ("gpu", "index", "name", "pci_bus_id"),
        "The GPU; index is NVML's.",
        _info,
    ),
    gauge(
        "cuda_mps_driver_info",
        ("driver", "cuda"),
        "The version of the driver, and of the newest CUDA that it serves.",
        _driver,
    ),
    gauge(
        "cuda_mps_gpu_reading_supported",
        ("gpu", "reading"),
        "Whether this GPU, in its present mode, and this driver give such readings; where not, they are absent, not 0.",
        _supported,
    ),
    gauge(
        "cuda_mps_gpu_sharing_mode",
        ("gpu", "mode"),
        "How processes share the GPU; absent where that cannot be judged.",
        _sharing_mode,
    ),
    gauge(
        "cuda_mps_gpu_compute_mode",
        ("gpu", "mode"),
        "Who may use the GPU: NVML's compute mode.",
        _compute_mode,
    ),
    gauge(
        "cuda_mps_gpu_mig_mode",
        ("gpu",),
        "Whether the GPU is divided by MIG.",
        _value(lambda reading: reading.mig_mode),
    ),
    gauge(
        "cuda_mps_gpu_persistence_mode",
        ("gpu",),
        "Whether the driver stays loaded while nobody uses the GPU.",
        _value(lambda reading: reading.persistence_mode),
    ),
    gauge(
        "cuda_mps_gpu_memory_used_bytes",
        ("gpu",),
        "Memory in use on the GPU; more than its processes' sum.",
        _value(lambda reading: reading.memory_used_bytes),
    ),
    gauge(
        "cuda_mps_gpu_memory_total_bytes",
        ("gpu",),
        "Memory of the GPU.",
        _value(lambda reading: reading.memory_total_bytes),
    ),
    gauge(
        "cuda_mps_gpu_sm_utilization_ratio",
        ("gpu",),
        "Part of the SMs that were busy between the last two readings (GPM).",
        _value(lambda reading: reading.sm_utilization),
    ),
    gauge(
        "cuda_mps_gpu_dram_bandwidth_ratio",
        ("gpu",),
        "Part of the memory bandwidth that was used between the last two readings (GPM).",
        _value(lambda reading: reading.dram_bandwidth),
    ),
    gauge(
        "cuda_mps_gpu_temperature_celsius",
        ("gpu",),
        "Temperature of the GPU's die.",
        _value(lambda reading: reading.temperature_celsius),
    ),
    gauge(
        "cuda_mps_gpu_power_watts",
        ("gpu",),
        "Power that the board draws.",
        _value(lambda reading: reading.power_milliwatts, per=1000),
    ),
    counter(
        "cuda_mps_gpu_energy_joules_total",
        ("gpu",),
        "Energy that the GPU has used, since its driver was loaded or for longer.",
        _energy,
    ),
    gauge(
        "cuda_mps_gpu_clocks_event_reason",
        ("gpu", "reason"),
        "Whether this keeps the GPU's clocks from being as high as they could.",
        _clocks_event_reasons,
    ),
    counter(
        "cuda_mps_gpu_ecc_errors_total",
        ("gpu", "type"),
        "Memory errors over the board's life, corrected and not.",
        _ecc_errors,
    ),
    gauge(
        "cuda_mps_bypassing_processes",
        ("gpu",),
        "CUDA processes that run beside MPS on a GPU that a known daemon serves, or should serve.",
        _bypassing,
    ),
)
