"""What has happened lately: the last faults and events, for those who ask.

Each daemon has a share of them: whatever one daemon's log is flooded with displaces nothing of another daemon.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from exporter.model.accounting import UsageTotals
from exporter.model.event import Event
from exporter.model.incident import Incident
from exporter.model.node import Node, expected_daemons, select_fairly
from exporter.model.watchdog import RecoveredState
from exporter.view import HistoryStatus

MOST_INCIDENTS = 200
MOST_EVENTS = 1000
SPARE = 10
"""Events may exceed their number by one in so many, so that not each new one has them all counted."""


class Keeper(Protocol):
    """Keeps what has happened for longer than the process lives."""

    @property
    def status(self) -> HistoryStatus:
        """Whether it does."""

    @property
    def ledger(self) -> UsageTotals:
        """The books as they may be shown: no restart makes them less."""

    def take(self, node: Node, events: Sequence[Event]) -> None:
        """Keep what a cycle has brought, and return at once."""

    @property
    def knows_watches(self) -> bool:
        """Return whether all that the watchdog knew before could be read, and what happens can be written."""

    def regained(self) -> RecoveredState | None:
        """Return the watches, once, if they could not be read and written at the start and can be now."""


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
        self.events = self._shares(sorted(events, key=lambda each: -each.at))

    def take(self, node: Node, events: Sequence[Event]) -> None:
        """Take in what a cycle has brought: an incident replaces what was known of it, an event comes on top."""
        if node.incidents is not self._taken:
            self._taken = node.incidents
            known = {**{each.id: each for each in self.incidents}, **node.incidents}
            self.incidents = self._newest(known, expected_daemons(node))
        if events:
            self.events = (*reversed(events), *self.events)
            if len(self.events) > self._most_events + self._most_events // SPARE:
                self.events = self._shares(self.events, expected_daemons(node))

    def _shares(self, events: Sequence[Event], expected: Collection[str] = ()) -> tuple[Event, ...]:
        return select_fairly(events, self._most_events, lambda each: each.daemon, expected)

    def _newest(self, known: Mapping[str, Incident], expected: Collection[str] = ()) -> tuple[Incident, ...]:
        ordered = sorted(known.values(), key=lambda each: -each.detected_at)
        kept = {each.id for each in select_fairly(ordered, self._most_incidents, lambda each: each.daemon, expected)}
        return tuple(each for each in ordered if each.id in kept or each.open)
