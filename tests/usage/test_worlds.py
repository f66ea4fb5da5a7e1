"""How far the shares are from the truth, in percentage points of all SMs, in worlds where that is known."""

from collections.abc import Callable

import pytest

from exporter.model.usage import Method
from tests.builders import GPU
from tests.usage.world import MS, US, Worker, World, worst, wrong_by

ONE, OTHER, THIRD = 600, 601, 602
STARTED = 20

World_ = Callable[[], World]


def long_and_short(**known: object) -> tuple[Worker, ...]:
    """Kernels of two kinds, whose work in flight is far from being as their SM time."""
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
    "what GPM tells is noisy": lambda: World(long_and_short(), noise=0.03),
    "what GPM tells is late": lambda: World(long_and_short(), lag_seconds=0.1),
    "the doors rest every other second": lambda: World(long_and_short(), rests=tuple(range(3, 200, 2))),
}


@pytest.mark.parametrize("make", UNCROWDED.values(), ids=UNCROWDED.keys())
def test_on_a_gpu_with_room_everybody_has_what_it_used(make: World_) -> None:
    """Within 1.5 points, of which a third is the first second: of that, nobody knows."""
    world = make()
    split = world.live(60)
    assert {share.method for share in split.shares.values()} == {Method.FLIGHT}
    assert worst(split, world.truths()) <= 1.5


@pytest.mark.parametrize("make", UNCROWDED.values(), ids=UNCROWDED.keys())
def test_the_error_that_is_told_covers_the_one_that_is(make: World_) -> None:
    """Three standard errors, and a tenth of a point for the noise of the device's own measurement."""
    world = make()
    world.live(STARTED)
    world.count_anew()
    split = world.live(60)
    wrong = wrong_by(split, world.truths())
    assert wrong.keys() == split.shares.keys()
    assert {pid: by for pid, by in wrong.items() if abs(by) > 300 * split.shares[pid].error + 0.1} == {}


def test_by_work_in_flight_alone_it_would_be_far_off() -> None:
    """So that the above says something."""
    world = World(long_and_short())
    split = world.live(60)
    in_flight = {worker.pid: worker.counts["area"] for worker in world.workers}
    parts = {pid: split.sm * area / sum(in_flight.values()) for pid, area in in_flight.items()}
    assert max(abs(100 * (parts[pid] - truth)) for pid, truth in world.truths().items()) > 3


class TestCrowded:
    """Where all wait for each other, lengths are not what they are alone."""

    @pytest.fixture
    def world(self) -> World:
        """Two fill the GPU, a third does little."""
        wide = (Worker(pid=pid, length=length, width=132) for pid, length in ((ONE, 100 * US), (OTHER, 200 * US)))
        return World((*wide, Worker(pid=THIRD, length=20 * US, width=66, pause=300 * US)))

    def test_nobody_is_told_more_than_there_was(self, world: World) -> None:
        """Neither all together, nor less than nothing."""
        split = world.live(60)
        assert all(share.sm >= 0 for share in split.shares.values())
        assert sum(share.sm for share in split.shares.values()) + split.unattributed == pytest.approx(split.sm)

    def test_what_is_not_sure_is_nobodys(self, world: World) -> None:
        """The little one has little; and what was told of the others is theirs."""
        world.live(STARTED)
        world.count_anew()
        split = world.live(60)
        wrong, truths = wrong_by(split, world.truths()), world.truths()
        assert abs(wrong[THIRD]) <= 6
        assert all(split.shares[pid].sm <= truths[pid] + 0.05 for pid in (ONE, OTHER))


class TestChange:
    """Nothing stays as it was."""

    def test_who_comes_and_goes_has_what_it_used_then(self) -> None:
        """And what it left was not the other's."""
        staying, coming = long_and_short()
        coming.on = (20.0, 40.0)
        world = World((staying, coming))
        assert worst(world.live(60), world.truths()) <= 1

    def test_kernels_that_last_for_seconds_are_found_out(self) -> None:
        """In most windows none of them begins or ends."""
        world = World((Worker(pid=ONE, length=3000 * MS, width=64, never=True), long_and_short()[1]))
        assert worst(world.live(60), world.truths()) <= 4
        world.count_anew()
        assert worst(world.live(60), world.truths()) <= 4

    @pytest.mark.parametrize("behind", [True, False], ids=["which is seen", "which is not seen"])
    def test_kernels_that_last_three_times_as_long(self, behind: bool) -> None:
        """Are found to do so within a few seconds, by themselves or by what the device measured."""
        changing = Worker(pid=ONE, length=50 * US, width=32, behind=behind, slower_from=30.0)
        world = World((changing, Worker(pid=OTHER, length=20 * US, width=66, batch=4, pause=200 * US)))
        world.live(40)
        world.count_anew()
        assert worst(world.live(60), world.truths()) <= 1

    def test_who_began_just_before_the_first_look_is_not_held_to_what_it_had_done_by_then(self) -> None:
        """A microsecond of work in flight says nothing of how long its kernels last."""
        world = World((Worker(pid=ONE, length=100 * US, width=32, on=(0.95, 99.0), pause=50 * US), long_and_short()[1]))
        world.workers[0].counts = {"widths": 3200, "area": 320.0, "kernels": 100}
        world.live(STARTED)
        world.count_anew()
        assert worst(world.live(60), world.truths()) <= 1

    def test_who_is_stopped_in_mid_flight_uses_nothing(self) -> None:
        """Its work seems to be in flight as long as it does not ask."""
        world = World((Worker(pid=ONE, length=100 * US, width=66, never=True, on=(0.0, 20.0)), long_and_short()[1]))
        world.live(20)
        stopped = world.workers[0]
        for _ in range(STARTED):
            stopped.counts["area"] += 66e9
            world.live(1)
        world.count_anew()
        for _ in range(60):
            stopped.counts["area"] += 66e9
            split = world.live(1)
        assert worst(split, world.truths()) <= 1


class TestUnseen:
    """What is not known is said to be unknown."""

    def test_where_one_is_not_watched_the_rest_is_nobodys(self) -> None:
        """The one that is has what it seems to have used, never scaled up to all there was."""
        world = World(long_and_short(), unwatched=frozenset({OTHER}))
        split = world.live(60)
        assert OTHER not in split.shares
        assert split.unattributed > 0.9 * world.truths()[OTHER]

    def test_who_is_alone_needs_no_doors(self) -> None:
        """All of it is measured, but for the second in which it may have come."""
        world = World(long_and_short()[:1], unwatched=frozenset({ONE}))
        split = world.live(60)
        assert split.shares[ONE].method is Method.MEASURED
        assert worst(split, world.truths()) <= 0.6
        assert world.node.splits[GPU] == split
