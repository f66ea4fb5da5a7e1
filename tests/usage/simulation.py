"""Simulated GPU. Its clients launch kernels of known length and width, so the truth is known.

Time advances in slices. If the clients want more SMs than the GPU has, all of them slow down.
The probes count launches and synchronizations. A process learns late, when it synchronizes, that its work has ended.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from exporter.model.launches import ProcessWork, WorkReading
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.sharing import GpuUse
from exporter.model.usage import Split
from exporter.reducer import reduce
from tests.builders import AT, GPU, at_work, gpu_reading, process, reduced
from tests.works import boot_ns

SMS = 132
SLICE_NS = 50_000_000
SYNC_NS = 14_000
EVENT_NS = 90_000
US, MS = 1_000, 1_000_000


@dataclass(slots=True)
class Worker:
    """A client: length and width of its kernels, kernels in a burst, and the pause after each burst.

    It waits for each burst by a synchronization or an event. If `never`, it launches at a steady rate. `on` is when
    it works, in seconds since the start. From second `slower_from`, its kernels take `slower_by` times as long.
    """

    pid: int
    length: int
    width: int
    batch: int = 1
    pause: int = 0
    event: bool = False
    never: bool = False
    behind: bool = True
    on: tuple[float, float] = (0.0, float("inf"))
    slower_from: float = float("inf")
    slower_by: float = 3.0
    used: float = 0.0
    counts: dict[str, float] = field(default_factory=dict)

    def kernel(self, second: float) -> float:
        """Return the duration of a kernel without other clients."""
        return self.length * (self.slower_by if second >= self.slower_from else 1.0)

    def works(self, second: float) -> bool:
        """Return whether the client launches kernels at this time."""
        return self.on[0] <= second < self.on[1]

    def wants(self, second: float) -> float:
        """Return how many SMs it would use on average without other clients."""
        if not self.works(second):
            return 0.0
        busy = self.kernel(second) * self.batch
        around = 0 if self.never else (EVENT_NS if self.event else SYNC_NS)
        return self.width * busy / (busy + around + self.pause)

    def uses(self, second: float, slowness: float) -> float:
        """Return how many SMs it uses on average if its kernels take `slowness` times as long as alone."""
        busy = self.kernel(second) * self.batch
        around = 0 if self.never else (EVENT_NS if self.event else SYNC_NS)
        return self.width * busy / (busy * slowness + around + self.pause)

    def work_for(self, second: float, slowness: float, jitter: float) -> None:
        """Simulate one slice in which its kernels take `slowness` times as long as alone."""
        lasting = self.kernel(second) * slowness
        around = 0 if self.never else (EVENT_NS if self.event else SYNC_NS)
        cycle = lasting * self.batch + around + self.pause
        bursts = SLICE_NS / cycle * jitter
        kernels = bursts * self.batch
        in_flight = SLICE_NS if self.never else bursts * (lasting * self.batch + around)
        self.used += kernels * self.kernel(second) * self.width
        for name, more in {
            "kernels": kernels,
            "widths": kernels * self.width,
            "area": in_flight * self.width,
            "flight_ns": in_flight,
        }.items():
            self._grow(name, more)
        if not self.never:
            self._grow("syncs", bursts)
            self._grow("spans", bursts)
        if self.behind and not self.never:
            self._grow("sure_area", in_flight * self.width)
            self._grow("sure_widths", kernels * self.width)
            self._grow("sure_event_heights" if self.event else "sure_heights", bursts * self.width)

    def work(self) -> ProcessWork:
        """Return its counts as the probes report them."""
        return ProcessWork(
            pid=self.pid, first_ns=boot_ns(AT - 50), **{name: int(count) for name, count in self.counts.items()}
        )

    def _grow(self, name: str, more: float) -> None:
        self.counts[name] = self.counts.get(name, 0.0) + more


@dataclass(slots=True)
class SimulatedNode:
    """The GPU, its clients, and the node of the exporter. Random values come from the seed."""

    workers: tuple[Worker, ...]
    noise: float = 0.005
    lag_seconds: float = 0.0
    unwatched: frozenset[int] = frozenset()
    seed: int = 1
    rests: tuple[int, ...] = ()
    second: int = 0
    counted_from: int = 0
    node: Node = field(init=False)
    busy: float = 0.0
    last_busy: float = 0.0
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        pids = [worker.pid for worker in self.workers]
        known = (process(pid, ticks=1, user=f"user-{pid}") for pid in pids)
        self.node = reduced(*at_work(*pids), *known, gpu_reading(pids)).node

    def live(self, seconds: int) -> Split:
        """Simulate this many seconds, and return the attribution of the last minute."""
        for _ in range(seconds):
            for seen in self.next_second():
                self.node, _ = reduce(self.node, seen)
        return self.node.splits[GPU]

    def next_second(self) -> Iterator[Observation]:
        before = self.busy
        for slice_number in range(1_000_000_000 // SLICE_NS):
            self._slice(self.second + slice_number * SLICE_NS / 1e9)
        self.second += 1
        now = self.busy - before
        measured = (1 - self.lag_seconds) * now + self.lag_seconds * self.last_busy
        self.last_busy = now
        sm = min(1.0, max(0.0, measured / (SMS * 1e9) * self.rng.gauss(1, self.noise)))
        at = AT + self.second
        yield self.reading(at)
        yield GpuUse(at=at + 0.1, gpu=GPU, seconds=1.0, sm_utilization=sm, dram_bandwidth=0.1)

    def reading(self, at: float) -> WorkReading:
        """Return the counts of the probes, which were detached during the seconds in `rests`."""
        seen = [worker for worker in self.workers if worker.pid not in self.unwatched]
        return WorkReading(
            at=at,
            boot_ns=boot_ns(at),
            seconds=0.0 if self.second in self.rests else 1.0,
            sms=SMS,
            processes=tuple(worker.work() for worker in seen if worker.counts),
            watched=tuple(worker.pid for worker in seen),
        )

    def truths(self) -> dict[int, float]:
        """Return the share of each client since the last `reset_truth`."""
        return {worker.pid: worker.used / (SMS * 1e9 * (self.second - self.counted_from)) for worker in self.workers}

    def reset_truth(self) -> None:
        """Set the use of each client to 0."""
        self.counted_from = self.second
        for worker in self.workers:
            worker.used = 0.0

    def _slice(self, second: float) -> None:
        wanted = sum(worker.wants(second) for worker in self.workers)
        slowness = max(1.0, wanted / SMS)
        before = sum(worker.used for worker in self.workers)
        jitters = {worker.pid: self.rng.uniform(0.8, 1.2) for worker in self.workers if worker.works(second)}
        using = sum(jitters[each.pid] * each.uses(second, slowness) for each in self.workers if each.pid in jitters)
        for worker in self.workers:
            if worker.pid in jitters:
                # Together they use no more than all SMs.
                worker.work_for(second, slowness, jitters[worker.pid] * min(1.0, SMS / max(using, 1.0)))
        self.busy += sum(worker.used for worker in self.workers) - before


def errors_of(split: Split, truths: Mapping[int, float]) -> dict[int, float]:
    """Return the error of each share in percentage points. A client without a share counts with all its use."""
    reading = {pid: split.shares[pid].sm if pid in split.shares else 0.0 for pid in truths}
    return {pid: 100 * (reading[pid] - truth) for pid, truth in truths.items()}


def largest_error(split: Split, truths: Mapping[int, float]) -> float:
    return max(map(abs, errors_of(split, truths).values()))
