"""The watchdog: has the core judge the node, and what it decides done."""

import random
from collections.abc import Callable
from typing import Protocol

from exporter.clock import Clock
from exporter.core.watchdog.judge import judge
from exporter.core.watchdog.orders import Orders
from exporter.model.action import Action
from exporter.model.event import Event
from exporter.model.node import Node

Do = Callable[[Action, Node], None]


class Doer(Protocol):
    """Carries out what the watchdog decides."""

    def do(self, action: Action, node: Node, /) -> None:
        """Begin an action, and return at once."""

    def break_off(self) -> None:
        """Begin nothing more, and break off what is under way."""


RESTS_SECONDS = 0.25
"""How often the node is judged while nothing happens: many daemons with many clients take a millisecond each time."""


class Watchdog:
    """Knows its orders, and who carries out its decisions. To be used by one thread."""

    def __init__(
        self, orders: Orders, clock: Clock, *, do: Do | None = None, chance: Callable[[], float] = random.random
    ) -> None:
        """`do` begins an action, with the node for which it was decided, and returns at once; None: nothing is done.

        `chance` gives numbers from 0 to 1, so that not all nodes restart their daemons at the same moment.
        """
        self._orders = orders
        self._clock = clock
        self._do = do
        self._chance = chance
        self._decided: tuple[Action, ...] = ()
        self._judged_at = float("-inf")

    def follow(self, orders: Orders) -> None:
        """These are the orders from now on."""
        self._orders = orders

    def judge(self, node: Node, *, news: bool) -> tuple[Node, tuple[Event, ...]]:
        """The node as it is judged now, and what there is to tell of that: to be told before anything is done.

        Where there is no `news`, nothing having happened since, it is judged now and then.
        """
        now = self._clock.monotonic()
        if not news and now - self._judged_at < RESTS_SECONDS:
            return node, ()
        self._judged_at = now
        at = max(node.at, self._clock.now())
        node, events, self._decided = judge(node, self._orders, at=at, chance=self._chance())
        return node, events

    def act(self, node: Node) -> None:
        """Begin what was decided by the last judgement."""
        decided, self._decided = self._decided, ()
        for action in decided:
            if self._do is not None:
                self._do(action, node)
