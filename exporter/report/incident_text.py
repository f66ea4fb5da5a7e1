"""Incidents as text: one in detail, or a table."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from shlex import quote
from typing import TYPE_CHECKING

from exporter.model.kernels import FaultKernels, LaunchedKernel
from exporter.parse.printable import LONGEST_TEXT, LONGEST_VALUE, printable
from exporter.report.document_parts import (
    AffectedClient,
    IncidentStatus,
    ProcessStatus,
    ReasonStatus,
    SuspectStatus,
    XidStatus,
)
from exporter.report.text import (
    NOT_SHOWN,
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
    held_text,
    kernel_name,
    line_of,
    listed,
    local_time,
    mebibytes,
    pid_text,
    process_text,
    shell_command,
    short_gpu,
    short_time,
    truncate,
    utc_time,
    workload_text,
    zone_text,
    zoned_time,
)

if TYPE_CHECKING:
    # Commands that only ask the service do not need the model.
    from exporter.model.incident import ClientDetails

MOST_NAMED = 3
"""If more suspects are equally likely, only the workload that all of them belong to is named."""

MOST_LISTED = 16
"""At most so many clients, Xids or GPUs are listed; the others are counted."""

MOST_ALIKE = 2
"""If more suspects have the same confidence and indications, they share a line."""

LEAST_KNOWN_SECONDS = 10.0
"""If launches are known for a shorter time before a fault, that is stated: a kernel can run for so long."""

ENDINGS = {"server_gone": "the server has exited", "daemon_gone": "the daemon has exited"}
"""How an incident ended without a recovery."""

_INDENT = 13

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


def command_text(process: ProcessStatus) -> str:
    """Return the command of a process. If it has exited and is still connected: `train.py (exited, held by PID 7)`."""
    held = held_text(process.held_by)
    return " ".join(filter(None, (display_name(process.command), held and f"({held})")))


def client_text(client: "ClientDetails | ProcessStatus", held_by: tuple[int, ...] | None = None) -> str:
    """Return a client: `PID 600 (train.py of alice, job 42)`."""
    return process_text(client.pid, client.command, client.user, workload_text(client.workload, client.pod), held_by)


def affected_text(client: AffectedClient, *, memory: bool = False) -> str:
    """Return an affected client with the work that it had in flight, and with its memory if wanted."""
    work = {None: "", True: ", with work in flight", False: ", with no work in flight"}[client.in_flight]
    used = [f"{mebibytes(size)} on {short_gpu(gpu)}" for gpu, size in client.memory_used_bytes.items()]
    held = f", {', '.join(first_of(used))}" if used and memory else ""
    return f"{client_text(client)}{held}{work}"


def fault_affected(clients: int) -> str:
    """Return how many clients a fault affected: at least its cause, so none is an unknown number."""
    return counted(clients, "client") if clients else "an unknown number of clients"


def affected_count(incident: IncidentStatus) -> str:
    """Return how many clients a fault affected, and how reliable that is."""
    if not incident.is_fault:
        ended = f"{counted(incident.affected_count, 'client') if incident.affected_count else 'no client'} ended"
        return ended if incident.affected_confirmed else f"{ended}, as far as is known"
    known = incident.affected_confirmed or not incident.affected_count
    return f"{fault_affected(incident.affected_count)}{'' if known else ', inferred from the GPUs that clients share'}"


def indications_text(reasons: Iterable[ReasonStatus]) -> str:
    """Return several reasons on one line."""
    return "; ".join(each.text[:LONGEST_TEXT] for each in reasons)


def incidents_table(incidents: Sequence[IncidentStatus], width: int | None = None) -> Sequence[Line]:
    """Return a row for each incident.

    On a terminal, which has a `width`, the table also has the age of each and the command that shows one in detail.
    """
    if not incidents:
        return [line_of("No incidents.")]
    rows = [_row(each, short=width is not None) for each in incidents]
    if width is None:
        return align_table(*drop_columns(_COLUMNS, rows, ("AGO",)))
    shown = next((each for each in incidents if each.open), incidents[0])
    command = shell_command(f"cuda-mps-exporter incidents {quote(printable(shown.id))}")
    notes = (line_of(dim(f"times in {zone_text(shown.at)}")), line_of(dim("details of one: "), command))
    return [*align_table(_COLUMNS, rows, width, _DROPPABLE), *notes]


def _row(incident: IncidentStatus, *, short: bool) -> Sequence[Piece]:
    started, now = incident.started_at, incident.at
    more_gpus = f" +{len(incident.gpus) - 1}" if len(incident.gpus) > 1 else ""
    leaders = incident.leading
    if not incident.is_fault:
        suspect = "-"
    elif not leaders:
        suspect = "none" if incident.kind == "hardware" else "unknown"
    elif 1 < len(leaders) <= MOST_NAMED:
        suspect = f"{incident.likelihood} one of {', '.join(map(str, leaders))}"
    else:
        suspect = truncate(incident.verdict, len(f"{incident.likelihood} ") + _LONGEST_SUSPECT)
    return (
        cell(printable(incident.id)),
        cell(short_time(started, now) if short else zoned_time(started)),
        cell(duration_text(now - started), Style.DIM),
        cell(display_name(incident.daemon)),
        cell(incident.kind, Style.ERROR if incident.kind == "hardware" else Style.PLAIN),
        cell(f"{short_gpu(incident.gpus[0])}{more_gpus}" if incident.gpus else "-"),
        cell(str(incident.affected_count or ("?" if incident.is_fault else 0))),
        cell(suspect, Style.DIM if suspect == "unknown" else Style.PLAIN),
        cell(incident_state(incident), Style.ERROR if incident.open else Style.PLAIN),
    )


def brief(incident: IncidentStatus) -> str:
    """Return one line: kind, place, time, state, number of affected clients, and likely cause."""
    ago = "" if incident.open else f", {duration_text(incident.at - incident.started_at)} ago"
    if not incident.is_fault:
        names = f": {listed(incident.restart, MOST_NAMED)}" if incident.restart else ""
        return f"{_title(incident)}{ago}: {incident_state(incident)}; {affected_count(incident)}{names}"
    affected = fault_affected(incident.affected_count)
    return f"{_title(incident)}{ago}: {incident_state(incident)}; {affected} affected; suspect: {incident.verdict}"


def details(incident: IncidentStatus, *, commands: bool = True) -> list[Line]:
    """Return all details; with `commands`, also those that end the clients that block recovery."""
    state, now = incident_state(incident), incident.at
    suspects = [] if incident.kind == "hardware" else first_of(_suspects(incident.suspects))
    affected = first_of(affected_text(each, memory=True) for each in incident.affected)
    return [
        line_of(f"{_title(incident)}: ", error(state) if incident.open else state),
        *_part("Began", [_time(incident.started_at, now)]),
        *_part("Ended", [] if incident.ended_at is None else [_time(incident.ended_at, now)]),
        *_part("GPUs", first_of(incident.gpus) or ["unknown"]),
        *_part("Xids", first_of(map(xid_text, incident.xids)) or ["none reported"] if incident.is_fault else []),
        *_part("Address", [] if incident.address is None else first_of(incident.address.texts)),
        *_part("Core dumps", [each.text for each in incident.core_dumps]),
        *_part("Affected", [f"{affected_count(incident)}{':' if affected else ''}", *affected]),
        *_part("Restart", restart_lines(incident)),
        *_part("Suspect", [incident.verdict, *suspects] if incident.is_fault else []),
        *_part("In flight", first_of(text for text, _ in in_flight_texts(incident))),
        *_part("Launched", first_of(launched_texts(incident))),
        *_part("Refused", _refused(incident)),
        *_part("Blocked by", _blocked_by(incident, commands=commands)),
    ]


def restart_lines(incident: IncidentStatus) -> Sequence[str]:
    """Return what to restart after a death; a few words if the clients are alone in their jobs, pods and units."""
    alone = len(incident.restart) == incident.affected_count > 0
    return ["these clients, unless they restart by themselves"] if alone else first_of(incident.restart)


def incident_state(incident: IncidentStatus) -> str:
    """Return for how long the incident has been open, or how it ended."""
    if incident.open:
        blockers = incident.blocking_count
        blocked = f", blocked by {counted(blockers, 'client')}" if blockers else ""
        what = "open" if incident.is_fault else "down"
        return f"{what} for {duration_text(incident.at - incident.started_at)}{blocked}"
    if incident.ending in ENDINGS:
        return f"over: {ENDINGS[incident.ending]}"
    recovered, word = ("recovered", "in") if incident.is_fault else ("up again", "after")
    return recovered if incident.seconds is None else f"{recovered} {word} {duration_text(incident.seconds)}"


def _title(incident: IncidentStatus) -> str:
    return f"{incident.id}: {incident.title}"


def _time(at: float, now: float) -> str:
    return f"{local_time(at)} {zone_text(at).split()[0]} ({utc_time(at)}), {duration_text(now - at)} ago"


def xid_text(xid: XidStatus) -> str:
    """Return an Xid: its meaning, its GPU, the process that it names, and NVIDIA's advice."""
    meaning = "" if xid.meaning is None else f": {xid.meaning} ({xid.mnemonic})"
    gpu = "" if xid.gpu is None else f", on {short_gpu(xid.gpu)}"
    name = "" if xid.name is None else f" ({display_name(xid.name)})"
    process = "" if xid.pid is None else f", names {pid_text(xid.pid)}{name}"
    advice = "" if xid.advice is None else f"; NVIDIA advises {xid.advice}"
    return f"{xid.xid}{meaning}{gpu}{process}{advice}"


def _suspects(suspects: Sequence[SuspectStatus]) -> Iterable[str]:
    """Yield a line for each suspect, and one line for many suspects with the same indications."""
    for (confidence, indications), group in groupby(suspects, key=lambda each: (each.confidence, each.indications)):
        alike = list(group)
        if len(alike) > MOST_ALIKE:
            yield f"{confidence:.2f} each of {len(alike)} others: {indications_text(indications)}"
        else:
            yield from (f"{confidence:.2f} {client_text(each)}: {indications_text(indications)}" for each in alike)


def in_flight_texts(incident: IncidentStatus) -> Iterable[tuple[str, str]]:
    """Yield the kernels that each client had in flight when the fault began, suspects first, and their whole names."""
    clients: Sequence[SuspectStatus | AffectedClient] = (*incident.suspects, *incident.affected)
    for pid, known in {each.pid: each.kernels for each in clients if each.kernels is not None}.items():
        more = known.in_flight_count - len(known.in_flight)
        shown = [*(_kernel_text(each, known) for each in known.in_flight), *([f"{more} more"] if more else [])]
        names = (printable(name.raw, LONGEST_VALUE) for each in known.in_flight for name in each.names)
        yield f"{pid_text(pid)}: {'; '.join((*(shown or ['none known']), *_unknown(known)))}", "\n".join(names)
    if hidden := {each.pid for each in clients if each.kernels_hidden}:
        yield f"kernels of {counted(len(hidden), 'client')}: {NOT_SHOWN}", ""


def _unknown(known: FaultKernels) -> Iterable[str]:
    """Yield what is unknown of the kernels of a client, and why."""
    if known.began_before_exporter and not all(each.names for each in known.in_flight):
        yield "names are unknown because it began before the exporter"
    if known.names_lost:
        yield "names and launches were lost because there were too many"
    since, until = ((known.fault_ns - ns) / 1e9 for ns in (known.launches_since_ns, known.launches_until_ns))
    if known.launches_until_ns and until > 0:
        yield f"launches in the last {duration_text(until)} are unknown because of too many calls"
    elif since < LEAST_KNOWN_SECONDS:
        yield f"only launches in the last {duration_text(since)} are known"


def launched_texts(incident: IncidentStatus) -> Iterable[str]:
    """Yield the last launches of each suspect that stands out, the last one first."""
    for suspect in incident.suspects:
        if suspect.pid in incident.leading and suspect.kernels is not None and suspect.kernels.last:
            known = suspect.kernels
            before = ((each, (known.fault_ns - each.last_ns) / 1e9) for each in known.last)
            texts = (f"{kernel_name(each)} {duration_text(seconds)} before" for each, seconds in before if seconds >= 0)
            yield f"{pid_text(suspect.pid)}: {'; '.join(texts) or 'none known'}"


def _kernel_text(kernel: LaunchedKernel, known: FaultKernels) -> str:
    notes = [] if kernel.completed else ["no completed launch is known"]
    if earlier := max((known.earlier_faults.get(name.raw, 0) for name in kernel.names), default=0):
        notes.append(f"in flight at {counted(earlier, 'earlier fault')} of its workload")
    return f"{kernel_name(kernel)}{f' ({listed(notes)})' if notes else ''}"


def _refused(incident: IncidentStatus) -> Sequence[str]:
    if not incident.refused_count:
        return []
    pids = first_of(map(pid_text, incident.refused))
    return [f"{counted(incident.refused_count, 'new client')}, because the server was in FAULT (error 807)", *pids]


def _blocked_by(incident: IncidentStatus, *, commands: bool) -> Iterable[Piece | str]:
    """Yield the clients that block recovery, each with the command that ends it; then those that blocked it before."""
    present = [each for each in incident.blocking if each.until is None]
    past = [
        f"{client_text(each)}, for {duration_text(each.seconds)}"
        for each in incident.blocking
        if each.until is not None
    ]
    for each in present[:MOST_LISTED]:
        text = f"{client_text(each, each.held_by)}, for {duration_text(each.seconds)} so far"
        yield f"{text}; this ends it:" if commands and each.kill_command else text
        yield from (shell_command(f"  {command}") for command in each.kill_command if commands)
    if incident.stuck:
        yield "no client: all affected clients have exited, and the server does not recover"
        if commands and incident.end_server_command:
            yield "this ends the server and any clients on it; the daemon starts another one:"
            yield from map(shell_command, incident.end_server_command)
    if len(present) > MOST_LISTED:
        yield f"and {len(present) - MOST_LISTED} more"
    yield from first_of(past)


def _part(label: str, lines: Iterable[Piece | str]) -> Iterable[Line]:
    """Yield a label with its lines; nothing if there are none."""
    for index, line in enumerate(lines):
        before = dim(f"  {label:<11}") if index == 0 else " " * _INDENT
        yield line_of(before, line, indent=_INDENT)


def first_of(lines: Iterable[str], most: int = MOST_LISTED) -> list[str]:
    """Return the first lines, and how many more there are."""
    listed = list(lines)
    more = len(listed) - most
    return [*listed[:most], f"and {more} more"] if more > 0 else listed
