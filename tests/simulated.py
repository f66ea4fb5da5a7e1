"""The demo's simulated node, advanced as fast as possible."""

from collections.abc import Iterator

from exporter.config.settings import Config
from exporter.demo.scenario import initial_node, simulated_config
from exporter.demo.simulation import Simulation, advance
from exporter.model.event import Event
from exporter.model.node import Node
from exporter.model.settings import Mode
from exporter.policy import policy_of
from exporter.watchdog.context import Policy
from tests.builders import Reduced
from tests.clocks import HandClock

MINUTE = 60.0
POLICY: Policy = policy_of(simulated_config(Config()))
"""That of the default installation."""
ACTING: Policy = policy_of(simulated_config(Config(watchdog=Mode.ACT)))


def minutes(
    clock: HandClock, simulation: Simulation, policy: Policy = POLICY, node: Node | None = None
) -> Iterator[Reduced]:
    """Yield the node at the start, or the one given, and after each further minute, with its events."""
    node = node or initial_node()
    while True:
        events: list[Event] = []
        for second in advance(node, simulation, policy):
            node, news = second
            events.extend(news)
        yield Reduced(node, tuple(events))
        clock.time += MINUTE
