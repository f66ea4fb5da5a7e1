"""What the page is made of."""

from collections.abc import Sequence
from dataclasses import dataclass

from exporter.core.watchdog.orders import Orders
from exporter.model.event import Event
from exporter.model.incident import Incident
from exporter.model.node import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """The node at a moment, on the machine that is called `host`, and what has happened, the newest first.

    `orders` are the watchdog's, None where there is none. `stood_still` is for how many seconds nothing was looked at
    any more, None while all goes on.
    """

    node: Node
    at: float
    host: str = ""
    incidents: Sequence[Incident] = ()
    events: Sequence[Event] = ()
    orders: Orders | None = None
    stood_still: float | None = None
