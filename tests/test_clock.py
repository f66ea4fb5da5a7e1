"""Time does not go back, whatever somebody does to the machine's clock."""

import pytest

from exporter.clock import SystemClock
from exporter.metrics.catalogue import NodeCollector
from exporter.view import View
from tests.builders import AT, daemon_dead

HOUR = 3600.0


class Machine:
    """A machine whose clock can be set."""

    wall = 1_000_000.0
    passed = 50.0

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.wall += seconds
        self.passed += seconds


@pytest.mark.parametrize("set_by", [-HOUR, HOUR])
def test_a_clock_that_is_set_changes_nothing_but_the_step(set_by: float) -> None:
    machine = Machine()
    clock = SystemClock(lambda: machine.wall, lambda: machine.passed)
    began = clock.now()
    machine.wall += set_by
    machine.wait(10)

    assert began == 1_000_000.0
    assert clock.now() == began + 10
    assert clock.step() == set_by


def test_times_in_metrics_are_those_of_the_clock_that_others_go_by() -> None:
    collected = NodeCollector(View(daemon_dead(), clock_step=-HOUR)).collect()
    (loss,) = (each for each in collected if each.name == "cuda_mps_daemon_last_loss_timestamp_seconds")

    assert [sample.value for sample in loss.samples] == [pytest.approx(AT - HOUR, abs=60)]
