"""The timeline: events of the last hour, as marks and as a table."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

from exporter.model.action import ActionResult
from exporter.model.daemon import LossReason, StopReason
from exporter.model.event import TOPICS, Event, EventName, Topic
from exporter.model.event import Severity as LogLevel
from exporter.model.incident import IncidentEnd
from exporter.model.reason import Reason
from exporter.model.server import RefusalReason
from exporter.page.plots import Hour
from exporter.parse.printable import printable
from exporter.report.incident_status import incident_status, verdict
from exporter.report.incident_text import affected_count
from exporter.report.node_status import StatusInput
from exporter.report.problem import Severity
from exporter.report.reasons import reason_text
from exporter.report.text import code_text, counted, display_name, duration_text, pid_text, short_gpu, short_time
from exporter.view import gpu_name

MOST_ROWS = 40
MOST_MARKS = 60
MARKS_PER_PERCENT = 2
"""Marks of one topic that are nearer to each other are one mark, the most severe one."""

TOGETHER_SECONDS = 300.0
"""Equal events that follow each other in this time are one row."""

_IMPLIED = (LossReason.DIED, IncidentEnd.RECOVERED)
"""Reasons that the words of the event include."""

_REASONS = {
    RefusalReason.LIMIT.value: "all client slots are taken",
    RefusalReason.FAULT.value: "the server is in FAULT",
    RefusalReason.OTHER.value: "for an unknown reason",
    StopReason.WORKLOAD_ENDED.value: "its job or pod ended",
}
_STARTED = "the exporter started"
_LEVELS = {LogLevel.INFO: Severity.UNKNOWN, LogLevel.WARNING: Severity.WARNING, LogLevel.ERROR: Severity.CRITICAL}


@dataclass(slots=True)
class _Group:
    """Equal events; `last` is the newest, and its time is the first. None: the start of the exporter."""

    last: Event | None
    topic: Topic
    times: list[float]


def timeline(data: StatusInput, hour: Hour) -> SimpleNamespace:
    """Return the events of the last hour, the newest first, as lanes of marks by topic and as rows of equal events.

    `more` of the rows are not shown. `before` is the last earlier event. The summary counts events by topic.
    """
    events = [each for each in data.events if each.event in TOPICS]
    shown = [each for each in events if hour.position(each.at) is not None]
    earlier = next((each for each in events if each.at < hour.begin), None)
    groups = _groups(shown)
    began = data.node.began_at
    if began is not None and hour.position(began) is not None:
        groups.append(_Group(None, Topic.OPERATOR, [began]))
        groups.sort(key=lambda each: -each.times[0])
    rows = [_row(data, each) for each in groups]
    counts = {topic: sum(len(each.times) for each in groups if each.topic is topic) for topic in Topic}
    return SimpleNamespace(
        lanes=tuple(_lanes(hour, groups, rows)),
        rows=tuple(rows[:MOST_ROWS]),
        more=max(0, len(rows) - MOST_ROWS),
        before="" if earlier is None else f"{_ago(data, earlier.at)}: {_about(data, earlier)} {_words(data, earlier)}",
        summary=", ".join(f"{topic} {count}" for topic, count in counts.items() if count) or "no event",
    )


def _groups(events: Sequence[Event]) -> list[_Group]:
    found: list[_Group] = []
    latest: dict[object, _Group] = {}
    for each in events:
        code = each.reason.code if isinstance(each.reason, Reason) else each.reason
        key = (each.event, each.daemon, each.action, each.result, code, each.xid)
        group = latest.get(key)
        if group is not None and each.event is not EventName.FAULT and group.times[-1] - each.at <= TOGETHER_SECONDS:
            group.times.append(each.at)
            continue
        latest[key] = _Group(each, TOPICS[each.event], [each.at])
        found.append(latest[key])
    return found


def _lanes(hour: Hour, groups: Sequence[_Group], rows: Sequence[SimpleNamespace]) -> Iterable[SimpleNamespace]:
    for topic in Topic:
        marks: dict[int, SimpleNamespace] = {}
        for group, row in zip(groups, rows, strict=True):
            for at in group.times if group.topic is topic else ():
                x = round(hour.position(at) or 0.0, 1)
                mark = SimpleNamespace(x=x, severity=row.severity, text=f"{row.when} {row.about} {row.words}")
                near = marks.setdefault(round(x * MARKS_PER_PERCENT), mark)
                if row.severity.rank > near.severity.rank:
                    marks[round(x * MARKS_PER_PERCENT)] = mark
        if marks:
            yield SimpleNamespace(topic=topic, marks=tuple(marks.values())[:MOST_MARKS])


def _row(data: StatusInput, group: _Group) -> SimpleNamespace:
    event, times = group.last, group.times
    severity = Severity.UNKNOWN if event is None else _LEVELS[event.severity]
    if event is not None and (event.event is EventName.FAULT_RECOVERED or event.result == ActionResult.SUCCEEDED):
        severity = Severity.WELL
    repeated = f"; {len(times)} times since {short_time(times[-1], data.at)}" if len(times) > 1 else ""
    return SimpleNamespace(
        topic=group.topic,
        severity=severity,
        when=short_time(times[0], data.at),
        ago=_ago(data, times[0]),
        about="" if event is None else _about(data, event),
        words=_STARTED if event is None else f"{_words(data, event)}{repeated}",
    )


def _ago(data: StatusInput, at: float) -> str:
    return f"{duration_text(max(0.0, data.at - at))} ago"


def _about(data: StatusInput, event: Event) -> str:
    """Return the daemon, or else the GPU."""
    if event.daemon is not None:
        return display_name(event.daemon)
    if event.gpu is None:
        return ""
    name = gpu_name(data.node, event.gpu)
    return f"GPU {printable(name) if name != event.gpu else short_gpu(event.gpu)}"


def _words(data: StatusInput, event: Event) -> str:
    return "; ".join(filter(None, (_head(event), *_details(data, event))))


def _head(event: Event) -> str:
    words = event.event.words
    if event.xid is not None and event.event is EventName.GPU_XID:
        words = f"Xid {event.xid}"
    elif event.event is EventName.DAEMON_STOPPED and event.reason is None:
        words = "an operator stopped the daemon"
    elif event.event in (EventName.CLIENT_REFUSED, EventName.CLIENT_WAITING, EventName.PROCESS_BYPASSING):
        words = f"{'a client' if event.pid is None else pid_text(event.pid)} {words}"
    return " ".join(filter(None, (words, code_text(event.action or ""))))


def _details(data: StatusInput, event: Event) -> Iterable[str]:
    if event.incident is not None:
        known = next((each for each in data.incidents if each.id == event.incident.id), event.incident)
        yield f"server {known.server}"
        if event.event is EventName.FAULT:
            yield f"affected: {affected_count(incident_status(known, data.at))}"
            yield f"suspect: {verdict(known)}"
    if event.count is not None:
        yield counted(event.count, "client")
    for each in (event.result, event.reason, event.problem):
        if each and each not in _IMPLIED:
            yield reason_text(each) if isinstance(each, Reason) else _REASONS.get(each, printable(code_text(each)))
