"""The demo's disk, which is as well as can be, and forgets all that it is given: a story needs no past."""

from collections.abc import Sequence

from exporter.model.event import Event
from exporter.model.ledger import Ledger
from exporter.model.node import Node
from exporter.view import HistoryStatus


class SimulatedDisk:
    """Takes what happens, and keeps nothing."""

    status = HistoryStatus(writable=True, events_dropped=0)
    knows_watches = True

    def __init__(self) -> None:
        self.ledger = Ledger()

    def take(self, node: Node, events: Sequence[Event]) -> None:
        """All of it is gone, but for the books as they are."""
        self.ledger = node.ledger

    def regained(self) -> None:
        """Return nothing: there is no state that could not be read."""
