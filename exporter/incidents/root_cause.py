"""Root cause ranking: which clients may have caused a fault, with a measured confidence."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

from exporter.model.gpu import FailedAccess
from exporter.model.incident import EarlyDisconnect, FaultKind, Incident, InFlightWork, Suspect
from exporter.model.reason import Reason, ReasonCode
from exporter.model.values import replace
from exporter.parse.xid_catalogue import exonerates

Z = 1.959964
"""The normal distribution's 97.5 % quantile."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """In how many trials with this sign it pointed at the culprit."""

    hits: int
    trials: int

    @property
    def confidence(self) -> float:
        """The lower end of Wilson's 95 % interval of the rate."""
        rate, squared = self.hits / self.trials, Z * Z / self.trials
        spread = Z * sqrt(rate * (1 - rate) / self.trials + squared / (4 * self.trials))
        return (rate + squared / 2 - spread) / (1 + squared)


IN_RESET = Calibration(41, 41)
"""Of a fault that is no memory fault: the client whose worker was in reset when it left had trapped."""

CUT_OFF = Calibration(85, 85)
"""The only client that left in time before a kernel's instructions could not be fetched: the kernel was its own."""

CUT_OFF_SECONDS = (0.085, 0.165)
"""So long before the fault the contexts end of a client that goes with a kernel in flight: 95 to 154 ms in 85 trials,
whatever ended it, an ordinary exit included. Whoever leaves earlier or later did not do it that way."""

SIGNALLED = 0.65
"""Of several that left in that time, the one that was ended by a signal: right in 2 of 2 trials, which is not much."""

KILLED_THEN, GONE_THEN, EXITED_THEN = 0.7, 0.6, 0.5
"""Of the only client that left in that time, where nobody tells what kind of access failed: ended by a signal, gone
nobody knows how, exited with a code. Each may have left an idle GPU, by chance: planted, that looks the same."""

AMONG_HIT = Calibration(135, 135)
"""Of a memory fault, the client that caused it was among those hit. They share this; less than all, since the log may
lack some of them, or the client may have left unseen."""

ALONE = 0.75
"""Of the only client that was hit: it may be the victim of one that was not seen to leave."""

IDLE_KEEPS = 0.1
"""Of a client that was seen to have nothing in flight when a fault struck: so much of the blame that it would have
without that. Inferred, and not yet measured: there may be doors that are not watched."""

SOLE_IN_FLIGHT = 0.75
"""The most of the only client that may have had work in flight. Inferred, and not yet measured: it is no surer than
of the only client that was hit, for the same reason."""

CONFIDENCE_LOG_UNRELIABLE = 0.45
"""The most of any client while the log may be forged: the program names a client as the likely cause from 0.5 on."""


INSTRUCTIONS = "GCC"
HIGHEST_ADDRESS = 1 << 47
"""The GPU's cache of instructions and constants, and where a process has these. The kernel of a client that has gone
cannot fetch its own instructions; a wild pointer fails elsewhere, and a wild jump beyond (measured, R580)."""

ILLEGAL_ADDRESS = 31

LOG_UNRELIABLE = Reason(ReasonCode.LOG_UNRELIABLE)

LEAST = 0.04
MOST_SUSPECTS = 16
"""A suspicion that is less is none; and of more suspects, the likeliest are told."""


class Ranking(NamedTuple):
    """The confidence that a client caused the fault, 0 to 1, and what indicates it."""

    confidence: float
    indications: tuple[Reason, ...]


Ranked = Mapping[int, Ranking]
"""By PID."""


def ranked(incident: Incident) -> Incident:
    """The incident, with its kind and whom to suspect, the likeliest first."""
    if any(exonerates(xid.number) for xid in incident.xids):
        return replace(incident, kind=FaultKind.HARDWARE, suspects=())
    gone, blame = _cut_off(incident), _as_far_as_the_log_is_sound(incident, with_suspects(incident))
    ranked = sorted(blame, key=lambda pid: (-blame[pid].confidence, -len(blame[pid].indications), pid))
    suspects = (
        Suspect(
            client=incident.client_details[pid],
            confidence=round(blame[pid].confidence, 2),
            indications=blame[pid].indications,
        )
        for pid in ranked
        if pid in incident.client_details and blame[pid].confidence >= LEAST
    )
    incident = replace(incident, suspects=tuple(suspects)[:MOST_SUSPECTS])
    return replace(incident, kind=_kind(incident, gone))


def _as_far_as_the_log_is_sound(incident: Incident, blame: Ranked) -> Ranked:
    """What the log says of a client does not make it likely while a tenant may have forged it."""
    if not incident.clues.log_unreliable:
        return blame
    return {
        pid: Ranking(CONFIDENCE_LOG_UNRELIABLE, (*each.indications, LOG_UNRELIABLE))
        if each.confidence > CONFIDENCE_LOG_UNRELIABLE
        else each
        for pid, each in blame.items()
    }


def _kind(incident: Incident, gone: Mapping[int, EarlyDisconnect]) -> FaultKind:
    if gone and (_lost_its_instructions(incident) or (incident.suspect and incident.suspect.client.pid in gone)):
        return FaultKind.CLIENT_KILLED
    if incident.clues.named is not None or _numbers(incident) & {ILLEGAL_ADDRESS}:
        return FaultKind.MEMORY
    return FaultKind.EXECUTION if incident.affected_confirmed or _numbers(incident) else FaultKind.UNKNOWN


def _numbers(incident: Incident) -> set[int]:
    return {xid.number for xid in incident.xids}


def _accesses(incident: Incident) -> tuple[FailedAccess, ...]:
    return tuple(xid.access for xid in incident.xids if xid.access is not None)


def _lost_its_instructions(incident: Incident) -> bool:
    return any(each.unit == INSTRUCTIONS and each.address < HIGHEST_ADDRESS for each in _accesses(incident))


def _cut_off(incident: Incident) -> Mapping[int, EarlyDisconnect]:
    """Those who left at the time at which one leaves whose kernel is cut off."""
    earliest, latest = CUT_OFF_SECONDS
    return {
        each.pid: each
        for each in incident.clues.early_disconnects
        if earliest <= each.seconds_before <= latest and not each.terminated
    }


def with_suspects(incident: Incident) -> Ranked:
    """How sure it is of each that it did it, be it ever so little."""
    gone = _cut_off(incident)
    in_reset = [pid for pid in incident.clues.in_reset if pid in incident.affected]
    if in_reset and incident.clues.named is None and ILLEGAL_ADDRESS not in _numbers(incident):
        sure = IN_RESET.confidence
        why = _measured(ReasonCode.WORKER_IN_RESET, IN_RESET)
        return {
            **_rest(incident, 1 - sure, in_reset),
            **{pid: Ranking(sure / len(in_reset), (why,)) for pid in in_reset},
        }
    if gone and (_lost_its_instructions(incident) or not _accesses(incident)):
        return _gone_blamed(incident, gone)
    return _rest(incident, AMONG_HIT.confidence, ())


def _gone_blamed(incident: Incident, gone: Mapping[int, EarlyDisconnect]) -> Ranked:
    lost = _lost_its_instructions(incident)
    sure = _shared(gone, CUT_OFF.confidence) if lost else _by_chance(gone)
    blamed = {pid: Ranking(sure[pid], tuple(_why_gone(each, lost=lost, among=len(gone)))) for pid, each in gone.items()}
    return {**_rest(incident, 1 - sum(sure.values()), ()), **blamed}


def _shared(gone: Mapping[int, EarlyDisconnect], sure: float) -> Mapping[int, float]:
    """Of several it is rather the one that was ended by a signal."""
    signalled = [pid for pid, each in gone.items() if _is_killed(each)]
    if len(gone) == 1 or len(signalled) != 1:
        return dict.fromkeys(gone, sure / len(gone))
    others = (sure - SIGNALLED) / (len(gone) - 1)
    return {pid: SIGNALLED if pid in signalled else others for pid in gone}


def _by_chance(gone: Mapping[int, EarlyDisconnect]) -> Mapping[int, float]:
    return {pid: _alone_by_chance(each) / len(gone) for pid, each in gone.items()}


def _is_killed(early_disconnects: EarlyDisconnect) -> bool:
    return early_disconnects.out_of_memory or early_disconnects.signal is not None


def _alone_by_chance(early_disconnects: EarlyDisconnect) -> float:
    if _is_killed(early_disconnects):
        return KILLED_THEN
    return GONE_THEN if early_disconnects.wait_status is None else EXITED_THEN


def _why_gone(early_disconnects: EarlyDisconnect, *, lost: bool, among: int) -> Iterable[Reason]:
    yield Reason(ReasonCode.CONTEXTS_ENDED_BEFORE_FAULT, seconds=round(early_disconnects.seconds_before, 3))
    if lost:
        yield _measured(ReasonCode.INSTRUCTION_FETCH_FAILED, CUT_OFF)
    if among > 1:
        yield Reason(ReasonCode.ONE_OF_DISCONNECTED, count=among)
    if early_disconnects.out_of_memory:
        yield Reason(ReasonCode.OUT_OF_MEMORY_KILLED)
    elif early_disconnects.signal is not None:
        yield Reason(ReasonCode.KILLED_BY_SIGNAL, signal=early_disconnects.signal)
    elif early_disconnects.exit_code is not None:
        yield Reason(ReasonCode.EXITED_WITH_CODE, exit_code=early_disconnects.exit_code)


def _rest(incident: Incident, left: float, others: Collection[int]) -> Ranked:
    """What is left of the blame is anybody's, in equal parts, but for whoever had nothing in flight.

    These keep a little of theirs, and the others share what they do not.
    """
    anybody = set(incident.affected).difference(others)
    if not anybody or left <= 0:
        return {}
    idle = _idle(incident, anybody)
    part, busy = left / len(anybody), len(anybody) - len(idle)
    share = (left - len(idle) * part * IDLE_KEEPS) / busy
    most = SOLE_IN_FLIGHT if idle else ALONE
    in_flight_work = {each.pid: (_flown(each),) for each in incident.clues.in_flight_work}
    sole = (Reason(ReasonCode.ONLY_WORK_IN_FLIGHT),) if idle and busy == 1 else ()
    return {
        pid: Ranking(part * IDLE_KEEPS, (*_why_anybody(incident, pid), *in_flight_work[pid]))
        if pid in idle
        else Ranking(min(share, most), (*_why_anybody(incident, pid), *in_flight_work.get(pid, ()), *sole))
        for pid in incident.affected
        if pid in anybody
    }


def _idle(incident: Incident, anybody: Collection[int]) -> frozenset[int]:
    """Those of them who had nothing in flight; nobody where that is all of them, since it tells nobody apart."""
    idle = frozenset(each.pid for each in incident.clues.in_flight_work if not each.in_flight).intersection(anybody)
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


def _flown(flight: InFlightWork) -> Reason:
    """Return whether a client had work in flight, and how many seconds before the fault it launched last."""
    code = ReasonCode.WORK_IN_FLIGHT if flight.in_flight else ReasonCode.NO_WORK_IN_FLIGHT
    return Reason(code, seconds=None if flight.seconds_since_launch is None else round(flight.seconds_since_launch, 1))


def _measured(code: ReasonCode, measured: Calibration) -> Reason:
    return Reason(code, hits=measured.hits, trials=measured.trials)
