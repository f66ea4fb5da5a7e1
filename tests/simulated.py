"""The demo's simulated node, told by the core and its watchdog as fast as may be."""

from collections.abc import Iterator

from exporter.config.options import DEFAULTS
from exporter.config.reload import orders_of
from exporter.core.watchdog.orders import Orders
from exporter.demo import Simulation, simulated, told
from exporter.model.event import Event
from exporter.model.node import Node
from tests.builders import Story
from tests.clocks import HandClock

MINUTE = 60.0
ORDERS: Orders = orders_of(simulated(DEFAULTS))


def minutes(clock: HandClock, simulation: Simulation) -> Iterator[Story]:
    """The node at its beginning and after each further minute, and what happened in it."""
    node: Node = simulation.node()
    while True:
        events: list[Event] = []
        for second in told(node, simulation, ORDERS):
            node, news = second
            events.extend(news)
        yield Story(node, tuple(events))
        clock.time += MINUTE
