"""What is told of an incident, and when: that it happened, what changes that matters to who waits, and how it ended."""

from collections.abc import Iterable

from exporter.model.event import Event, EventName
from exporter.model.incident import Incident
from exporter.model.node import Node
from exporter.model.replace import replace

ANNOUNCED_SECONDS = 0.5
"""How long the opening waits for the log to tell whom and what the fault hit."""


def told(at: float, was: Incident, incident: Incident, *, force: bool) -> tuple[Incident, tuple[Event, ...]]:
    """The opening once its GPUs are known, each change that matters, the end once late evidence has had its time."""
    events: list[Event] = []
    if not incident.announced and _announceable(at, incident, force=force):
        incident = replace(incident, announced=True)
        events.append(_event(incident.detected_at, EventName.FAULT, incident))
    over = not incident.open and incident.settled
    if incident.announced and not over and not force:
        events.extend(
            _event(at, EventName.FAULT_CHANGED, incident, reason=reason) for reason in _changes(was, incident)
        )
    if over:
        incident = replace(incident, told=True)
        events.append(_event(incident.ended_at or at, EventName.FAULT_RECOVERED, incident, reason=incident.ending))
    return incident, tuple(events)


def _announceable(at: float, incident: Incident, *, force: bool) -> bool:
    told = incident.affected_told and bool(incident.gpus)
    return told or force or not incident.open or at - incident.detected_at >= ANNOUNCED_SECONDS


def _changes(was: Incident, incident: Incident) -> Iterable[str]:
    """What a person who waits for recovery would want to hear."""
    if incident.settled and (not was.settled or _likeliest(was) != _likeliest(incident)):
        yield "suspects"
    if was.blockers.keys() != incident.blockers.keys() and incident.open:
        yield "blocking"
    if incident.stuck and not was.stuck:
        yield "stuck"
    if incident.refused_count and not was.refused_count:
        yield "refused"


def _likeliest(incident: Incident) -> int | None:
    return None if incident.suspect is None else incident.suspect.tenant.pid


def still_open(node: Node) -> tuple[Event, ...]:
    """What is to be told of the incidents that are open when a recording ends."""
    return tuple(_event(node.at, EventName.FAULT_OPEN, each) for each in node.incidents.values() if each.open)


def _event(at: float, name: EventName, incident: Incident, reason: str | None = None) -> Event:
    return Event(at=at, event=name, daemon=incident.daemon, server=incident.server, incident=incident, reason=reason)
