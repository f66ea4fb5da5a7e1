"""The exporter's time does not depend on changes of the wall clock."""

import pytest

from exporter.clock import SystemClock

HOUR = 3600.0


class Machine:
    """A machine with a wall clock that can be set."""

    wall = 1_000_000.0
    monotonic = 50.0

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.wall += seconds
        self.monotonic += seconds


@pytest.mark.parametrize("set_by", [-HOUR, HOUR])
def test_setting_the_wall_clock_changes_only_the_step(set_by: float) -> None:
    machine = Machine()
    clock = SystemClock(lambda: machine.wall, lambda: machine.monotonic)
    began = clock.now()
    machine.wall += set_by
    machine.wait(10)

    assert began == 1_000_000.0
    assert clock.now() == began + 10
    assert clock.step() == set_by
