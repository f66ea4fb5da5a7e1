"""How much the clients of a GPU slow each other down."""

from collections.abc import Mapping

import pytest

from exporter.model.contention import GpuContention, Resource, Slowdown
from exporter.model.estimates import NONE
from exporter.model.usage import LaunchRate, Method, Share, Split, WorkDelta
from exporter.usage.bandwidth import bandwidths
from exporter.usage.contention import sharing_gain, slowdowns, with_window, without

SMALL, HEAVY, OTHER = 10, 20, 30
BANDWIDTH = 4_800_000_000_000
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
        self.state, self._at = GpuContention(), 100.0

    def second(
        self,
        clients: Mapping[int, WorkDelta],
        shares: Mapping[int, float],
        *,
        dram: float | None = 0.1,
        count: int = 1,
        measured: bool = True,
        unknown: frozenset[int] = frozenset(),
        areas: Mapping[int, float] = NONE,
        error: float = 0.0,
        seconds: float = 1.0,
    ) -> "Gpu":
        for _ in range(count):
            self._at += seconds
            split = Split(
                at=self._at,
                seconds=seconds,
                sm=sum(shares.values()),
                shares={pid: Share(method=Method.FLIGHT, sm=sm, error=error) for pid, sm in shares.items()},
                dram=dram,
                measured=measured,
                unknown=unknown,
                areas=areas,
            )
            rate = LaunchRate(seconds=seconds, deltas=clients, bandwidth=BANDWIDTH)
            self.state = with_window(self.state, rate, split, CLIENTS, {})
        return self

    def later(self) -> "Gpu":
        """Let more than a minute pass, in which nobody works."""
        self._at += 70
        return self.second({}, {})

    @property
    def slowdowns(self) -> dict[int, Slowdown]:
        return slowdowns(self.state)


def learned() -> Gpu:
    """Return a GPU on which two clients were alone in turn, more than a minute ago."""
    gpu = Gpu().second({SMALL: ALONE}, {SMALL: 0.05}, dram=0.01, count=4)
    return gpu.second({HEAVY: STREAMING}, {HEAVY: 0.9}, dram=0.8, count=4).later()


def beside_heavy(small: WorkDelta = SLOWED, count: int = 5) -> Gpu:
    return learned().second({SMALL: small, HEAVY: STREAMING}, {SMALL: 0.03, HEAVY: 0.95}, dram=0.8, count=count)


def test_a_client_beside_a_heavy_one_takes_longer_for_its_work() -> None:
    found = beside_heavy().slowdowns
    assert found[SMALL].ratio == pytest.approx(20 / 9, rel=0.001)
    assert found[HEAVY].ratio == pytest.approx(1, rel=0.001)
    assert found[SMALL].error_ratio < 0.1 * found[SMALL].ratio
    assert not found[SMALL].at_least


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
    """It is compared with its fastest ten seconds."""
    gpu = Gpu().second({HEAVY: STREAMING}, {HEAVY: 0.9}, count=9)
    gpu.second({SMALL: work(50, 600), HEAVY: STREAMING}, {SMALL: 0.05, HEAVY: 0.9}, count=9)
    assert SMALL not in gpu.slowdowns
    gpu.second({SMALL: work(50, 600), HEAVY: STREAMING}, {SMALL: 0.05, HEAVY: 0.9}, count=3)
    gpu.second({SMALL: work(50, 900), HEAVY: STREAMING}, {SMALL: 0.05, HEAVY: 0.9}, count=12)
    assert gpu.slowdowns[SMALL].at_least
    assert gpu.slowdowns[SMALL].ratio == pytest.approx((600 + 900) / 2 / 600)
    gpu.second({SMALL: work(100, 600)}, {SMALL: 0.1}, count=2)
    assert not gpu.slowdowns[SMALL].at_least


def test_the_first_quiet_second_is_not_learned() -> None:
    """It may have begun while the GPU was busy."""
    gpu = Gpu().second({SMALL: work(50, 500), HEAVY: STREAMING}, {SMALL: 0.05, HEAVY: 0.9})
    gpu.second({SMALL: work(50, 500)}, {SMALL: 0.05})
    assert not gpu.state.baselines
    gpu.second({SMALL: work(100, 300)}, {SMALL: 0.05})
    assert gpu.state.baselines[SMALL].pace.latency == pytest.approx(300e6 / 1000)


@pytest.mark.parametrize("other", [work(50, 700, width=50), work(10, 700, each=50)], ids=["width", "launches"])
def test_other_work_makes_the_slowdown_unknown_until_it_was_seen_alone(other: WorkDelta) -> None:
    gpu = beside_heavy(other)
    assert SMALL not in gpu.slowdowns
    alone = work(2 * other.spans, 350, width=other.widths // other.kernels, each=other.kernels // other.spans)
    gpu.second({SMALL: alone}, {SMALL: 0.05}, dram=0.01, count=3)
    assert gpu.slowdowns[SMALL].ratio > 2


def test_a_client_that_is_alone_is_undisturbed_whatever_it_does() -> None:
    """Its inputs become longer; then it runs a single long kernel."""
    gpu = learned().second({SMALL: work(70, 300)}, {SMALL: 0.05}, dram=0.01, count=5)
    gpu.second({SMALL: WorkDelta(busy_ns=10**9, flight_ns=10**9)}, {SMALL: 0.05}, dram=0.01, count=20)
    assert gpu.slowdowns[SMALL].ratio == pytest.approx(1, rel=0.02)
    gpu.second({SMALL: work(30, 300)}, {SMALL: 0.05}, dram=0.01, count=5)
    assert gpu.state.baselines[SMALL].pace.latency == pytest.approx(1e6)


@pytest.mark.parametrize("measured", [True, False], ids=["gpm", "no-gpm"])
def test_a_gpu_is_not_quiet_if_a_neighbour_was_not_watched(measured: bool) -> None:
    gpu = Gpu()
    shares = {SMALL: 0.03, OTHER: 0.9} if measured else {SMALL: 0.03}
    gpu.second({SMALL: SLOWED}, shares, count=4, measured=measured, unknown=frozenset({OTHER}))
    assert not gpu.state.baselines
    assert bandwidths(gpu.state) == {}


def test_a_kernel_of_many_seconds_is_a_neighbour() -> None:
    """It was launched before these seconds."""
    waiting = WorkDelta(busy_ns=10**9, flight_ns=10**9)
    known = learned().state.baselines[SMALL]
    gpu = learned().second({SMALL: SLOWED, OTHER: waiting}, {SMALL: 0.03, OTHER: 0.9}, count=5)
    assert gpu.state.baselines[SMALL] == known
    assert gpu.slowdowns[SMALL].ratio == pytest.approx(20 / 9, rel=0.001)


@pytest.mark.parametrize("hostile", [work(10, 300, width=0), work(10, 300, each=0), work(0, 10**4, width=1 << 40)])
def test_absurd_claims_of_a_client_are_no_error(hostile: WorkDelta) -> None:
    gpu = Gpu().second({SMALL: hostile}, {SMALL: 0.05}, count=4)
    assert not gpu.slowdowns
    gpu = beside_heavy(hostile)
    assert HEAVY in gpu.slowdowns
    assert sharing_gain(gpu.state) is None or sharing_gain(gpu.state) != 0


def test_a_kernel_of_more_than_a_minute_is_no_error() -> None:
    waiting = WorkDelta(busy_ns=10**9, flight_ns=10**9)
    gpu = learned().second({SMALL: waiting, HEAVY: STREAMING}, {SMALL: 0.03, HEAVY: 0.9}, count=62)
    gpu.second({SMALL: WorkDelta(spans=1, busy_ns=10**9), HEAVY: STREAMING}, {SMALL: 0.03, HEAVY: 0.9})
    assert SMALL not in gpu.slowdowns


def test_another_process_with_the_same_pid_has_no_baseline() -> None:
    gpu = beside_heavy()
    gpu.state = without(gpu.state, {SMALL})
    assert gpu.slowdowns.keys() == bandwidths(gpu.state).keys() == {HEAVY}


def test_parts_of_the_bandwidth_add_up_to_what_gpm_measured() -> None:
    found = bandwidths(beside_heavy().state)
    assert sum(part for part, _ in found.values()) == pytest.approx(0.8, rel=0.001)
    assert found[SMALL].part < 0.02
    assert all(error > 0 for _, error in found.values())


def test_nobody_has_a_part_of_the_bandwidth_beside_a_foreign_process() -> None:
    foreign = learned().second({SMALL: SLOWED}, {SMALL: 0.03, 99: 0.9}, dram=0.8, count=5)
    assert bandwidths(foreign.state) == {}
    assert foreign.slowdowns[SMALL].resource is Resource.MEMORY
    assert foreign.slowdowns[SMALL].neighbours == ()


def test_a_small_foreign_part_hides_no_use_of_the_bandwidth() -> None:
    shares = {SMALL: 0.03, HEAVY: 0.9, 99: 0.05}
    assert bandwidths(learned().second({SMALL: SLOWED, HEAVY: STREAMING}, shares, dram=0.8).state).keys() == {
        SMALL,
        HEAVY,
    }


def test_a_client_that_was_never_alone_may_have_used_little_of_the_bandwidth() -> None:
    """Its part beside a client that left room for it was a guess, and stays one beside a heavy client."""
    gpu = Gpu().second({SMALL: ALONE, OTHER: work(100, 200)}, {SMALL: 0.2, OTHER: 0.15}, dram=0.3, count=6).later()
    used = bandwidths(gpu.second({SMALL: ALONE, HEAVY: STREAMING}, {SMALL: 0.2, HEAVY: 0.5}, dram=0.5).state)[SMALL]
    assert 3 * used.error > used.part


def test_sharing_gain_is_the_work_that_is_done_in_the_time() -> None:
    """Two clients that take twice as long as alone do as much work as one at a time."""
    gpu = Gpu()
    for pid in (SMALL, OTHER):
        gpu.second({pid: work(100, 1000)}, {pid: 0.9}, count=3)
    gpu.later().second({SMALL: work(50, 1000), OTHER: work(50, 1000)}, {SMALL: 0.5, OTHER: 0.5}, count=3)
    assert sharing_gain(gpu.state) == pytest.approx(1.0, rel=0.001)
    gpu.second({SMALL: work(50, 1000), OTHER: work(50, 1000, width=7)}, {SMALL: 0.5, OTHER: 0.5}, count=9)
    assert sharing_gain(gpu.state) is None


def test_without_gpm_a_client_beside_one_that_launches_little_is_undisturbed() -> None:
    """Then only launches show whether the GPU was quiet."""
    gpu = Gpu().second({SMALL: ALONE, OTHER: work(1, 5)}, {SMALL: 0.05}, dram=None, count=3, measured=False)
    assert gpu.slowdowns[SMALL].ratio == pytest.approx(1, rel=0.001)
    assert not gpu.slowdowns[SMALL].at_least
    assert bandwidths(gpu.state) == {}


def test_without_gpm_it_is_unknown_who_delays_a_client_that_waits_for_copies() -> None:
    copying = WorkDelta(copies=100, copied=10**12, spans=100, busy_ns=300_000_000, flight_ns=300_000_000)
    for measured, dram, neighbours in ((True, 0.3, 1), (False, None, 0)):
        gpu = Gpu().second({SMALL: ALONE}, {SMALL: 0.05}, dram=dram, count=4, measured=measured).later()
        clients, shares = {SMALL: work(100, 400, gap_ms=500), HEAVY: copying}, {SMALL: 0.05, HEAVY: 0.3}
        found = gpu.second(clients, shares, dram=dram, count=4, measured=measured).slowdowns[SMALL]
        assert len(found.neighbours) == neighbours
        assert (found.resource is Resource.MEMORY) is measured


def test_without_gpm_a_gpu_has_no_room_for_others() -> None:
    """Estimates were 0.03 of the SMs while 17 clients warmed up on an H100, and a baseline was five times too slow."""
    clients = {SMALL: SLOWED, OTHER: work(10, 200)}
    gpu = Gpu().second(clients, {SMALL: 0.02, OTHER: 0.01}, dram=None, count=3, measured=False)
    assert not gpu.slowdowns


def test_a_noisy_client_has_a_larger_error() -> None:
    steady, noisy = Gpu(), Gpu()
    for number in range(20):
        steady.second({SMALL: work(100, 300)}, {SMALL: 0.05})
        noisy.second({SMALL: work(100, 250 + 100 * (number % 2))}, {SMALL: 0.05})
    assert noisy.slowdowns[SMALL].error_ratio > 1.2 * steady.slowdowns[SMALL].error_ratio
