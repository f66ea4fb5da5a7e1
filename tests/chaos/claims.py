"""What the exporter says has happened, read from its log, and the rules by which the truth judges it.

The truth is what the onlooker saw in /proc and what the stand-in daemon wrote down of itself, which no forger can
write. Nothing happens to the neighbour, a second daemon, so that each event of grave news about it is false.
"""

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exporter.state.fault_log import SERVER_END_SECONDS, TOGETHER_SECONDS
from tests.chaos.onlooker import Life, Role
from tests.chaos.terms import DAEMON, NEIGHBOUR
from tests.standin.mps import Truth

LOSSES = ("daemon_lost", "daemon_stopped")
FAULTS = ("fault", "fault_changed", "fault_recovered", "fault_open")
FALSE_OF_NEIGHBOUR = (*LOSSES, *FAULTS, "watchdog_acts", "circuit_opened", "server_crash_loop", "daemon_quarantined")

LATE_SECONDS = 10.0
"""So much later than the fact may an event be, at rest."""

EARLY_SECONDS = 0.5
"""So much may the time of an event be before that of the witness, besides the onlooker's longest pause."""

SURE = 0.5
"""From this confidence on a suspect counts as blamed."""

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
            if "at" in record and "event" in record:
                daemon = str(record.get("daemon", ""))
                self.all.append(Claim(number, float(record["at"]), str(record["event"]), daemon, record))

    def of(self, daemon: str, *events: str) -> list[Claim]:
        """Return the events of these names about a daemon, in order."""
        return [claim for claim in self.all if claim.daemon == daemon and claim.event in events]


@dataclass(frozen=True, slots=True)
class Judged:
    """What the claims are judged by: `apart` is how far two witnesses' times may be apart, in seconds."""

    claims: Claims
    ended: list[Life]
    truth: list[Truth]
    watched: list[tuple[float, float]]
    """From when to when each exporter ran."""
    apart: float
    slowness: float


def false_losses(judged: Judged) -> Iterator[str]:
    """Each loss is the end of a daemon, of which each exporter tells once."""
    deaths = _deaths(judged)
    told: set[tuple[int, int, int]] = set()
    for claim in judged.claims.of(DAEMON, *LOSSES):
        found = [life for life in deaths if _is_of(claim, life.ended or 0.0, judged)]
        found = [life for life in found if (claim.exporter, life.pid, life.ticks) not in told]
        if found:
            told.add((claim.exporter, found[-1].pid, found[-1].ticks))
        else:
            yield f"{claim.event} ({claim.fields.get('reason')}) at {claim.at:.2f}: no daemon had ended"


def missed_losses(judged: Judged) -> Iterator[str]:
    """Each end of a daemon that was known, while an exporter ran, is a loss."""
    claims, late = judged.claims.of(DAEMON, *LOSSES), LATE_SECONDS * judged.slowness
    for life in _deaths(judged):
        ended = life.ended or 0.0
        known = ended - life.began > LONG_KNOWN_SECONDS and any(
            since + LONG_KNOWN_SECONDS < ended and ended + late < until for since, until in judged.watched
        )
        if known and not any(_is_of(claim, ended, judged) for claim in claims):
            yield f"daemon {life.pid} ended at {ended:.2f}, and no event says so"


def false_incidents(judged: Judged) -> Iterator[str]:
    """Each incident is a fault that happened to that server, of which each exporter tells once."""
    told: set[tuple[int, int]] = set()
    for claim in judged.claims.of(DAEMON, "fault"):
        found = [
            number
            for number, each in enumerate(judged.truth)
            if each.what == "fault" and each.server == claim.fields.get("server") and _is_of(claim, each.at, judged)
        ]
        found = [number for number in found if (claim.exporter, number) not in told]
        if found:
            told.add((claim.exporter, found[0]))
        else:
            yield f"incident {claim.fields.get('incident')} at {claim.at:.2f}: server had no fault then"


def missed_incidents(judged: Judged) -> Iterator[str]:
    """Each fault of connected clients that another source than the log could show, while an exporter ran, is told.

    A user can forge the log. The Xid that confirms it names no process, so the end of another server explains it, too.
    """
    claims = judged.claims.of(DAEMON, "fault")
    servers = [life for life in judged.ended if life.role is Role.SERVER]
    for faults, until in _one_by_one(judged):
        server, began, late = faults[0].server, faults[0].at, faults[-1].at + LATE_SECONDS * judged.slowness
        watched = any(since + LONG_KNOWN_SECONDS < began < end - LATE_SECONDS for since, end in judged.watched)
        early, near = EARLY_SECONDS + judged.apart, SERVER_END_SECONDS + judged.apart
        told = any(
            each.fields.get("server") == server and began - early <= each.at <= min(until, late) for each in claims
        )
        ends = ((life.ended or 0.0, (life.ended or 0.0) - life.began) for life in servers if life.pid != server)
        listed = LISTED_SECONDS * judged.slowness
        doubtful = any(-near <= began - end <= near + (listed if lived < BRIEF_SECONDS else 0.0) for end, lived in ends)
        if watched and not told and not doubtful:
            yield f"server {server} had a fault ({faults[0].kind}) at {began:.2f}, and no incident says so"


def _one_by_one(judged: Judged) -> Iterator[tuple[list[Truth], float]]:
    """Yield the faults of each server, those from which it had not recovered together, and when its next one came."""
    for server in {each.server for each in judged.truth}:
        groups: list[list[Truth]] = []
        affected: set[int] = set()
        for each in (each for each in judged.truth if each.server == server):
            if each.what == "fault":
                if groups and (affected or each.at - groups[-1][-1].at <= TOGETHER_SECONDS):
                    groups[-1].append(each)
                else:
                    groups.append([each])
                affected |= set(each.victims)
            elif each.what == "gone":
                affected.discard(each.pid)
        yield from zip(groups, [*(group[0].at for group in groups[1:]), math.inf], strict=False)


def innocents_suspected(judged: Judged) -> Iterator[str]:
    """Whoever is suspected with some confidence caused a fault of that server in the time of the incident.

    No monitor can do better than evidence that is true, in which no forger had a part: a client went just before a
    fault, as one with a kernel in flight, or is one of the few that it hit.
    """
    opened: dict[str, float] = {}
    for claim in judged.claims.of(DAEMON, *FAULTS):
        incident, server = str(claim.fields.get("incident")), claim.fields.get("server")
        since = opened.setdefault(incident, claim.at) - LATE_SECONDS * judged.slowness
        faults = [each for each in judged.truth if each.what == "fault" and each.server == server and since <= each.at]
        for suspect in claim.fields.get("suspects", ()):
            pid, confidence = suspect["pid"], suspect["confidence"]
            if confidence >= SURE and not any(_may_suspect(pid, confidence, each, judged) for each in faults):
                yield (
                    f"incident {incident}: {pid} is suspected at {confidence:.2f} "
                    f"for {suspect['indications']}; it was {[each.pid for each in faults]}"
                )


def _may_suspect(pid: int, confidence: float, fault: Truth, judged: Judged) -> bool:
    if pid == fault.pid or (pid in fault.victims and (len(fault.victims) == 1 or confidence * len(fault.victims) <= 1)):
        return True
    return any(
        each.what == "gone" and each.pid == pid and fault.at - JUST_BEFORE_SECONDS <= each.at <= fault.at
        for each in judged.truth
    )


def false_news_of_the_neighbour(judged: Judged) -> Iterator[str]:
    """Nothing happens to it."""
    for claim in judged.claims.of(NEIGHBOUR, *FALSE_OF_NEIGHBOUR):
        yield f"{claim.event} of the neighbour at {claim.at:.2f}: {claim.fields.get('reason')}"


JUDGEMENTS = (
    false_losses,
    missed_losses,
    false_incidents,
    missed_incidents,
    innocents_suspected,
    false_news_of_the_neighbour,
)


def _deaths(judged: Judged) -> list[Life]:
    """The ends of daemons, without those that found another one there."""
    return [life for life in judged.ended if life.role is Role.DAEMON and life.status != 1]


def _is_of(claim: Claim, at: float, judged: Judged) -> bool:
    """Return whether an event can be about something that happened at a time."""
    return at - EARLY_SECONDS - judged.apart <= claim.at <= at + LATE_SECONDS * judged.slowness


def counts(claims: Claims, truth: list[Truth]) -> str:
    """Return, in words, how much there was to judge."""
    faults = sum(each.what == "fault" for each in truth)
    losses, incidents = len(claims.of(DAEMON, *LOSSES)), len(claims.of(DAEMON, "fault"))
    return f"losses told: {losses}; faults: {faults}, incidents told: {incidents}; until {time.time():.0f}"
