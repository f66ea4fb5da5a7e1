"""Faults as a table for a person, a row each, the newest first."""

from collections.abc import Sequence

from exporter.model.incident import FaultKind, Incident
from exporter.parse.printable import printable
from exporter.telling.columns import aligned
from exporter.telling.incident_text import state
from exporter.telling.moment import local
from exporter.telling.short import cut, short_gpu, short_name
from exporter.telling.tenant_text import called
from exporter.telling.verdict import leading, likelihood

_COLUMNS = ("ID", "WHEN", "DAEMON", "KIND", "GPU", "AFFECTED", "SUSPECT", "STATE")
_RIGHT = ("AFFECTED",)
_LONGEST_SUSPECT = 48


def table(incidents: Sequence[Incident], now: float) -> str:
    """One row for each incident; where there is none, that is said."""
    if not incidents:
        return "No incidents.\n"
    return "\n".join(aligned([_COLUMNS, *(_row(each, now) for each in incidents)], _RIGHT)) + "\n"


def _row(incident: Incident, now: float) -> Sequence[str]:
    return (
        printable(incident.id),
        local(incident.started_at),
        short_name(incident.daemon),
        incident.kind,
        _gpus(incident),
        str(len(incident.affected)),
        _suspect(incident),
        state(incident, now),
    )


def _gpus(incident: Incident) -> str:
    """The first one, and how many there are beside it."""
    if not incident.gpus:
        return "-"
    more = len(incident.gpus) - 1
    return short_gpu(incident.gpus[0]) + (f" +{more}" if more else "")


def _suspect(incident: Incident) -> str:
    leaders = leading(incident)
    if not leaders:
        return "nobody" if incident.kind is FaultKind.HARDWARE else "unknown"
    sure = likelihood(sum(each.confidence for each in leaders))
    if len(leaders) > 1:
        return f"{sure} one of {', '.join(str(each.tenant.pid) for each in leaders)}"
    return f"{sure} {cut(called(leaders[0].tenant), _LONGEST_SUSPECT)}"
