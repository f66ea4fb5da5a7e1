"""The windows of a minute added up: what is unknown in some of them is neither nothing nor certain."""

from collections.abc import Mapping

import pytest

from exporter.model.usage import Method, Share, Split
from exporter.usage.capacity import IDLE_BELOW
from exporter.usage.last_minute import combined

A, B = 600, 601
BOTH = frozenset({A, B})


def window(
    sm: float,
    shares: Mapping[int, float] | None = None,
    *,
    unknown: frozenset[int] = frozenset(),
    method: Method = Method.FLIGHT,
    error: float = 0.001,
    **known: object,
) -> Split:
    """One second in which `sm` of the SMs were busy."""
    told = {pid: Share(method=method, sm=each, error=error) for pid, each in (shares or {}).items()}
    rest = sm - sum(share.sm for share in told.values())
    return Split(at=0, seconds=1.0, sm=sm, shares=told, unattributed=rest, unknown=unknown, clients=BOTH, **known)


def minute(*windows: Split) -> Split:
    """The windows, one after another; the parts are the whole."""
    found = combined(windows)
    assert found.unattributed >= 0
    assert sum(share.sm for share in found.shares.values()) + found.unattributed == pytest.approx(found.sm)
    return found


class TestUnknown:
    """Of a client without an estimate, nothing is known but that it used no more than what is unattributed."""

    def test_a_share_is_the_mean_over_the_time_in_which_it_is_known(self) -> None:
        """A third of the minute is unknown."""
        split = minute(*40 * [window(0.2, {A: 0.1, B: 0.1})], *20 * [window(0.2, unknown=BOTH)])
        assert split.shares[A].sm == pytest.approx(0.1)
        assert split.unattributed == pytest.approx(0)

    def test_its_error_covers_the_time_in_which_it_is_not(self) -> None:
        """Whether the client used all of what is unattributed then, or nothing."""
        share = minute(*40 * [window(0.2, {A: 0.1, B: 0.1})], *20 * [window(0.2, unknown=BOTH)]).shares[A]
        nothing, everything = 40 * 0.1 / 60, (40 * 0.1 + 20 * 0.2) / 60
        assert share.sm - 2 * share.error <= nothing < everything <= share.sm + 2 * share.error

    def test_no_client_used_more_than_there_was(self) -> None:
        """In the unknown time the GPU did less than before."""
        split = minute(*40 * [window(0.2, {A: 0.1, B: 0.1})], *20 * [window(0.0, unknown=BOTH)])
        assert split.shares[A].sm == pytest.approx(40 * 0.1 / 60)
        assert split.shares[A].error == pytest.approx(40 * 0.001 / 60)

    def test_a_client_that_did_not_exist_used_nothing(self) -> None:
        """And that is certain."""
        share = minute(*30 * [window(0.1, {B: 0.1})], *30 * [window(0.2, {A: 0.1, B: 0.1})]).shares[A]
        assert share == Share(method=Method.FLIGHT, sm=pytest.approx(0.05), error=pytest.approx(0.0005))

    def test_a_client_of_which_too_little_is_known_has_no_share(self) -> None:
        """Neither has one that is never known."""
        split = minute(*25 * [window(0.1, {B: 0.1})], *35 * [window(0.1, unknown=BOTH)])
        assert split.shares == {}
        assert split.unattributed == pytest.approx(0.1)

    def test_one_that_did_little_while_it_was_known_is_not_called_idle(self) -> None:
        """It may have used half of the GPU in the rest."""
        rest = window(0.5, {B: 0.3}, unknown=frozenset({A}))
        share = minute(*40 * [window(0.3, {A: 0.002, B: 0.298})], *20 * [rest]).shares[A]
        assert share.sm + 2 * share.error >= (40 * 0.002 + 20 * 0.2) / 60
        assert share.sm + share.error > IDLE_BELOW

    def test_nor_has_one_whose_error_is_too_large(self) -> None:
        """A third of the time all SMs were busy, and it used little in the rest."""
        windows = *40 * [window(0.05, {A: 0.04, B: 0.01})], *20 * [window(1.0, unknown=BOTH)]
        assert minute(*windows).shares == {}


class TestWithheld:
    """An estimate that is too uncertain for one window counts in the minute, with its error."""

    def test_estimate_and_error_are_added(self) -> None:
        """The mean of both."""
        unsure = {A: Share(method=Method.FLIGHT, sm=0.1, error=0.05)}
        share = minute(*30 * [window(0.1, {A: 0.1})], *30 * [window(0.1, withheld=unsure)]).shares[A]
        assert share.sm == pytest.approx(0.1)
        assert share.error == pytest.approx((0.001 + 0.05) / 2)


class TestMethods:
    """A convention is no estimate."""

    def test_what_was_measured_for_a_while_is_a_part_of_the_estimate(self) -> None:
        """Whichever came first."""
        alone = window(0.4, {A: 0.4}, method=Method.MEASURED, error=0.0)
        windows = 30 * [alone] + 30 * [window(0.3, {A: 0.2, B: 0.1})]
        for each in (windows, windows[::-1]):
            assert minute(*each).shares[A].method is Method.FLIGHT
            assert minute(*each).shares[A].sm == pytest.approx(0.3)

    def test_equal_parts_count_as_unknown_in_an_estimate(self) -> None:
        """They tell nothing of the client."""
        equal = window(0.2, {A: 0.1, B: 0.1}, method=Method.EQUAL, error=0.0)
        share = minute(*20 * [equal], *40 * [window(0.2, {A: 0.15, B: 0.05})]).shares[A]
        assert (share.method, share.sm) == (Method.FLIGHT, pytest.approx(0.15))
        assert share.error > 20 * 0.15 / 2 / 60


class TestRests:
    """While the probes are detached, each client is assumed to go on. The first window after that checks it."""

    BEFORE = 10 * [window(0.2, {A: 0.15, B: 0.05})]
    ASSUMED = 10 * [window(0.2, {A: 0.15, B: 0.05}, assumed=True)]

    def test_if_it_did_the_shares_stay(self) -> None:
        """With a small error."""
        split = minute(*self.BEFORE, *self.ASSUMED, window(0.2, {A: 0.15, B: 0.05}))
        assert split.shares[A].sm == pytest.approx(0.15)
        assert split.shares[A].error < 0.005

    def test_the_error_covers_a_small_change(self) -> None:
        """Half of it."""
        share = minute(*self.BEFORE, *self.ASSUMED, window(0.2, {A: 0.13, B: 0.07})).shares[A]
        assert share.error >= 10 * 0.01 / 21

    def test_if_they_changed_places_the_time_between_is_unknown(self) -> None:
        """Though the GPU was as busy as before."""
        after = 10 * [window(0.2, {A: 0.05, B: 0.15})]
        split = minute(*self.BEFORE, *self.ASSUMED, *after)
        assert split.shares[A].sm == pytest.approx(0.1)
        assert 2 * split.shares[A].error >= 10 * 0.1 / 30
