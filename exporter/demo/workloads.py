"""Simulated workloads and their processes."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from exporter.model.observation import ProcessExit, ProcessReading
from exporter.model.settings import CLIENT_PRIORITY

GIBIBYTE = 1 << 30
CONTEXT_BYTES = 516 << 20

SMS = 132
"""Streaming multiprocessors of an H200."""


@dataclass(frozen=True, slots=True)
class SimulatedWorkload:
    """A program of a user, with its cgroup and its use of a GPU. One workload is noisy, and one is idle."""

    user: str
    uid: int
    command: str
    gibibytes: tuple[int, int]
    """Least and most memory of a GPU."""
    cgroup: str
    duty: float
    """Fraction of the time in which a process has kernels in flight."""
    sms: int
    """SMs that these kernels use."""
    pod: tuple[str, str, str] | None = None
    """UID, name and namespace."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Its variables of CLIENT_LIMITS."""


def _pod(uid: str, container: str) -> str:
    slices = "/kubepods.slice/kubepods-burstable.slice"
    return f"0::{slices}/kubepods-burstable-pod{uid.replace('-', '_')}.slice/cri-containerd-{container * 64}.scope"


_VLLM = "7d4f5c1e-2b8a-4a53-9f0e-6c1d2b3a4e5f"
_EMBED = "c2a9e6b0-41d7-4c7e-8a35-0f9b8d7c6e51"
_SLURM = "0::/system.slice/slurmstepd.scope/job_{}/step_0/user/task_0"

_LOW_PRIORITY = {CLIENT_PRIORITY: "1"}

TRAINERS = (
    SimulatedWorkload("alice", 1001, "train.py", (8, 24), _SLURM.format(4711), 0.5, 24),
    SimulatedWorkload("bob", 1002, "finetune.py", (6, 16), _SLURM.format(4712), 0.9, 56),
    SimulatedWorkload("erin", 1005, "python3", (2, 6), "0::/user.slice/user-1005.slice/session-7.scope", 0.004, 16),
    SimulatedWorkload("dave", 1004, "render-worker", (1, 4), f"0::/system.slice/docker-{'5' * 64}.scope", 0.3, 16),
)
SERVING = (
    SimulatedWorkload(
        "carol", 1003, "vllm", (16, 24), _pod(_VLLM, "a"), 0.5, 24, (_VLLM, "vllm-6f9c7d-x2x4q", "inference")
    ),
    SimulatedWorkload(
        "carol", 1003, "embed-worker", (1, 4), _pod(_EMBED, "b"), 0.1, 8, (_EMBED, "embed-0", "inference")
    ),
    SimulatedWorkload(
        "carol", 1003, "rerank", (2, 6), "0::/system.slice/rerank.service", 0.1, 8, environment=_LOW_PRIORITY
    ),
)
NOTEBOOKS = (SimulatedWorkload("frank", 1006, "jupyter-lab", (2, 6), "0::/system.slice/jupyter.service", 0.004, 16),)
BYPASSING = replace(TRAINERS[2], duty=0.3)
SERVER = SimulatedWorkload(
    "root", 0, "nvidia-cuda-mps-server", (0, 0), "0::/system.slice/nvidia-cuda-mps.service", 0.0, 0
)


@dataclass(slots=True)
class SimulatedProcess:
    """A process that uses GPUs, and the same memory on each, until `ends_at`."""

    pid: int
    workload: SimulatedWorkload
    gpus: tuple[str, ...]
    used_bytes: int
    ends_at: float

    @property
    def start_ticks(self) -> int:
        """Return its start, in clock ticks since boot."""
        return self.pid * 100

    @property
    def duty(self) -> float:
        """Return the fraction of the time in which it has kernels in flight. It varies with the PID."""
        return min(1.0, self.workload.duty * (0.8 + self.pid % 5 / 10))

    @property
    def sm_utilization(self) -> float:
        """Return the fraction of the SMs that it uses on each of its GPUs."""
        return self.duty * self.workload.sms / SMS / max(1, len(self.gpus))

    def reading(self, at: float) -> ProcessReading:
        """Return its entry in /proc."""
        return ProcessReading(
            at=at,
            pid=self.pid,
            start_ticks=self.start_ticks,
            started=at,
            uid=self.workload.uid,
            user=self.workload.user,
            command=self.workload.command,
            cgroup=f"{self.workload.cgroup}\n",
            environment=self.workload.environment,
        )

    def exit(self, at: float, wait_status: int | None = None) -> ProcessExit:
        """Return its exit."""
        return ProcessExit(at=at, pid=self.pid, start_ticks=self.start_ticks, wait_status=wait_status)


class ProcessFactory:
    """Creates processes and makes the random choices. The same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._last_pid = 40_000

    def happens(self, every: float) -> bool:
        """Return whether an event happens in this second that happens every so many seconds on average."""
        return self.random.random() < 1 / every

    def new_pid(self) -> int:
        """Return an unused PID."""
        self._last_pid += self.random.randint(1, 40)
        return self._last_pid

    def new_process(self, workload: SimulatedWorkload, gpus: tuple[str, ...], ends_at: float) -> SimulatedProcess:
        """Start a process of a workload."""
        used = self.random.randint(*workload.gibibytes) * GIBIBYTE + CONTEXT_BYTES
        return SimulatedProcess(self.new_pid(), workload, gpus, used, ends_at)
