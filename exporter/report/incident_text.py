"""Incidents as text: one in full, or a table."""

from collections.abc import Iterable, Sequence
from itertools import groupby, takewhile
from shlex import quote

from exporter.model.gpu import IncidentXid
from exporter.model.incident import ClientDetails, FaultKind, Incident, IncidentEnd, RecoveryDelay, Suspect
from exporter.parse.printable import printable
from exporter.parse.xid_catalogue import xid_meaning
from exporter.report.identity import called, flying
from exporter.report.reasons import texts_of
from exporter.report.remedy import Address, command_to_end_server, command_to_kill
from exporter.report.text import (
    Column,
    Line,
    Piece,
    Row,
    Style,
    align_table,
    cell,
    counted,
    dim,
    display_name,
    drop_columns,
    duration_text,
    error,
    line_of,
    local_time,
    mebibytes,
    pid_text,
    shell_command,
    short_gpu,
    short_time,
    truncate_name,
    utc_time,
)

LIKELIHOODS = ((0.8, "very likely"), (0.5, "likely"), (0.2, "possibly"))
"""From which confidence on which word may be used of a suspect."""

MOST_LEADERS = 3
"""Of more that are equally likely, nobody stands out."""


def verdict(incident: Incident) -> str:
    """Who may have done it and how likely that is, or why nobody is named."""
    if incident.kind is FaultKind.HARDWARE:
        return "nobody: the hardware failed, so that no tenant is to blame"
    if not incident.suspects:
        return "unknown: nothing points at anybody"
    leaders = leading(incident)
    if not leaders:
        return "unknown: nobody stands out"
    sure = likelihood(sum(each.confidence for each in leaders))
    named = ", ".join(called(each.client) for each in leaders)
    return f"{sure} {named}" if len(leaders) == 1 else f"{sure} one of {named}"


def leading(incident: Incident) -> Sequence[Suspect]:
    """The suspects that stand out: the likeliest one, or a few equally likely ones before others who are less so."""
    suspects = incident.suspects
    if incident.kind is FaultKind.HARDWARE or not suspects:
        return ()
    leaders = list(takewhile(lambda each: each.confidence == suspects[0].confidence, suspects))
    equal = len(leaders) == len(suspects) > 1
    least, _ = LIKELIHOODS[-1]
    if equal or len(leaders) > MOST_LEADERS or sum(each.confidence for each in leaders) < least:
        return ()
    return leaders


def likelihood(confidence: float) -> str:
    """A confidence, 0 to 1, as a word."""
    return next((word for least, word in LIKELIHOODS if confidence >= least), "unlikely")


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
        return [line_of("No incidents.")]
    if width is None:
        rows = [_row(each, local_time(each.started_at), now) for each in incidents]
        return align_table(*drop_columns(_COLUMNS, rows, ("AGO",)))
    rows = [_row(each, short_time(each.started_at, now), now) for each in incidents]
    return [*align_table(_COLUMNS, rows, width, _DISPENSABLE), _hint(incidents)]


def _row(incident: Incident, started: str, now: float) -> Row:
    suspect = _suspect(incident)
    return (
        cell(printable(incident.id)),
        cell(started),
        cell(duration_text(now - incident.started_at), Style.DIM),
        cell(display_name(incident.daemon)),
        cell(incident.kind, Style.ERROR if incident.kind is FaultKind.HARDWARE else Style.PLAIN),
        cell(_gpus(incident)),
        cell(str(len(incident.affected))),
        cell(suspect, Style.DIM if suspect == _NOBODY_KNOWN else Style.PLAIN),
        cell(state(incident, now), Style.ERROR if incident.open else Style.PLAIN),
    )


def _hint(incidents: Sequence[Incident]) -> Line:
    """How one is told in full: one that is open, if there is one."""
    telling = next((each for each in incidents if each.open), incidents[0])
    return line_of(dim("all of one: "), shell_command(f"cuda-mps-exporter incidents {quote(printable(telling.id))}"))


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
        return f"{sure} one of {', '.join(str(each.client.pid) for each in leaders)}"
    return f"{sure} {truncate_name(called(leaders[0].client), _LONGEST_SUSPECT)}"


MOST_LISTED = 16
"""So many clients, Xids or GPUs are named; of the others it is said how many they are."""

MOST_ALIKE = 2
"""So many suspects of whom nothing but the same can be said are named one by one."""

_INDENT = 13

_KINDS = {
    FaultKind.MEMORY: "memory fault",
    FaultKind.EXECUTION: "execution fault",
    FaultKind.CLIENT_KILLED: "fault by a client cut off in mid-kernel",
    FaultKind.HARDWARE: "hardware fault",
    FaultKind.UNKNOWN: "fault of unknown kind",
}


def brief(incident: Incident, now: float) -> str:
    """One line: what, where, when, how it stands, whom it hit and who may have done it."""
    short_time = "" if incident.open else f", {duration_text(now - incident.started_at)} ago"
    hit = counted(len(incident.affected), "client")
    return f"{_title(incident)}{short_time}: {state(incident, now)}; {hit} affected; suspected: {verdict(incident)}"


def details(incident: Incident, now: float, address: Address | None, *, watched: bool = True) -> list[Line]:
    """All that is known, a line each, with the commands that end who holds up recovery.

    `address` is None if no command reaches the daemon. If PIDs are not `watched` any more, there are no commands.
    """
    how = state(incident, now)
    return [
        line_of(f"{_title(incident)}: ", error(how) if incident.open else how),
        *_part("Began", [_moment(incident.started_at, now)]),
        *_part("Ended", [] if incident.ended_at is None else [_moment(incident.ended_at, now)]),
        *_part("GPUs", _first(map(printable, incident.gpus)) or ["not known"]),
        *_part("Xids", _first(map(xid_text, incident.xids)) or ["none was seen"]),
        *_part("Affected", _affected(incident)),
        *_part("Suspected", _suspected(incident)),
        *_part("Refused", _refused(incident)),
        *_part("Held up by", _held_up(incident, now, address, watched=watched)),
    ]


def state(incident: Incident, now: float) -> str:
    """How it stands, or how it ended."""
    took = None if incident.seconds is None else duration_text(incident.seconds)
    match incident.ending:
        case None:
            blockers = len(incident.blockers)
            held = f", held up by {counted(blockers, 'client')}" if blockers else ""
            return f"open for {duration_text(now - incident.started_at)}{held}"
        case IncidentEnd.RECOVERED:
            return "recovered" if took is None else f"recovered in {took}"
        case IncidentEnd.SERVER_GONE:
            return "over: the server is gone"
        case IncidentEnd.DAEMON_GONE:
            return "over: the daemon is gone"


def what(incident: Incident) -> str:
    """What broke, and where."""
    return f"{_KINDS[incident.kind]} on server {incident.server} of {printable(incident.daemon)}"


def _title(incident: Incident) -> str:
    return f"{printable(incident.id)}: {what(incident)}"


def _moment(at: float, now: float) -> str:
    return f"{local_time(at)} ({utc_time(at)}), {duration_text(now - at)} ago"


def xid_text(xid: IncidentXid) -> str:
    """An Xid: what it means, where it was, whom it names, and what NVIDIA advises."""
    known = xid_meaning(xid.number)
    meant = "" if known is None else f": {known.meaning} ({known.mnemonic})"
    where = "" if xid.gpu is None else f", on {short_gpu(xid.gpu)}"
    name = "" if xid.name is None else f" ({display_name(xid.name)})"
    whom = "" if xid.pid is None else f", names {pid_text(xid.pid)}{name}"
    advice = "" if known is None or known.action is None else f"; NVIDIA advises {known.action}"
    return f"{xid.number}{meant}{where}{whom}{advice}"


def _affected(incident: Incident) -> Sequence[str]:
    if not incident.affected:
        return ["nobody that is known"]
    how = "as the log told" if incident.affected_confirmed else "as far as can be told from who shares the GPUs"
    flies = flying(incident)
    each = (f"{_with_memory(incident.details_of(pid))}{flies.get(pid, '')}" for pid in incident.affected)
    return [f"{counted(len(incident.affected), 'client')}, {how}:", *_first(each)]


def _with_memory(client: ClientDetails) -> str:
    held = [f"{mebibytes(used)} on {short_gpu(gpu)}" for gpu, used in client.memory_bytes.items()]
    return f"{called(client)}, {', '.join(_first(held))}" if held else called(client)


def _suspected(incident: Incident) -> Sequence[str]:
    if incident.kind is FaultKind.HARDWARE:
        return [verdict(incident)]
    return [verdict(incident), *_first(_each_suspect(incident.suspects))]


def _each_suspect(suspects: Sequence[Suspect]) -> Iterable[str]:
    """Yield a line for each suspect, and one line for many suspects with the same indications."""
    for (confidence, indications), alike in groupby(suspects, key=lambda each: (each.confidence, each.indications)):
        who = list(alike)
        if len(who) <= MOST_ALIKE:
            yield from map(_incident_text_suspect, who)
        else:
            yield f"{confidence:.2f} each of {len(who)} others: {texts_of(indications)}"


def _incident_text_suspect(suspect: Suspect) -> str:
    return f"{suspect.confidence:.2f} {called(suspect.client)}: {texts_of(suspect.indications)}"


def _refused(incident: Incident) -> Sequence[str]:
    if not incident.refused_count:
        return []
    pids = _first(pid_text(each.pid) for each in incident.refused if each.pid is not None)
    return [f"{counted(incident.refused_count, 'newcomer')}, since the server was in FAULT (error 807)", *pids]


def _held_up(incident: Incident, now: float, address: Address | None, *, watched: bool) -> Iterable[Piece | str]:
    """Those who still do come first, each with the command that ends it."""
    standing, past = [], []
    for pid, stay in incident.blocking.items():
        who = called(incident.details_of(pid))
        if stay.until is not None:
            past.append(f"{who}, for {duration_text(stay.until - stay.since)}")
        else:
            standing.append((pid, f"{who}, for {_so_far(stay, incident, now)} now"))
    for pid, told in standing[:MOST_LISTED]:
        command = command_to_kill(pid) if watched else None
        yield from (told,) if command is None else (f"{told}; this ends it:", shell_command(f"  {command}"))
    if incident.stuck:
        command = command_to_end_server(incident.server, address) if watched else None
        yield "nobody: all of the affected have gone, and the server does not recover"
        if command is not None:
            yield from ("this ends it, with whoever is on it still; the daemon starts another:", shell_command(command))
    if len(standing) > MOST_LISTED:
        yield f"and {len(standing) - MOST_LISTED} more"
    yield from _first(past)


def _so_far(stay: RecoveryDelay, incident: Incident, now: float) -> str:
    return duration_text((now if incident.ended_at is None else incident.ended_at) - stay.since)


def _part(label: str, lines: Iterable[Piece | str]) -> Iterable[Line]:
    """A label and what there is to say of it, one below the other; nothing where there is nothing."""
    for place, line in enumerate(lines):
        before = dim(f"  {label:<11}") if place == 0 else " " * _INDENT
        yield line_of(before, line, indent=_INDENT)


def _first(lines: Iterable[str]) -> list[str]:
    told = list(lines)
    left = len(told) - MOST_LISTED
    return [*told[:MOST_LISTED], f"and {left} more"] if left > 0 else told
