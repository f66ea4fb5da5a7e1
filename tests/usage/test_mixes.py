"""Errors of the shares, in percentage points of all SMs, compared with the clients' own counts (H200, H100)."""

import statistics
from itertools import product

import pytest

from exporter.model.usage import Method
from tests.usage.mix_recordings import FRAMEWORKS, H100, HERE, SECOND, TOGETHER, TWO_GPUS, Minute, Mix, mixes_of

MIXES, IN_FRAMEWORKS, BEGUN_TOGETHER, NOT_FITTED, ON_H100, ON_TWO_GPUS = map(
    mixes_of, (HERE, FRAMEWORKS, TOGETHER, SECOND, H100, TWO_GPUS)
)
BEGUN_APART, BEGUN_APART_ON_H100 = (
    [mix for mix in mixes if mix.name.startswith("apart-")] for mixes in (NOT_FITTED, ON_H100)
)
AT_ONCE = "counted-full-at-once"
COUNTED_ON_H100 = [mix for mix in ON_H100 if mix.name.startswith("counted-") and mix.name != AT_ONCE]
EVERY = [*MIXES, *IN_FRAMEWORKS, *BEGUN_TOGETHER, *NOT_FITTED, *ON_H100, *ON_TWO_GPUS]

MEAN, WORST = 1.0, 5.0
MEAN_OF_MINUTES, COVERED, SHOWN = 1.0, 0.9, 0.9


def test_recordings_of_mixes_exist() -> None:
    """Otherwise the other tests would have no cases."""
    assert MIXES
    assert IN_FRAMEWORKS
    assert BEGUN_TOGETHER
    assert 0 < len(BEGUN_APART) < len(NOT_FITTED)
    assert len(ON_TWO_GPUS) == 2 * len({mix.name for mix in ON_TWO_GPUS}) > 0
    assert 0 < len(BEGUN_APART_ON_H100) < len(ON_H100) - len(COUNTED_ON_H100) < len(ON_H100)


def test_shares_agree_with_the_clients_counts(subtests: pytest.Subtests) -> None:
    for mix in MIXES:
        with subtests.test(mix=mix):
            wrong = {pid: abs(by) for pid, by in mix.errors_of().items()}
            assert max(wrong.values()) <= WORST, wrong
            assert sum(wrong.values()) / len(wrong) <= MEAN, wrong


def test_parts_of_a_window_add_up_to_the_use_of_the_gpu(subtests: pytest.Subtests) -> None:
    for mix in MIXES:
        with subtests.test(mix=mix):
            for window in mix.windows:
                parts = [share.sm for share in window.shares.values()]
                assert sum(parts) + window.unattributed == pytest.approx(window.sm)


def test_parts_of_a_minute_add_up_to_the_use_of_the_gpu(subtests: pytest.Subtests) -> None:
    for mix in EVERY:
        with subtests.test(mix=mix):
            for split, _ in mix.minutes:
                assert split.unattributed >= 0
                assert sum(share.sm for share in split.shares.values()) + split.unattributed == pytest.approx(split.sm)


def test_two_standard_errors_cover_nine_minutes_in_ten(subtests: pytest.Subtests) -> None:
    """Also if the probes were detached most of the time, or if some shares are absent."""
    for mixes, with_gpm in product([MIXES, IN_FRAMEWORKS, BEGUN_TOGETHER], [True, False]):
        with subtests.test(mixes=mixes, with_gpm=with_gpm):
            shown = [each for each in minutes_of(mixes, with_gpm=with_gpm) if each.share is not None]
            assert shown
            assert sum(each.is_covered for each in shown) >= COVERED * len(shown)


def test_most_minutes_have_a_share_with_a_small_error() -> None:
    """Very large errors and absent gauges would satisfy the other tests."""
    every = minutes_of([*MIXES, *IN_FRAMEWORKS])
    shown = [each.share for each in every if each.share is not None]
    assert len(shown) >= SHOWN * len(every)
    assert sum(each.error for each in every) <= MEAN_OF_MINUTES * len(every)
    assert sum(share.error for share in shown) <= 2 * MEAN_OF_MINUTES / 100 * len(shown)


@pytest.mark.parametrize(
    ("with_gpm", "mean", "worst", "median_error"), [(True, 1.5, 6, 1.5), (False, 3, 12, 4.5)], ids=["gpm", "no-gpm"]
)
def test_last_minutes_of_frameworks_are_accurate(
    with_gpm: bool, mean: float, worst: float, median_error: float
) -> None:
    """All clients have worked together for 45 seconds, and alone before."""
    last = [(mix.minutes if with_gpm else mix.minutes_without_gpm)[-1] for mix in IN_FRAMEWORKS]
    clients = [each for _, minutes in last for each in minutes]
    assert sum(each.error for each in clients) / len(clients) <= mean
    assert max(each.error for each in clients) <= worst
    assert sum(each.is_covered for each in clients) >= 0.9 * len(clients)
    attributed = [sum(share.sm for share in split.shares.values()) / minutes[0].whole for split, minutes in last]
    assert sum(attributed) / len(attributed) >= 0.9
    assert 100 * statistics.median(each.share.error for each in clients if each.share) <= median_error


def test_mixes_whose_clients_began_together_are_attributed() -> None:
    """The estimates are rough, because nothing shows what each client uses alone."""
    every = minutes_of(BEGUN_TOGETHER)
    assert sum(each.share is not None for each in every) >= 0.9 * len(every)
    assert sum(each.error for each in every) / len(every) <= 6


@pytest.mark.parametrize("mixes", [BEGUN_APART, BEGUN_APART_ON_H100, COUNTED_ON_H100], ids=["h200", "h100", "counted"])
def test_mixes_that_were_not_fitted_are_accurate_if_their_clients_began_apart(mixes: list[Mix]) -> None:
    every = minutes_of(mixes)
    assert sum(each.error for each in every) / len(every) <= 1.5
    assert sorted(each.error for each in every)[int(0.95 * len(every))] <= 6
    assert sum(each.is_covered for each in every) >= 0.9 * len(every)


@pytest.mark.parametrize(("with_gpm", "mean", "most"), [(True, 1.5, 6), (False, 3, 10)], ids=["gpm", "no-gpm"])
def test_clients_on_two_gpus_are_divided_by_what_they_did_on_each(with_gpm: bool, mean: float, most: float) -> None:
    every = minutes_of(ON_TWO_GPUS, with_gpm=with_gpm)
    assert sum(each.error for each in every) / len(every) <= mean
    assert sorted(each.error for each in every)[int(0.95 * len(every))] <= most
    assert sum(each.is_covered for each in every) >= 0.9 * len(every)


def test_clients_on_two_gpus_are_divided_without_the_log() -> None:
    """NVML shows on which GPUs they have memory."""
    every = [each for mix in ON_TWO_GPUS for _, minutes in mix.minutes_without_log for each in minutes]
    assert sum(each.error for each in every) / len(every) <= 1.5
    assert sum(each.is_covered for each in every) >= 0.9 * len(every)


def test_gpm_divides_clients_on_two_gpus_if_the_gpu_of_each_launch_is_unknown() -> None:
    """Their own launches could be on either GPU."""
    every = [each for mix in ON_TWO_GPUS for _, minutes in mix.minutes_without_devices for each in minutes]
    assert sum(each.error for each in every) / len(every) <= 1.5
    assert max(each.error for each in every) <= 4
    assert all(each.is_covered for each in every)


@pytest.mark.parametrize(("log", "most"), [(True, 0.2), (False, 2.0)])
def test_clients_of_a_gpu_that_the_exporter_does_not_see_take_nothing(log: bool, most: float) -> None:
    """NVML, which was read every ten seconds, does not show them on the other GPU. One client works on both."""
    every = [each for mix in ON_TWO_GPUS for _, minutes in mix.minutes_with_hidden_gpus(log=log) for each in minutes]
    assert sum(each.error for each in every) / len(every) <= most
    shown = [each for each in every if each.share is not None]
    assert len(shown) >= 0.9 * len(every)
    assert sum(each.is_covered for each in shown) >= 0.95 * len(shown)


@pytest.mark.parametrize("with_gpm", [True, False], ids=["gpm", "no-gpm"])
@pytest.mark.parametrize("mixes", [NOT_FITTED, ON_H100], ids=["h200", "h100"])
def test_standard_errors_cover_most_minutes_that_were_not_fitted(mixes: list[Mix], with_gpm: bool) -> None:
    shown = [each for each in minutes_of(mixes, with_gpm=with_gpm) if each.share is not None]
    assert sum(each.is_covered for each in shown) >= COVERED * len(shown)


@pytest.mark.parametrize("mixes", [BEGUN_APART, BEGUN_APART_ON_H100], ids=["h200", "h100"])
def test_without_gpm_clients_have_shares_in_their_first_half_minute(mixes: list[Mix]) -> None:
    every = minutes_of(mixes, with_gpm=False)
    assert sum(each.share is not None for each in every) >= SHOWN * len(every)


def test_errors_of_clients_that_began_at_once_within_a_window_are_large_enough() -> None:
    """On average over that window, the GPU was not full."""
    [mix] = (mix for mix in ON_H100 if mix.name == AT_ONCE)
    assert all(each.is_covered for each in minutes_of([mix]))


def test_a_client_with_an_estimate_of_nothing_has_a_standard_error() -> None:
    """If it launched something."""
    windows = [window for mix in COUNTED_ON_H100 for window in mix.windows]
    nothing = [
        share for window in windows for pid, share in window.shares.items() if pid in window.widths and not share.sm
    ]
    assert nothing
    assert all(share.error for share in nothing)


def test_without_gpm_the_parts_are_estimates_by_launches(subtests: pytest.Subtests) -> None:
    """They never add up to more than the time with any kernel running. Nothing is measured or unattributed."""
    for mix in EVERY:
        with subtests.test(mix=mix):
            assert mix.minutes_without_gpm
            for split, _ in mix.minutes_without_gpm:
                assert {share.method for share in split.shares.values()} <= {Method.LAUNCHES}
                assert split.sm <= 1 + 1e-9
                assert split.unattributed == pytest.approx(0)


def minutes_of(mixes: list[Mix], *, with_gpm: bool = True) -> list[Minute]:
    """Return the gauges of all clients that used the GPU."""
    of = (mix.minutes if with_gpm else mix.minutes_without_gpm for mix in mixes)
    return [each for splits in of for _, minutes in splits for each in minutes]
