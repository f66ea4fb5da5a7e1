"""Clients whose use is known well are watched for a small part of the time, without an effect on their shares."""

from collections.abc import Iterable
from itertools import chain

import pytest

from exporter.libcuda_probes import collector
from exporter.model.launches import WorkReading
from exporter.model.observation import Observation
from exporter.model.sharing import GpuUse
from exporter.model.usage import GpuAttribution
from exporter.model.values import replace
from exporter.usage.attribution import processes_to_watch
from tests.builders import AT, CLIENT, OTHER_GPU, at_work
from tests.usage.mix_recordings import Mix
from tests.usage.seconds import NEXT, after, done, present, second
from tests.usage.test_mixes import BEGUN_TOGETHER, IN_FRAMEWORKS, MIXES, NOT_FITTED, ON_H100, ON_TWO_GPUS
from tests.works import boot_ns

STEADY, OTHER = 5, 777


def steady(*numbers: int, sm: float = 0.26, more: float = 1.0, kernels: int = 9_000) -> Iterable[Observation]:
    """Return the observations of these seconds: one client works three times as much as the other."""
    return chain.from_iterable(
        second(AT + n, done(CLIENT, 900 * n * more, kernels=kernels * n), done(NEXT, 300 * n), sm=sm) for n in numbers
    )


def paused(number: int, sm: float = 0.26, kernels: int = 9_000) -> Iterable[Observation]:
    """Return the observations of a second without probes. The counts stay those of the last second with probes."""
    for each in steady(STEADY, kernels=kernels):
        at = AT + number + each.at - (AT + STEADY)
        if isinstance(each, WorkReading):
            yield replace(each, at=at, boot_ns=boot_ns(at), seconds=0.0)
        elif isinstance(each, GpuUse):
            yield replace(each, at=at, sm_utilization=sm)


def settled(*seen: Iterable[Observation]) -> bool:
    return processes_to_watch(after(present(CLIENT, NEXT), *chain.from_iterable(seen)))[2]


KNOWN = tuple(steady(*range(1, STEADY + 1)))


def test_clients_with_constant_launches_that_explain_the_sm_time_are_settled() -> None:
    assert [settled(steady(*range(1, last + 1))) for last in (1, 2, 3)] == [False, False, True]
    assert settled(KNOWN)
    assert settled(KNOWN, paused(6), paused(7))


@pytest.mark.parametrize("sm", [0.20, 0.32, 1.0, 0.0])
def test_clients_are_not_settled_if_gpm_contradicts_during_a_pause(sm: float) -> None:
    assert not settled(KNOWN, paused(6), paused(7, sm=sm))
    assert settled(KNOWN, paused(6), paused(7, sm=sm), paused(8))


def test_a_client_whose_launches_change_is_not_settled() -> None:
    """Although GPM measures what they explain."""
    assert settled(KNOWN, steady(6, sm=0.29, more=1.03))
    assert not settled(KNOWN, steady(6, sm=0.32, more=1.05))


def test_a_client_with_an_unknown_kernel_time_is_not_settled() -> None:
    """Its work is always in flight, so nothing shows how long its kernels are."""
    unsure = {"sure_area": 0, "sure_widths": 0, "sure_heights": 0, "spans": 0}
    every = (
        second(AT + n, done(CLIENT, 900 * n, **unsure), done(NEXT, 800 * n, **unsure), sm=0.26)
        for n in range(1, STEADY + 1)
    )
    assert not settled(*every)


def test_a_client_that_cannot_be_watched_is_not_settled() -> None:
    """Although the launches of the other client explain the SM time."""
    works = {n: done(CLIENT, 900 * n) for n in range(1, STEADY + 1)}
    assert not settled(*(second(AT + n, each, watched=[CLIENT], sm=0.195) for n, each in works.items()))


def test_a_new_client_is_not_settled_before_it_is_watched() -> None:
    node = after(present(CLIENT, NEXT), *KNOWN)
    assert processes_to_watch(node)[2]
    assert not processes_to_watch(after(node, *at_work(CLIENT, NEXT, OTHER, at=AT + 6)))[2]


def test_clients_that_launch_nothing_are_not_settled() -> None:
    """Their kernel times are unknown when they begin."""
    assert not settled(*(second(AT + n, done(CLIENT, 0), done(NEXT, 0), sm=0.0) for n in range(1, 5)))


def test_a_client_must_be_settled_on_each_of_its_gpus() -> None:
    node = after(present(CLIENT, NEXT), *KNOWN)
    for clients, expected in [(frozenset({CLIENT}), False), (frozenset({OTHER}), True)]:
        other = GpuAttribution(clients=clients, settled=False)
        assert processes_to_watch(replace(node, attribution={**node.attribution, OTHER_GPU: other}))[2] is expected


def test_clients_that_launch_much_may_use_more_without_probes() -> None:
    """A probed launch takes 1.1 us longer, of which there are 90,000 in a second."""
    for kernels, expected in [(9_000, False), (90_000, True)]:
        known = steady(*range(1, STEADY + 1), kernels=kernels)
        assert settled(known, paused(6, sm=0.3, kernels=kernels)) is expected


GROUPS = {
    "counted": MIXES,
    "frameworks": IN_FRAMEWORKS,
    "together": BEGUN_TOGETHER,
    "not-fitted": NOT_FITTED,
    "h100": ON_H100,
    "two-gpus": ON_TWO_GPUS,
}


@pytest.mark.parametrize("with_gpm", [True, False], ids=["gpm", "no-gpm"])
@pytest.mark.parametrize("mixes", GROUPS.values(), ids=GROUPS)
def test_pauses_of_settled_clients_hardly_change_the_shares(
    mixes: list[Mix], with_gpm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if all clients launched 20 times as much: then most pauses take at least 14 seconds."""
    monkeypatch.setattr(collector, "SETTLED_HITS_PER_SECOND", collector.SETTLED_HITS_PER_SECOND / 20)
    full = [each for mix in mixes for _, each in (mix.minutes if with_gpm else mix.minutes_without_gpm)]
    thinned = [mix.minutes_with_pauses(with_gpm=with_gpm) for mix in mixes]
    before, now = list(chain.from_iterable(full)), list(chain.from_iterable(each for each, _ in thinned))
    assert len(now) == len(before)
    shown = [each for each in now if each.share is not None]
    assert len(shown) >= 0.97 * sum(each.share is not None for each in before)
    assert sum(each.is_covered for each in shown) >= 0.9 * len(shown)
    assert sum(each.error for each in now) / len(now) <= sum(each.error for each in before) / len(before) + 1


def test_settled_clients_are_watched_for_a_small_part_of_the_time() -> None:
    """In these mixes, one client works on two GPUs all the time."""
    for mix in ON_TWO_GPUS:
        assert mix.minutes_with_pauses(with_gpm=True)[1] <= 0.7 * mix.watched_seconds
