"""Clients that change their own work beside neighbours: that is no slowdown, and costs no neighbour anything."""

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from exporter.model.contention import Resource, Slowdown
from exporter.model.identity import Workload
from exporter.model.usage import GpuAttribution, LaunchRate, Method, Share, Split, UsageTotals, WorkDelta
from exporter.model.values import replace
from exporter.usage.accounting import post_time
from exporter.usage.contention import contended, slowdowns, starved
from exporter.usage.kernel_times import COPY_BANDWIDTH
from exporter.usage.last_minute import combined, with_window
from tests.builders import AT, GPU, at_work, gpu_reading, looks, process, reduced
from tests.usage.test_starved import owner

SMS = 132
OWNERS = {600: "alice", 601: "bob", 602: "carol", 603: "dave"}
SMALL, LIGHT = 600, 601
BANDWIDTH = 4_800_000_000_000


@dataclass(frozen=True, slots=True)
class Kernels:
    """What a client does: ten kernels, then `gap_ms` on the CPU. Each takes `kernel_ms`, and is `width` SMs wide.

    Meanwhile it uses the fraction `used` of these, and `traffic` of the memory's bandwidth. In addition, it copies for
    `copying` of the time, with all SMs and the whole bandwidth.
    """

    width: int
    kernel_ms: float
    gap_ms: float
    traffic: float = 0.02
    used: float = 1.0
    copying: float = 0.0

    def delta(self, slower: float = 1.0) -> WorkDelta:
        """Return what it does in a second if its kernels take longer because of others."""
        spans = max(1, round(1000 / (10 * self.kernel_ms * slower + self.gap_ms)))
        busy, gap = (int(spans * each * 1e6) for each in (10 * self.kernel_ms * slower, self.gap_ms))
        return WorkDelta(
            kernels=10 * spans,
            spans=spans,
            widths=10 * spans * self.width,
            busy_ns=busy,
            flight_ns=busy,
            area=busy * self.width,
            gap_ns=gap,
            copies=math.ceil(100 * self.copying),
            copied=round(self.copying * COPY_BANDWIDTH * BANDWIDTH),
        )


class Gpu:
    """A GPU with four clients of four users. GPM and the shares are exact."""

    def __init__(self, totals: UsageTotals | None = None) -> None:
        seen = (*at_work(*OWNERS), *(process(pid, user=user, command=user) for pid, user in OWNERS.items()))
        node = reduced(*seen, gpu_reading(tuple(OWNERS)), *looks()).node
        totals = totals or post_time(
            UsageTotals(), GPU, 4, {(owner(user), None): 0.25 for user in OWNERS.values()}, at=AT
        )
        self.node, self.at = replace(node, usage_totals=totals), AT

    def second(self, clients: Mapping[int, Kernels], *, count: int = 1, slower: float = 1.0) -> "Gpu":
        for _ in range(count):
            self.at += 1
            deltas = {pid: kernels.delta(slower if pid == SMALL else 1.0) for pid, kernels in clients.items()}
            busy = {pid: deltas[pid].kernels * kernels.kernel_ms / 1000 for pid, kernels in clients.items()}
            used = {
                pid: busy[pid] * kernels.width / SMS * kernels.used + kernels.copying
                for pid, kernels in clients.items()
            }
            split = Split(
                at=self.at,
                seconds=1.0,
                sm=min(1.0, sum(used.values())),
                shares={pid: Share(method=Method.FLIGHT, sm=sm, error=0.01) for pid, sm in used.items()},
                areas={pid: delta.area / 1e9 / SMS for pid, delta in deltas.items()},
                dram=min(
                    0.9, sum(busy[pid] * each.traffic + COPY_BANDWIDTH * each.copying for pid, each in clients.items())
                ),
            )
            windows = with_window(self.node.attribution.get(GPU, GpuAttribution()).windows, split)
            attribution, splits = {GPU: GpuAttribution(windows=windows)}, {GPU: combined(windows)}
            node = replace(self.node, at=self.at, attribution=attribution, splits=splits)
            self.node = contended(
                node, GPU, LaunchRate(seconds=1.0, deltas=deltas, bandwidth=BANDWIDTH), frozenset(OWNERS), frozenset()
            )
        return self

    @property
    def slowdowns(self) -> dict[int, Slowdown]:
        return slowdowns(self.node.contention[GPU])

    @property
    def charged(self) -> tuple[float, float]:
        """The seconds that clients lost, and those of them that a known client caused."""
        usage = self.node.usage_totals.gpus[GPU]
        known = [used.caused_us for (account, _), used in usage.by_account.items() if isinstance(account, Workload)]
        return usage.total.lost_us / 1e6, sum(known) / 1e6

    @property
    def starved(self) -> Mapping[int, float]:
        return starved(self.node.contention[GPU], self.at)


def phases(seed: int, count: int = 10) -> Iterator[dict[int, Kernels]]:
    """Yield what some of the clients do, each in a part of the GPU. From phase to phase, they may change their work."""
    rng = random.Random(seed)
    usual = {pid: Kernels(rng.choice((4, 16, 24)), rng.uniform(0.05, 0.5), rng.uniform(1, 6)) for pid in OWNERS}
    for pid, kernels in usual.items():
        yield {pid: kernels}
    for _ in range(count):
        present = rng.sample(sorted(OWNERS), rng.randint(2, 4))
        yield {
            pid: replace(
                usual[pid],
                kernel_ms=usual[pid].kernel_ms * rng.choice((1, 1, 1.3, 2, 5)),
                traffic=usual[pid].traffic * rng.choice((1, 1, 3, 6)),
            )
            for pid in present
        }


@pytest.mark.parametrize("seed", range(8))
def test_clients_that_do_not_disturb_each_other_are_not_slowed_whatever_they_change(seed: int) -> None:
    gpu, rng = Gpu(), random.Random(seed)
    for clients in phases(seed):
        for _ in range(rng.choice((5, 20, 75))):
            found = gpu.second(clients).slowdowns
            assert max((each.ratio for each in found.values()), default=1.0) <= 1.1
            assert not any(each.neighbours for each in found.values())
    assert gpu.charged == (0, 0)
    assert not gpu.starved


SMALLER = Kernels(width=60, kernel_ms=0.3, gap_ms=4, traffic=0.3)
NEIGHBOUR = Kernels(width=70, kernel_ms=0.7, gap_ms=3)
NARROW = Kernels(width=4, kernel_ms=0.3, gap_ms=4, traffic=0.01)
FILLING = Kernels(width=SMS, kernel_ms=1.0, gap_ms=0.1, traffic=0.3)
WIDE = Kernels(width=SMS, kernel_ms=0.3, gap_ms=0.5, used=0.35)


def learned(small: Kernels, neighbour: Kernels) -> Gpu:
    """Return a GPU on which both clients were alone in turn, more than a minute ago."""
    return Gpu().second({SMALL: small}, count=12).second({LIGHT: neighbour}, count=12).second({}, count=62)


def assert_is_own_work(gpu: Gpu) -> None:
    """Assert that a client's longer kernels are no slowdown, and cost nobody anything."""
    found = gpu.slowdowns[SMALL]
    assert found.ratio <= 1.1
    assert found.apparent > 2
    assert not found.neighbours
    assert gpu.charged == (0, 0)
    assert not gpu.starved


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(replace(SMALLER, kernel_ms=1.5), id="some SMs are left"),
        pytest.param(replace(SMALLER, kernel_ms=20.0, width=68), id="its own work fills the SMs"),
        pytest.param(replace(SMALLER, kernel_ms=20.0, traffic=0.7), id="its own work fills the memory"),
    ],
)
def test_longer_kernels_while_a_neighbour_works_are_no_slowdown(changed: Kernels) -> None:
    """A client does so on purpose: on a quiet GPU it works as before."""
    gpu = learned(SMALLER, NEIGHBOUR)
    for _ in range(12):
        gpu.second({SMALL: SMALLER}, count=5).second({SMALL: changed, LIGHT: NEIGHBOUR}, count=60)
        assert_is_own_work(gpu)


def test_a_memset_hides_no_change_of_own_work() -> None:
    """Each second it sets some bytes, and its longer kernels fill the memory."""
    usual = replace(SMALLER, copying=1e-6)
    gpu = learned(usual, NEIGHBOUR)
    for _ in range(6):
        gpu.second({SMALL: usual}, count=5)
        gpu.second({SMALL: replace(usual, kernel_ms=1.2, traffic=0.9), LIGHT: NEIGHBOUR}, count=60)
    assert gpu.charged == (0, 0)


def test_a_neighbour_pays_only_for_the_rest_after_a_change_of_own_work() -> None:
    """The client's kernels have taken five times as long for a while. Then a neighbour fills the GPU."""
    changed, heavy = replace(NARROW, kernel_ms=1.5), replace(FILLING, width=120)
    gpu = learned(NARROW, replace(heavy, gap_ms=20)).second({SMALL: changed, LIGHT: NEIGHBOUR}, count=30)
    assert gpu.charged == (0, 0)
    found = gpu.second({SMALL: changed, LIGHT: heavy}, count=61, slower=3).slowdowns[SMALL]
    assert found.at_least
    assert found.ratio == pytest.approx((3 * 15 + 4) / (15 + 4), rel=0.1)
    assert found.apparent > 2 * found.ratio
    assert gpu.charged[0] == gpu.charged[1] == pytest.approx(61 * (2 * 15) / (3 * 15 + 4), rel=0.15)


def test_what_a_client_used_on_a_quiet_gpu_is_remembered_with_its_pace() -> None:
    gpu = Gpu(learned(SMALLER, NEIGHBOUR).node.usage_totals)
    changed = replace(SMALLER, kernel_ms=20.0, width=68)
    assert_is_own_work(gpu.second({SMALL: changed, LIGHT: NEIGHBOUR}, count=20))


def test_a_neighbour_that_changed_its_own_work_is_named_and_pays() -> None:
    """Its kernels have the same width as ever, but fill the GPU now."""
    gpu = learned(NARROW, replace(FILLING, gap_ms=100))
    gpu.second({SMALL: NARROW, LIGHT: FILLING}, count=60, slower=10)
    found = gpu.slowdowns[SMALL]
    assert found.ratio > 4
    assert [pid for pid, _ in found.neighbours] == [LIGHT]
    lost, caused = gpu.charged
    assert lost == caused > 10


def test_work_in_flight_that_is_wider_than_the_gpu_collides(subtests: pytest.Subtests) -> None:
    """Its kernels leave most SMs of their width idle, so no resource is used up. No neighbour is named."""
    for name, slower, neighbour, is_certain in (
        ("wide", 1.5, WIDE, True),
        ("wide, and faster than ever", 0.9, WIDE, True),
        ("narrow", 1.5, replace(WIDE, width=40, used=1.0), False),
    ):
        with subtests.test(name):
            gpu = learned(WIDE, neighbour).second({SMALL: WIDE, LIGHT: neighbour}, count=60, slower=slower)
            found = gpu.slowdowns[SMALL]
            assert found.at_least is not is_certain
            assert found.apparent == pytest.approx((3 * slower + 0.5) / 3.5, rel=0.05)
            assert (found.ratio == found.apparent) is is_certain
            assert not found.neighbours
            assert gpu.charged[1] == 0


COPYING = Kernels(width=4, kernel_ms=0.01, gap_ms=5, copying=0.3)


def test_a_client_waits_for_a_neighbour_that_copies_now_and_then() -> None:
    """The GPU is not full on average, but while a copy runs."""
    gpu = learned(NARROW, COPYING).second({SMALL: NARROW, LIGHT: COPYING}, count=60, slower=1.3)
    found = gpu.slowdowns[SMALL]
    assert found.ratio == found.apparent == pytest.approx((3 * 1.3 + 4) / 7, rel=0.05)
    assert found.resource is Resource.MEMORY
    assert [pid for pid, _ in found.neighbours] == [LIGHT]
    lost, caused = gpu.charged
    assert lost == caused > 1


def test_only_the_copies_are_blamed_for_that_wait() -> None:
    """A third client reads memory, but there is enough bandwidth while nobody copies."""
    reading = replace(NARROW, traffic=0.4)
    gpu = learned(NARROW, COPYING).second({602: reading}, count=12).second({}, count=62)
    gpu.second({SMALL: NARROW, LIGHT: COPYING, 602: reading}, count=60, slower=1.3)
    assert [pid for pid, _ in gpu.slowdowns[SMALL].neighbours] == [LIGHT]
    by_account = gpu.node.usage_totals.gpus[GPU].by_account
    assert {account for (account, _), used in by_account.items() if used.caused_us} == {owner("bob")}


def test_a_neighbour_that_hardly_copies_is_not_named() -> None:
    for copying, is_named in ((0.05, False), (0.15, True)):
        copier = replace(COPYING, copying=copying)
        gpu = learned(NARROW, copier).second({SMALL: NARROW, LIGHT: copier}, count=60, slower=1.05)
        assert [pid for pid, _ in gpu.slowdowns[SMALL].neighbours] == [LIGHT] * is_named
        assert (gpu.charged[1] > 0) is is_named


def test_the_one_that_copies_does_not_wait_for_its_own_copies() -> None:
    """It takes longer for its work. The other client does not copy."""
    copier = replace(COPYING, kernel_ms=0.3)
    gpu = learned(copier, NEIGHBOUR)
    found = gpu.second({SMALL: copier, LIGHT: NEIGHBOUR}, count=60, slower=1.3).slowdowns[SMALL]
    assert found.ratio <= 1.1 < found.apparent
    assert gpu.charged == (0, 0)


def test_nobody_waits_for_longer_than_a_neighbour_copies() -> None:
    changed = replace(NARROW, kernel_ms=5 * NARROW.kernel_ms)
    assert_is_own_work(learned(NARROW, COPYING).second({SMALL: changed, LIGHT: COPYING}, count=60))
