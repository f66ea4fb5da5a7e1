"""How much the clients of a GPU slow each other down."""

from collections.abc import Mapping
from itertools import pairwise

import pytest

from exporter.model.contention import GpuContention, Resource, Slowdown
from exporter.model.usage import LaunchRate, Method, Share, Split, WorkDelta
from exporter.usage.contention import bandwidths, sharing_gain, slowdowns, with_window

SMALL, HEAVY, OTHER = 10, 20, 30
CLIENTS = frozenset({SMALL, HEAVY, OTHER})


def work(spans: int, busy_ms: float, *, gap_ms: float = 0.0, width: int = 100, each: int = 10) -> WorkDelta:
    """Return what a client did in a second: so many spans of `each` launches."""
    launches = spans * each
    busy, gap = int(busy_ms * 1e6), int(gap_ms * 1e6)
    return WorkDelta(kernels=launches, spans=spans, widths=launches * width, busy_ns=busy, flight_ns=busy, gap_ns=gap)


ALONE = work(100, 300, gap_ms=600)
"""A span takes 3 ms on a quiet GPU, and the client works for 6 ms on the CPU after it."""
SLOWED = work(50, 700, gap_ms=300)
"""Here it takes 14 ms: the client needs 20 instead of 9 ms for its work."""
STREAMING = work(1000, 990, each=1, width=132)


class Gpu:
    """A GPU, second after second."""

    def __init__(self) -> None:
        self.state, self.splits = GpuContention(), list[Split]()

    def second(
        self, clients: Mapping[int, WorkDelta], shares: Mapping[int, float], *, dram: float | None = 0.1, count: int = 1
    ) -> "Gpu":
        for _ in range(count):
            parts = {pid: Share(method=Method.FLIGHT, sm=sm) for pid, sm in shares.items()}
            at = 100.0 + len(self.splits)
            split = Split(at=at, seconds=1.0, sm=sum(shares.values()), shares=parts, dram=dram)
            self.splits.append(split)
            self.state = with_window(self.state, LaunchRate(seconds=1.0, deltas=clients), split, CLIENTS)
        return self

    def forget(self) -> "Gpu":
        """Let a minute pass, in which nobody works."""
        self.state = with_window(
            self.state, LaunchRate(seconds=1.0, deltas={}), Split(at=1000.0, seconds=1.0, sm=0), CLIENTS
        )
        return self

    @property
    def slowdowns(self) -> dict[int, Slowdown]:
        return slowdowns(self.state, self.splits)


def learned() -> Gpu:
    """Return a GPU on which two clients were alone in turn, more than a minute ago."""
    gpu = Gpu().second({SMALL: ALONE}, {SMALL: 0.05}, dram=0.01, count=4)
    gpu.second({HEAVY: STREAMING}, {HEAVY: 0.9}, dram=0.8, count=4)
    gpu.splits = [split for split in gpu.splits if split.at > 1000]
    return gpu.forget()


def beside_heavy(small: WorkDelta = SLOWED, count: int = 5) -> Gpu:
    gpu = learned()
    for number in range(count):
        parts = {pid: Share(method=Method.FLIGHT, sm=sm) for pid, sm in ((SMALL, 0.03), (HEAVY, 0.95))}
        split = Split(at=1001.0 + number, seconds=1.0, sm=0.98, shares=parts, dram=0.8)
        gpu.splits.append(split)
        rate = LaunchRate(seconds=1.0, deltas={SMALL: small, HEAVY: STREAMING})
        gpu.state = with_window(gpu.state, rate, split, CLIENTS)
    return gpu


def test_a_client_beside_a_heavy_one_takes_longer_for_its_work() -> None:
    found = beside_heavy().slowdowns
    assert found[SMALL].ratio == pytest.approx(20 / 9, rel=0.001)
    assert found[HEAVY].ratio == pytest.approx(1, rel=0.001)
    assert found[SMALL].error < 0.1 * found[SMALL].ratio
    assert not found[SMALL].is_bound


def test_the_cpu_time_of_a_client_is_that_of_the_quiet_gpu() -> None:
    """Here the client had less to do, or no CPU: each span took as long as ever."""
    found = beside_heavy(work(20, 60, gap_ms=300)).slowdowns
    assert found[SMALL].ratio == pytest.approx(1, rel=0.001)


def test_names_the_resource_and_who_uses_it() -> None:
    slowed = beside_heavy().slowdowns[SMALL]
    assert slowed.resource is Resource.MEMORY
    assert [pid for pid, _ in slowed.neighbours] == [HEAVY]
    assert slowed.neighbours[0][1] == pytest.approx(0.79, abs=0.02)


@pytest.mark.parametrize(
    ("dram", "sm", "resource"), [(0.1, 0.95, Resource.SMS), (0.1, 0.5, Resource.OTHER), (0.7, 0.95, Resource.MEMORY)]
)
def test_the_resource_is_what_was_used_up(dram: float, sm: float, resource: Resource) -> None:
    gpu = Gpu().second({SMALL: ALONE}, {SMALL: 0.05}, dram=0.01, count=4)
    gpu.second({SMALL: SLOWED, OTHER: STREAMING}, {SMALL: 0.03, OTHER: sm - 0.03}, dram=dram, count=4)
    assert gpu.slowdowns[SMALL].resource is resource


def test_a_client_that_was_never_alone_has_a_lower_bound() -> None:
    gpu = Gpu()
    for busy in (900, 600, 800):
        gpu.second({SMALL: work(50, busy), HEAVY: STREAMING}, {SMALL: 0.05, HEAVY: 0.9})
    assert gpu.slowdowns[SMALL].is_bound
    assert gpu.slowdowns[SMALL].ratio == pytest.approx((900 + 600 + 800) / (3 * 600))
    gpu.second({SMALL: work(100, 600)}, {SMALL: 0.1}, count=2)
    assert not gpu.slowdowns[SMALL].is_bound


def test_the_first_quiet_second_is_not_learned() -> None:
    """It may have begun while the GPU was busy."""
    gpu = Gpu().second({SMALL: work(50, 500), HEAVY: STREAMING}, {SMALL: 0.05, HEAVY: 0.9})
    gpu.second({SMALL: work(50, 500)}, {SMALL: 0.05})
    assert gpu.slowdowns[SMALL].is_bound
    gpu.second({SMALL: work(100, 300)}, {SMALL: 0.05})
    assert gpu.state.baselines[SMALL].pace.latency == pytest.approx(300e6 / 1000)


def test_other_work_makes_the_slowdown_unknown_until_it_was_seen_alone() -> None:
    """Kernels have another width."""
    gpu = beside_heavy(work(50, 700, gap_ms=300, width=50))
    assert SMALL not in gpu.slowdowns
    assert SMALL not in beside_heavy(work(10, 700, each=50)).slowdowns
    last = gpu.splits[-1].at
    for number, _ in pairwise(range(4)):
        rate = LaunchRate(seconds=1.0, deltas={SMALL: work(100, 300, width=50)})
        split = Split(at=last + 1 + number, seconds=1.0, sm=0.05, shares={}, dram=0.01)
        gpu.state = with_window(gpu.state, rate, split, CLIENTS)
    assert gpu.slowdowns[SMALL].ratio > 2


def test_a_longer_time_on_a_quiet_gpu_is_a_new_baseline() -> None:
    """The client has longer inputs."""
    gpu = learned()
    for number in range(5):
        split = Split(at=1001.0 + number, seconds=1.0, sm=0.05, shares={}, dram=0.01)
        gpu.state = with_window(gpu.state, LaunchRate(seconds=1.0, deltas={SMALL: work(30, 300)}), split, CLIENTS)
    assert gpu.state.baselines[SMALL].pace.latency == pytest.approx(1e6)
    assert gpu.slowdowns[SMALL].ratio == pytest.approx(1, rel=0.01)


def test_parts_of_the_bandwidth_add_up_to_what_gpm_measured() -> None:
    found = bandwidths(beside_heavy().state)
    assert sum(part for part, _ in found.values()) == pytest.approx(0.8 * 5 / 6, rel=0.001)
    assert found[SMALL].part < 0.02
    assert all(error > 0 for _, error in found.values())


def test_sharing_gain_is_the_work_that_is_done_in_the_time() -> None:
    """Two clients that take twice as long as alone do as much work as one at a time."""
    gpu = Gpu()
    for pid in (SMALL, OTHER):
        gpu.second({pid: work(100, 1000)}, {pid: 0.9}, count=3)
    gpu.state = GpuContention(baselines=gpu.state.baselines)
    gpu.second({SMALL: work(50, 1000), OTHER: work(50, 1000)}, {SMALL: 0.5, OTHER: 0.5}, count=3)
    assert sharing_gain(gpu.state, gpu.slowdowns) == pytest.approx(1.0, rel=0.001)
    assert sharing_gain(gpu.state, {SMALL: gpu.slowdowns[SMALL]}) is None


def test_without_gpm_a_client_beside_one_that_launches_little_is_undisturbed() -> None:
    """Then only launches show whether the GPU was quiet."""
    gpu = Gpu().second({SMALL: ALONE, OTHER: work(1, 5)}, {SMALL: 0.05}, dram=None, count=3)
    assert gpu.slowdowns[SMALL].ratio == pytest.approx(1, rel=0.001)
    assert not gpu.slowdowns[SMALL].is_bound
    assert bandwidths(gpu.state) == {}
