"""Who may have done it. The log calls every victim error-triggering, so that the answer is often: unknown.

Of a memory fault among clients that all have work, neither the PID in the Xid nor the client that the log says has
encountered a fatal GPU error tells more than chance (measured, R580): they name someone who had work on the GPU.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from exporter.core import calibration
from exporter.model.clues import Vanished
from exporter.model.incident import FaultKind, Incident, Suspect
from exporter.parse.xid_catalogue import exonerates

INSTRUCTIONS = "GCC"
"""The GPU's cache of instructions and constants. A kernel whose client has gone fails to fetch its own instructions; a
wild pointer's access comes from elsewhere (measured, R580)."""

ILLEGAL_ADDRESS = 31

LEAST = 0.05
MOST_SUSPECTS = 16


def judged(incident: Incident) -> Incident:
    """The incident, with its kind and whom to suspect, the likeliest first."""
    if any(exonerates(xid.number) for xid in incident.xids):
        return replace(incident, kind=FaultKind.HARDWARE, suspects=())
    gone = _cut_off(incident)
    blamed = _blamed(incident, gone)
    ranked = sorted(blamed.items(), key=lambda each: (-each[1][0], -len(each[1][1]), each[0]))
    suspects = (
        Suspect(tenant=incident.tenants[pid], confidence=round(confidence, 2), evidence=evidence)
        for pid, (confidence, evidence) in ranked
        if pid in incident.tenants and confidence >= LEAST
    )
    incident = replace(incident, suspects=tuple(suspects)[:MOST_SUSPECTS])
    return replace(incident, kind=_kind(incident, gone))


def _kind(incident: Incident, gone: Mapping[int, Vanished]) -> FaultKind:
    if incident.suspect is not None and incident.suspect.tenant.pid in gone and incident.suspect.confidence >= 0.5:
        return FaultKind.CLIENT_KILLED
    if incident.clues.named is not None or _numbers(incident) & {ILLEGAL_ADDRESS}:
        return FaultKind.MEMORY
    return FaultKind.EXECUTION if incident.affected_told or _numbers(incident) else FaultKind.UNKNOWN


def _numbers(incident: Incident) -> set[int]:
    return {xid.number for xid in incident.xids}


def _units(incident: Incident) -> set[str]:
    return {xid.unit for xid in incident.xids if xid.unit is not None}


def _cut_off(incident: Incident) -> Mapping[int, Vanished]:
    """Those who left at the time at which one leaves whose kernel is cut off."""
    earliest, latest = calibration.CUT_OFF_SECONDS
    return {
        each.pid: each
        for each in incident.clues.vanished
        if earliest <= each.seconds_before <= latest and not each.terminated
    }


Blame = Mapping[int, tuple[float, tuple[str, ...]]]


def _blamed(incident: Incident, gone: Mapping[int, Vanished]) -> Blame:
    in_reset = [pid for pid in incident.clues.in_reset if pid in incident.affected]
    if in_reset and incident.clues.named is None and ILLEGAL_ADDRESS not in _numbers(incident):
        sure = calibration.IN_RESET.confidence
        why = f"its worker was in reset when it left, as of one that trapped ({_in_trials(calibration.IN_RESET)})"
        return {pid: (sure / len(in_reset), (why,)) for pid in in_reset} | _rest(incident, 1 - sure, in_reset)
    if gone and INSTRUCTIONS in _units(incident):
        return _gone_blamed(incident, gone, dict.fromkeys(gone, calibration.CUT_OFF.confidence / len(gone)))
    if gone and not _units(incident):
        return _gone_blamed(incident, gone, {pid: _by_chance(each) / len(gone) for pid, each in gone.items()})
    return _rest(incident, 1.0, ())


def _gone_blamed(incident: Incident, gone: Mapping[int, Vanished], sure: Mapping[int, float]) -> Blame:
    fetched = INSTRUCTIONS in _units(incident)
    blamed = {pid: (sure[pid], tuple(_why_gone(each, fetched=fetched))) for pid, each in gone.items()}
    return {**_rest(incident, 1 - sum(sure.values()), ()), **blamed}


def _by_chance(vanished: Vanished) -> float:
    if vanished.out_of_memory or vanished.signal is not None:
        return calibration.KILLED_THEN
    return calibration.GONE_THEN if vanished.wait_status is None else calibration.EXITED_THEN


def _why_gone(vanished: Vanished, *, fetched: bool) -> Iterable[str]:
    before = round(vanished.seconds_before * 1000)
    yield f"its contexts ended {before} ms before the fault, as those of a client that goes with a kernel in flight"
    if fetched:
        yield f"the GPU failed to fetch instructions, as such a kernel's does ({_in_trials(calibration.CUT_OFF)})"
    if vanished.out_of_memory:
        yield "the kernel killed it for want of memory"
    elif vanished.signal is not None:
        yield f"it was ended by signal {vanished.signal}"
    elif vanished.exit_code is not None:
        yield f"it exited with code {vanished.exit_code}"


def _rest(incident: Incident, left: float, others: Iterable[int]) -> Blame:
    """What is left of the blame is anybody's, in equal parts: nothing that is told of them says more."""
    anybody = [pid for pid in incident.affected if pid not in set(others)]
    if not anybody or left <= 0:
        return {}
    share = min(left / len(anybody), calibration.ALONE)
    return {pid: (share, tuple(_why_anybody(incident, pid))) for pid in anybody}


def _why_anybody(incident: Incident, pid: int) -> Iterable[str]:
    if len(incident.affected) == 1:
        yield "it is the only client that was hit"
    else:
        yield f"it is one of {len(incident.affected)} that were hit"
    if pid == incident.clues.named:
        yield "the log names it, which says no more than chance"
    if pid in {xid.pid for xid in incident.xids}:
        yield "the Xid names it, which says no more than chance"


def _in_trials(measured: calibration.Measured) -> str:
    return f"{measured.hits} of {measured.trials} trials"
