"""The one door into the watchdog: a node goes in, and what is to be done comes out."""

from exporter.core.watchdog.orders import Orders
from exporter.model.action import Action
from exporter.model.event import Event
from exporter.model.node import Node

Judged = tuple[Node, tuple[Event, ...], tuple[Action, ...]]


def judge(node: Node, orders: Orders, *, at: float, chance: float) -> Judged:
    """Diagnose every expected daemon, and decide what is to be done now.

    `at` is now, in seconds since the epoch; `chance`, 0 to 1, is for the jitter. To be called after each batch of
    observations, and twice a second anyhow. The actions that it returns must be carried out; it counts on them.
    """
    del orders, at, chance
    return node, (), ()
