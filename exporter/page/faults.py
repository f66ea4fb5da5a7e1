"""The texts of the page's sections on open and past faults: clients hit, suspects, blocking clients."""

from collections.abc import Iterable
from dataclasses import dataclass

from exporter.model.incident import Incident
from exporter.parse.printable import printable
from exporter.report.identity import called, flying
from exporter.report.incident_text import state, verdict, what, xid_text
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

    who: str
    confidence: str
    indications: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """A client that blocks recovery, for how long, and the command that ends it, if there is one."""

    who: str
    lasts: str
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
    named: tuple[str, ...]
    verdict: str
    suspects: tuple[SuspectRow, ...]
    blockers: tuple[Blocker, ...]
    stuck: str | None
    refused: str
    xids: tuple[str, ...]
    left_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Open faults, and the last past ones, the newest first; `older` ones are not shown."""

    open: tuple[Fault, ...]
    past: tuple[Fault, ...]
    older: int


def faults(view: StatusView) -> Faults:
    """Of all daemons."""
    past = [each for each in view.incidents if not each.open]
    return Faults(
        open=tuple(_fault(view, each) for each in view.incidents if each.open),
        past=tuple(_fault(view, each) for each in past[:MOST_PAST]),
        older=max(0, len(past) - MOST_PAST),
    )


def _fault(view: StatusView, incident: Incident) -> Fault:
    blockers, flies = tuple(_blockers(view, incident)), flying(incident)
    return Fault(
        id=printable(incident.id),
        open=incident.open,
        what=what(incident),
        state=state(incident, view.at),
        began=local_time(incident.started_at),
        ago=f"{duration_text(view.at - incident.started_at)} ago",
        affected=_affected(incident),
        named=tuple(
            f"{called(incident.details_of(pid))}{flies.get(pid, '')}" for pid in incident.affected[:MOST_NAMED]
        ),
        verdict=verdict(incident),
        suspects=tuple(_suspicions(incident)),
        blockers=blockers[:MOST_NAMED],
        stuck=_ends_stuck(view, incident),
        refused=f"{counted(incident.refused_count, 'new client')} refused in the meantime"
        if incident.refused_count
        else "",
        xids=tuple(xid_text(xid) for xid in incident.xids[:MOST_NAMED]),
        left_out=max(0, len(blockers) - MOST_NAMED),
    )


def _affected(incident: Incident) -> str:
    if not incident.affected:
        return "no client known"
    inferred = "" if incident.affected_confirmed else ", inferred from the GPUs that clients share"
    return f"{counted(len(incident.affected), 'client')}{inferred}"


def _suspicions(incident: Incident) -> Iterable[SuspectRow]:
    for each in incident.suspects[:MOST_SUSPECTS]:
        yield SuspectRow(
            who=called(each.client),
            confidence=f"{each.confidence:.2f}",
            indications=texts_of(each.indications),
        )


def _blockers(view: StatusView, incident: Incident) -> Iterable[Blocker]:
    for pid, stay in incident.blockers.items():
        yield Blocker(
            who=called(incident.details_of(pid)),
            lasts=duration_text(view.at - stay.since),
            command=command_to_kill(pid),
        )


def _ends_stuck(view: StatusView, incident: Incident) -> str | None:
    if not (incident.open and incident.stuck):
        return None
    return command_to_end_server(incident.server, address_of(view.node, incident.daemon, view.policy))
