"""Simulated GPUs, and the workloads and processes that use them, as /proc, NVML and the libcuda probes show them."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from exporter.model import observation as kinds
from exporter.model.kernels import ClientKernels, KernelName, KernelReading, KernelUse, LaunchedKernel
from exporter.model.launches import ProcessWork, WorkReading
from exporter.model.settings import ACTIVE_THREAD_PERCENTAGE, CLIENT_PRIORITY, PINNED_MEMORY_LIMIT
from exporter.model.sharing import GpuUse
from exporter.model.values import frozen_positional, made_of

GPUS = tuple(f"GPU-{number:08x}-0000-4000-8000-{number:012x}" for number in range(0xA0, 0xA5))
GIBIBYTE = 1 << 30
GPU_BYTES, SERVER_BYTES, CONTEXT_BYTES = 141 * GIBIBYTE, 66 << 20, 516 << 20

SMS = 132
"""Streaming multiprocessors of an H200."""

NS = 1_000_000_000

ALL_BANDWIDTH, FREE_BANDWIDTH, SLOWDOWN = 0.92, 0.5, 12.0
"""Fractions of the bandwidth: no more can be used, and kernels take as long as alone while others use less than the
second. If others use all, they take 1 + 0.42 * 12 times as long."""

PERIOD_SECONDS = 90

SHORT_GAP_NS = 10_000_000
"""The probes count shorter times between two kernels as work on the CPU."""


@frozen_positional
class SimulatedWorkload:
    """A program of a user. One workload is noisy, and one is idle.

    `gibibytes` is the least and the most memory of a GPU. A process has kernels in flight for the fraction `duty` of
    the time, which use `sms` SMs. For each SM that is busy all the time, it uses `traffic` times one SM's part of the
    memory's bandwidth. In each PERIOD_SECONDS it launches nothing for `pause_seconds`. `pod` has UID, name and
    namespace. `environment` has its variables of CLIENT_LIMITS.
    """

    user: str
    uid: int
    command: str
    gibibytes: tuple[int, int]
    cgroup: str
    duty: float
    sms: int
    pod: tuple[str, str, str] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    traffic: float = 0.5
    pause_seconds: int = 0


def _of_pod(pod: tuple[str, str, str], container: str) -> str:
    slices = "0::/kubepods.slice/kubepods-burstable.slice"
    return f"{slices}/kubepods-burstable-pod{pod[0].replace('-', '_')}.slice/cri-containerd-{container * 64}.scope"


_VLLM = ("7d4f5c1e-2b8a-4a53-9f0e-6c1d2b3a4e5f", "vllm-6f9c7d-x2x4q", "inference")
_EMBED = ("c2a9e6b0-41d7-4c7e-8a35-0f9b8d7c6e51", "embed-0", "inference")
_SYSTEM = "0::/system.slice"
_JOB = f"{_SYSTEM}/slurmstepd.scope/job_{{}}/step_0/user/task_0"

TRAINERS = (
    SimulatedWorkload("alice", 1001, "train.py", (8, 24), _JOB.format(4711), 0.5, 24),
    SimulatedWorkload("bob", 1002, "finetune.py", (6, 16), _JOB.format(4712), 0.9, 56, traffic=2.2, pause_seconds=10),
    SimulatedWorkload("erin", 1005, "python3", (2, 6), "0::/user.slice/user-1005.slice/session-7.scope", 0.004, 16),
    SimulatedWorkload("dave", 1004, "render-worker", (1, 4), f"{_SYSTEM}/docker-{'5' * 64}.scope", 0.3, 16),
)
_OWN = {ACTIVE_THREAD_PERCENTAGE: "40", PINNED_MEMORY_LIMIT: "0=64G"}
_RERANK = f"{_SYSTEM}/rerank.service"
SERVING = (
    SimulatedWorkload("carol", 1003, "vllm", (16, 24), _of_pod(_VLLM, "a"), 0.5, 24, _VLLM, _OWN),
    SimulatedWorkload("carol", 1003, "embed-worker", (1, 4), _of_pod(_EMBED, "b"), 0.1, 8, _EMBED, _OWN),
    SimulatedWorkload("carol", 1003, "rerank", (2, 6), _RERANK, 0.1, 8, None, {**_OWN, CLIENT_PRIORITY: "1"}),
)
NOTEBOOKS = (SimulatedWorkload("frank", 1006, "jupyter-lab", (2, 6), f"{_SYSTEM}/jupyter.service", 0.004, 16),)
BYPASSING = replace(TRAINERS[2], duty=0.3)
STREAMING = replace(SERVING[2], command="etl-scan", duty=1.0, sms=120, traffic=0.95)
KERNELS: Mapping[str, Sequence[str]] = {
    "train.py": ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "triton_per_fused_native_layer_norm_0"),
    "finetune.py": ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTN", "triton_poi_fused_gelu_mul_3", "lora_merge"),
    "vllm": ("fused_moe_kernel", "reshape_and_cache_flash_kernel"),
    "embed-worker": ("gemm_fusion_dot_7", "loop_add_fusion_12"),
    "jupyter-lab": (),
}
"""Kernels by command, the one with the most time first; none: got before the exporter was attached."""
SERVER = SimulatedWorkload("root", 0, "nvidia-cuda-mps-server", (0, 0), f"{_SYSTEM}/nvidia-cuda-mps.service", 0.0, 0)


@dataclass(slots=True)
class SimulatedProcess:
    """A process that uses GPUs, and the same memory on each, until `ends_at`. Its start in clock ticks is its PID.

    The probes first read it at `first_read_ns`. Since then, it has done the work of `alone_seconds` without neighbours,
    and had kernels in flight for `flight_ns`. Its kernels take `longer` times as long as alone.
    """

    pid: int
    workload: SimulatedWorkload
    gpus: tuple[str, ...]
    used_bytes: int
    ends_at: float
    first_read_ns: int = 0
    alone_seconds: float = 0.0
    flight_ns: int = 0
    gap_ns: int = 0
    longer: float = 1.0
    pauses: bool = False

    @property
    def duty_alone(self) -> float:
        """Return the fraction of the time in which it has kernels in flight without neighbours. It varies by PID."""
        return 0.0 if self.pauses else min(1.0, self.workload.duty * (0.8 + self.pid % 5 / 10))

    @property
    def pace(self) -> float:
        """Return how much it does in a time, as a fraction of what it does alone. Only its kernels are slowed down."""
        return 0.0 if self.pauses else 1 / (self.duty_alone * self.longer + 1 - self.duty_alone)

    @property
    def duty(self) -> float:
        """Return the fraction of the time in which it has kernels in flight."""
        return self.duty_alone * self.longer * self.pace

    @property
    def bandwidth_alone(self) -> float:
        """Return the fraction of the bandwidth of each of its GPUs that it would use without neighbours."""
        return self.duty_alone * self.workload.sms / SMS / max(1, len(self.gpus)) * self.workload.traffic

    @property
    def sm_utilization(self) -> float:
        """Return the fraction of the SMs that it uses on each of its GPUs."""
        return self.duty * self.workload.sms / SMS / max(1, len(self.gpus))

    def reading(self, at: float) -> kinds.ProcessReading:
        """Return its entry in /proc."""
        return made_of(
            kinds.ProcessReading,
            self.workload,
            at=at,
            pid=self.pid,
            start_ticks=self.pid,
            started=at,
            cgroup=f"{self.workload.cgroup}\n",
            unit_users=(self.workload.uid,),
        )

    def exit(self, at: float, wait_status: int | None = None) -> kinds.ProcessExit:
        """Return its exit."""
        return kinds.ProcessExit(at=at, pid=self.pid, start_ticks=self.pid, wait_status=wait_status)


class Chance(random.Random):
    """Makes the random choices, and starts processes. The same seed gives the same ones."""

    last_pid = 40_000

    def happens(self, every: float) -> bool:
        """Return whether an event happens in this second that happens every so many seconds on average."""
        return self.random() < 1 / every

    def new_pid(self) -> int:
        """Return an unused PID."""
        self.last_pid += self.randint(1, 40)
        return self.last_pid

    def new_process(self, workload: SimulatedWorkload, gpus: tuple[str, ...], ends_at: float) -> SimulatedProcess:
        """Start a process of a workload."""
        used = self.randint(*workload.gibibytes) * GIBIBYTE + CONTEXT_BYTES
        return SimulatedProcess(self.new_pid(), workload, gpus, used, ends_at)


def pci_address(gpu: str) -> str:
    """Return the address of a GPU as the kernel log has it."""
    return f"0000:{GPUS.index(gpu) + 6:02x}:00"


def sm_utilization(processes: Iterable[SimulatedProcess]) -> float:
    """Return the fraction of a GPU's SMs that its processes use."""
    return min(1.0, sum(process.sm_utilization for process in processes))


def _dram_bandwidth(processes: Iterable[SimulatedProcess]) -> float:
    return min(ALL_BANDWIDTH, sum(process.bandwidth_alone * process.pace for process in processes))


def _longer(process: SimulatedProcess, processes: Iterable[SimulatedProcess], gpu: str) -> float:
    """Return how much longer its kernels take on a GPU than alone.

    Processes divide the bandwidth if it does not suffice. One that uses little also waits longer for each access.
    """
    wanted = sum(each.bandwidth_alone for each in processes if gpu in each.gpus)
    others = min(ALL_BANDWIDTH, wanted - process.bandwidth_alone)
    waits = SLOWDOWN * (others - FREE_BANDWIDTH) if process.bandwidth_alone < FREE_BANDWIDTH else 0.0
    return max(1.0, wanted / ALL_BANDWIDTH, 1 + waits)


def gpu_reading(
    at: float,
    gpu: str,
    load: float,
    watts: float,
    energy_joules: float,
    server: int | None,
    clients: Iterable[SimulatedProcess],
    bypassing: Iterable[SimulatedProcess],
) -> kinds.GpuReading:
    """Return NVML's reading of a GPU with an MPS server, its clients, and processes that bypass MPS."""
    mps, others = (
        tuple(kinds.GpuProcess(pid=process.pid, used_bytes=process.used_bytes) for process in processes)
        for processes in (clients, bypassing)
    )
    compute = (*mps, *others)
    used = {process.pid: process.sm_utilization for process in bypassing}
    if server is not None:
        compute = (kinds.GpuProcess(pid=server, used_bytes=SERVER_BYTES), *compute)
        used = {server: sm_utilization(clients), **used}
    percents = {pid: round(100 * sm) for pid, sm in used.items()}
    return kinds.GpuReading(
        at=at,
        gpu=gpu,
        index=GPUS.index(gpu),
        name="NVIDIA H200 (simulated)",
        pci_bus_id=f"0000{pci_address(gpu)}.0",
        compute_processes=compute,
        mps_processes=mps,
        process_utilization=tuple(
            kinds.ProcessUtilization(pid=pid, timestamp_us=int(at * 1e6), sm_percent=percent)
            for pid, percent in percents.items()
        ),
        gpu_percent=round(100 * load),
        memory_used_bytes=sum(process.used_bytes or 0 for process in compute) + CONTEXT_BYTES,
        memory_total_bytes=GPU_BYTES,
        energy_millijoules=int(energy_joules * 1000),
        driver_version="580.95.05",
        cuda_version="13.0",
        compute_mode="default",
        mig_mode=False,
        persistence_mode=True,
        power_milliwatts=round(watts * 1000),
        sm_utilization=load,
        dram_bandwidth=_dram_bandwidth((*clients, *bypassing)),
        gpm_seconds=5.0,
        sms=SMS,
    )


def let_work(at: float, processes: Sequence[SimulatedProcess]) -> None:
    """Set how all processes work in this second: some pause, and others slow each other down."""
    for process in processes:
        process.pauses = (int(at) + process.pid) % PERIOD_SECONDS < process.workload.pause_seconds
    for process in processes:
        process.longer = max((_longer(process, processes, gpu) for gpu in process.gpus), default=1.0)


def probe_readings(
    at: float, gpus: Sequence[str], processes: Sequence[SimulatedProcess]
) -> Iterator[kinds.Observation]:
    """Yield one second of all processes, as libcuda probes read it, and the utilization of the GPUs in it."""
    now = int(at * NS)
    yield WorkReading(
        at=at,
        boot_ns=now,
        seconds=1.0,
        sms=SMS,
        processes=tuple(_work(process, now) for process in processes),
        watched=tuple(process.pid for process in processes),
    )
    for gpu in gpus:
        here = [process for process in processes if gpu in process.gpus]
        sm, dram = sm_utilization(here), _dram_bandwidth(here)
        yield GpuUse(at=at, gpu=gpu, seconds=1.0, sm_utilization=sm, dram_bandwidth=dram)


def _work(process: SimulatedProcess, now: int) -> ProcessWork:
    """Return the work since the first reading, with that of another second. Each kernel has a span and a burst."""
    first_ns = process.first_read_ns = process.first_read_ns or now
    busy_ns, rate, width = int(process.duty * NS), 50 + process.pid % 400, process.workload.sms
    process.alone_seconds += process.pace
    process.flight_ns += busy_ns
    if NS - busy_ns < SHORT_GAP_NS * rate * process.pace:
        process.gap_ns += NS - busy_ns
    kernels, flight_ns = int(process.alone_seconds * rate), process.flight_ns
    return ProcessWork(
        pid=process.pid,
        first_ns=first_ns,
        initialized_ns=first_ns,
        kernels=kernels,
        graphs=int(process.alone_seconds * (process.pid % 3) * 20),
        spans=kernels,
        flight_ns=flight_ns,
        busy_ns=flight_ns,
        gap_ns=process.gap_ns,
        area=flight_ns * width,
        widths=kernels * width,
        syncs=kernels,
        sure_area=flight_ns * width,
        sure_widths=kernels * width,
        sure_heights=kernels * width,
    )


def kernel_reading(at: float, processes: Iterable[SimulatedProcess], *, at_fault: bool = False) -> KernelReading:
    """Return what the processes run, and at a fault the kernel that each has in flight."""
    clients = tuple(_kernels(process, int(at * NS), at_fault=at_fault) for process in processes)
    return KernelReading(at=at, boot_ns=int(at * NS), clients=clients, at_fault=at_fault)


def _kernels(process: SimulatedProcess, now: int, *, at_fault: bool) -> ClientKernels:
    names = [KernelName(raw=name, short=name) for name in KERNELS.get(process.workload.command, ["reduce_kernel"])]
    use = KernelUse(launches_per_second=process.pace * (50 + process.pid % 400), width=process.workload.sms)
    most = tuple(replace(use, name=name, flight_ratio=0.7 / rank) for rank, name in enumerate(names or [None], start=1))
    last = LaunchedKernel(name=most[0].name, since_ns=now - NS, grid=(use.width, 1, 1), block=(256, 1, 1), stream=1)
    last = replace(last, last_ns=now - NS // 5, launches=process.pid, completed=process.pid - 20)
    first_ns = process.first_read_ns or now
    return ClientKernels(pid=process.pid, first_ns=first_ns, streams=1, most=most, last=(last,) if at_fault else ())
