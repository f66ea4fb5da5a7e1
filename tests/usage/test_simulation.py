"""Errors of the shares in simulations, in percentage points of all SMs."""

import random
from collections.abc import Callable
from math import inf

import pytest

from exporter.model.usage import Method
from tests.builders import GPU
from tests.usage.simulation import MS, US, Worker, World, errors_of, largest_error

ONE, OTHER, THIRD = 600, 601, 602
STARTED = 20

World_ = Callable[[], World]


def long_and_short(**known: object) -> tuple[Worker, ...]:
    """Return clients whose work in flight is not proportional to their SM time."""
    return (
        Worker(pid=ONE, length=100 * US, width=32),
        Worker(pid=OTHER, length=5 * US, width=66, batch=4, pause=30 * US),
    )


UNCROWDED: dict[str, World_] = {
    "two that synchronise": lambda: World(long_and_short()),
    "one waits by events": lambda: World(
        (Worker(pid=ONE, length=100 * US, width=32, event=True), Worker(pid=OTHER, length=20 * US, width=66))
    ),
    "one never synchronises": lambda: World(
        (Worker(pid=ONE, length=100 * US, width=32, never=True, pause=50 * US), long_and_short()[1])
    ),
    "the GPU is never behind with one": lambda: World(
        (Worker(pid=ONE, length=100 * US, width=32, behind=False, pause=50 * US), long_and_short()[1])
    ),
    "twelve": lambda: World(
        tuple(Worker(pid=ONE + n, length=(5 + 7 * n) * US, width=8 + n, pause=100 * US) for n in range(12))
    ),
    "noisy GPM": lambda: World(long_and_short(), noise=0.03),
    "late GPM": lambda: World(long_and_short(), lag_seconds=0.1),
    "probes attached every other second": lambda: World(long_and_short(), rests=tuple(range(3, 200, 2))),
}


def test_shares_are_accurate_on_a_gpu_that_is_not_full(subtests: pytest.Subtests) -> None:
    """Within 1.5 points. A third of that is the first second, which is unknown."""
    for make in UNCROWDED.values():
        with subtests.test(make=make):
            world = make()
            split = world.live(60)
            assert {share.method for share in split.shares.values()} == {Method.FLIGHT}
            assert largest_error(split, world.truths()) <= 1.5


def test_the_stated_error_covers_the_real_one(subtests: pytest.Subtests) -> None:
    """Within three standard errors and a tenth of a point for the noise of GPM."""
    for make in UNCROWDED.values():
        with subtests.test(make=make):
            world = make()
            world.live(STARTED)
            world.reset_truth()
            split = world.live(60)
            wrong = errors_of(split, world.truths())
            assert wrong.keys() == split.shares.keys()
            assert {pid: by for pid, by in wrong.items() if abs(by) > 300 * split.shares[pid].error + 0.1} == {}


def test_work_in_flight_alone_would_be_inaccurate() -> None:
    """So the tests above can fail."""
    world = World(long_and_short())
    split = world.live(60)
    in_flight = {worker.pid: worker.counts["area"] for worker in world.workers}
    parts = {pid: split.sm * area / sum(in_flight.values()) for pid, area in in_flight.items()}
    assert max(abs(100 * (parts[pid] - truth)) for pid, truth in world.truths().items()) > 3


class TestCrowded:
    """On a full GPU, kernels take longer than alone."""

    @pytest.fixture
    def world(self) -> World:
        """Return a GPU that two clients fill, with a third that uses little."""
        wide = (Worker(pid=pid, length=length, width=132) for pid, length in ((ONE, 100 * US), (OTHER, 200 * US)))
        return World((*wide, Worker(pid=THIRD, length=20 * US, width=66, pause=300 * US)))

    def test_shares_are_within_the_use_of_the_gpu(self, world: World) -> None:
        """Their sum is not more, and none is negative."""
        split = world.live(60)
        assert all(share.sm >= 0 for share in split.shares.values())
        assert sum(share.sm for share in split.shares.values()) + split.unattributed == pytest.approx(split.sm)

    def test_uncertain_time_is_unattributed(self, world: World) -> None:
        """The small client has a small share, and the shares of the others are correct."""
        world.live(STARTED)
        world.reset_truth()
        split = world.live(60)
        wrong, truths = errors_of(split, world.truths()), world.truths()
        assert abs(wrong[THIRD]) <= 6
        assert all(split.shares[pid].sm <= truths[pid] + 0.05 for pid in (ONE, OTHER))


class TestChange:
    """Clients that change."""

    def test_a_client_that_starts_and_exits_has_its_share(self) -> None:
        """Its time is not attributed to others."""
        staying, coming = long_and_short()
        coming.on = (20.0, 40.0)
        world = World((staying, coming))
        assert largest_error(world.live(60), world.truths()) <= 1

    def test_kernels_of_several_seconds_are_attributed(self) -> None:
        world = World((Worker(pid=ONE, length=3000 * MS, width=64, never=True), long_and_short()[1]))
        assert largest_error(world.live(60), world.truths()) <= 9
        world.reset_truth()
        assert largest_error(world.live(60), world.truths()) <= 9

    @pytest.mark.parametrize("behind", [True, False], ids=["which is seen", "which is not seen"])
    def test_kernels_that_become_three_times_as_long_are_detected(self, behind: bool) -> None:
        """Within a few seconds, by their own times or by GPM."""
        changing = Worker(pid=ONE, length=50 * US, width=32, behind=behind, slower_from=30.0)
        world = World((changing, Worker(pid=OTHER, length=20 * US, width=66, batch=4, pause=200 * US)))
        world.live(40)
        world.reset_truth()
        assert largest_error(world.live(60), world.truths()) <= 1.5

    def test_a_short_first_window_does_not_bound_the_kernel_time(self) -> None:
        """A microsecond of work in flight does not show the length of a kernel."""
        world = World((Worker(pid=ONE, length=100 * US, width=32, on=(0.95, 99.0), pause=50 * US), long_and_short()[1]))
        world.workers[0].counts = {"widths": 3200, "area": 320.0, "kernels": 100}
        world.live(STARTED)
        world.reset_truth()
        assert largest_error(world.live(60), world.truths()) <= 1

    def test_a_stopped_client_with_work_in_flight_uses_nothing(self) -> None:
        """Its work appears to be in flight until it synchronizes."""
        world = World((Worker(pid=ONE, length=100 * US, width=66, never=True, on=(0.0, 20.0)), long_and_short()[1]))
        world.live(20)
        stopped = world.workers[0]
        for _ in range(STARTED):
            stopped.counts["area"] += 66e9
            world.live(1)
        world.reset_truth()
        for _ in range(60):
            stopped.counts["area"] += 66e9
            split = world.live(1)
        assert largest_error(split, world.truths()) <= 1


class TestUnseen:
    """Clients without probes."""

    def test_the_rest_is_unattributed_if_a_client_has_no_probes(self) -> None:
        """The probed client has its estimate, not scaled to the total."""
        world = World(long_and_short(), unwatched=frozenset({OTHER}))
        split = world.live(60)
        assert OTHER not in split.shares
        assert split.unattributed > 0.9 * world.truths()[OTHER]

    def test_a_single_client_needs_no_probes(self) -> None:
        """Everything is measured, except for its first second."""
        world = World(long_and_short()[:1], unwatched=frozenset({ONE}))
        split = world.live(60)
        assert split.shares[ONE].method is Method.MEASURED
        assert largest_error(split, world.truths()) <= 0.6
        assert world.node.splits[GPU] == split


def any_world(seed: int) -> World:
    """Return a world of clients of which some have shorter or longer kernels after half a minute."""
    chance = random.Random(seed)
    workers = (
        Worker(
            pid=ONE + number,
            length=int(10 ** chance.uniform(3.7, 6.3)),
            width=chance.choice((16, 32, 66, 132)),
            batch=chance.choice((1, 4, 16)),
            pause=int(10 ** chance.uniform(3, 6)),
            never=chance.random() < 0.15,
            behind=chance.random() < 0.7,
            on=(chance.choice((0, 4 * number)), inf),
            slower_from=chance.choice((inf, 30.0)),
            slower_by=chance.choice((0.4, 1.5, 3.0)),
        )
        for number in range(chance.randint(2, 5))
    )
    return World(tuple(workers), seed=seed)


def test_two_standard_errors_cover_clients_that_change() -> None:
    """Also on full GPUs, where a client's longer kernels change what all clients use."""
    covered = []
    for seed in range(20):
        world = any_world(seed)
        world.live(45)
        world.reset_truth()
        split = world.live(61)
        for pid, error in errors_of(split, world.truths()).items():
            covered.append(abs(error) <= 200 * split.shares[pid].error + 0.1)
    assert len(covered) > 50
    assert sum(covered) >= 0.9 * len(covered)
