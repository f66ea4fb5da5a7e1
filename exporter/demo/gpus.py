"""The demo's GPUs, as NVML reads them."""

from collections.abc import Iterable, Mapping

from exporter.demo.cast import CONTEXT_BYTES, GIBIBYTE, Process
from exporter.model.observation import GpuProcess, GpuReading

GPUS = tuple(f"GPU-{number:08x}-0000-4000-8000-{number:012x}" for number in (0xA0, 0xA1, 0xA2))
NAME = "NVIDIA H200 (simulated)"
GPU_BYTES = 141 * GIBIBYTE
SERVER_BYTES = 66 << 20


def bus_id(gpu: str) -> str:
    """Where it is, as the kernel's log has it."""
    return f"0000:{GPUS.index(gpu) + 6:02x}:00"


def readings(
    at: float, servers: Mapping[str, int | None], clients: Iterable[Process], strangers: Iterable[Process]
) -> Iterable[GpuReading]:
    """NVML reads them all: each one's server, clients, and processes beside MPS."""
    clients, strangers = tuple(clients), tuple(strangers)
    for index, gpu in enumerate(GPUS):
        server = servers[gpu]
        mps = _shown(each for each in clients if each.gpu == gpu)
        serving = () if server is None else (GpuProcess(pid=server, used_bytes=SERVER_BYTES),)
        compute = (*serving, *mps, *_shown(each for each in strangers if each.gpu == gpu))
        yield GpuReading(
            at=at,
            gpu=gpu,
            index=index,
            name=NAME,
            pci_bus_id=f"0000{bus_id(gpu)}.0",
            compute_processes=compute,
            mps_processes=mps,
            memory_used_bytes=sum(each.used_bytes or 0 for each in compute) + CONTEXT_BYTES,
            memory_total_bytes=GPU_BYTES,
        )


def _shown(processes: Iterable[Process]) -> tuple[GpuProcess, ...]:
    return tuple(GpuProcess(pid=each.pid, used_bytes=each.used_bytes) for each in processes)
