"""How many SMs a process may use: as its server has it, or as it has asked for itself, whichever is less."""

from pathlib import Path

import pytest

from exporter.collectors.proc import Proc
from exporter.libcuda_probes.collector import PERCENTAGE_VARIABLE, SmLimits, pause_seconds, probe_hits, sms_of
from exporter.model.launches import ProcessWork
from tests.clocks import HandClock

SMS = 132
PID, OTHER = 600, 601


class HandProc(Proc):
    """Processes as a test has them: when each began, and what its environment says."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"), HandClock())
        self.began: dict[int, int] = {PID: 1, OTHER: 1}
        self.says: dict[int, str] = {}
        self.reads = 0

    def start_ticks(self, pid: int) -> int | None:
        """When it began, where it is there."""
        return self.began.get(pid)

    def variables(self, pid: int, names: object) -> dict[str, str] | None:
        """What it has set; None where it cannot be read."""
        self.reads += 1
        return {PERCENTAGE_VARIABLE: self.says[pid]} if pid in self.says else None


@pytest.mark.parametrize(
    ("percentage", "sms"),
    [(25, 32), (50, 66), (40, 52), (0.1, 2), (99.9, 130), (100, None), (150, None), (0, None), (-5, None)],
)
def test_sms_are_given_out_in_pairs_and_at_least_one_pair(percentage: float, sms: int | None) -> None:
    assert sms_of(percentage, SMS) == sms


def test_no_number_is_no_percentage() -> None:
    assert sms_of(float("nan"), SMS) is None


@pytest.mark.parametrize(
    ("servers", "own", "sms"),
    [
        (100.0, None, None),
        (50.0, None, 66),
        (100.0, "25", 32),
        (50.0, "25", 32),
        (25.0, "50", 32),
        (100.0, "100", None),
    ],
)
def test_the_lesser_of_both_holds(servers: float, own: str | None, sms: int | None) -> None:
    proc = HandProc()
    if own is not None:
        proc.says[PID] = own
    assert SmLimits(proc, SMS).of({PID: servers}) == ({} if sms is None else {PID: sms})


@pytest.mark.parametrize("nonsense", ["", "much", "nan", "inf", "-5", "0", "1e999", "2" * 5000, "\ud800"])
def test_what_is_no_percentage_narrows_nothing(nonsense: str) -> None:
    """A client's environment says what the client likes."""
    proc = HandProc()
    proc.says[PID] = nonsense
    assert SmLimits(proc, SMS).of({PID: 100.0, OTHER: 50.0}) == {OTHER: 66}


def test_an_environment_is_read_once_for_each_process() -> None:
    """Of another that has the PID, anew."""
    proc = HandProc()
    proc.says[PID] = "25"
    limits = SmLimits(proc, SMS)
    for _ in range(3):
        assert limits.of({PID: 100.0}) == {PID: 32}
    assert proc.reads == 1
    proc.began[PID], proc.says[PID] = 2, "50"
    assert limits.of({PID: 100.0}) == {PID: 66}
    assert proc.reads == 2


def test_who_is_gone_is_forgotten() -> None:
    """And asked for nothing."""
    proc = HandProc()
    del proc.began[PID]
    assert SmLimits(proc, SMS).of({PID: 50.0}) == {PID: 66}
    assert proc.reads == 0


def test_a_synchronisation_counts_as_two_calls() -> None:
    """Its return is probed too."""
    assert probe_hits(ProcessWork(pid=PID, first_ns=1, kernels=5, graphs=3, syncs=2)) == 12


def test_only_what_was_called_since_the_last_look_counts() -> None:
    """Who has launched much in a long life is not let alone for it."""
    before = {PID: ProcessWork(pid=PID, first_ns=1, kernels=10**9)}
    now = {PID: ProcessWork(pid=PID, first_ns=1, kernels=10**9 + 100)}
    assert pause_seconds(before, now, 1.0) == 0.0
    assert pause_seconds({}, now, 1.0) > 0.0
    assert pause_seconds({}, now, 0.0) == 0.0
    assert pause_seconds({}, {}, 1.0) == 0.0
