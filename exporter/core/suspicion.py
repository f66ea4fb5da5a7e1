"""Which client may have caused a fault. The log calls every victim error-triggering: often the answer is "unknown".

Of a memory fault among clients that all have work, neither the PID in the Xid nor the client that the log says has
encountered a fatal GPU error tells more than chance (measured, R580): they name someone who had work on the GPU.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from exporter.core import calibration
from exporter.model.clues import Flight, Vanished
from exporter.model.incident import FaultKind, Incident, Suspect
from exporter.model.reason import Reason, ReasonCode
from exporter.model.replace import replace
from exporter.model.xids import FailedAccess
from exporter.parse.xid_catalogue import exonerates

INSTRUCTIONS = "GCC"
HIGHEST_ADDRESS = 1 << 47
"""The GPU's cache of instructions and constants, and where a process has these. The kernel of a client that has gone
cannot fetch its own instructions; a wild pointer fails elsewhere, and a wild jump beyond (measured, R580)."""

ILLEGAL_ADDRESS = 31

LOG_IN_DOUBT = Reason(ReasonCode.LOG_IN_DOUBT)

LEAST = 0.04
MOST_SUSPECTS = 16
"""A suspicion that is less is none; and of more suspects, the likeliest are told."""


class Blame(NamedTuple):
    """The confidence that a client caused the fault, 0 to 1, and what indicates it."""

    confidence: float
    indications: tuple[Reason, ...]


Blamed = Mapping[int, Blame]
"""By PID."""


def judged(incident: Incident) -> Incident:
    """The incident, with its kind and whom to suspect, the likeliest first."""
    if any(exonerates(xid.number) for xid in incident.xids):
        return replace(incident, kind=FaultKind.HARDWARE, suspects=())
    gone, blame = _cut_off(incident), _as_far_as_the_log_is_sound(incident, blamed(incident))
    ranked = sorted(blame, key=lambda pid: (-blame[pid].confidence, -len(blame[pid].indications), pid))
    suspects = (
        Suspect(
            tenant=incident.tenants[pid],
            confidence=round(blame[pid].confidence, 2),
            indications=blame[pid].indications,
        )
        for pid in ranked
        if pid in incident.tenants and blame[pid].confidence >= LEAST
    )
    incident = replace(incident, suspects=tuple(suspects)[:MOST_SUSPECTS])
    return replace(incident, kind=_kind(incident, gone))


def _as_far_as_the_log_is_sound(incident: Incident, blame: Blamed) -> Blamed:
    """What the log says of a client does not make it likely while a tenant may have forged it."""
    if not incident.clues.log_in_doubt:
        return blame
    return {
        pid: Blame(calibration.LOG_IN_DOUBT, (*each.indications, LOG_IN_DOUBT))
        if each.confidence > calibration.LOG_IN_DOUBT
        else each
        for pid, each in blame.items()
    }


def _kind(incident: Incident, gone: Mapping[int, Vanished]) -> FaultKind:
    if gone and (_lost_its_instructions(incident) or (incident.suspect and incident.suspect.tenant.pid in gone)):
        return FaultKind.CLIENT_KILLED
    if incident.clues.named is not None or _numbers(incident) & {ILLEGAL_ADDRESS}:
        return FaultKind.MEMORY
    return FaultKind.EXECUTION if incident.affected_told or _numbers(incident) else FaultKind.UNKNOWN


def _numbers(incident: Incident) -> set[int]:
    return {xid.number for xid in incident.xids}


def _accesses(incident: Incident) -> tuple[FailedAccess, ...]:
    return tuple(xid.access for xid in incident.xids if xid.access is not None)


def _lost_its_instructions(incident: Incident) -> bool:
    return any(each.unit == INSTRUCTIONS and each.address < HIGHEST_ADDRESS for each in _accesses(incident))


def _cut_off(incident: Incident) -> Mapping[int, Vanished]:
    """Those who left at the time at which one leaves whose kernel is cut off."""
    earliest, latest = calibration.CUT_OFF_SECONDS
    return {
        each.pid: each
        for each in incident.clues.vanished
        if earliest <= each.seconds_before <= latest and not each.terminated
    }


def blamed(incident: Incident) -> Blamed:
    """How sure it is of each that it did it, be it ever so little."""
    gone = _cut_off(incident)
    in_reset = [pid for pid in incident.clues.in_reset if pid in incident.affected]
    if in_reset and incident.clues.named is None and ILLEGAL_ADDRESS not in _numbers(incident):
        sure = calibration.IN_RESET.confidence
        why = _measured(ReasonCode.WORKER_IN_RESET, calibration.IN_RESET)
        return {**_rest(incident, 1 - sure, in_reset), **{pid: Blame(sure / len(in_reset), (why,)) for pid in in_reset}}
    if gone and (_lost_its_instructions(incident) or not _accesses(incident)):
        return _gone_blamed(incident, gone)
    return _rest(incident, calibration.AMONG_HIT.confidence, ())


def _gone_blamed(incident: Incident, gone: Mapping[int, Vanished]) -> Blamed:
    lost = _lost_its_instructions(incident)
    sure = _shared(gone, calibration.CUT_OFF.confidence) if lost else _by_chance(gone)
    blamed = {pid: Blame(sure[pid], tuple(_why_gone(each, lost=lost, among=len(gone)))) for pid, each in gone.items()}
    return {**_rest(incident, 1 - sum(sure.values()), ()), **blamed}


def _shared(gone: Mapping[int, Vanished], sure: float) -> Mapping[int, float]:
    """Of several it is rather the one that was ended by a signal."""
    signalled = [pid for pid, each in gone.items() if _is_killed(each)]
    if len(gone) == 1 or len(signalled) != 1:
        return dict.fromkeys(gone, sure / len(gone))
    others = (sure - calibration.SIGNALLED) / (len(gone) - 1)
    return {pid: calibration.SIGNALLED if pid in signalled else others for pid in gone}


def _by_chance(gone: Mapping[int, Vanished]) -> Mapping[int, float]:
    return {pid: _alone_by_chance(each) / len(gone) for pid, each in gone.items()}


def _is_killed(vanished: Vanished) -> bool:
    return vanished.out_of_memory or vanished.signal is not None


def _alone_by_chance(vanished: Vanished) -> float:
    if _is_killed(vanished):
        return calibration.KILLED_THEN
    return calibration.GONE_THEN if vanished.wait_status is None else calibration.EXITED_THEN


def _why_gone(vanished: Vanished, *, lost: bool, among: int) -> Iterable[Reason]:
    yield Reason(ReasonCode.CONTEXTS_ENDED_BEFORE_FAULT, seconds=round(vanished.seconds_before, 3))
    if lost:
        yield _measured(ReasonCode.INSTRUCTION_FETCH_FAILED, calibration.CUT_OFF)
    if among > 1:
        yield Reason(ReasonCode.ONE_OF_DISCONNECTED, count=among)
    if vanished.out_of_memory:
        yield Reason(ReasonCode.OUT_OF_MEMORY_KILLED)
    elif vanished.signal is not None:
        yield Reason(ReasonCode.KILLED_BY_SIGNAL, signal=vanished.signal)
    elif vanished.exit_code is not None:
        yield Reason(ReasonCode.EXITED_WITH_CODE, exit_code=vanished.exit_code)


def _rest(incident: Incident, left: float, others: Collection[int]) -> Blamed:
    """What is left of the blame is anybody's, in equal parts, but for whoever had nothing in flight.

    These keep a little of theirs, and the others share what they do not.
    """
    anybody = set(incident.affected).difference(others)
    if not anybody or left <= 0:
        return {}
    idle = _idle(incident, anybody)
    part, busy = left / len(anybody), len(anybody) - len(idle)
    share = (left - len(idle) * part * calibration.IDLE_KEEPS) / busy
    most = calibration.SOLE_IN_FLIGHT if idle else calibration.ALONE
    flights = {each.pid: (_flown(each),) for each in incident.clues.flights}
    sole = (Reason(ReasonCode.ONLY_WORK_IN_FLIGHT),) if idle and busy == 1 else ()
    return {
        pid: Blame(part * calibration.IDLE_KEEPS, (*_why_anybody(incident, pid), *flights[pid]))
        if pid in idle
        else Blame(min(share, most), (*_why_anybody(incident, pid), *flights.get(pid, ()), *sole))
        for pid in incident.affected
        if pid in anybody
    }


def _idle(incident: Incident, anybody: Collection[int]) -> frozenset[int]:
    """Those of them who had nothing in flight; nobody where that is all of them, since it tells nobody apart."""
    idle = frozenset(each.pid for each in incident.clues.flights if not each.in_flight).intersection(anybody)
    return idle if len(idle) < len(anybody) else frozenset()


def _why_anybody(incident: Incident, pid: int) -> Iterable[Reason]:
    if len(incident.affected) == 1:
        yield Reason(ReasonCode.ONLY_AFFECTED_CLIENT)
    else:
        yield Reason(ReasonCode.ONE_OF_AFFECTED, count=len(incident.affected))
    if pid == incident.clues.named:
        yield Reason(ReasonCode.NAMED_BY_LOG)
    if pid in {xid.pid for xid in incident.xids}:
        yield Reason(ReasonCode.NAMED_BY_XID)


def _flown(flight: Flight) -> Reason:
    """Return whether a client had work in flight, and how many seconds before the fault it launched last."""
    code = ReasonCode.WORK_IN_FLIGHT if flight.in_flight else ReasonCode.NO_WORK_IN_FLIGHT
    return Reason(code, seconds=None if flight.launched_before is None else round(flight.launched_before, 1))


def _measured(code: ReasonCode, measured: calibration.Measured) -> Reason:
    return Reason(code, hits=measured.hits, trials=measured.trials)
