"""Families about GPUs. A GPU that NVML could not read has no values, only that it is not up."""

from collections.abc import Callable, Iterable

from exporter.metrics.family import Samples, gauge
from exporter.model.node import Gpu
from exporter.model.observation import GpuReading
from exporter.view import View


def _read(view: View) -> Iterable[Gpu]:
    return (gpu for gpu in view.node.gpus.values() if gpu.reading.problem is None)


def _value(of: Callable[[GpuReading], int | None]) -> Callable[[View], Samples]:
    def samples(view: View) -> Samples:
        for gpu in _read(view):
            value = of(gpu.reading)
            if value is not None:
                yield (gpu.reading.gpu,), value

    return samples


def _info(view: View) -> Samples:
    for gpu in view.node.gpus.values():
        index = "" if gpu.reading.index is None else str(gpu.reading.index)
        yield (gpu.reading.gpu, index, gpu.reading.name or ""), 1


def _bypassing(view: View) -> Samples:
    for gpu in _read(view):
        if gpu.judged:
            yield (gpu.reading.gpu,), len(gpu.bypassing)


FAMILIES = (
    gauge(
        "cuda_mps_gpu_up",
        ("gpu",),
        "Whether NVML could read the GPU.",
        lambda view: (((gpu.reading.gpu,), gpu.reading.problem is None) for gpu in view.node.gpus.values()),
    ),
    gauge("cuda_mps_gpu_info", ("gpu", "index", "name"), "The GPU; index is NVML's.", _info),
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
        "cuda_mps_bypassing_processes",
        ("gpu",),
        "CUDA processes that run beside MPS on a GPU that a known daemon serves, or should serve.",
        _bypassing,
    ),
)
