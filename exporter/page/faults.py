"""The texts of the page's sections on open and past faults: affected clients, suspects, blocking clients."""

from dataclasses import dataclass

from exporter.model.incident import Incident
from exporter.parse.printable import printable
from exporter.report.incident_text import (
    affected_clients,
    affected_count,
    client_text,
    incident_state,
    kind_and_server,
    verdict,
    xid_text,
)
from exporter.report.reasons import texts_of
from exporter.report.remedy import address_of, command_to_end_server, command_to_kill
from exporter.report.status_view import StatusView
from exporter.report.text import counted, duration_text, local_time

MOST_PAST = 10
MOST_NAMED = 8
MOST_SUSPECTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectRow:
    """A suspect: the confidence, and the evidence."""

    client: str
    confidence: str
    indications: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """A client that blocks recovery, for how long, and the command that ends it, if there is one."""

    client: str
    duration: str
    command: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. `stuck` is the command that ends a server that no client blocks and that does not recover."""

    id: str
    open: bool
    what: str
    state: str
    began: str
    ago: str
    affected: str
    clients: tuple[str, ...]
    verdict: str
    suspects: tuple[SuspectRow, ...]
    blockers: tuple[Blocker, ...]
    more_blockers: int
    stuck: str | None
    refused: str
    xids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Open faults, and the last past ones, the newest first; `older` ones are not shown."""

    open: tuple[Fault, ...]
    past: tuple[Fault, ...]
    older: int


def faults(view: StatusView) -> Faults:
    """Return the faults of all daemons."""
    past = [each for each in view.incidents if not each.open]
    return Faults(
        open=tuple(_fault(view, each) for each in view.incidents if each.open),
        past=tuple(_fault(view, each) for each in past[:MOST_PAST]),
        older=max(0, len(past) - MOST_PAST),
    )


def _fault(view: StatusView, incident: Incident) -> Fault:
    refused, stuck = incident.refused_count, None
    address = address_of(view.node, incident.daemon, view.policy) if incident.open else None
    if incident.open and incident.stuck:
        stuck = command_to_end_server(incident.server, address)
    return Fault(
        id=printable(incident.id),
        open=incident.open,
        what=kind_and_server(incident),
        state=incident_state(incident, view.at),
        began=local_time(incident.started_at),
        ago=f"{duration_text(view.at - incident.started_at)} ago",
        affected=affected_count(incident),
        clients=tuple(affected_clients(incident, MOST_NAMED)),
        verdict=verdict(incident),
        suspects=tuple(
            SuspectRow(
                client=client_text(each.client),
                confidence=f"{each.confidence:.2f}",
                indications=texts_of(each.indications),
            )
            for each in incident.suspects[:MOST_SUSPECTS]
        ),
        blockers=tuple(
            Blocker(
                client=client_text(incident.details_of(pid)),
                duration=duration_text(view.at - delay.since),
                command=command_to_kill(incident.details_of(pid), address),
            )
            for pid, delay in list(incident.blockers.items())[:MOST_NAMED]
        ),
        more_blockers=max(0, len(incident.blockers) - MOST_NAMED),
        stuck=stuck,
        refused=f"{counted(refused, 'new client')} refused in the meantime" if refused else "",
        xids=tuple(xid_text(xid) for xid in incident.xids[:MOST_NAMED]),
    )
