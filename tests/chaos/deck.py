"""Which steps there are, how often each is taken, and in which order."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos import steps
from tests.chaos.stage import Stage

Do = Callable[[Stage, random.Random], None]


@dataclass(frozen=True, slots=True)
class Step:
    """Something that is done, and how often of 500 times. `needs_order`: what was before it must be mended."""

    do: Do
    often: int
    needs_order: bool = False

    @property
    def name(self) -> str:
        """What it is called."""
        return self.do.__name__


STEPS = (
    Step(steps.nothing, 40),
    Step(steps.kill_daemon, 14),
    Step(steps.terminate_daemon, 3),
    Step(steps.kill_server, 72),
    Step(steps.kill_daemon_over_a_stopped_server, 4),
    Step(steps.kill_idle_client, 80),
    Step(steps.kill_client_in_mid_kernel, 70),
    Step(steps.fault, 70),
    Step(steps.fault_with_short_lingerers, 8),
    Step(steps.fault_with_long_lingerers, 2),
    Step(steps.stop_daemon_shortly, 20),
    Step(steps.stop_server_shortly, 20),
    Step(steps.stop_daemon_for_long, 2, needs_order=True),
    Step(steps.stop_server_for_long, 2, needs_order=True),
    Step(steps.operator_quits_and_starts_again, 5, needs_order=True),
    Step(steps.operator_sets_a_limit, 60),
    Step(steps.operator_holds_a_session, 12),
    Step(steps.kill_exporter, 5),
    Step(steps.kill_exporter_as_it_acts, 3),
    Step(steps.terminate_exporter, 3),
    Step(steps.daemon_dies_while_no_exporter_runs, 3),
    Step(steps.spend_the_budget, 2, needs_order=True),
)


def deck(chance: random.Random, size: int) -> list[Step]:
    """So many of them, each at least once, and in any order."""
    whole = sum(step.often for step in STEPS)
    dealt = [step for step in STEPS for _ in range(max(1, round(step.often * size / whole)))]
    chance.shuffle(dealt)
    return dealt
