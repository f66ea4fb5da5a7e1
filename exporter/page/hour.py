"""The last hour, or the part of it that is known: the state of each daemon, and the use of the GPUs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

from exporter.model.event import EventName
from exporter.model.usage import SAMPLE_SECONDS, Sample
from exporter.parse.printable import printable
from exporter.report.document import DaemonStatus, StatusDocument
from exporter.report.node_status import StatusInput
from exporter.report.problem import Severity
from exporter.report.text import local_time, percent, short_time
from exporter.usage.sampling import sample_of, slots_until

T = TypeVar("T")

MOST_LANES = 16
MOST_SPANS = 40
LEAST_WIDTH = 0.4
"""In percent: a shorter state is shown as long as this."""

_State = tuple[Severity, str]
_UP, _DOWN, _HUNG, _STOPPED = (
    (Severity.WELL, "up"),
    (Severity.CRITICAL, "down"),
    (Severity.CRITICAL, "unresponsive"),
    (Severity.UNKNOWN, "stopped"),
)
_AFTER: Mapping[EventName, _State] = {
    EventName.DAEMON_UP: _UP,
    EventName.DAEMON_RESPONSIVE: _UP,
    EventName.DAEMON_LOST: _DOWN,
    EventName.DAEMON_UNRESPONSIVE: _HUNG,
    EventName.DAEMON_STOPPED: _STOPPED,
}
_BEFORE: Mapping[EventName, _State | None] = {EventName.DAEMON_UP: None, EventName.DAEMON_RESPONSIVE: _HUNG}
"""The state before an event, if that is not up; None: not known."""


@dataclass(frozen=True, slots=True)
class Span:
    """A state, with its place in percent of the width."""

    severity: Severity
    x: float
    width: float
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """The states of a daemon, or a value over the time as the path of steps in a height of 100."""

    title: str
    summary: str
    spans: Sequence[Span] = ()
    path: str = ""


@dataclass(frozen=True, slots=True)
class Hour:
    """What is known of the last hour. `gaps` are the places where it is not known, `slots` the width of the paths."""

    minutes: int
    times: Sequence[str]
    lines: Sequence[Line]
    gaps: Sequence[Span]
    slots: int


def last_hour(data: StatusInput, document: StatusDocument) -> Hour | None:
    """Return the last hour, from the first sample on; None if there is none."""
    # The present slot has the present values, unless nothing was collected yet or for some time.
    now = (sample_of(data.node),) if data.node.sources else ()
    slots = slots_until((*data.samples, *now), data.at)
    first = next((slot for slot, sample in slots.items() if sample is not None), None)
    if first is None:
        return None
    samples = [sample for slot, sample in slots.items() if slot >= first]
    begin, end = first * SAMPLE_SECONDS, (first + len(samples)) * SAMPLE_SECONDS
    axis = _Axis(begin, max(end, data.at))
    gaps = [
        axis.span(
            Severity.UNKNOWN, begin + SAMPLE_SECONDS * start, begin + SAMPLE_SECONDS * (start + length), "unknown"
        )
        for start, length, missing in _runs([each is None for each in samples])
        if missing
    ]
    ordered = sorted(document.daemons, key=lambda each: -each.severity.rank)
    return Hour(
        minutes=round((axis.end - begin) / 60) or 1,
        times=[local_time(at).split()[-1][:5] for at in (begin, (begin + axis.end) / 2, axis.end)],
        lines=[*(_lane(data, each, axis) for each in ordered[:MOST_LANES]), *_areas(samples)],
        gaps=gaps,
        slots=len(samples),
    )


@dataclass(frozen=True, slots=True)
class _Axis:
    begin: float
    end: float

    def span(self, severity: Severity, begin: float, end: float, text: str) -> Span:
        """Return the part of a time that is on the axis."""
        length = self.end - self.begin
        left, right = (min(1.0, max(0.0, (at - self.begin) / length)) for at in (begin, end))
        width = max(LEAST_WIDTH, 100 * (right - left))
        return Span(severity, round(min(100 * left, 100 - width), 2), round(width, 2), text)


def _lane(data: StatusInput, daemon: DaemonStatus, axis: _Axis) -> Line:
    spans = []
    for begin, end, severity, word in (*_states(data, daemon, axis), *_faults(data, daemon)):
        if end > axis.begin and begin < axis.end:
            text = f"{word} {short_time(max(begin, axis.begin), data.at)} to {short_time(min(end, axis.end), data.at)}"
            spans.append(axis.span(severity, begin, end, text))
    bad = [each.text for each in spans if each.severity is not Severity.WELL]
    summary = "; ".join(bad[-MOST_SPANS:]) or ("up" if spans else "unknown")
    return Line(printable(daemon.name), summary, spans=spans[-MOST_SPANS:])


def _states(data: StatusInput, daemon: DaemonStatus, axis: _Axis) -> Iterable[tuple[float, float, Severity, str]]:
    """Yield the states of a daemon between its events."""
    changes = (each for each in data.events if each.daemon == daemon.name and each.event in _AFTER)
    events, at = sorted(changes, key=lambda each: each.at), axis.begin
    if events:
        state = _BEFORE.get(events[0].event, _UP)
    else:
        state, at = _UP if daemon.state == "up" else None, max(at, daemon.state_since or at)
    for each in events:
        if state is not None:
            yield at, each.at, *state
        at, state = each.at, _AFTER[each.event]
    if state is not None:
        yield at, axis.end, *state


def _faults(data: StatusInput, daemon: DaemonStatus) -> Iterable[tuple[float, float, Severity, str]]:
    for each in reversed(data.incidents):
        if each.daemon == daemon.name:
            yield each.started_at, each.ended_at or data.at, Severity.CRITICAL, "fault"


def _areas(samples: Sequence[Sample | None]) -> Iterable[Line]:
    clients = [None if each is None else each.clients for each in samples]
    yield _area("Clients", clients, max((each or 0 for each in clients), default=0) or 1, str)
    yield _area("SMs used", [None if each is None else each.sm_ratio for each in samples], 1, percent)
    yield _area("Memory used", [None if each is None else each.memory_ratio for each in samples], 1, percent)


def _area(title: str, values: Sequence[float | None], top: float, text: Callable[[Any], str]) -> Line:
    known = [each for each in values if each is not None]
    if not known:
        return Line(title, "unknown")
    now = "unknown" if values[-1] is None else text(values[-1])
    heights = [None if each is None else 100 - round(95 * min(1.0, each / top)) for each in values]
    path = ""
    for start, length, height in _runs(heights):
        before = heights[start - 1] if start else None
        if height is not None:
            path += f"{f'M{start} 100' if before is None else ''}V{height}h{length}"
            if heights[start + length : start + length + 1] in ([], [None]):
                path += "V100"
    return Line(title, f"{now} now; between {text(min(known))} and {text(max(known))}", path=path)


def _runs(values: Sequence[T]) -> Iterable[tuple[int, int, T]]:
    """Yield the start, the length and the value of each run of equal values."""
    start = 0
    for value, run in groupby(values):
        length = len(list(run))
        yield start, length, value
        start += length
