"""Simulated GPUs, as NVML and the libcuda probes read them."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from exporter.demo.workloads import CONTEXT_BYTES, GIBIBYTE, SMS, SimulatedProcess
from exporter.model.launches import GpuUse, ProcessWork, WorkReading
from exporter.model.observation import GpuProcess, GpuReading, Observation, ProcessUtilization

GPUS = tuple(f"GPU-{number:08x}-0000-4000-8000-{number:012x}" for number in range(0xA0, 0xA5))
GPU_BYTES = 141 * GIBIBYTE
SERVER_BYTES = 66 << 20

"""Bits of NVML's clocks event reasons (nvml.h)."""

NS = 1_000_000_000


def pci_address(gpu: str) -> str:
    """Return the address of a GPU as the kernel log has it."""
    return f"0000:{GPUS.index(gpu) + 6:02x}:00"


def sm_utilization(gpu: str, processes: Iterable[SimulatedProcess]) -> float:
    """Return the fraction of a GPU's SMs that the processes use."""
    return min(1.0, sum(each.sm_utilization for each in processes if gpu in each.gpus))


def dram_bandwidth(sm: float) -> float:
    """Return the fraction of the memory bandwidth that is used with this SM utilization."""
    return min(0.92, 1.05 * sm)


@dataclass(slots=True)
class SimulatedGpu:
    """A GPU with the counters that it has itself."""

    uuid: str
    energy_joules: float
    """Uncorrected ECC errors."""
    read_at: float | None = None

    def reading(
        self,
        at: float,
        chance: random.Random,
        server: int | None,
        clients: Iterable[SimulatedProcess],
        bypassing: Iterable[SimulatedProcess],
    ) -> GpuReading:
        """Return NVML's reading of the GPU with an MPS server, its clients, and processes that bypass MPS."""
        clients = [each for each in clients if self.uuid in each.gpus]
        bypassing = [each for each in bypassing if self.uuid in each.gpus]
        mps = _listed(clients)
        compute = (*mps, *_listed(bypassing))
        by_process = {each.pid: each.sm_utilization for each in bypassing}
        if server is not None:
            compute = (GpuProcess(pid=server, used_bytes=SERVER_BYTES), *compute)
            by_process = {server: sm_utilization(self.uuid, clients), **by_process}
        load = min(1.0, sm_utilization(self.uuid, (*clients, *bypassing)) * chance.uniform(0.95, 1.05))
        watts = 115 + 560 * load
        self.energy_joules += watts * (0.0 if self.read_at is None else at - self.read_at)
        self.read_at = at
        return GpuReading(
            at=at,
            gpu=self.uuid,
            index=GPUS.index(self.uuid),
            name="NVIDIA H200 (simulated)",
            pci_bus_id=f"0000{pci_address(self.uuid)}.0",
            compute_processes=compute,
            mps_processes=mps,
            process_utilization=tuple(_sample(at, pid, sm) for pid, sm in by_process.items()),
            gpu_percent=round(100 * load),
            memory_percent=round(55 * load),
            memory_used_bytes=sum(each.used_bytes or 0 for each in compute) + CONTEXT_BYTES,
            memory_total_bytes=GPU_BYTES,
            energy_millijoules=int(self.energy_joules * 1000),
            driver_version="580.95.05",
            cuda_version="13.0",
            compute_mode="default",
            mig_mode=False,
            persistence_mode=True,
            power_milliwatts=round(watts * 1000),
            sm_utilization=load,
            dram_bandwidth=dram_bandwidth(load),
            gpm_seconds=5.0,
        )


def _listed(processes: Iterable[SimulatedProcess]) -> tuple[GpuProcess, ...]:
    return tuple(GpuProcess(pid=each.pid, used_bytes=each.used_bytes) for each in processes)


def _sample(at: float, pid: int, sm: float) -> ProcessUtilization:
    percent = round(100 * sm)
    return ProcessUtilization(pid=pid, timestamp_us=int(at * 1e6), sm_percent=percent, memory_percent=percent // 2)


class SimulatedProbes:
    """The launch counts of processes, as libcuda probes read them each second. Nothing in them is random."""

    def __init__(self) -> None:
        self._first_ns: dict[int, int] = {}
        """When each process was first read."""

    def readings(self, at: float, gpus: Sequence[str], processes: Iterable[SimulatedProcess]) -> Iterator[Observation]:
        """Yield one second of all processes, and the utilization of the GPUs in it."""
        processes, now = tuple(processes), int(at * NS)
        self._first_ns = {each.pid: self._first_ns.get(each.pid, now) for each in processes}
        yield WorkReading(
            at=at,
            boot_ns=now,
            seconds=1.0,
            sms=SMS,
            processes=tuple(_work(each, self._first_ns[each.pid], now) for each in processes),
            watched=tuple(self._first_ns),
        )
        for gpu in gpus:
            sm = sm_utilization(gpu, processes)
            yield GpuUse(at=at, gpu=gpu, seconds=1.0, sm_utilization=sm, dram_bandwidth=dram_bandwidth(sm))


def _work(process: SimulatedProcess, first_ns: int, now: int) -> ProcessWork:
    """Return the work since the first reading. Each kernel has a span and a burst of its own."""
    seconds, width = (now - first_ns) // NS + 1, process.workload.sms
    kernels, flight_ns = seconds * (50 + process.pid % 400), seconds * int(process.duty * NS)
    return ProcessWork(
        pid=process.pid,
        first_ns=first_ns,
        initialized_ns=first_ns,
        kernels=kernels,
        graphs=seconds * (process.pid % 3) * 20,
        spans=kernels,
        flight_ns=flight_ns,
        area=flight_ns * width,
        widths=kernels * width,
        syncs=kernels,
        sure_area=flight_ns * width,
        sure_widths=kernels * width,
        sure_heights=kernels * width,
    )
