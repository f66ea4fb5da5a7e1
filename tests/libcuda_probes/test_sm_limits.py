"""The SMs of a percentage, and the pauses that limit the cost of the probes."""

import pytest

from exporter.libcuda_probes.collector import pause_seconds, probe_hits, sms_of
from exporter.model.launches import ProcessWork

SMS = 132
PID = 600


def test_assigns_sms_in_pairs_and_at_least_one_pair(subtests: pytest.Subtests) -> None:
    for percentage, sms in [
        (25, 32),
        (50, 66),
        (40, 52),
        (0.1, 2),
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


def test_pause_depends_only_on_calls_since_the_last_collection() -> None:
    """Earlier launches of a long-running process cause no pause."""
    before = {PID: ProcessWork(pid=PID, first_ns=1, kernels=10**9)}
    now = {PID: ProcessWork(pid=PID, first_ns=1, kernels=10**9 + 100)}
    assert pause_seconds(before, now, 1.0) == 0.0
    assert pause_seconds({}, now, 1.0) > 0.0
    assert pause_seconds({}, now, 0.0) == 0.0
    assert pause_seconds({}, {}, 1.0) == 0.0
