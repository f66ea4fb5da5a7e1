"""The demo's story as the core tells it, and judges it, second by second."""

from collections.abc import Iterator

from exporter.core.fold import fold
from exporter.core.watchdog.judge import judge
from exporter.core.watchdog.orders import Orders
from exporter.core.watchdog.rehearsal import CHANCE
from exporter.demo.simulation import Simulation
from exporter.model.event import Event
from exporter.model.node import Node


def told(node: Node, simulation: Simulation, orders: Orders) -> Iterator[tuple[Node, tuple[Event, ...]]]:
    """The node after each second up to the clock's present, and what happened in it."""
    for second in simulation.seconds():
        events: list[Event] = []
        for seen in second:
            node, news = fold(node, seen)
            events.extend(news)
        node, judged, actions = judge(node, orders, at=node.at, chance=CHANCE)
        for action in actions:
            simulation.hands.do(action, node)
        yield node, (*events, *judged)
