"""Who there is in the demo: owners, and the processes that chance lets them start."""

import random
from dataclasses import dataclass, replace

from exporter.model.observation import PodFound, ProcessReading

GIBIBYTE = 1 << 30
CONTEXT_BYTES = 516 << 20

SMS = 132
"""Of an H200."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What part of the time a process has kernels in flight, and on how many SMs they run."""

    duty: float
    sms: int


@dataclass(frozen=True, slots=True)
class Owner:
    """A user, what it runs in which cgroup, how much memory of a GPU that takes, in GiB, and how hard it works."""

    user: str
    uid: int
    command: str
    gibibytes: tuple[int, int]
    cgroup: str
    pace: Pace
    pod: tuple[str, str, str] | None = None
    """UID, name and namespace."""


def _pod(uid: str, container: str) -> str:
    slices = "/kubepods.slice/kubepods-burstable.slice"
    return f"0::{slices}/kubepods-burstable-pod{uid.replace('-', '_')}.slice/cri-containerd-{container * 64}.scope"


_VLLM = "7d4f5c1e-2b8a-4a53-9f0e-6c1d2b3a4e5f"
_EMBED = "c2a9e6b0-41d7-4c7e-8a35-0f9b8d7c6e51"

_NOISY, _STEADY, _NOW_AND_THEN, _SMALL, _IDLE = (
    Pace(0.9, 56),
    Pace(0.5, 24),
    Pace(0.3, 16),
    Pace(0.1, 8),
    Pace(0.004, 16),
)

TRAINERS = (
    Owner("alice", 1001, "train.py", (8, 24), "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0", _STEADY),
    Owner("bob", 1002, "finetune.py", (6, 16), "0::/system.slice/slurmstepd.scope/job_4712/step_0/user/task_0", _NOISY),
    Owner("erin", 1005, "python3", (2, 6), "0::/user.slice/user-1005.slice/session-7.scope", _IDLE),
    Owner("dave", 1004, "render-worker", (1, 4), f"0::/system.slice/docker-{'5' * 64}.scope", _NOW_AND_THEN),
)
SERVING = (
    Owner("carol", 1003, "vllm", (16, 24), _pod(_VLLM, "a"), _STEADY, (_VLLM, "vllm-6f9c7d-x2x4q", "inference")),
    Owner("carol", 1003, "embed-worker", (1, 4), _pod(_EMBED, "b"), _SMALL, (_EMBED, "embed-0", "inference")),
    Owner("carol", 1003, "rerank", (2, 6), "0::/system.slice/rerank.service", _SMALL),
)
NOTEBOOKS = (Owner("frank", 1006, "jupyter-lab", (2, 6), "0::/system.slice/jupyter.service", _IDLE),)
BESIDE_MPS = replace(TRAINERS[2], pace=_NOW_AND_THEN)
SERVICE = Owner(
    "root", 0, "nvidia-cuda-mps-server", (0, 0), "0::/system.slice/nvidia-cuda-mps.service", Pace(duty=0.0, sms=0)
)
"""Somebody is noisy, somebody keeps memory and is idle: so that there is something to find."""


@dataclass(slots=True)
class Process:
    """A process that uses GPUs, as much memory of each, until its time is over."""

    pid: int
    owner: Owner
    gpus: tuple[str, ...]
    used_bytes: int
    leaves_at: float

    @property
    def start_ticks(self) -> int:
        """Its start, in clock ticks since boot."""
        return self.pid * 100

    @property
    def duty(self) -> float:
        """Which part of the time it has work in flight; no two are quite alike."""
        return min(1.0, self.owner.pace.duty * (0.8 + self.pid % 5 / 10))

    @property
    def busy(self) -> float:
        """How much of all SMs it keeps busy on each of its GPUs, which it uses alike."""
        return self.duty * self.owner.pace.sms / SMS / max(1, len(self.gpus))

    def read(self, at: float) -> ProcessReading:
        """What /proc says of it."""
        return ProcessReading(
            at=at,
            pid=self.pid,
            start_ticks=self.start_ticks,
            started=at,
            uid=self.owner.uid,
            user=self.owner.user,
            command=self.owner.command,
            cgroup=f"{self.owner.cgroup}\n",
            environment={},
        )

    def pod(self, at: float) -> tuple[PodFound, ...]:
        """The name of its pod, if it is in one."""
        if self.owner.pod is None:
            return ()
        uid, name, namespace = self.owner.pod
        return (PodFound(at=at, uid=uid, name=name, namespace=namespace),)


class Cast:
    """Brings them on, by chance."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self._last_pid = 40_000

    def happens(self, every: float) -> bool:
        """Whether something happens in this second that does so once in so many."""
        return self.chance.random() < 1 / every

    def pid(self) -> int:
        """The next one."""
        self._last_pid += self.chance.randint(1, 40)
        return self._last_pid

    def process(self, owner: Owner, gpus: tuple[str, ...], leaves_at: float) -> Process:
        """Somebody starts something."""
        used = self.chance.randint(*owner.gibibytes) * GIBIBYTE + CONTEXT_BYTES
        return Process(self.pid(), owner, gpus, used, leaves_at)
