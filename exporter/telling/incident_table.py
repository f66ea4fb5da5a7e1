"""Faults as a table for a person, a row each, the newest first."""

from collections.abc import Sequence
from shlex import quote

from exporter.model.incident import FaultKind, Incident
from exporter.parse.printable import printable
from exporter.telling.columns import Column, Row, aligned, cell, without
from exporter.telling.incident_text import state
from exporter.telling.line import Line, Tone, faint, said, shell
from exporter.telling.moment import lasting, local, when
from exporter.telling.short import cut, short_gpu, short_name
from exporter.telling.verdict import leading, likelihood
from exporter.telling.who import called

_COLUMNS = (
    Column(name="ID"),
    Column(name="WHEN"),
    Column(name="AGO", right=True),
    Column(name="DAEMON", least=12, keep_end=True),
    Column(name="KIND"),
    Column(name="GPU"),
    Column(name="AFFECTED", right=True),
    Column(name="SUSPECT", least=20),
    Column(name="STATE", least=18),
)
_DISPENSABLE = ("GPU", "AFFECTED", "KIND", "AGO", "DAEMON")
"""On a terminal that is too narrow, the one of least worth first."""
_LONGEST_SUSPECT = 48
_NOBODY_KNOWN = "unknown"


def table(incidents: Sequence[Incident], now: float, width: int | None = None) -> Sequence[Line]:
    """One row for each incident; where there is none, that is said.

    On a terminal, which has a `width`, it is told how long ago each was, and how one is told in full.
    """
    if not incidents:
        return [said("No incidents.")]
    if width is None:
        rows = [_row(each, local(each.started_at), now) for each in incidents]
        return aligned(*without(_COLUMNS, rows, ("AGO",)))
    rows = [_row(each, when(each.started_at, now), now) for each in incidents]
    return [*aligned(_COLUMNS, rows, width, _DISPENSABLE), _hint(incidents)]


def _row(incident: Incident, started: str, now: float) -> Row:
    suspect = _suspect(incident)
    return (
        cell(printable(incident.id)),
        cell(started),
        cell(lasting(now - incident.started_at), Tone.FAINT),
        cell(short_name(incident.daemon)),
        cell(incident.kind, Tone.BAD if incident.kind is FaultKind.HARDWARE else Tone.PLAIN),
        cell(_gpus(incident)),
        cell(str(len(incident.affected))),
        cell(suspect, Tone.FAINT if suspect == _NOBODY_KNOWN else Tone.PLAIN),
        cell(state(incident, now), Tone.BAD if incident.open else Tone.PLAIN),
    )


def _hint(incidents: Sequence[Incident]) -> Line:
    """How one is told in full: one that is open, if there is one."""
    telling = next((each for each in incidents if each.open), incidents[0])
    return said(faint("all of one: "), shell(f"cuda-mps-exporter incidents {quote(printable(telling.id))}"))


def _gpus(incident: Incident) -> str:
    """The first one, and how many there are beside it."""
    if not incident.gpus:
        return "-"
    more = len(incident.gpus) - 1
    return short_gpu(incident.gpus[0]) + (f" +{more}" if more else "")


def _suspect(incident: Incident) -> str:
    leaders = leading(incident)
    if not leaders:
        return "nobody" if incident.kind is FaultKind.HARDWARE else _NOBODY_KNOWN
    sure = likelihood(sum(each.confidence for each in leaders))
    if len(leaders) > 1:
        return f"{sure} one of {', '.join(str(each.tenant.pid) for each in leaders)}"
    return f"{sure} {cut(called(leaders[0].tenant), _LONGEST_SUSPECT)}"
