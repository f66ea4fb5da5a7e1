"""Faults, those that are open and the last ones: whom each hit, who is suspected and how surely, who holds it up."""

from collections.abc import Iterable
from dataclasses import dataclass

from exporter.model.incident import Incident
from exporter.page.sight import Sight
from exporter.parse.printable import printable
from exporter.telling.flight_text import flying
from exporter.telling.incident_text import state, what, xid_text
from exporter.telling.moment import lasting, local
from exporter.telling.reasons import texts_of
from exporter.telling.remedy import address_of, command_to_end, command_to_end_server
from exporter.telling.short import counted
from exporter.telling.tenant_text import called
from exporter.telling.verdict import verdict

MOST_PAST = 10
MOST_NAMED = 8
MOST_SUSPECTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """One who may have done it: how sure that is, and why."""

    who: str
    confidence: str
    indications: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """One who holds up recovery, for how long, and the command that ends it; None where there is none to give."""

    who: str
    lasts: str
    command: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. `stuck` is the command that ends a server which nobody holds up, and which does not recover."""

    id: str
    open: bool
    what: str
    state: str
    began: str
    ago: str
    affected: str
    named: tuple[str, ...]
    verdict: str
    suspects: tuple[Suspicion, ...]
    blockers: tuple[Blocker, ...]
    stuck: str | None
    refused: str
    xids: tuple[str, ...]
    left_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Those that are open, and the last ones that are over, the newest first; `older` ones are not shown."""

    open: tuple[Fault, ...]
    past: tuple[Fault, ...]
    older: int


def faults(sight: Sight) -> Faults:
    """Of all daemons."""
    past = [each for each in sight.incidents if not each.open]
    return Faults(
        open=tuple(_fault(sight, each) for each in sight.incidents if each.open),
        past=tuple(_fault(sight, each) for each in past[:MOST_PAST]),
        older=max(0, len(past) - MOST_PAST),
    )


def _fault(sight: Sight, incident: Incident) -> Fault:
    blockers, flies = tuple(_blockers(sight, incident)), flying(incident)
    return Fault(
        id=printable(incident.id),
        open=incident.open,
        what=what(incident),
        state=state(incident, sight.at),
        began=local(incident.started_at),
        ago=f"{lasting(sight.at - incident.started_at)} ago",
        affected=_affected(incident),
        named=tuple(f"{called(incident.tenant(pid))}{flies.get(pid, '')}" for pid in incident.affected[:MOST_NAMED]),
        verdict=verdict(incident),
        suspects=tuple(_suspicions(incident)),
        blockers=blockers[:MOST_NAMED],
        stuck=_ends_stuck(sight, incident),
        refused=f"{counted(incident.refused_count, 'newcomer')} refused meanwhile" if incident.refused_count else "",
        xids=tuple(xid_text(xid) for xid in incident.xids[:MOST_NAMED]),
        left_out=max(0, len(blockers) - MOST_NAMED),
    )


def _affected(incident: Incident) -> str:
    if not incident.affected:
        return "nobody that is known"
    told = "" if incident.affected_told else ", as far as can be told from who shares the GPUs"
    return f"{counted(len(incident.affected), 'client')}{told}"


def _suspicions(incident: Incident) -> Iterable[Suspicion]:
    for each in incident.suspects[:MOST_SUSPECTS]:
        yield Suspicion(
            who=called(each.tenant),
            confidence=f"{each.confidence:.2f}",
            indications=texts_of(each.indications),
        )


def _blockers(sight: Sight, incident: Incident) -> Iterable[Blocker]:
    for pid, stay in incident.blockers.items():
        yield Blocker(
            who=called(incident.tenant(pid)),
            lasts=lasting(sight.at - stay.since),
            command=command_to_end(pid),
        )


def _ends_stuck(sight: Sight, incident: Incident) -> str | None:
    if not (incident.open and incident.stuck):
        return None
    return command_to_end_server(incident.server, address_of(sight.node, incident.daemon, sight.orders))
