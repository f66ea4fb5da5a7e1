"""What has happened, for those who ask: the last incidents and events, the newest first."""

from collections.abc import Iterable, Sequence

from exporter.model.event import Event
from exporter.model.incident import Incident
from exporter.model.node import Node


class History:
    """In memory, and bounded. Others may read it from other threads."""

    def __init__(
        self,
        incidents: Iterable[Incident] = (),
        events: Iterable[Event] = (),
        most_incidents: int = 200,
        most_events: int = 1000,
    ) -> None:
        """What is known from before, the newest first."""
        self.incidents = tuple(incidents)[:most_incidents]
        self.events = tuple(events)[:most_events]
        self._most_incidents = most_incidents
        self._most_events = most_events
        self._taken: object = None

    def take(self, node: Node, events: Sequence[Event]) -> None:
        """Take what has happened; an incident is replaced as it changes."""
        if events:
            self.events = (*reversed(events), *self.events)[: self._most_events]
        if node.incidents is not self._taken:
            self._taken = node.incidents
            known = {each.id: each for each in reversed(self.incidents)} | dict(node.incidents)
            self.incidents = tuple(reversed(known.values()))[: self._most_incidents]
