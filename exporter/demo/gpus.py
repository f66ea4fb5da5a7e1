"""The demo's GPUs, as NVML reads them."""

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from exporter.demo.cast import CONTEXT_BYTES, GIBIBYTE, Process
from exporter.model.observation import GpuProcess, GpuReading, ProcessUtilization

GPUS = tuple(f"GPU-{number:08x}-0000-4000-8000-{number:012x}" for number in range(0xA0, 0xA5))
NAME = "NVIDIA H200 (simulated)"
GPU_BYTES = 141 * GIBIBYTE
SERVER_BYTES = 66 << 20
DRIVER_VERSION, CUDA_VERSION = "580.95.05", "13.0"

GPU_IDLE, SW_POWER_CAP = 1 << 0, 1 << 2
"""Bits of NVML's clocks event reasons (nvml.h)."""

POWER_CAPPED_FROM = 0.9
MOST_DRAM = 0.92
GPM_SECONDS = 5.0


@dataclass(slots=True)
class SimulatedGpu:
    """What a GPU counts by itself: energy, and the memory errors of its life."""

    uuid: str
    energy_joules: float
    corrected: int = 0
    uncorrected: int = 0
    read_at: float | None = None


def bus_id(gpu: str) -> str:
    """Where it is, as the kernel's log has it."""
    return f"0000:{GPUS.index(gpu) + 6:02x}:00"


def busy(gpu: str, processes: Iterable[Process]) -> float:
    """How much of a GPU's SMs these processes use."""
    return min(1.0, sum(each.busy for each in processes if gpu in each.gpus))


def dram(load: float) -> float:
    """How much of its memory's bandwidth goes with that."""
    return min(MOST_DRAM, 1.05 * load)


def readings(
    at: float,
    chance: random.Random,
    gpus: Iterable[SimulatedGpu],
    servers: Mapping[str, int | None],
    clients: Iterable[Process],
    strangers: Iterable[Process],
) -> Iterator[GpuReading]:
    """NVML reads them all: each one's server, clients, and processes beside MPS."""
    clients, strangers = tuple(clients), tuple(strangers)
    for gpu in gpus:
        server = servers[gpu.uuid]
        mps, beside = _shown(gpu.uuid, clients), _shown(gpu.uuid, strangers)
        serving = () if server is None else (GpuProcess(pid=server, used_bytes=SERVER_BYTES),)
        load = min(1.0, busy(gpu.uuid, (*clients, *strangers)) * chance.uniform(0.95, 1.05))
        of_mps = {} if server is None else {server: busy(gpu.uuid, clients)}
        by_process = of_mps | {each.pid: each.busy for each in strangers if gpu.uuid in each.gpus}
        yield replace(
            _reading(at, gpu, load, mps, (*serving, *mps, *beside)),
            process_utilization=tuple(_sampled(at, pid, part) for pid, part in by_process.items()),
        )


def _reading(
    at: float, gpu: SimulatedGpu, load: float, mps: tuple[GpuProcess, ...], compute: tuple[GpuProcess, ...]
) -> GpuReading:
    watts = 115 + 560 * load
    gpu.energy_joules += watts * (0.0 if gpu.read_at is None else at - gpu.read_at)
    gpu.read_at = at
    capped = SW_POWER_CAP if load >= POWER_CAPPED_FROM else 0
    return GpuReading(
        at=at,
        gpu=gpu.uuid,
        index=GPUS.index(gpu.uuid),
        name=NAME,
        pci_bus_id=f"0000{bus_id(gpu.uuid)}.0",
        compute_processes=compute,
        mps_processes=mps,
        gpu_percent=round(100 * load),
        memory_percent=round(55 * load),
        memory_used_bytes=sum(each.used_bytes or 0 for each in compute) + CONTEXT_BYTES,
        memory_total_bytes=GPU_BYTES,
        energy_millijoules=int(gpu.energy_joules * 1000),
        driver_version=DRIVER_VERSION,
        cuda_version=CUDA_VERSION,
        compute_mode="default",
        mig_mode=False,
        persistence_mode=True,
        temperature_celsius=round(31 + 42 * load),
        power_milliwatts=round(watts * 1000),
        clocks_event_reasons=capped if load else GPU_IDLE,
        ecc_corrected=gpu.corrected,
        ecc_uncorrected=gpu.uncorrected,
        sm_utilization=load,
        dram_bandwidth=dram(load),
        gpm_seconds=GPM_SECONDS,
    )


def _shown(gpu: str, processes: Iterable[Process]) -> tuple[GpuProcess, ...]:
    return tuple(GpuProcess(pid=each.pid, used_bytes=each.used_bytes) for each in processes if gpu in each.gpus)


def _sampled(at: float, pid: int, part: float) -> ProcessUtilization:
    percent = round(100 * part)
    return ProcessUtilization(pid=pid, timestamp_us=int(at * 1e6), sm_percent=percent, memory_percent=percent // 2)
