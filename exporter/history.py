"""The history of the node: the last incidents and events, and samples of the last hour.

Each daemon has a share of the history: a flood of one daemon's log displaces nothing of another daemon.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from math import fsum
from typing import Protocol

from exporter.model.daemon import DaemonState
from exporter.model.event import TIMELINE, Event
from exporter.model.incident import Incident
from exporter.model.node import Gpu, Node, expected_daemons, select_fairly
from exporter.model.usage import Split, UsageTotals
from exporter.model.values import frozen, without
from exporter.model.watchdog import RecoveredState
from exporter.state.devices import usable_gpus
from exporter.usage.last_minute import fresh_splits

MAX_INCIDENTS = 200
MAX_EVENTS = 1000
MAX_TIMELINE = 200
"""Events of the timeline that log lines cannot cause in any number; there may be as many others."""
Points = tuple[tuple[int, Mapping[str, bytes]], ...]
"""Values of each client and GPU, packed, by their interval: see `exporter.recent`."""

SPARE = 10
"""There may be one tenth more events than `MAX_EVENTS`. So they are not counted again at each new one."""

SAMPLE_SECONDS = 30.0  # Interval of samples.
MAX_SAMPLES = 120  # So many samples are remembered: those of an hour.


def slot_of(at: float) -> int:
    """Return the interval of a time; each has at most one sample."""
    return int(at // SAMPLE_SECONDS)


@frozen
class Sample:
    """The number of clients and the used fractions of all GPUs at a moment. None: unknown."""

    at: float
    clients: int | None = None
    memory_ratio: float | None = None
    sm_ratio: float | None = None

    @property
    def slot(self) -> int:
        """The interval to which the sample belongs."""
        return slot_of(self.at)


@frozen
class HistoryStatus:
    """Whether incidents and events are written to disk, and how many events were dropped from a full queue."""

    writable: bool
    events_dropped: int


class Store(Protocol):
    """Storage that outlives the process."""

    @property
    def status(self) -> HistoryStatus:
        """Whether it can be written."""

    @property
    def usage_totals(self) -> UsageTotals | None:
        """The usage totals to show, which no restart decreases; None: those of the node."""

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
        self.recent: Points = ()

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
        remaining = without(by_id, *(name for incident in by_id.values() for name in incident.replaces))
        ordered = sorted(remaining.values(), key=lambda incident: -incident.detected_at)
        most = self._max_incidents
        selected = select_fairly(ordered, most, lambda each: each.daemon, expected, lambda each: each.kind)
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


# -- samples ---------------------------------------------------------------------------------------------------------

_DIGITS = 4  # A sample is stored as text, which rounding makes short.


def with_sample(samples: tuple[Sample, ...], node: Node) -> tuple[Sample, ...]:
    """Return the samples, the oldest first, with one of the node if it is due; the same object if none is.

    The time is that of the last observation: while nothing is observed, there are no samples. At the start of the
    exporter, the first sample waits for the first collections.
    """
    if not node.sources or (samples and samples[-1].slot == slot_of(node.at)):
        return samples
    now = sample_of(node)
    starting = node.began_at is not None and node.at - node.began_at < SAMPLE_SECONDS / 2
    if starting and None in (now.clients, now.memory_ratio):
        return samples
    # If the clock was set back, later samples are dropped.
    recent = (sample for sample in samples if now.slot - MAX_SAMPLES < sample.slot < now.slot)
    return (*recent, now)


def sample_of(node: Node) -> Sample:
    """Return a sample of the node. What cannot be known of one daemon or GPU is not known of the node."""
    reported = [daemon for daemon in node.daemons.values() if daemon.is_reported(node.at)]
    unknown = (None, DaemonState.UNRESPONSIVE)
    clients_known = all(
        daemon.clients_known and (daemon.state not in unknown or not daemon.supported) for daemon in reported
    )
    return Sample(
        at=node.at,
        clients=sum(len(daemon.clients) for daemon in reported) if clients_known else None,
        memory_ratio=_memory_ratio(node),
        sm_ratio=_sm_ratio(node),
    )


def _memory_ratio(node: Node) -> float | None:
    # Of several compute instances of one GPU instance, only the first has its memory.
    devices = usable_gpus(node).values()
    readings = [each for each in devices if each.mig is None or each.memory_total_bytes is not None]
    if not readings or any(each.memory_used_bytes is None or not each.memory_total_bytes for each in readings):
        return None
    used = sum(each.memory_used_bytes or 0 for each in readings)
    return round(used / sum(each.memory_total_bytes or 0 for each in readings), _DIGITS)


def _sm_ratio(node: Node) -> float | None:
    splits = fresh_splits(node)
    # MIG instances have different numbers of SMs, so the mean over them is not the node's.
    mig = any(gpu.reading.mig for gpu in node.gpus.values())
    busy = [] if mig else [busy_ratio(gpu, splits.get(uuid)) for uuid, gpu in node.gpus.items()]
    known = [used for used in busy if used is not None]
    return round(fsum(known) / len(known), _DIGITS) if busy and len(known) == len(busy) else None


def busy_ratio(gpu: Gpu, split: Split | None) -> float | None:
    """Return the used fraction of the SMs of a GPU; None: unknown."""
    if gpu.reading.problem is not None:
        return None
    if split is not None:
        return split.sm if split.measured or not split.unknown else None
    return 0.0 if gpu.reading.compute_processes == () else gpu.reading.sm_utilization


def slots_until(samples: Iterable[Sample], at: float) -> Mapping[int, Sample | None]:
    """Return the slots of the hour until `at`, the oldest first, each with its sample; None: no sample was taken.

    The present slot is left out until it has its sample.
    """
    by_slot = {sample.slot: sample for sample in samples}
    last = slot_of(at)
    last -= last not in by_slot and last - 1 in by_slot
    return {slot: by_slot.get(slot) for slot in range(last - MAX_SAMPLES + 1, last + 1)}
