"""Sum of the windows of a minute, and the error for unknown windows."""

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
    """Return one second in which `sm` of the SMs were busy."""
    known_shares = {pid: Share(method=method, sm=each, error=error) for pid, each in (shares or {}).items()}
    rest = sm - sum(share.sm for share in known_shares.values())
    return Split(at=0, seconds=1.0, sm=sm, shares=known_shares, unattributed=rest, unknown=unknown, **known)


def minute(*windows: Split) -> Split:
    """Return the sum of the windows, and check that the parts add up."""
    found = combined(windows)
    assert found.unattributed >= 0
    assert sum(share.sm for share in found.shares.values()) + found.unattributed == pytest.approx(found.sm)
    return found


class TestUnknown:
    """A client without an estimate used at most the unattributed time."""

    def test_a_share_is_the_mean_over_the_time_in_which_it_is_known(self) -> None:
        split = minute(*40 * [window(0.2, {A: 0.1, B: 0.1})], *20 * [window(0.2, unknown=BOTH)])
        assert split.shares[A].sm == pytest.approx(0.1)
        assert split.unattributed == pytest.approx(0)

    def test_the_error_covers_the_unknown_time(self) -> None:
        """In that time, the client used between nothing and all of the unattributed time."""
        share = minute(*40 * [window(0.2, {A: 0.1, B: 0.1})], *20 * [window(0.2, unknown=BOTH)]).shares[A]
        nothing, everything = 40 * 0.1 / 60, (40 * 0.1 + 20 * 0.2) / 60
        assert share.sm - 2 * share.error <= nothing < everything <= share.sm + 2 * share.error

    def test_no_share_exceeds_the_use_of_the_gpu(self) -> None:
        """The GPU was less busy in the unknown time."""
        split = minute(*40 * [window(0.2, {A: 0.1, B: 0.1})], *20 * [window(0.0, unknown=BOTH)])
        assert split.shares[A].sm == pytest.approx(40 * 0.1 / 60)
        assert split.shares[A].error == pytest.approx(40 * 0.001 / 60)

    def test_a_client_used_nothing_before_it_existed(self) -> None:
        """The value has no error."""
        share = minute(*30 * [window(0.1, {B: 0.1})], *30 * [window(0.2, {A: 0.1, B: 0.1})]).shares[A]
        assert share == Share(method=Method.FLIGHT, sm=pytest.approx(0.05), error=pytest.approx(0.0005))

    def test_a_client_that_is_mostly_unknown_has_no_share(self) -> None:
        split = minute(*25 * [window(0.1, {B: 0.1})], *35 * [window(0.1, unknown=BOTH)])
        assert split.shares == {}
        assert split.unattributed == pytest.approx(0.1)

    def test_a_low_share_with_unknown_time_is_not_idle(self) -> None:
        """The client may have used half of the GPU in the unknown time."""
        rest = window(0.5, {B: 0.3}, unknown=frozenset({A}))
        share = minute(*40 * [window(0.3, {A: 0.002, B: 0.298})], *20 * [rest]).shares[A]
        assert share.sm + 2 * share.error >= (40 * 0.002 + 20 * 0.2) / 60
        assert share.sm + share.error > IDLE_BELOW

    def test_a_client_with_a_large_error_has_no_share(self) -> None:
        """Its use is known within 70 points only."""
        unsure = {A: Share(method=Method.FLIGHT, sm=0.4, error=0.35)}
        assert minute(*60 * [window(0.9, withheld=unsure)]).shares == {}


class TestWithheld:
    """An estimate that is too uncertain for one window counts in the minute, with its error."""

    def test_estimate_and_error_are_added(self) -> None:
        unsure = {A: Share(method=Method.FLIGHT, sm=0.1, error=0.05)}
        share = minute(*30 * [window(0.1, {A: 0.1})], *30 * [window(0.1, withheld=unsure)]).shares[A]
        assert share.sm == pytest.approx(0.1)
        assert share.error == pytest.approx((0.001 + 0.05) / 2)


class TestMethods:
    """Methods of the windows of one minute."""

    def test_measured_and_estimated_windows_are_an_estimate_together(self) -> None:
        alone = window(0.4, {A: 0.4}, method=Method.MEASURED, error=0.0)
        windows = 30 * [alone] + 30 * [window(0.3, {A: 0.2, B: 0.1})]
        for each in (windows, windows[::-1]):
            assert minute(*each).shares[A].method is Method.FLIGHT
            assert minute(*each).shares[A].sm == pytest.approx(0.3)
