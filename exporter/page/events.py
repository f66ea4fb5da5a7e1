"""The events before now, in words: equal events that follow each other are one row."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from exporter.model.action import ActionReason, ActionResult
from exporter.model.daemon import LossReason, StopReason
from exporter.model.event import TIMELINE, Event, EventName, LogLevel
from exporter.model.incident import Incident, IncidentEnd
from exporter.model.reason import Reason
from exporter.model.server import RefusalReason
from exporter.page.tables import time_shown
from exporter.parse.printable import printable
from exporter.report.document_parts import Severity
from exporter.report.incident_status import incident_status, verdict
from exporter.report.incident_text import ENDINGS, affected_count
from exporter.report.reasons import reason_text
from exporter.report.text import (
    code_text,
    counted,
    display_name,
    duration_text,
    listed,
    process_text,
    short_gpu,
    short_time,
)
from exporter.report.watchdog_text import action_text
from exporter.view import StatusInput, gpu_name

MOST_ROWS = 40

MOST_NAMED = 8
"""So many processes of equal events a row names besides the first."""

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
    **ENDINGS,
    ActionReason.DOWN.value: "it was down",
    ActionReason.HUNG.value: "it was hung",
}
_OF_PROCESSES = (
    EventName.CLIENT_REFUSED,
    EventName.CLIENT_WAITING,
    EventName.CLIENT_FAULT_CONTAINED,
    EventName.CLIENT_STARVED,
    EventName.CLIENT_NOT_STARVED,
    EventName.MEMORY_FILLED,
    EventName.PROCESS_BYPASSING,
)
_LEVELS = {LogLevel.INFO: Severity.UNKNOWN, LogLevel.WARNING: Severity.WARNING, LogLevel.ERROR: Severity.CRITICAL}


@dataclass(frozen=True, slots=True)
class Row:
    """One event, or several equal ones: when the newest was, and of what daemon or GPU."""

    severity: Severity
    when: Markup
    ago: str
    about: str
    words: str
    incident: str = ""
    """The ID of its incident, if that is known."""


def event_rows(data: StatusInput, most: int | None = MOST_ROWS) -> Sequence[Row]:
    """Return the newest events of the timeline, the newest first; None: all."""
    known = incidents_by_event(data)
    events = sorted((each for each in data.events if each.event in TIMELINE), key=lambda each: -each.at)
    rows = [(group[0].at, _row(data, group, known)) for group in _groups(events, known)[:most]]
    began = data.node.began_at
    if began is not None:
        ago = _ago(data, began)
        start = Row(Severity.UNKNOWN, _when(data, began), ago, "", "the exporter started")
        rows = sorted((*rows, (began, start)), key=lambda each: -each[0])
    return [row for _, row in rows][:most]


def incidents_by_event(data: StatusInput) -> Mapping[object, Incident]:
    """Return the incidents by `key_of` their events: faults by ID, deaths by daemon and time."""
    known = data.known_incidents.values()
    return {each.id if each.is_fault else (each.daemon, each.started_at): each for each in known}


def key_of(event: Event) -> object:
    """Return what names the incident of an event."""
    return (event.daemon, event.at) if event.incident is None else event.incident.id


def _groups(events: Sequence[Event], known: Mapping[object, Incident]) -> list[list[Event]]:
    """Return equal events together, the newest first. An event that ended clients is alone."""
    found: list[list[Event]] = []
    latest: dict[object, list[Event]] = {}
    for each in events:
        code = each.reason.code if isinstance(each.reason, Reason) else each.reason
        incident = known.get(key_of(each))
        ended = incident.id if incident is not None and incident.affected else None
        key = (each.event, each.daemon, each.action, each.result, code, each.xid, ended)
        group = latest.get(key)
        if group is None or each.event is EventName.FAULT or group[-1].at - each.at > TOGETHER_SECONDS:
            group = latest[key] = []
            found.append(group)
        group.append(each)
    return found


def _row(data: StatusInput, group: Sequence[Event], known: Mapping[object, Incident]) -> Row:
    event, at, others = group[0], group[0].at, set(map(_process, group)) - {_process(group[0]), ""}
    severity = _LEVELS[event.level]
    if event.reason == IncidentEnd.RECOVERED or event.result == ActionResult.SUCCEEDED:
        severity = Severity.WELL
    lasted = f" in {duration_text(at - group[-1].at)}" if at > group[-1].at else ""
    repeated = [f"{len(group)} times{lasted}"] if len(group) > 1 else []
    repeated += [f"also {listed(sorted(others), MOST_NAMED)}"] if others else []
    incident = known.get(key_of(event), event.incident)
    words = "; ".join(filter(None, (_head(event), *_details(data, event, incident), *repeated)))
    id_ = printable(known[key_of(event)].id) if key_of(event) in known else ""
    return Row(severity, _when(data, at), _ago(data, at), _about(data, event), words, id_)


def _when(data: StatusInput, at: float) -> Markup:
    return time_shown(at, short_time(at, data.at))


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
    elif event.event is EventName.FAULT_RECOVERED and event.reason not in (None, IncidentEnd.RECOVERED):
        words = "the fault is over"
    elif event.event is EventName.DAEMON_STOPPED and event.reason is None:
        words = "an operator stopped the daemon"
    elif event.event in _OF_PROCESSES:
        words = f"{_process(event) or 'a client'} {words}"
    return " ".join(filter(None, (words, action_text(event.action or ""))))


def _process(event: Event) -> str:
    """Return the process that the words of an event are about; empty if they are not, or if it is unknown."""
    if event.pid is None or event.event not in _OF_PROCESSES:
        return ""
    return process_text(event.pid, event.command, event.user)


def _details(data: StatusInput, event: Event, incident: Incident | None) -> Iterable[str]:
    if incident is not None:
        if incident.server:
            yield f"server {incident.server}"
        if event.event is EventName.FAULT:
            yield f"affected: {affected_count(incident_status(incident, data.at))}"
            yield f"suspect: {verdict(incident)}"
        elif event.event in (EventName.DAEMON_LOST, EventName.DAEMON_STOPPED):
            yield affected_count(incident_status(incident, data.at))
    if event.gpu is not None and event.daemon is not None:
        yield _about(data, replace(event, daemon=None))
    if event.count is not None:
        yield counted(event.count, "client")
    for each in (event.result, event.reason, event.problem):
        if each and each not in _IMPLIED:
            yield reason_text(each) if isinstance(each, Reason) else _REASONS.get(each, printable(code_text(each)))
