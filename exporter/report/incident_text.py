"""Incidents as text: one in detail, or a table."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, takewhile
from shlex import quote

from exporter.model.gpu import IncidentXid
from exporter.model.incident import (
    LOWEST_ADDRESS,
    NULL_BYTES,
    ClientDetails,
    FaultKind,
    Incident,
    IncidentEnd,
    Place,
    Suspect,
)
from exporter.parse.printable import printable
from exporter.parse.xid_catalogue import xid_meaning
from exporter.report.reasons import texts_of
from exporter.report.remedy import Address, command_to_end_server, command_to_kill
from exporter.report.text import (
    Column,
    Line,
    Piece,
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
    process_text,
    shell_command,
    short_gpu,
    short_time,
    size_text,
    truncate,
    utc_time,
    workload_text,
)

LIKELIHOODS = ((0.8, "very likely"), (0.5, "likely"), (0.2, "possibly"))
"""The word for a suspect, by the least confidence that it needs."""

MOST_LEADERS = 3
"""If more suspects are equally likely, none is named."""

MOST_LISTED = 16
"""At most so many clients, Xids or GPUs are listed; the others are counted."""

MOST_ALIKE = 2
"""If more suspects have the same confidence and indications, they share a line."""

UNMAPPED = ("FAULT_PDE", "FAULT_PTE")
"""The driver's kinds of faults for an address without memory."""

_INDENT = 13

_KINDS = {
    FaultKind.MEMORY: "memory fault",
    FaultKind.EXECUTION: "execution fault",
    FaultKind.CLIENT_KILLED: "fault by a client killed while its kernel ran",
    FaultKind.HARDWARE: "hardware fault",
    FaultKind.UNKNOWN: "fault of unknown kind",
}

_COLUMNS = (
    Column(name="ID"),
    Column(name="WHEN"),
    Column(name="AGO", align_right=True),
    Column(name="DAEMON", min_width=12, truncate_start=True),
    Column(name="KIND"),
    Column(name="GPU"),
    Column(name="AFFECTED", align_right=True),
    Column(name="SUSPECT", min_width=20),
    Column(name="STATE", min_width=18),
)
_DROPPABLE = ("GPU", "AFFECTED", "KIND", "AGO", "DAEMON")
"""Columns that a narrow terminal does not show, the least important first."""
_LONGEST_SUSPECT = 48


def client_text(client: ClientDetails) -> str:
    """Return a client: `PID 600 (train.py of alice, job 42)`."""
    return process_text(client.pid, client.command, client.user, workload_text(client.workload, client.pod))


def in_flight(incident: Incident) -> Mapping[int, bool]:
    """Return whether each client had work in flight, by PID, as far as that is known."""
    return {each.pid: each.in_flight for each in incident.clues.in_flight_work}


def affected_clients(incident: Incident, most: int, *, memory: bool = False) -> Iterable[str]:
    """Yield the first affected clients, with the work that they had in flight, and with their memory if wanted."""
    known, texts = in_flight(incident), {None: "", True: ", with work in flight", False: ", with no work in flight"}
    for pid in incident.affected[:most]:
        client = incident.details_of(pid)
        used = [f"{mebibytes(size)} on {short_gpu(gpu)}" for gpu, size in client.memory_bytes.items()]
        held = f", {', '.join(_first(used))}" if used and memory else ""
        yield f"{client_text(client)}{held}{texts[known.get(pid)]}"


def affected_count(incident: Incident) -> str:
    """Return how many clients a fault affected, and how reliable that is."""
    if not incident.affected:
        return "no client known"
    inferred = "" if incident.affected_confirmed else ", inferred from the GPUs that clients share"
    return f"{counted(len(incident.affected), 'client')}{inferred}"


def verdict(incident: Incident) -> str:
    """Return the likely cause and how likely it is, or why no client is named."""
    if incident.kind is FaultKind.HARDWARE:
        return "none: the hardware failed"
    if not incident.suspects:
        return "unknown: no indication of a cause"
    leaders = leading(incident)
    if not leaders:
        return "unknown: no suspect stands out"
    if len(leaders) == 1:
        return f"{_likelihood_of(leaders)} {client_text(leaders[0].client)}"
    names = ", ".join(client_text(each.client) for each in leaders)
    return f"{_likelihood_of(leaders)} one of {names if len(leaders) <= MOST_LEADERS else _common_text(leaders)}"


def _common_text(suspects: Sequence[Suspect]) -> str | None:
    """Return many suspects by the workload that all of them belong to; None if they belong to several or none."""
    workloads = {workload_text(each.client.workload, each.client.pod) for each in suspects}
    (workload, *others) = workloads
    return None if others or not workload else f"{len(suspects)} clients of {workload}"


def leading(incident: Incident) -> Sequence[Suspect]:
    """Return the suspects that stand out: the likeliest one, or equally likely ones if others are less likely.

    Those are a few, or clients of one workload, such as workers that were forked from one process.
    """
    suspects = incident.suspects
    if incident.kind is FaultKind.HARDWARE or not suspects:
        return ()
    leaders = list(takewhile(lambda each: each.confidence == suspects[0].confidence, suspects))
    together = sum(each.confidence for each in leaders)
    by_chance = len(leaders) / max(1, len(incident.affected))
    all_equal = len(leaders) == len(suspects) > 1 and together <= by_chance
    least, _ = LIKELIHOODS[-1]
    too_many = len(leaders) > MOST_LEADERS and _common_text(leaders) is None
    if all_equal or too_many or together < least:
        return ()
    return leaders


def likelihood(confidence: float) -> str:
    """Return the word for a confidence of 0 to 1."""
    return next((word for least, word in LIKELIHOODS if confidence >= least), "unlikely")


def _likelihood_of(leaders: Sequence[Suspect]) -> str:
    return likelihood(sum(each.confidence for each in leaders))


def incidents_table(incidents: Sequence[Incident], now: float, width: int | None = None) -> Sequence[Line]:
    """Return a row for each incident.

    On a terminal, which has a `width`, the table also has the age of each and the command that shows one in detail.
    """
    if not incidents:
        return [line_of("No incidents.")]
    rows = [_row(each, now, short=width is not None) for each in incidents]
    if width is None:
        return align_table(*drop_columns(_COLUMNS, rows, ("AGO",)))
    shown = next((each for each in incidents if each.open), incidents[0])
    command = shell_command(f"cuda-mps-exporter incidents {quote(printable(shown.id))}")
    return [*align_table(_COLUMNS, rows, width, _DROPPABLE), line_of(dim("details of one: "), command)]


def _row(incident: Incident, now: float, *, short: bool) -> Sequence[Piece]:
    hardware = incident.kind is FaultKind.HARDWARE
    started = incident.started_at
    more_gpus = f" +{len(incident.gpus) - 1}" if len(incident.gpus) > 1 else ""
    leaders = leading(incident)
    if not leaders:
        suspect = "none" if hardware else "unknown"
    elif len(leaders) > 1:
        pids = ", ".join(str(each.client.pid) for each in leaders)
        suspect = f"{_likelihood_of(leaders)} one of {pids if len(leaders) <= MOST_LEADERS else _common_text(leaders)}"
    else:
        suspect = f"{_likelihood_of(leaders)} {truncate(client_text(leaders[0].client), _LONGEST_SUSPECT)}"
    return (
        cell(printable(incident.id)),
        cell(short_time(started, now) if short else local_time(started)),
        cell(duration_text(now - started), Style.DIM),
        cell(display_name(incident.daemon)),
        cell(incident.kind, Style.ERROR if hardware else Style.PLAIN),
        cell(f"{short_gpu(incident.gpus[0])}{more_gpus}" if incident.gpus else "-"),
        cell(str(len(incident.affected))),
        cell(suspect, Style.DIM if suspect == "unknown" else Style.PLAIN),
        cell(incident_state(incident, now), Style.ERROR if incident.open else Style.PLAIN),
    )


def brief(incident: Incident, now: float) -> str:
    """Return one line: kind, place, time, state, number of affected clients, and likely cause."""
    ago = "" if incident.open else f", {duration_text(now - incident.started_at)} ago"
    affected = counted(len(incident.affected), "client")
    state = incident_state(incident, now)
    return f"{_title(incident)}{ago}: {state}; {affected} affected; suspect: {verdict(incident)}"


def details(incident: Incident, now: float, address: Address | None) -> list[Line]:
    """Return all details, with the commands that end the clients that block recovery.

    `address` is None if no command reaches the daemon. Then there are no commands.
    """
    state = incident_state(incident, now)
    suspects = [] if incident.kind is FaultKind.HARDWARE else _first(_suspects(incident.suspects))
    affected = _first(affected_clients(incident, len(incident.affected), memory=True))
    return [
        line_of(f"{_title(incident)}: ", error(state) if incident.open else state),
        *_part("Began", [_time(incident.started_at, now)]),
        *_part("Ended", [] if incident.ended_at is None else [_time(incident.ended_at, now)]),
        *_part("GPUs", _first(map(printable, incident.gpus)) or ["unknown"]),
        *_part("Xids", _first(map(xid_text, incident.xids)) or ["none reported"]),
        *_part("Address", _first(address_texts(incident))),
        *_part("Affected", [f"{affected_count(incident)}{':' if affected else ''}", *affected]),
        *_part("Suspect", [verdict(incident), *suspects]),
        *_part("Refused", _refused(incident)),
        *_part("Blocked by", _blocked_by(incident, now, address)),
    ]


def incident_state(incident: Incident, now: float) -> str:
    """Return for how long the incident has been open, or how it ended."""
    match incident.ending:
        case None:
            blockers = len(incident.blockers)
            blocked = f", blocked by {counted(blockers, 'client')}" if blockers else ""
            return f"open for {duration_text(now - incident.started_at)}{blocked}"
        case IncidentEnd.RECOVERED:
            return "recovered" if incident.seconds is None else f"recovered in {duration_text(incident.seconds)}"
        case IncidentEnd.SERVER_GONE:
            return "over: the server has exited"
        case IncidentEnd.DAEMON_GONE:
            return "over: the daemon has exited"


def kind_and_server(incident: Incident) -> str:
    """Return the kind of a fault, its server and its daemon."""
    return f"{_KINDS[incident.kind]} on server {incident.server} of {printable(incident.daemon)}"


def _title(incident: Incident) -> str:
    return f"{printable(incident.id)}: {kind_and_server(incident)}"


def _time(at: float, now: float) -> str:
    return f"{local_time(at)} ({utc_time(at)}), {duration_text(now - at)} ago"


def xid_text(xid: IncidentXid) -> str:
    """Return an Xid: its meaning, its GPU, the process that it names, and NVIDIA's advice."""
    known = xid_meaning(xid.number)
    meaning = "" if known is None else f": {known.meaning} ({known.mnemonic})"
    gpu = "" if xid.gpu is None else f", on {short_gpu(xid.gpu)}"
    name = "" if xid.name is None else f" ({display_name(xid.name)})"
    process = "" if xid.pid is None else f", names {pid_text(xid.pid)}{name}"
    advice = "" if known is None or known.action is None else f"; NVIDIA advises {known.action}"
    return f"{xid.number}{meaning}{gpu}{process}{advice}"


def address_texts(incident: Incident) -> Iterable[str]:
    """Yield the faulting address, and where it lies for the client that it fits best: what its owner needs to know."""
    clue = incident.clues.address
    if clue is None:
        return
    access = "access" if clue.kind is None else clue.kind.value
    if clue.address < LOWEST_ADDRESS:
        offset = "" if clue.address < NULL_BYTES else " with an offset"
        yield f"{access} at 0x{clue.address:x}: a null pointer{offset}"
        return
    yield f"{access} at 0x{clue.address:x}"
    if len(clue.unread) == len(clue.candidates) and not clue.matches:
        yield "the address ranges of the clients are not known"
        return
    best = clue.best
    if best is None:
        yield "it is near the ranges of no client, or fits those of several"
        return
    owner = pid_text(best.pid)
    size = size_text(best.range_bytes)
    if best.freed_seconds is not None:
        ago = duration_text(best.freed_seconds)
        yield f"in a {size} range that {owner} freed at most {ago} before: probably a use after free"
    elif best.place is Place.INSIDE:
        unmapped = "; no memory of the GPU is mapped there" if clue.fault in UNMAPPED else ""
        yield f"in a {size} range of {owner}{'; memory of the host' if best.is_host else unmapped}"
    else:
        hint = "small" if best.place is Place.BEFORE else "large"
        where = f"{size_text(best.distance)} {best.place} a {size} range of {owner}"
        yield f"{where}, as with an index that is too {hint}"
    yield "another client could use this address by chance or on purpose"


def _suspects(suspects: Sequence[Suspect]) -> Iterable[str]:
    """Yield a line for each suspect, and one line for many suspects with the same indications."""
    for (confidence, indications), group in groupby(suspects, key=lambda each: (each.confidence, each.indications)):
        alike = list(group)
        if len(alike) > MOST_ALIKE:
            yield f"{confidence:.2f} each of {len(alike)} others: {texts_of(indications)}"
        else:
            yield from (f"{confidence:.2f} {client_text(each.client)}: {texts_of(indications)}" for each in alike)


def _refused(incident: Incident) -> Sequence[str]:
    if not incident.refused_count:
        return []
    pids = _first(pid_text(each.pid) for each in incident.refused if each.pid is not None)
    return [f"{counted(incident.refused_count, 'new client')}, because the server was in FAULT (error 807)", *pids]


def _blocked_by(incident: Incident, now: float, address: Address | None) -> Iterable[Piece | str]:
    """Yield the clients that block recovery, each with the command that ends it; then those that blocked it before."""
    present, past = [], []
    for pid, delay in incident.blocking.items():
        client = client_text(incident.details_of(pid))
        if delay.until is not None:
            past.append(f"{client}, for {duration_text(delay.until - delay.since)}")
        else:
            end = now if incident.ended_at is None else incident.ended_at
            present.append((pid, f"{client}, for {duration_text(end - delay.since)} so far"))
    for pid, text in present[:MOST_LISTED]:
        command = command_to_kill(incident.details_of(pid), address)
        yield from (text,) if command is None else (f"{text}; this ends it:", shell_command(f"  {command}"))
    if incident.stuck:
        command = command_to_end_server(incident.server, address)
        yield "no client: all affected clients have exited, and the server does not recover"
        if command is not None:
            yield "this ends the server and any clients on it; the daemon starts another one:"
            yield shell_command(command)
    if len(present) > MOST_LISTED:
        yield f"and {len(present) - MOST_LISTED} more"
    yield from _first(past)


def _part(label: str, lines: Iterable[Piece | str]) -> Iterable[Line]:
    """Yield a label with its lines; nothing if there are none."""
    for index, line in enumerate(lines):
        before = dim(f"  {label:<11}") if index == 0 else " " * _INDENT
        yield line_of(before, line, indent=_INDENT)


def _first(lines: Iterable[str]) -> list[str]:
    listed = list(lines)
    more = len(listed) - MOST_LISTED
    return [*listed[:MOST_LISTED], f"and {more} more"] if more > 0 else listed
