"""The SMs of a percentage, and the pauses that limit the cost of the probes."""

import pytest

from exporter.libcuda_probes.collector import (
    MAX_HITS_PER_SECOND,
    MAX_PAUSE_SECONDS,
    SETTLED_HITS_PER_SECOND,
    Pauses,
    probe_hits,
    sms_of,
)
from exporter.model.launches import ProcessWork

SMS = 132
PID = 600


def test_assigns_sms_in_pairs_and_at_least_8(subtests: pytest.Subtests) -> None:
    for percentage, sms in [
        (25, 32),
        (50, 66),
        (40, 52),
        (0.1, 8),
        (99.9, 130),
        (100, None),
        (150, None),
        (0, None),
        (-5, None),
    ]:
        with subtests.test(percentage=percentage, sms=sms):
            assert sms_of(percentage, SMS) == sms


def test_nan_is_not_a_percentage() -> None:
    assert sms_of(float("nan"), SMS) is None


def test_synchronisation_counts_as_two_hits() -> None:
    """Its return is probed, too."""
    assert probe_hits(ProcessWork(pid=PID, first_ns=1, kernels=5, graphs=3, syncs=2)) == 12


def pauses_after(*hits: int, settled: bool = False) -> Pauses:
    """Return the pauses after so many probe hits of one process in each second."""
    pauses = Pauses(settled=settled)
    for each in hits:
        pauses.add({}, {PID: ProcessWork(pid=PID, first_ns=1, kernels=each)}, 1.0)
    return pauses


def test_pause_depends_only_on_calls_since_the_last_collection() -> None:
    """Earlier launches of a long-running process cause no pause."""
    before = {PID: ProcessWork(pid=PID, first_ns=1, kernels=10**9)}
    now = {PID: ProcessWork(pid=PID, first_ns=1, kernels=10**9 + 100)}
    for since, until, seconds in [(before, now, 1.0), (now, now, 0.0), ({}, {}, 1.0)]:
        pauses = Pauses()
        pauses.add(since, until, seconds)
        assert pauses.seconds == 0.0
    assert pauses_after(10**9).seconds > 0.0


@pytest.mark.parametrize("settled", [False, True])
def test_pauses_limit_the_rate_of_probe_hits(settled: bool) -> None:
    limit = SETTLED_HITS_PER_SECOND if settled else MAX_HITS_PER_SECOND
    assert pauses_after(int(limit), settled=settled).seconds == 0
    for rate in (2 * limit, 10 * limit, 1000 * limit):
        pause = pauses_after(int(rate), settled=settled).seconds
        assert pause == pytest.approx(MAX_PAUSE_SECONDS if rate > 31 * limit else rate / limit - 1)


def test_calls_in_a_pause_make_it_longer() -> None:
    """The probes of other groups are hit then, and the paused ones until they are removed."""
    pauses = pauses_after(int(3 * MAX_HITS_PER_SECOND))
    pauses.begin(100.0)
    pauses.add({}, {PID: ProcessWork(pid=PID, first_ns=1, context_calls=int(MAX_HITS_PER_SECOND))}, 0.0)
    assert [pauses.lasts(at) for at in (102.9, 103.1)] == [True, False]


def test_short_pauses_add_up() -> None:
    hits = int(1.6 * MAX_HITS_PER_SECOND)
    assert [pauses_after(*(hits,) * seconds).seconds for seconds in (1, 2)] == [0, pytest.approx(1.2)]


def test_90000_launches_a_second_of_settled_clients_are_counted_for_one_second_in_fifteen() -> None:
    pauses = pauses_after(90_000, settled=True)
    pauses.begin(100.0)
    assert [pauses.lasts(100.0 + seconds) for seconds in (13.9, 14.1)] == [True, False]
    assert pauses.seconds == 0


def test_a_pause_ends_early_if_a_client_becomes_unsettled() -> None:
    """The pause that the higher limit requires is still made: of 1.5 s with 90,000 launches, of none with 30,000."""
    for hits, times, lasts in [(90_000, (101.4, 101.6), [True, False]), (30_000, (100.1,), [False])]:
        pauses = pauses_after(hits, settled=True)
        pauses.begin(100.0)
        assert pauses.lasts(101.6)
        pauses.settled = False
        assert [pauses.lasts(each) for each in times] == lasts


def test_what_was_launched_while_clients_were_unsettled_requires_no_longer_pause_later() -> None:
    pauses = pauses_after(*(30_000,) * 60)
    pauses.settled = True
    assert pauses.seconds == 0


def test_a_pause_that_ends_early_is_made_up_for() -> None:
    """A client that becomes unsettled in each pause could else be probed all the time."""
    pauses, now, attached, paused = Pauses(), 0.0, 0, 0.0
    while attached < 100:
        pauses.settled = True
        pauses.add({}, {PID: ProcessWork(pid=PID, first_ns=1, kernels=70_000)}, 1.0)
        now, attached = now + 1.0, attached + 1
        if pauses.seconds:
            pauses.begin(now)
            pauses.settled = False
            while pauses.lasts(now):
                now, paused = now + 0.1, paused + 0.1
    assert 70_000 * attached / (attached + paused) <= 1.1 * MAX_HITS_PER_SECOND
