"""A client that streams memory on one of four GPUs, beside single clients and a job with a rank on each GPU.

A rank computes, and then waits in a narrow kernel for the ranks of the other GPUs, as in an all-reduce of NCCL.
"""

from collections.abc import Sequence

import pytest

from exporter.model.contention import Resource, Slowdown
from exporter.model.settings import VISIBLE_DEVICES
from exporter.usage.contention import slowdowns
from tests.builders import CLIENT
from tests.usage.simulation import SLICE_NS, SYNC_NS, US, Worker
from tests.usage.test_several_gpus import FOREVER, UUIDS, GpuClient, SeveralGpus, Span

GPUS = range(4)
RANKS = tuple(CLIENT + gpu for gpu in GPUS)
STREAM, BOTH = CLIENT + 10, CLIENT + 11
SINGLES = tuple(CLIENT + 20 + gpu for gpu in GPUS)
KERNELS, WIDTH, COMPUTES_NS = 40, 90, 20e6
NARROW, REDUCES_NS = 24, 3e6
"""A step of a rank: so many wide kernels, and a narrow one that waits for the others, and then reduces."""

STREAMING: Span = (25, 65)
LONGER = 2.5
"""When the stream works, and how much longer all others of its GPU compute then."""


class Streamed(SeveralGpus):
    """A node of which one GPU has a client that streams memory for some time."""

    def __init__(self, *every: GpuClient, on: int, logged: bool) -> None:
        self.on = on
        stream = single(STREAM, on, length=300, width=36, pause=150, span=STREAMING)
        for each in (*every, stream):
            each.logged = tuple(each.work) if logged else ()
        super().__init__(*every, stream, gpus=len(GPUS))

    def slowdowns(self, second: int, gpu: int) -> dict[int, Slowdown]:
        """Return the slowdowns in the minute before."""
        return slowdowns(self.seconds[second][0].contention[UUIDS[gpu]])

    def caused(self) -> dict[int, float]:
        """Return the lost seconds that known clients of each GPU caused."""
        totals = self.node.usage_totals.gpus
        return {
            gpu: sum(used.caused_us for (_, method), used in totals[UUIDS[gpu]].by_account.items() if method) / 1e6
            for gpu in GPUS
        }

    def _is_longer(self, gpu: int, second: float) -> bool:
        return gpu == self.on and STREAMING[0] <= second < STREAMING[1]

    def _dram(self, gpu: int, second: int) -> float:
        return 0.8 if self._is_longer(gpu, second) else 0.1

    def _work(self, second: float) -> None:
        step_ns = REDUCES_NS + COMPUTES_NS * (LONGER if self._is_longer(self.on, second) else 1.0)
        for client in self.clients:
            for gpu, used in client.work.items():
                longer = LONGER if self._is_longer(gpu, second) and client.pid != STREAM else 1.0
                if client.pid in RANKS:
                    rank_steps(used, SLICE_NS / step_ns, longer * COMPUTES_NS, step_ns)
                elif used.works(second):
                    before = used.used
                    used.work_for(second, longer, 1.0)
                    # A kernel that waits for memory keeps its SMs.
                    used.used += (longer - 1) * (used.used - before)


def rank_steps(rank: Worker, steps: float, computes_ns: float, lasts_ns: float) -> None:
    widths = KERNELS * WIDTH + NARROW
    mean_width = widths / (KERNELS + 1)
    rank.used += steps * (computes_ns * WIDTH + (lasts_ns - computes_ns) * NARROW)
    more = {"kernels": steps * (KERNELS + 1), "syncs": steps, "spans": steps, "flight_ns": SLICE_NS}
    more |= {"widths": steps * widths, "area": SLICE_NS * mean_width, "bound": SLICE_NS * WIDTH}
    more |= {"sure_widths": steps * widths, "sure_area": SLICE_NS * mean_width, "sure_heights": steps * mean_width}
    rank.counts = {name: rank.counts.get(name, 0.0) + count for name, count in more.items()}


def single(pid: int, *gpus: int, length: int, width: int, pause: int, span: Span = (0, FOREVER)) -> GpuClient:
    """Return a client of some GPUs with kernels of so many microseconds. Each container has one."""
    return GpuClient(
        pid=pid,
        work={gpu: Worker(pid=pid, length=length * US, width=width, pause=pause * US, on=span) for gpu in gpus},
        numbers={gpu: number for number, gpu in enumerate(gpus)},
        contexts=dict.fromkeys(gpus, (span[0], FOREVER)),
        environment={VISIBLE_DEVICES: ",".join(UUIDS[gpu] for gpu in gpus)},
        sees=gpus,
        start=int(span[0]),
        cgroup=f"0::/system.slice/docker-{pid:064x}.scope\n",
    )


def minute_beside(client: GpuClient, gpu: int, *, seconds: int) -> float:
    """Return the true slowdown of a client in a minute, of which it was so many seconds beside the stream."""
    used = client.work[gpu]
    alone = used.length + SYNC_NS + used.pause
    return 60 / (60 - seconds + seconds * alone / (alone + (LONGER - 1) * used.length))


def job() -> list[GpuClient]:
    return [single(pid, gpu, length=1, width=1, pause=1) for gpu, pid in enumerate(RANKS)]


def lights() -> list[GpuClient]:
    """Return a small client of each GPU."""
    return [single(pid, gpu, length=100, width=6 + 6 * gpu, pause=300) for gpu, pid in enumerate(SINGLES)]


@pytest.mark.parametrize("logged", [False, True], ids=["no log", "log"])
@pytest.mark.parametrize("on", [0, 3])
def test_a_stream_slows_down_only_the_clients_of_its_gpu(on: int, logged: bool) -> None:
    """One of the clients works on this GPU and on another one, by UUIDs in another order."""
    both = single(BOTH, on, (on + 1) % 4, length=200, width=20, pause=100)
    small = lights()
    node = Streamed(*small, both, on=on, logged=logged).live(90)
    for gpu in GPUS:
        for pid, found in node.slowdowns(62, gpu).items():
            if gpu == on and pid != STREAM:
                true = minute_beside(both if pid == BOTH else small[gpu], gpu, seconds=62 + 1 - STREAMING[0])
                assert abs(found.ratio - true) <= 2 * found.error_ratio
                assert found.ratio == pytest.approx(true, rel=0.05)
                assert found.resource is Resource.MEMORY
                assert found.neighbours[0][0] == STREAM
            else:
                assert found.ratio == pytest.approx(1, abs=0.1)
        assert node.slowdowns(62, gpu).keys() >= {SINGLES[gpu]}
    assert {gpu for gpu, seconds in node.caused().items() if seconds > 0.1} == {on}
    assert node.covered() >= 0.95


@pytest.mark.parametrize("others", [[], lights()], ids=["alone", "beside others"])
@pytest.mark.parametrize("on", [0, 3])
def test_a_rank_that_waits_for_another_gpu_is_slowed_down_by_none_of_its_own(
    on: int, others: Sequence[GpuClient]
) -> None:
    """All ranks take longer. Only the one beside the stream is known to be slowed down, and only the stream pays."""
    node = Streamed(*job(), *others, on=on, logged=True).live(120)
    for second in (45, 62, 70, 90, 115):
        for gpu in GPUS:
            for pid, found in node.slowdowns(second, gpu).items():
                if (gpu, pid) == (on, RANKS[on]) and second < 90:
                    assert found.ratio - 2 * found.error_ratio > 1.1
                    assert found.neighbours[0][0] == STREAM
                elif gpu != on:
                    assert found.ratio == pytest.approx(1, abs=0.12)
    assert {gpu for gpu, seconds in node.caused().items() if seconds > 0.1} == {on}


def test_waiting_in_a_narrow_kernel_takes_no_part_from_a_small_neighbour() -> None:
    """The bursts of a rank have a mean width that counts its kernels, not their time."""
    node = Streamed(*job(), *lights(), on=0, logged=True).live(60)
    for second in range(30, 60):
        for gpu in GPUS[1:]:
            shares, used = node.window(second, gpu).shares, node.seconds[second][1]
            for pid in (RANKS[gpu], SINGLES[gpu]):
                assert abs(shares[pid].sm - used[pid, gpu]) <= 2 * shares[pid].error + 0.001
                assert abs(shares[pid].sm - used[pid, gpu]) <= 0.02
