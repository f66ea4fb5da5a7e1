"""The events in the exporter's log, and rules that compare them with the truth.

The truth is what `process_watch` saw in /proc and what the stand-in daemon noted, which no forger can write. Nothing
happens to the neighbour, a second daemon, so each event of a failure of it is false.
"""

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from exporter.state.claims import SERVER_END_SECONDS
from exporter.state.log_lines import TOGETHER_SECONDS
from tests.chaos.process_watch import MpsProcess, Role
from tests.chaos.terms import DAEMON, NEIGHBOUR
from tests.standin.mps import Truth

LOSSES = ("daemon_lost", "daemon_stopped")
FAULTS = ("fault", "fault_changed", "incident", "fault_open")
FALSE_OF_NEIGHBOUR = (*LOSSES, *FAULTS, "watchdog_acts", "circuit_opened", "server_crash_loop", "daemon_quarantined")

LATE_SECONDS = 10.0
"""So much later than the fact may an event be, at rest."""

EARLY_SECONDS = 0.5
"""So much may the time of an event be before that of the witness, beside the longest pause between two looks."""

SURE = 0.5
"""A suspect with this confidence or more counts as blamed."""

JUST_BEFORE_SECONDS = 0.5
"""A client killed with a kernel in flight faults the others 0.15 s later."""

LONG_KNOWN_SECONDS = 3.0
"""A daemon that lived so long, beside an exporter that ran so long, must be missed."""

BRIEF_SECONDS, LISTED_SECONDS = 1.0, 3.0
"""If a server lived for less than the first time, an exporter learns of its end from the daemon's next list. That is
not later than the second time."""


@dataclass(frozen=True, slots=True)
class Claim:
    """An event that an exporter wrote into its log. `exporter` is its number."""

    exporter: int
    at: float
    event: str
    daemon: str
    fields: dict[str, Any]


@dataclass(slots=True)
class Claims:
    """The events of all exporters so far, each log read once."""

    all: list[Claim] = field(default_factory=list)
    _read: dict[int, int] = field(default_factory=dict)

    def read(self, number: int, log: Path) -> None:
        """Read what an exporter has written since the last time."""
        with log.open("rb") as file:
            file.seek(self._read.get(number, 0))
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read[number] = self._read.get(number, 0) + len(whole) + len(newline)
        for line in whole.splitlines():
            record = json.loads(line)
            if record.get("event") == "incident":
                record["at"] = datetime.fromisoformat(record["ended"]).timestamp()
                if "suspect_pid" in record:
                    record["suspects"] = [{**record, "pid": record["suspect_pid"], "indications": ()}]
            if "at" in record and "event" in record:
                daemon = str(record.get("daemon", ""))
                self.all.append(Claim(number, float(record["at"]), str(record["event"]), daemon, record))

    def of(self, daemon: str, *events: str) -> list[Claim]:
        """Return the events of these names about a daemon, in order."""
        return [claim for claim in self.all if claim.daemon == daemon and claim.event in events]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the claims are compared with: `apart` is how far two witnesses' times may be apart, in seconds."""

    claims: Claims
    ended: list[MpsProcess]
    truth: list[Truth]
    watched: list[tuple[float, float]]
    """From when to when each exporter ran."""
    apart: float
    slowness: float


def false_losses(evidence: Evidence) -> Iterator[str]:
    """Each loss is the end of a daemon, which each exporter reports once."""
    deaths = _deaths(evidence)
    reported: set[tuple[int, int, int]] = set()
    for claim in evidence.claims.of(DAEMON, *LOSSES):
        found = [process for process in deaths if _is_of(claim, process.ended or 0.0, evidence)]
        found = [process for process in found if (claim.exporter, process.pid, process.ticks) not in reported]
        if found:
            reported.add((claim.exporter, found[-1].pid, found[-1].ticks))
        else:
            yield f"{claim.event} ({claim.fields.get('reason')}) at {claim.at:.2f}: no daemon had ended"


def missed_losses(evidence: Evidence) -> Iterator[str]:
    """Each end of a daemon that was known, while an exporter ran, is reported as a loss."""
    claims, late = evidence.claims.of(DAEMON, *LOSSES), LATE_SECONDS * evidence.slowness
    for process in _deaths(evidence):
        ended = process.ended or 0.0
        known = ended - process.began > LONG_KNOWN_SECONDS and any(
            since + LONG_KNOWN_SECONDS < ended and ended + late < until for since, until in evidence.watched
        )
        if known and not any(_is_of(claim, ended, evidence) for claim in claims):
            yield f"daemon {process.pid} ended at {ended:.2f}, and no event says so"


def false_incidents(evidence: Evidence) -> Iterator[str]:
    """Each incident is a fault that happened to that server, which each exporter reports once."""
    reported: set[tuple[int, int]] = set()
    for claim in evidence.claims.of(DAEMON, "fault"):
        found = [
            number
            for number, each in enumerate(evidence.truth)
            if each.what == "fault" and each.server == claim.fields.get("server") and _is_of(claim, each.at, evidence)
        ]
        found = [number for number in found if (claim.exporter, number) not in reported]
        if found:
            reported.add((claim.exporter, found[0]))
        else:
            yield f"incident {claim.fields.get('incident')} at {claim.at:.2f}: server had no fault then"


def missed_incidents(evidence: Evidence) -> Iterator[str]:
    """Each fault of connected clients that another source than the log could show, while an exporter ran, is reported.

    A user can forge the log. The Xid that confirms it names no process, so the end of another server explains it, too.
    """
    claims = evidence.claims.of(DAEMON, "fault")
    servers = [process for process in evidence.ended if process.role is Role.SERVER]
    for faults, until in _one_by_one(evidence):
        server, began, late = faults[0].server, faults[0].at, faults[-1].at + LATE_SECONDS * evidence.slowness
        watched = any(since + LONG_KNOWN_SECONDS < began < end - LATE_SECONDS for since, end in evidence.watched)
        early, near = EARLY_SECONDS + evidence.apart, SERVER_END_SECONDS + evidence.apart
        reported = any(
            each.fields.get("server") == server and began - early <= each.at <= min(until, late) for each in claims
        )
        ends = (
            (process.ended or 0.0, (process.ended or 0.0) - process.began)
            for process in servers
            if process.pid != server
        )
        listed = LISTED_SECONDS * evidence.slowness
        doubtful = any(-near <= began - end <= near + (listed if lived < BRIEF_SECONDS else 0.0) for end, lived in ends)
        if watched and not reported and not doubtful:
            yield f"server {server} had a fault ({faults[0].kind}) at {began:.2f}, and no incident says so"


def _one_by_one(evidence: Evidence) -> Iterator[tuple[list[Truth], float]]:
    """Yield the faults of each server, those from which it had not recovered together, and when its next one came."""
    for server in {each.server for each in evidence.truth}:
        groups: list[list[Truth]] = []
        affected: set[int] = set()
        for each in (each for each in evidence.truth if each.server == server):
            if each.what == "fault":
                if groups and (affected or each.at - groups[-1][-1].at <= TOGETHER_SECONDS):
                    groups[-1].append(each)
                else:
                    groups.append([each])
                affected |= set(each.victims)
            elif each.what == "gone":
                affected.discard(each.pid)
        yield from zip(groups, [*(group[0].at for group in groups[1:]), math.inf], strict=False)


def innocents_suspected(evidence: Evidence) -> Iterator[str]:
    """A client that is suspected with some confidence caused a fault of that server in the time of the incident.

    No monitor can do better than evidence that is true, in which no forger had a part: a client went just before a
    fault, as one with a kernel in flight, or is one of the few that it hit.
    """
    opened: dict[str, float] = {}
    for claim in evidence.claims.of(DAEMON, *FAULTS):
        incident, server = str(claim.fields.get("incident")), claim.fields.get("server")
        since = opened.setdefault(incident, claim.at) - LATE_SECONDS * evidence.slowness
        faults = [
            each for each in evidence.truth if each.what == "fault" and each.server == server and since <= each.at
        ]
        for suspect in claim.fields.get("suspects", ()):
            pid, confidence = suspect["pid"], suspect["confidence"]
            if confidence >= SURE and not any(_may_suspect(pid, confidence, each, evidence) for each in faults):
                yield (
                    f"incident {incident}: {pid} is suspected at {confidence:.2f} "
                    f"for {suspect['indications']}; it was {[each.pid for each in faults]}"
                )


def _may_suspect(pid: int, confidence: float, fault: Truth, evidence: Evidence) -> bool:
    if pid == fault.pid or (pid in fault.victims and (len(fault.victims) == 1 or confidence * len(fault.victims) <= 1)):
        return True
    return any(
        each.what == "gone" and each.pid == pid and fault.at - JUST_BEFORE_SECONDS <= each.at <= fault.at
        for each in evidence.truth
    )


def false_news_of_the_neighbour(evidence: Evidence) -> Iterator[str]:
    """Nothing happens to it."""
    for claim in evidence.claims.of(NEIGHBOUR, *FALSE_OF_NEIGHBOUR):
        yield f"{claim.event} of the neighbour at {claim.at:.2f}: {claim.fields.get('reason')}"


CLAIM_RULES = (
    false_losses,
    missed_losses,
    false_incidents,
    missed_incidents,
    innocents_suspected,
    false_news_of_the_neighbour,
)


def _deaths(evidence: Evidence) -> list[MpsProcess]:
    """The ends of daemons, without those that found another one there."""
    return [process for process in evidence.ended if process.role is Role.DAEMON and process.status != 1]


def _is_of(claim: Claim, at: float, evidence: Evidence) -> bool:
    """Return whether an event can be about something that happened at a time."""
    return at - EARLY_SECONDS - evidence.apart <= claim.at <= at + LATE_SECONDS * evidence.slowness


def counts(claims: Claims, truth: list[Truth]) -> str:
    """Return, in words, how many claims and facts there were."""
    faults = sum(each.what == "fault" for each in truth)
    losses, incidents = len(claims.of(DAEMON, *LOSSES)), len(claims.of(DAEMON, "fault"))
    return f"losses reported: {losses}; faults: {faults}, incidents reported: {incidents}; until {time.time():.0f}"
