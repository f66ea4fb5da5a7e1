"""The SM limit of a process: the lesser of its server's percentage and its own."""

from pathlib import Path

import pytest

from exporter.collectors.proc import Proc
from exporter.libcuda_probes.collector import (
    VERIFIED_CALLS,
    SmLimits,
    pause_seconds,
    probe_hits,
    sms_of,
)
from exporter.model.launches import ProcessWork
from exporter.model.settings import ACTIVE_THREAD_PERCENTAGE
from tests.clocks import HandClock

SMS = 132
PID, OTHER = 600, 601


class FakeProc(Proc):
    """Processes with given start times and environments."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"), HandClock())
        self.started: dict[int, int] = {PID: 1, OTHER: 1}
        self.environment: dict[int, str] = {}
        self.reads = 0

    def start_ticks(self, pid: int) -> int | None:
        """Return the start time of a process; None if it does not exist."""
        return self.started.get(pid)

    def variables(self, pid: int, names: object) -> dict[str, str] | None:
        """Return the variables; None if they cannot be read."""
        self.reads += 1
        return {ACTIVE_THREAD_PERCENTAGE: self.environment[pid]} if pid in self.environment else None


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


def test_lesser_percentage_applies(subtests: pytest.Subtests) -> None:
    for servers, own, sms in [
        (100.0, None, None),
        (50.0, None, 66),
        (100.0, "25", 32),
        (50.0, "25", 32),
        (25.0, "50", 32),
        (100.0, "100", None),
    ]:
        with subtests.test(servers=servers, own=own, sms=sms):
            proc = FakeProc()
            if own is not None:
                proc.environment[PID] = own
            assert SmLimits(proc, SMS).of({PID: servers}) == ({} if sms is None else {PID: sms})


def test_ignores_invalid_percentages(subtests: pytest.Subtests) -> None:
    """A client can set any text in its environment."""
    for nonsense in ["", "much", "nan", "inf", "-5", "0", "1e999", "2" * 5000, "\ud800"]:
        with subtests.test(nonsense=nonsense):
            proc = FakeProc()
            proc.environment[PID] = nonsense
            assert SmLimits(proc, SMS).of({PID: 100.0, OTHER: 50.0}) == {OTHER: 66}


def test_reads_the_environment_once_for_each_process() -> None:
    """If the PID is reused, the new environment is read."""
    proc = FakeProc()
    proc.environment[PID] = "25"
    limits = SmLimits(proc, SMS)
    for _ in range(3):
        assert limits.of({PID: 100.0}) == {PID: 32}
    assert proc.reads == 1
    proc.started[PID], proc.environment[PID] = 2, "50"
    assert [limits.of({PID: 100.0}) for _ in range(VERIFIED_CALLS)][-1] == {PID: 66}
    assert proc.reads == 2


def test_does_not_read_the_environment_of_ended_processes() -> None:
    """The server's percentage still applies."""
    proc = FakeProc()
    del proc.started[PID]
    assert SmLimits(proc, SMS).of({PID: 50.0}) == {PID: 66}
    assert proc.reads == 0


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
