"""Faults and deaths of the status document: what failed, the likely cause, and where a failed access was."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, takewhile
from typing import Any

from exporter.model.incident import (
    CHOSEN_BELOW,
    LOWEST_ADDRESS,
    NULL_BYTES,
    ClientDetails,
    Incident,
    IncidentKind,
    IncidentXid,
    Place,
    Suspect,
)
from exporter.model.reason import Reason, ReasonCode
from exporter.parse.kernel_log import XIDS
from exporter.parse.printable import LONGEST_TEXT, printable
from exporter.report.document_parts import (
    MOST_LISTED,
    AddressMatchStatus,
    AddressStatus,
    AffectedClient,
    BlockingClient,
    IncidentStatus,
    SuspectStatus,
    XidStatus,
)
from exporter.report.incident_text import MOST_NAMED, client_text
from exporter.report.process_status import Part, filled, printed
from exporter.report.remedy import Address, command_to_end_server, command_to_kill
from exporter.report.text import (
    counted,
    display_name,
    duration_text,
    listed,
    pid_text,
    size_text,
    utc_time,
    workload_text,
)

LIKELIHOODS = ((0.8, "very likely"), (0.5, "likely"), (0.2, "possibly"))
"""The word for a suspect, by the least confidence that it needs."""

MOST_WORKLOAD_BYTES = 6144
"""Size of the affected workloads in a record of the log. Container runtimes split records of more than 16 KiB."""

UNMAPPED = ("FAULT_PDE", "FAULT_PTE")
"""The driver's kinds of faults for an address without memory."""

_TITLES = {
    IncidentKind.MEMORY: "memory fault{dumps} on server {server} of {daemon}",
    IncidentKind.EXECUTION: "execution fault{dumps} on server {server} of {daemon}",
    IncidentKind.CLIENT_KILLED: "fault by a client killed while its kernel ran{dumps} on server {server} of {daemon}",
    IncidentKind.HARDWARE: "hardware fault{dumps} on server {server} of {daemon}",
    IncidentKind.UNKNOWN: "fault of unknown kind{dumps} on server {server} of {daemon}",
    IncidentKind.DAEMON_DIED: "death of daemon {daemon}",
    IncidentKind.SERVER_DIED: "death of server {server} of {daemon}",
    IncidentKind.RESTARTED: "restart of daemon {daemon} by the watchdog",
}


def incident_status(
    incident: Incident, at: float, address: Address | None = None, *, clients: int = MOST_LISTED
) -> IncidentStatus:
    """Return an incident as it is `at` a time, with at most so many `clients` of each kind.

    Without the daemon's `address`, there are no commands.
    """
    leaders = leading(incident)
    flights = {each.pid: each.in_flight for each in incident.clues.in_flight_work}
    kernels = {each.pid: each for each in incident.clues.kernels}
    server_command = command_to_end_server(incident.server, address) if incident.stuck else None
    return filled(
        IncidentStatus,
        incident,
        longest=LONGEST_TEXT,
        at=at,
        state="open" if incident.open else "ended",
        server=incident.server or None,
        title=_title(incident),
        verdict=verdict(incident),
        leading=tuple(each.client.pid for each in leaders[:MOST_LISTED]),
        likelihood=_likelihood_of(leaders) if leaders else None,
        seconds=None if incident.seconds is None else round(incident.seconds, 3),
        xids=tuple(map(_xid, incident.xids[:MOST_LISTED])),
        address=_address(incident),
        core_dumps=printed(tuple(_core_dumps(incident))),
        affected=tuple(
            _client(AffectedClient, incident.details_of(pid), in_flight=flights.get(pid), kernels=kernels.get(pid))
            for pid in incident.affected[:clients]
        ),
        affected_count=len(incident.affected),
        restart=() if incident.is_fault else tuple(restart_texts(incident)),
        suspects=tuple(
            _client(SuspectStatus, of, each, likelihood=likelihood(each.confidence), kernels=kernels.get(of.pid))
            for of, each in ((each.client, each) for each in incident.suspects[:clients])
        ),
        refused=tuple(each.pid for each in incident.refused[:clients] if each.pid is not None),
        blocking=tuple(_blocking(incident, pid, at, address) for pid in list(incident.blocking)[:clients]),
        blocking_count=len(incident.blockers),
        end_server_command=() if server_command is None else (server_command,),
    )


def _title(incident: Incident) -> str:
    dumps = " with GPU core dumps" if incident.core_dumps else ""
    return _TITLES[incident.kind].format(dumps=dumps, server=incident.server, daemon=printable(incident.daemon))


def restart_texts(incident: Incident) -> Iterable[str]:
    """Yield what to restart: clients that ended, those of one job, pod, unit or container on one line."""
    alike: dict[str, list[ClientDetails]] = {}
    for each in map(incident.details_of, incident.affected):
        workload = workload_text(each.workload, each.pod)
        place = " of ".join(filter(None, (workload, display_name(each.user)))) if workload else client_text(each)
        alike.setdefault(place, []).append(each)
    for place, clients in alike.items():
        commands = sorted({display_name(each.command) for each in clients} - {""})
        named = f" ({listed(commands, MOST_NAMED)})" if commands else ""
        yield place if place.startswith("PID") else f"{place}: {counted(len(clients), 'client')}{named}"


def incident_record(incident: Incident, ended: float) -> Mapping[str, object]:
    """Return a fault that is over as a record of the log. The affected workloads are limited; the count is not."""
    suspect = incident.suspect
    owners = Counter(tuple(_owner(incident.details_of(pid)).items()) for pid in incident.affected)
    workloads = [{**dict(owner), "clients": clients} for owner, clients in owners.most_common()]
    sizes = accumulate(len(json.dumps(each)) for each in workloads)
    listed = [each for each, size in zip(workloads, sizes, strict=True) if size <= MOST_WORKLOAD_BYTES]
    suspected: Mapping[str, object] = {}
    if suspect is not None:
        known = {"pid": suspect.client.pid, **_owner(suspect.client)}
        suspected = {**{f"suspect_{key}": value for key, value in known.items()}, "confidence": suspect.confidence}
    return {
        "incident": printable(incident.id),
        "daemon": printable(incident.daemon),
        "server": incident.server,
        "kind": incident.kind,
        "began": utc_time(incident.started_at),
        "ended": utc_time(ended),
        "ending": incident.ending,
        "seconds": None if incident.seconds is None else round(incident.seconds, 3),
        "gpus": list(map(printable, incident.gpus)),
        "xids": sorted({xid.number for xid in incident.xids}),
        "affected_count": len(incident.affected),
        "affected_workloads": listed,
        "refused_count": incident.refused_count,
        **suspected,
    }


def _owner(client: ClientDetails) -> Mapping[str, str]:
    """Return what is known of a client that people on other nodes know too."""
    known = {"workload": client.workload_label, "namespace": client.namespace, "pod": client.pod, "user": client.user}
    return {key: printable(value) for key, value in known.items() if value}


def _client(kind: Callable[..., Part], client: ClientDetails, *more: object, **known: Any) -> Part:
    id_ = printable(client.client) or None
    memory = {printable(gpu): size for gpu, size in client.memory_bytes.items()}
    return filled(kind, client, *more, longest=LONGEST_TEXT, client=id_, memory_used_bytes=memory, **known)


def _xid(xid: IncidentXid) -> XidStatus:
    known = XIDS.get(xid.number)
    cause, advice = (None, None) if known is None else (known.kind, known.action)
    return filled(XidStatus, xid, known, longest=LONGEST_TEXT, xid=xid.number, cause=cause, advice=advice)


def _address(incident: Incident) -> AddressStatus | None:
    clue = incident.clues.address
    if clue is None:
        return None
    matches = tuple(filled(AddressMatchStatus, each) for each in clue.matches)
    return filled(AddressStatus, clue, longest=LONGEST_TEXT, matches=matches, texts=tuple(address_texts(incident)))


def _core_dumps(incident: Incident) -> Iterable[Reason]:
    known = {pid: each.core_dumps for pid, each in incident.client_details.items()}
    if incident.core_dumps:
        yield Reason(ReasonCode.WITH_CORE_DUMPS)
        if on := tuple(pid for pid in known if known[pid]):
            yield Reason(ReasonCode.CORE_DUMPS_ON, pids=on[:MOST_NAMED], count=len(on[MOST_NAMED:]) or None)
        if unknown := sum(each is None for each in known.values()):
            yield Reason(ReasonCode.CORE_DUMPS_UNKNOWN, count=unknown)


def _blocking(incident: Incident, pid: int, at: float, address: Address | None) -> BlockingClient:
    delay, client = incident.blocking[pid], incident.details_of(pid)
    ending = (pid,) if address is None or delay.until is not None else address.ending.get(client.client, (pid,))
    command = command_to_kill(client, address) if incident.open and delay.until is None else None
    # If the server has exited or recovered, no client delays it any more.
    end = next(each for each in (delay.until, incident.ended_at, at) if each is not None)
    return _client(
        BlockingClient,
        client,
        delay,
        seconds=round(max(0.0, end - delay.since), 3),
        kill_command=() if command is None else (command,),
        held_by=None if pid in ending else ending,
    )


def verdict(incident: Incident) -> str:
    """Return the likely cause and how likely it is, or why no client is named."""
    if incident.kind is IncidentKind.HARDWARE:
        return "none: the hardware failed"
    if not incident.suspects:
        return "unknown: no indication of a cause"
    leaders = leading(incident)
    if not leaders:
        return "unknown: no suspect stands out"
    if len(leaders) == 1:
        return f"{_likelihood_of(leaders)} {client_text(leaders[0].client)}"
    names = ", ".join(client_text(each.client) for each in leaders)
    return f"{_likelihood_of(leaders)} one of {names if len(leaders) <= MOST_NAMED else _common_text(leaders)}"


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
    if incident.kind is IncidentKind.HARDWARE or not suspects:
        return ()
    leaders = list(takewhile(lambda each: each.confidence == suspects[0].confidence, suspects))
    together = sum(each.confidence for each in leaders)
    by_chance = len(leaders) / max(1, len(incident.affected))
    all_equal = len(leaders) == len(suspects) > 1 and together <= by_chance
    least, _ = LIKELIHOODS[-1]
    too_many = len(leaders) > MOST_NAMED and _common_text(leaders) is None
    if all_equal or too_many or together < least:
        return ()
    return leaders


def likelihood(confidence: float) -> str:
    """Return the word for a confidence of 0 to 1."""
    return next((word for least, word in LIKELIHOODS if confidence >= least), "unlikely")


def _likelihood_of(leaders: Sequence[Suspect]) -> str:
    return likelihood(sum(each.confidence for each in leaders))


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
        yield f"in a {size} range that {owner} freed at most {ago} before, as with a use after free"
    elif best.place is Place.INSIDE:
        unmapped = "; no memory of the GPU is mapped there" if clue.fault in UNMAPPED else ""
        yield f"in a {size} range of {owner}{'; memory of the host' if best.is_host else unmapped}"
    else:
        hint = "small" if best.place is Place.BEFORE else "large"
        where = f"{size_text(best.distance)} {best.place} a {size} range of {owner}"
        yield f"{where}, as with an index that is too {hint}"
    condition = "" if clue.address < CHOSEN_BELOW else " if it knows the layout"
    yield f"another client could use this address by chance, or on purpose{condition}"
