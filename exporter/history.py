"""The last incidents and events, for the page and the API, and the samples of the last hour, for the page.

Each daemon has a share of them: a flood of one daemon's log displaces nothing of another daemon.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Protocol

from exporter.model.event import TIMELINE, Event
from exporter.model.incident import Incident
from exporter.model.node import Node, expected_daemons, select_fairly
from exporter.model.usage import Sample, UsageTotals
from exporter.model.watchdog import RecoveredState
from exporter.usage.sampling import with_sample
from exporter.view import HistoryStatus

MAX_INCIDENTS = 200
MAX_EVENTS = 1000
MAX_TIMELINE = 200
"""Events of the timeline that log lines cannot cause in any number; there may be as many others."""
SPARE = 10
"""There may be one tenth more events than `MAX_EVENTS`. So they are not counted again at each new one."""


class Store(Protocol):
    """Storage that outlives the process."""

    @property
    def status(self) -> HistoryStatus:
        """Whether it can be written."""

    @property
    def usage_totals(self) -> UsageTotals:
        """The usage totals to show: no restart decreases them."""

    def add(self, node: Node, events: Sequence[Event], samples: Sequence[Sample] = ()) -> None:
        """Store the result of a cycle, without waiting."""

    @property
    def has_watchdog_states(self) -> bool:
        """Whether all earlier watchdog states could be read, and new ones can be written."""

    def recovered_state(self) -> RecoveredState | None:
        """Return the watchdog states, once, if they were unavailable at the start and are available now."""


class History:
    """The last incidents and events, newest first. One thread adds to them, and any thread may read them.

    `timeline` has the events of the page's timeline: other events do not displace them. The oldest sample is the first.
    """

    def __init__(
        self,
        incidents: Iterable[Incident] = (),
        events: Iterable[Event] = (),
        samples: Iterable[Sample] = (),
        *,
        max_incidents: int = MAX_INCIDENTS,
        max_events: int = MAX_EVENTS,
    ) -> None:
        """Begin with these, in any order. An open incident is never dropped."""
        self._max_incidents = max_incidents
        self._max_events = max_events
        self._added: Mapping[str, Incident] = {}
        self.incidents = self._newest({incident.id: incident for incident in incidents})
        newest = sorted(events, key=lambda event: -event.at)
        self.events = self._shares(newest)
        self.timeline = _timeline(newest)
        self.samples = tuple(sorted(samples, key=lambda sample: sample.at))

    def add(self, node: Node, events: Sequence[Event]) -> tuple[Sample, ...]:
        """Add the result of a cycle; an incident replaces its earlier state. Return the new sample, if one is due."""
        if node.incidents is not self._added:
            self._added = node.incidents
            by_id = {**{incident.id: incident for incident in self.incidents}, **node.incidents}
            self.incidents = self._newest(by_id, expected_daemons(node))
        if events:
            self.events = (*reversed(events), *self.events)
            if len(self.events) > self._max_events + self._max_events // SPARE:
                self.events = self._shares(self.events, expected_daemons(node))
            new = [event for event in reversed(events) if event.event in TIMELINE]
            if new:
                self.timeline = _timeline((*new, *self.timeline), expected_daemons(node))
        before, self.samples = self.samples, with_sample(self.samples, node)
        return () if self.samples is before else self.samples[-1:]

    def _shares(self, events: Sequence[Event], expected: Collection[str] = ()) -> tuple[Event, ...]:
        return select_fairly(events, self._max_events, lambda event: event.daemon, expected)

    def _newest(self, by_id: Mapping[str, Incident], expected: Collection[str] = ()) -> tuple[Incident, ...]:
        ordered = sorted(by_id.values(), key=lambda incident: -incident.detected_at)
        selected = select_fairly(ordered, self._max_incidents, lambda incident: incident.daemon, expected)
        ids = {incident.id for incident in selected}
        return tuple(incident for incident in ordered if incident.id in ids or incident.open)


def _timeline(newest: Sequence[Event], expected: Collection[str] = ()) -> tuple[Event, ...]:
    timeline = [event for event in newest if event.event in TIMELINE]
    if len(timeline) <= 2 * MAX_TIMELINE:
        return tuple(timeline)
    selected = (
        select_fairly(
            [event for event in timeline if event.event.traits.frequent is frequent],
            MAX_TIMELINE - MAX_TIMELINE // SPARE,
            lambda event: event.daemon,
            expected,
        )
        for frequent in (False, True)
    )
    return tuple(sorted(chain.from_iterable(selected), key=lambda event: -event.at))
