"""What has happened lately: the last faults and events, for those who ask."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from exporter.model.event import Event
from exporter.model.incident import Incident
from exporter.model.ledger import Ledger
from exporter.model.node import Node
from exporter.view import HistoryStatus

MOST_INCIDENTS = 200
MOST_EVENTS = 1000


class Keeper(Protocol):
    """Keeps what has happened for longer than the process lives."""

    @property
    def status(self) -> HistoryStatus:
        """Whether it does."""

    @property
    def ledger(self) -> Ledger:
        """The books as they may be shown: no restart makes them less."""

    def take(self, node: Node, events: Sequence[Event]) -> None:
        """Keep what a cycle has brought, and return at once."""


class History:
    """The last incidents and events, the newest first. One thread takes them in; any may read them, at any time."""

    def __init__(
        self,
        incidents: Iterable[Incident] = (),
        events: Iterable[Event] = (),
        most_incidents: int = MOST_INCIDENTS,
        most_events: int = MOST_EVENTS,
    ) -> None:
        """Begin with what is known from before, in any order. An open incident is kept, however old it is."""
        self._most_incidents = most_incidents
        self._most_events = most_events
        self._taken: Mapping[str, Incident] = {}
        self.incidents = self._newest({each.id: each for each in incidents})
        self.events = tuple(sorted(events, key=lambda each: -each.at))[:most_events]

    def take(self, node: Node, events: Sequence[Event]) -> None:
        """Take in what a cycle has brought: an incident replaces what was known of it, an event comes on top."""
        if node.incidents is not self._taken:
            self._taken = node.incidents
            self.incidents = self._newest({**{each.id: each for each in self.incidents}, **node.incidents})
        if events:
            self.events = (*reversed(events), *self.events)[: self._most_events]

    def _newest(self, known: Mapping[str, Incident]) -> tuple[Incident, ...]:
        ordered = sorted(known.values(), key=lambda each: -each.detected_at)
        return tuple(each for place, each in enumerate(ordered) if place < self._most_incidents or each.open)
