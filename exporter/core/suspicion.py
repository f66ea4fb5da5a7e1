"""Who may have done it. The log calls every victim error-triggering, so that the answer is often: unknown.

Of a memory fault among clients that all have work, neither the PID in the Xid nor the client that the log says has
encountered a fatal GPU error tells more than chance (measured, R580): they name someone who had work on the GPU.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from exporter.core import calibration
from exporter.model.clues import Flight, Vanished
from exporter.model.incident import FaultKind, Incident, Suspect
from exporter.model.replace import replace
from exporter.model.xids import FailedAccess
from exporter.parse.xid_catalogue import exonerates

INSTRUCTIONS = "GCC"
HIGHEST_ADDRESS = 1 << 47
"""The GPU's cache of instructions and constants, and where a process has these. The kernel of a client that has gone
cannot fetch its own instructions; a wild pointer fails elsewhere, and a wild jump beyond (measured, R580)."""

ILLEGAL_ADDRESS = 31

NOBODY_ELSE = "of all others that were hit it is known that they had nothing in flight (inferred, not measured)"

LOG_IN_DOUBT = "the log contradicts other sources or lacks lines: a tenant may have forged it"

LEAST = 0.04
MOST_SUSPECTS = 16
"""A suspicion that is less is none; and of more suspects, the likeliest are told."""


class Blame(NamedTuple):
    """How sure it is that somebody did it, 0 to 1, and why, in words."""

    confidence: float
    evidence: tuple[str, ...]


Blamed = Mapping[int, Blame]
"""By PID."""


def judged(incident: Incident) -> Incident:
    """The incident, with its kind and whom to suspect, the likeliest first."""
    if any(exonerates(xid.number) for xid in incident.xids):
        return replace(incident, kind=FaultKind.HARDWARE, suspects=())
    gone, blame = _cut_off(incident), _as_far_as_the_log_is_sound(incident, blamed(incident))
    ranked = sorted(blame, key=lambda pid: (-blame[pid].confidence, -len(blame[pid].evidence), pid))
    suspects = (
        Suspect(tenant=incident.tenants[pid], confidence=round(blame[pid].confidence, 2), evidence=blame[pid].evidence)
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
        pid: Blame(calibration.LOG_IN_DOUBT, (*each.evidence, LOG_IN_DOUBT))
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
        why = f"its worker was in reset when it left, as of one that trapped ({_in_trials(calibration.IN_RESET)})"
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


def _why_gone(vanished: Vanished, *, lost: bool, among: int) -> Iterable[str]:
    before = round(vanished.seconds_before * 1000)
    yield f"its contexts ended {before} ms before the fault, as those of a client that goes with a kernel in flight"
    if lost:
        yield f"instructions could not be fetched, as of such a kernel ({_in_trials(calibration.CUT_OFF)})"
    if among > 1:
        yield f"it is one of {among} that left then"
    if vanished.out_of_memory:
        yield "the kernel killed it for want of memory"
    elif vanished.signal is not None:
        yield f"it was ended by signal {vanished.signal}"
    elif vanished.exit_code is not None:
        yield f"it exited with code {vanished.exit_code}"


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
    sole = (NOBODY_ELSE,) if idle and busy == 1 else ()
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


def _why_anybody(incident: Incident, pid: int) -> Iterable[str]:
    if len(incident.affected) == 1:
        yield "it is the only client that was hit"
    else:
        yield f"it is one of {len(incident.affected)} that were hit"
    if pid == incident.clues.named:
        yield "the log names it, which says no more than chance"
    if pid in {xid.pid for xid in incident.xids}:
        yield "the Xid names it, which says no more than chance"


def _flown(flight: Flight) -> str:
    """Whether a client had work in flight, in words."""
    ago = "" if flight.launched_before is None else f"{flight.launched_before:.1f} s before"
    if flight.in_flight:
        return f"it had work in flight, last launched {ago}" if ago else "it had work in flight"
    return "it had nothing in flight when the fault struck" + (f": its last launch was {ago}" if ago else "")


def _in_trials(measured: calibration.Measured) -> str:
    return f"{measured.hits} of {measured.trials} trials"
