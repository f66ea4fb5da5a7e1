"""Clients of today whose work ordinary counts do not show: an early value, and errors that contain the truth (H200).

Graphs with a loop on the device, graphs that launch themselves, a kernel that never ends, green contexts, programmatic
and cooperative launches, and clients that ask instead of waiting. In together-*, all clients began at once.
"""

from functools import cache
from statistics import fmean

import pytest

from exporter.model.usage import Share
from tests.usage.mix_recordings import HERE, Mix, mixes_of

MIXES = mixes_of(HERE / "modern")
EARLY_SECONDS = 20.0

Result = tuple[str, float, Share | None]


@cache
def results(*, early: bool) -> tuple[Result, ...]:
    """Return kind, true use, and gauge of all clients, at the end, or some seconds after the second of them began."""
    return tuple(each for mix in MIXES for each in results_of(mix, early=early))


def results_of(mix: Mix, *, early: bool) -> list[Result]:
    truth, kinds = mix.truth, mix.kinds
    second = sorted(samples[0][0] for samples in truth.samples.values())[1]
    until = min(truth.ended, second + EARLY_SECONDS) if early else truth.ended
    split = mix.minute_at(until)
    found = []
    for pid, samples in truth.samples.items():
        began = max(samples[0][0], split.at - 60)
        used = truth.used(pid, began, split.at) / (split.at - began) / truth.sms
        found.append((kinds[pid], used, split.since_begin(pid)))
    return found


@pytest.mark.parametrize("early", [False, True], ids=["after-40-s", "after-20-s"])
def test_shares_are_right(early: bool) -> None:
    errors = [100 * abs((0.0 if share is None else share.sm) - true) for _, true, share in results(early=early)]
    assert len(errors) > 20
    assert fmean(errors) <= 1.0
    assert max(errors) <= 3.0


@pytest.mark.parametrize("early", [False, True], ids=["after-40-s", "after-20-s"])
def test_two_standard_errors_contain_the_truth_and_are_small(early: bool) -> None:
    shown = [(true, share) for _, true, share in results(early=early) if share is not None]
    assert len(shown) == len(results(early=early))
    assert sum(abs(share.sm - true) <= 2 * share.error + 0.003 for true, share in shown) >= 0.9 * len(shown)
    assert fmean(200 * share.error for _, share in shown) <= 3.0


@pytest.mark.parametrize("kind", ["persistent", "self", "while"])
def test_work_that_no_launch_shows_does_not_end_after_a_second(kind: str) -> None:
    """They launch once, and then wait until their end. In some recordings the probes were detached several times."""
    known = [(true, share) for each, true, share in results(early=False) if each == kind]
    assert len(known) == 2
    for true, share in known:
        assert share is not None
        assert share.sm == pytest.approx(true, rel=0.25)


def test_little_is_unattributed() -> None:
    assert max(mix.minute_at(mix.truth.ended).unattributed for mix in MIXES) <= 0.02
