"""The events before now, in words: equal events that follow each other are one row."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from exporter.model.action import ActionReason, ActionResult
from exporter.model.daemon import LossReason, StopReason
from exporter.model.event import TIMELINE, Event, EventName, LogLevel
from exporter.model.incident import IncidentEnd
from exporter.model.reason import Reason
from exporter.model.server import RefusalReason
from exporter.parse.printable import printable
from exporter.report.document_parts import Severity
from exporter.report.incident_status import incident_status, verdict
from exporter.report.incident_text import affected_count
from exporter.report.reasons import reason_text
from exporter.report.text import code_text, counted, display_name, duration_text, pid_text, short_gpu, short_time
from exporter.report.watchdog_text import action_text
from exporter.view import StatusInput, gpu_name

MOST_ROWS = 40

TOGETHER_SECONDS = 300.0
"""Equal events that follow each other in this time are one row."""

_IMPLIED = (LossReason.DIED, IncidentEnd.RECOVERED)
"""Reasons that the words of the event include."""

_REASONS = {
    RefusalReason.LIMIT.value: "all client slots are taken",
    RefusalReason.FAULT.value: "the server is in FAULT",
    RefusalReason.OTHER.value: "for an unknown reason",
    StopReason.WORKLOAD_ENDED.value: "its job or pod ended",
    StopReason.WATCHDOG.value: "the watchdog ended it",
    ActionReason.DOWN.value: "it was down",
    ActionReason.HUNG.value: "it was hung",
}
_LEVELS = {LogLevel.INFO: Severity.UNKNOWN, LogLevel.WARNING: Severity.WARNING, LogLevel.ERROR: Severity.CRITICAL}


@dataclass(frozen=True, slots=True)
class Row:
    """One event, or several equal ones: when the newest was, and of what daemon or GPU."""

    severity: Severity
    when: str
    ago: str
    about: str
    words: str


@dataclass(slots=True)
class _Group:
    """Equal events; `last` is the newest, and its time is the first."""

    last: Event
    times: list[float] = field(default_factory=list)


def event_rows(data: StatusInput) -> Sequence[Row]:
    """Return the events that the timeline shows, the newest first."""
    events = sorted((each for each in data.events if each.event in TIMELINE), key=lambda each: -each.at)
    rows = [(group.times[0], _row(data, group)) for group in _groups(events)[:MOST_ROWS]]
    began = data.node.began_at
    if began is not None:
        ago = _ago(data, began)
        start = Row(Severity.UNKNOWN, short_time(began, data.at), ago, "", "the exporter started")
        rows = sorted((*rows, (began, start)), key=lambda each: -each[0])
    return [row for _, row in rows][:MOST_ROWS]


def _groups(events: Sequence[Event]) -> list[_Group]:
    found: list[_Group] = []
    latest: dict[object, _Group] = {}
    for each in events:
        code = each.reason.code if isinstance(each.reason, Reason) else each.reason
        key = (each.event, each.daemon, each.action, each.result, code, each.xid)
        group = latest.get(key)
        if group is None or each.event is EventName.FAULT or group.times[-1] - each.at > TOGETHER_SECONDS:
            group = latest[key] = _Group(each)
            found.append(group)
        group.times.append(each.at)
    return found


def _row(data: StatusInput, group: _Group) -> Row:
    event, times = group.last, group.times
    severity = _LEVELS[event.level]
    if event.event is EventName.FAULT_RECOVERED or event.result == ActionResult.SUCCEEDED:
        severity = Severity.WELL
    repeated = [f"{len(times)} times since {short_time(times[-1], data.at)}"] if len(times) > 1 else []
    words = "; ".join(filter(None, (_head(event), *_details(data, event), *repeated)))
    return Row(severity, short_time(times[0], data.at), _ago(data, times[0]), _about(data, event), words)


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


def _head(event: Event) -> str:
    words = event.event.words
    if event.xid is not None and event.event is EventName.GPU_XID:
        words = f"Xid {event.xid}"
    elif event.event is EventName.DAEMON_STOPPED and event.reason is None:
        words = "an operator stopped the daemon"
    elif event.event in (EventName.CLIENT_REFUSED, EventName.CLIENT_WAITING, EventName.PROCESS_BYPASSING):
        words = f"{'a client' if event.pid is None else pid_text(event.pid)} {words}"
    return " ".join(filter(None, (words, action_text(event.action or ""))))


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
