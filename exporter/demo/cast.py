"""Who there is in the demo: owners, and the processes that chance lets them start."""

import random
from dataclasses import dataclass

from exporter.model.observation import ProcessReading

GIBIBYTE = 1 << 30
CONTEXT_BYTES = 516 << 20


@dataclass(frozen=True, slots=True)
class Owner:
    """A user, what it runs, and how much GPU memory that takes, in GiB."""

    user: str
    uid: int
    command: str
    gibibytes: tuple[int, int]


OWNERS = (
    Owner("alice", 1001, "train.py", (8, 24)),
    Owner("bob", 1002, "jupyter-lab", (2, 6)),
    Owner("carol", 1003, "vllm", (16, 40)),
    Owner("dave", 1004, "embed-worker", (1, 4)),
)
SERVICE = Owner("root", 0, "nvidia-cuda-mps-server", (0, 0))


@dataclass(slots=True)
class Process:
    """A process that uses a GPU, until its time is over."""

    pid: int
    owner: Owner
    gpu: str
    used_bytes: int
    leaves_at: float

    @property
    def start_ticks(self) -> int:
        """Its start, in clock ticks since boot."""
        return self.pid * 100

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
        )


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

    def process(self, gpu: str, leaves_at: float) -> Process:
        """Somebody starts something."""
        owner = self.chance.choice(OWNERS)
        used = self.chance.randint(*owner.gibibytes) * GIBIBYTE + CONTEXT_BYTES
        return Process(self.pid(), owner, gpu, used, leaves_at)
