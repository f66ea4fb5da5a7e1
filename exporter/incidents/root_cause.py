"""Root cause ranking: which clients may have caused a fault, with a measured confidence."""

from collections.abc import Collection, Iterable, Mapping
from math import sqrt
from typing import NamedTuple

from exporter.model.incident import (
    CHOSEN_BELOW,
    AddressClue,
    AddressMatch,
    EarlyDisconnect,
    Incident,
    IncidentKind,
    InFlightWork,
    Place,
    Suspect,
)
from exporter.model.reason import Reason, ReasonCode
from exporter.model.values import frozen_positional, replace
from exporter.parse.kernel_log import EXCEPTION, ILLEGAL_ADDRESS, XIDS, exonerates

Z = 1.959964  # The normal distribution's 97.5 % quantile.


@frozen_positional
class Calibration:
    """In how many trials a sign identified the client that caused the fault."""

    hits: int
    trials: int

    @property
    def confidence(self) -> float:
        """The lower end of Wilson's 95 % interval of the rate."""
        rate, squared = self.hits / self.trials, Z * Z / self.trials
        spread = Z * sqrt(rate * (1 - rate) / self.trials + squared / (4 * self.trials))
        return (rate + squared / 2 - spread) / (1 + squared)

    def reason(self, code: ReasonCode) -> Reason:
        """Return the indication with the numbers of trials."""
        return Reason(code, hits=self.hits, trials=self.trials)


IN_RESET = Calibration(41, 41)
"""If it is no memory fault: the client that disconnected with its worker in reset had trapped."""

MID_KERNEL_EXIT = Calibration(85, 85)
"""If instructions could not be fetched: the only client that disconnected at the right time. The kernel was its own."""

MID_KERNEL_SECONDS = (0.085, 0.165)
"""How long before the fault the contexts end of a client that exits with a kernel in flight: 95 to 154 ms in 85 trials,
for every kind of exit. A client that disconnects earlier or later did not do so."""

KILLED_OF_SEVERAL = 0.65
"""Of several such clients, the only one that a signal ended, if it is known how all ended: right in 2 of 2 trials."""

KILLED, EXIT_UNKNOWN, EXITED = 0.7, 0.6, 0.5
"""The only such client if the kind of the failed access is unknown: ended by a signal, in an unknown way, or with an
exit code. Each may have been idle by chance. A planted client looks the same."""

AMONG_AFFECTED = Calibration(135, 135)
"""The client that caused a memory fault was among the affected ones, which share this. It is below 1 because the log
may lack some of them, or the client may have disconnected unnoticed."""

ONLY_POSSIBLE = 0.75
"""At most this for the only affected client, or the only one that may have had work in flight: another client may have
caused the fault and disconnected unnoticed."""

IDLE_FACTOR = 0.1
"""What a client without work in flight retains of its share. Inferred, not measured: probes may miss some calls."""

ONLY_IN_FLIGHT = Calibration(26, 26)
"""The client that caused a fault had work in flight, and clients without work were found idle (H200, 580.159.04). So
the only client with work in flight is the cause, if all others were idle."""

ONLY_NEW_KERNEL = Calibration(33, 35)
"""The only client with a kernel in flight of which no launch had completed. Half of the trials had the fault in such a
kernel; how many real faults do is unknown. So the client gets no more than `MAX_IF_DOUBTED` by this, and the others
half of their share."""

ADDRESS_INSIDE = Calibration(128, 128)
ADDRESS_NEAR = Calibration(60, 61)
"""The client that the faulting address names, because it is in a range of that client, or near one."""

MAX_IF_UNREAD = 0.75
"""At most this while the address ranges of another candidate are unknown: if the cause's are, an innocent was named
in 14 of 223 trials. A client can make its own unreadable, and many exit right after their fault."""

LIKELY, MAX_IF_DOUBTED = 0.5, 0.45
"""At most this while the log may be forged, by an address that any client may have used (`AddressClue.is_weak`) or that
the client's lack of work in flight contradicts, or if the cause may have got success and exited (GPU core dumps). From
`LIKELY` on, a client is reported as the likely cause."""

LOG_UNRELIABLE = Reason(ReasonCode.LOG_UNRELIABLE)

MIN_CONFIDENCE = 0.04
MAX_SUSPECTS = 16
"""Less confidence is not reported, nor are more suspects."""


class Ranking(NamedTuple):
    """The confidence that a client caused the fault, 0 to 1, and what indicates it."""

    confidence: float
    indications: tuple[Reason, ...]


def rank_suspects(incident: Incident) -> Incident:
    """Return the incident with its kind and its suspects, the likeliest first."""
    if any(exonerates(xid.number) for xid in incident.xids):
        return replace(incident, kind=IncidentKind.HARDWARE, suspects=())
    ranked = rankings(incident)
    if incident.clues.log_unreliable:
        ranked = _doubted(ranked, LOG_UNRELIABLE)
    order = sorted(ranked, key=lambda pid: (-ranked[pid].confidence, -len(ranked[pid].indications), pid))
    suspects = tuple(
        Suspect(
            client=incident.client_details[pid],
            confidence=round(ranked[pid].confidence, 2),
            indications=ranked[pid].indications,
        )
        for pid in order
        if pid in incident.client_details and ranked[pid].confidence >= MIN_CONFIDENCE
    )
    incident = replace(incident, suspects=suspects[:MAX_SUSPECTS])
    return replace(incident, kind=_kind(incident))


def _doubted(ranked: Mapping[int, Ranking], *reasons: Reason) -> Mapping[int, Ranking]:
    """Return the ranking with no client as the likely cause, for these reasons."""
    doubted = {pid: each for pid, each in ranked.items() if each.confidence > MAX_IF_DOUBTED}
    return {**ranked, **{pid: Ranking(MAX_IF_DOUBTED, (*each.indications, *reasons)) for pid, each in doubted.items()}}


def _kind(incident: Incident) -> IncidentKind:
    exits, suspect, dumps = _mid_kernel_exits(incident), incident.suspect, incident.core_dumps
    numbers = {xid.number for xid in incident.xids} & XIDS.keys()
    if incident.clues.leftover is not None:
        return IncidentKind.CLIENT_KILLED
    if exits and not dumps and (_is_fetch_failure(incident) or (suspect is not None and suspect.client.pid in exits)):
        return IncidentKind.CLIENT_KILLED
    if incident.clues.named is not None or ILLEGAL_ADDRESS in numbers or any(xid.core_dump for xid in incident.xids):
        return IncidentKind.MEMORY
    return IncidentKind.EXECUTION if not dumps and (incident.affected_confirmed or numbers) else IncidentKind.UNKNOWN


def _is_fetch_failure(incident: Incident) -> bool:
    return any(xid.access is not None and xid.access.is_fetch for xid in incident.xids)


def _mid_kernel_exits(incident: Incident) -> Mapping[int, EarlyDisconnect]:
    """Return the clients that disconnected when a client does whose kernel is in flight, also a leftover one."""
    earliest, latest = MID_KERNEL_SECONDS
    early = (each for each in incident.clues.early_disconnects if earliest <= each.seconds_before <= latest)
    left = () if incident.clues.leftover is None else incident.clues.leftover.exits
    return {each.pid: each for each in (*left, *early) if not each.terminated}


def rankings(incident: Incident) -> Mapping[int, Ranking]:
    """Return the ranking of each client that may have caused the fault, by PID."""
    if incident.core_dumps:
        return _rank_with_core_dumps(incident)
    exits = _mid_kernel_exits(incident)
    in_reset = [pid for pid in incident.clues.in_reset if pid in incident.affected]
    memory_fault = incident.clues.named is not None or any(xid.number == ILLEGAL_ADDRESS for xid in incident.xids)
    if in_reset and not memory_fault:
        confidence, indication = IN_RESET.confidence, IN_RESET.reason(ReasonCode.WORKER_IN_RESET)
        ranked = {pid: Ranking(confidence / len(in_reset), (indication,)) for pid in in_reset}
        return {**_rank_affected(incident, 1 - confidence, in_reset), **ranked}
    fetch_failed, leftover = _is_fetch_failure(incident), incident.clues.leftover
    innocent = () if leftover is None else leftover.newcomers
    if exits and (fetch_failed or all(xid.access is None for xid in incident.xids)):
        confidences = _exit_confidences(exits, fetch_failed=fetch_failed)
        remaining = (1 if fetch_failed else AMONG_AFFECTED.confidence) - sum(confidences.values())
        ranked = {
            pid: Ranking(
                confidences[pid], tuple(_exit_indications(incident, each, len(exits), fetch_failed=fetch_failed))
            )
            for pid, each in exits.items()
        }
        return {**_rank_affected(incident, remaining, innocent), **ranked}
    by_address = _rank_by_address(incident, _rank_affected(incident, AMONG_AFFECTED.confidence, innocent))
    preferred = _prefer_new_kernel(incident, by_address)
    # The kernel may be of a client whose end is not known.
    return _doubted(preferred) if fetch_failed else preferred


def _rank_with_core_dumps(incident: Incident) -> Mapping[int, Ranking]:
    """Return the ranking by work in flight alone: exits, addresses and the processes in Xids are of no use.

    The work is that at the Xid 13 of the access. Without it, the access may be older, and its cause have exited.
    """
    if not any(xid.core_dump and xid.number == EXCEPTION for xid in incident.xids):
        incident = replace(incident, clues=replace(incident.clues, in_flight_work=()))
    ranked = _prefer_new_kernel(incident, _rank_affected(incident, AMONG_AFFECTED.confidence, ()))
    idle = {work.pid for work in incident.clues.in_flight_work if not work.in_flight}
    others_idle = incident.affected_confirmed and idle and len(ranked.keys() - idle) == 1
    return ranked if others_idle else _doubted(ranked)


def _rank_by_address(incident: Incident, ranked: Mapping[int, Ranking]) -> Mapping[int, Ranking]:
    """Return the ranking with what the faulting address shows, if it distinguishes a client or clients that are alike.

    Clients that are alike share what they have together, as the ranking without the address divides it.
    """
    clue = incident.clues.address
    best = None if clue is None else clue.best
    if clue is None or best is None or best.pid not in ranked:
        return ranked
    shares = {match.pid: match.share for match in clue.matches if match.pid in ranked}
    group = [best.pid, *(pid for pid in best.alike if pid in shares)]
    together = sum(shares[pid] for pid in group)
    calibration = ADDRESS_INSIDE if best.place is Place.INSIDE else ADDRESS_NEAR
    unread = len({*clue.unread} - {best.pid})
    highest = MAX_IF_DOUBTED if clue.is_weak else MAX_IF_UNREAD if unread else calibration.confidence
    total, weight = min(together, highest), sum(ranked[pid].confidence for pid in group)
    idle = {work.pid for work in incident.clues.in_flight_work if not work.in_flight}
    indications = tuple(_address_indications(clue, best, calibration, len(group), unread))
    found = {}
    for pid in group:
        own = ranked[pid].confidence
        confidence = total * own / weight
        confidence = min(confidence, MAX_IF_DOUBTED) if pid in idle else max(confidence, own)
        found[pid] = Ranking(confidence, (*indications, *ranked[pid].indications))
    remaining = max(0.0, AMONG_AFFECTED.confidence - sum(each.confidence for each in found.values()))
    others = {pid: ranking for pid, ranking in ranked.items() if pid not in found}
    factor = min(1.0, remaining / sum(each.confidence for each in others.values())) if others else 1.0
    return found | {pid: Ranking(each.confidence * factor, each.indications) for pid, each in others.items()}


def _address_indications(
    clue: AddressClue, match: AddressMatch, calibration: Calibration, group: int, unread: int
) -> Iterable[Reason]:
    near = match.place is not Place.INSIDE
    yield Reason(
        ReasonCode.ADDRESS_NEAR_RANGE if near else ReasonCode.ADDRESS_INSIDE_RANGE,
        range_bytes=match.range_bytes,
        distance=match.distance if near else None,
        place=match.place if near else None,
        # The trials had no client that used a weak address on purpose, and few random ones.
        hits=None if clue.is_weak else calibration.hits,
        trials=None if clue.is_weak else calibration.trials,
    )
    if clue.is_weak:
        yield Reason(ReasonCode.ADDRESS_WEAK, distance=match.distance if clue.address >= CHOSEN_BELOW else None)
    if group > 1:
        yield Reason(ReasonCode.ONE_OF_ALIKE, count=group)
    if unread:
        yield Reason(ReasonCode.ADDRESS_RANGES_UNREAD, count=unread)


def _exit_confidences(exits: Mapping[int, EarlyDisconnect], *, fetch_failed: bool) -> Mapping[int, float]:
    killed = [pid for pid, each in exits.items() if each.out_of_memory or each.signal is not None]
    if not fetch_failed:
        unknown = {pid: EXIT_UNKNOWN if each.wait_status is None else EXITED for pid, each in exits.items()}
        return {pid: (KILLED if pid in killed else unknown[pid]) / len(exits) for pid in exits}
    total = MID_KERNEL_EXIT.confidence
    # A client whose status is unknown may have been killed too, with its job.
    untold = [pid for pid, each in exits.items() if pid not in killed and each.wait_status is None]
    if len(exits) == 1 or len(killed) != 1 or untold:
        return dict.fromkeys(exits, total / len(exits))
    others = (total - KILLED_OF_SEVERAL) / (len(exits) - 1)
    return {pid: KILLED_OF_SEVERAL if pid in killed else others for pid in exits}


def _exit_indications(
    incident: Incident, client: EarlyDisconnect, among: int, *, fetch_failed: bool
) -> Iterable[Reason]:
    leftover = incident.clues.leftover
    if leftover is None or client not in leftover.exits:
        yield Reason(ReasonCode.CONTEXTS_ENDED_BEFORE_FAULT, seconds=round(client.seconds_before, 3))
    else:
        yield Reason(ReasonCode.KERNEL_LEFT_BEHIND, seconds=round(incident.detected_at - leftover.at, 1))
    if fetch_failed:
        yield MID_KERNEL_EXIT.reason(ReasonCode.INSTRUCTION_FETCH_FAILED)
    if among > 1:
        yield Reason(ReasonCode.ONE_OF_DISCONNECTED, count=among)
    if client.out_of_memory:
        yield Reason(ReasonCode.OUT_OF_MEMORY_KILLED)
    elif client.signal is not None:
        yield Reason(ReasonCode.KILLED_BY_SIGNAL, signal=client.signal)
    elif client.exit_code is not None:
        yield Reason(ReasonCode.EXITED_WITH_CODE, exit_code=client.exit_code)


def _rank_affected(incident: Incident, total: float, excluded: Collection[int]) -> Mapping[int, Ranking]:
    """Share a confidence among the affected clients. Those without work in flight get a small part of their share.

    If no client had work in flight, that distinguishes none of them, and the shares are equal.
    """
    excluded = set(excluded)
    pids = [pid for pid in (*incident.affected, *incident.clues.unlisted) if pid not in excluded]
    if not pids or total <= 0:
        return {}
    work = {each.pid: each for each in incident.clues.in_flight_work}
    idle = {pid for pid in pids if pid in work and not work[pid].in_flight}
    if len(idle) == len(pids):
        idle = set()
    equal, busy = total / len(pids), len(pids) - len(idle)
    share = (total - len(idle) * equal * IDLE_FACTOR) / busy
    ranked: dict[int, Ranking] = {}
    for pid in pids:
        highest, indications = ONLY_POSSIBLE, list(_indications(incident, pid, work.get(pid)))
        if idle and busy == 1 and pid not in idle:
            indications.append(Reason(ReasonCode.ONLY_WORK_IN_FLIGHT))
            highest = ONLY_IN_FLIGHT.confidence if pid in work else ONLY_POSSIBLE
        confidence = equal * IDLE_FACTOR if pid in idle else min(share, highest)
        ranked[pid] = Ranking(confidence, tuple(indications))
    return ranked


def _prefer_new_kernel(incident: Incident, ranked: Mapping[int, Ranking]) -> Mapping[int, Ranking]:
    """Return the ranking with the only client with a new kernel first, unless it has a likely cause already."""
    idle = {work.pid for work in incident.clues.in_flight_work if not work.in_flight}
    new = _only_new_kernel(incident, ranked.keys() - idle)
    if new is None or max(each.confidence for each in ranked.values()) >= LIKELY:
        return ranked
    others = {pid: Ranking(each.confidence / 2, each.indications) for pid, each in ranked.items()}
    indications = [*ranked[new].indications, ONLY_NEW_KERNEL.reason(ReasonCode.ONLY_NEW_KERNEL)]
    return {**others, new: Ranking(max(ranked[new].confidence, MAX_IF_DOUBTED), tuple(indications))}


def _only_new_kernel(incident: Incident, busy: Collection[int]) -> int | None:
    """Return the only one of these clients with a kernel in flight of which no launch had completed.

    The kernels of all must be known since they began: before the probes, any of them may have completed.
    """
    known = {each.pid: each for each in incident.clues.kernels if not each.began_before_exporter}
    new = [pid for pid in busy if pid in known and any(not each.completed for each in known[pid].in_flight)]
    return new[0] if len(new) == 1 and known.keys() >= set(busy) else None


def _indications(incident: Incident, pid: int, work: InFlightWork | None) -> Iterable[Reason]:
    if pid in incident.clues.unlisted:
        yield Reason(ReasonCode.NOT_LISTED_AS_AFFECTED)
    elif len(incident.affected) == 1:
        yield Reason(ReasonCode.ONLY_AFFECTED_CLIENT)
    else:
        yield Reason(ReasonCode.ONE_OF_AFFECTED, count=len(incident.affected))
    if pid == incident.clues.named:
        yield Reason(ReasonCode.NAMED_BY_LOG)
    if any(xid.pid == pid and xid.number in XIDS for xid in incident.xids):
        yield Reason(ReasonCode.NAMED_BY_XID)
    if work is not None:
        seconds = None if work.seconds_since_launch is None else round(work.seconds_since_launch, 1)
        yield Reason(ReasonCode.WORK_IN_FLIGHT if work.in_flight else ReasonCode.NO_WORK_IN_FLIGHT, seconds=seconds)
