"""Random sequences with many faults: each incident opens once and ends once, and the counters agree."""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.model.event import Event, EventName
from exporter.model.incident import Incident, IncidentEnd
from exporter.model.node import CollectorName, Node
from exporter.model.observation import (
    ControlReply,
    GpuEvent,
    GpuReading,
    KernelRecord,
    LogLine,
    Observation,
    SourceReading,
)
from exporter.model.reason import ReasonCode
from exporter.parse import log_message
from exporter.parse.log_line import parse_log_line
from exporter.reducer import reduce_all
from tests.builders import RECORDINGS, Recorded, Reduced, failure, node, reduced
from tests.incidents.fault_sequences import START, fault_sequences, fault_sequences_with_clock_steps

LIKELY = 0.8
"""No suspect has this confidence without evidence that is better than chance."""

ROUNDED = 0.005


@given(fault_sequences)
@settings(max_examples=200)
def test_each_incident_opens_and_ends_once(observations: list[Observation]) -> None:
    _check_sequence(observations)


@given(fault_sequences_with_clock_steps)
@settings(max_examples=100)
def test_each_incident_opens_and_ends_once_if_the_clock_steps_back(observations: list[Observation]) -> None:
    _check_sequence(observations)


def _check_sequence(observations: Iterable[Observation]) -> None:
    known: dict[str, Incident] = {}
    most: Counter[str] = Counter()
    events: list[Event] = []
    present = START
    for after, new_events in reduce_all(START, observations):
        present = after
        events.extend(new_events)
        faults = {name: each for name, each in present.incidents.items() if each.is_fault}
        for name, incident in faults.items():
            assert name == incident.id
            _assert_consistent(incident)
            _assert_monotonic(known.get(name), incident)
            if incident.affected_confirmed or incident.settled:
                most[name] = max(most[name], len(incident.affected))
        known.update(faults)
    _assert_reported(known, events)
    _assert_counted(present, known.values(), most.total())


def _assert_consistent(incident: Incident) -> None:
    """Affected clients, suspects and indications of an incident are consistent."""
    affected = set(incident.affected)
    assert len(affected) == len(incident.affected)
    assert affected >= incident.blocking.keys()
    assert affected.issuperset(incident.disconnected)
    assert affected <= incident.client_details.keys()
    assert sum(each.confidence for each in incident.suspects) <= 1 + ROUNDED * len(incident.suspects)
    for suspect in incident.suspects:
        codes = {each.code for each in suspect.indications}
        strong = {ReasonCode.WORKER_IN_RESET, ReasonCode.INSTRUCTION_FETCH_FAILED}
        assert suspect.confidence < LIKELY or codes & strong
    assert not incident.end_reported or (incident.settled and not incident.open)


def _assert_monotonic(before: Incident | None, incident: Incident) -> None:
    """Clients that the log names stay affected. An incident does not change after its end was reported."""
    if before is not None and before.end_reported:
        assert incident is before
    if before is not None and before.affected_confirmed:
        assert set(before.affected) <= set(incident.affected)


def _assert_reported(known: dict[str, Incident], events: Iterable[Event]) -> None:
    reported = Counter((event.event, event.incident.id) for event in events if event.incident is not None)
    assert {name for _, name in reported} == known.keys()
    for name in known:
        assert reported[EventName.FAULT, name] == 1
        assert reported[EventName.FAULT_RECOVERED, name] + reported[EventName.FAULT_OPEN, name] == 1


def _assert_counted(node: Node, known: Iterable[Incident], affected: int) -> None:
    """Confirmed affected clients stay counted, also if a late log names fewer: a counter never decreases."""
    totals = [daemon.totals for daemon in node.daemons.values()]
    incidents = list(known)
    assert sum(each.faults for each in totals) == len(incidents)
    assert sum(each.fault_affected for each in totals) == affected
    recovered = [each for each in incidents if each.end_reported and each.ending is IncidentEnd.RECOVERED]
    assert sum(each.fault_recoveries.count for each in totals) == len(recovered)


# Incomplete evidence of a fault (cut, duplicate, late, missing) still makes one incident.


ALL_FAULTS = [each for each in RECORDINGS if each.text.count("Server is handling a fatal GPU error.") == 1]
FAULTS = list({re.sub(r"_\d(?=_|$)", "", repr(each)): each for each in ALL_FAULTS}.values())
"""One recording of each kind of fault: trials of the same kind differ by the number in their name."""

"""No innocent client has this confidence."""

every_fault = pytest.mark.parametrize("recorded", FAULTS, ids=repr)

Seen = Sequence[Observation]


@cache
def observed(recorded: Recorded) -> Seen:
    """Return a recording without the control.log lines of queries: nine lines in ten, and none about a fault."""
    return [each for each in recorded.observations if not (isinstance(each, LogLine) and _is_of_a_query(each))]


def _is_of_a_query(line: LogLine) -> bool:
    entry = parse_log_line(line.line)
    of_a_query = log_message.Noise | log_message.BareNumber | log_message.CommandReceived | log_message.SessionClosed
    return line.file == "control.log" and entry is not None and isinstance(entry.message, of_a_query)


def incidents(seen: Seen, *, after: Reduced | None = None) -> list[Incident]:
    """Return the incidents of these observations, `after` others. Each incident opens and ends once."""
    present, events = (node(), []) if after is None else (after.node, list(after.events))
    for later, new_events in reduce_all(present, seen):
        present = later
        events.extend(new_events)
    for name in (EventName.FAULT, EventName.FAULT_RECOVERED):
        ids = [event.incident.id for event in events if event.event is name and event.incident is not None]
        assert len(ids) == len(set(ids))
    return list(present.incidents.values())


def affected(recorded: Recorded) -> set[int]:
    """Return the clients with the sticky error: the victims, and the cause unless it had exited."""
    culprit = recorded.truth["culprit"]
    alive = {culprit} if recorded.truth["clients"][str(culprit)].get("cuda_errors") else set()
    return {*recorded.truth["victims"], *alive}


def assert_fair(recorded: Recorded, incident: Incident) -> None:
    """Check that no innocent client is likely, and that only clients are affected."""
    assert all(each.confidence < LIKELY for each in incident.suspects if each.client.pid != recorded.truth["culprit"])
    assert set(incident.affected) <= {int(pid) for pid in recorded.truth["clients"]}


def without(*kinds: type[Observation]) -> Callable[[Seen], Seen]:
    return lambda seen: [each for each in seen if not isinstance(each, kinds)]


def without_lines(pattern: str) -> Callable[[Seen], Seen]:
    """Remove the log lines that match a pattern."""
    return lambda seen: [each for each in seen if not (isinstance(each, LogLine) and re.search(pattern, each.line))]


def without_file(file: str) -> Callable[[Seen], Seen]:
    return lambda seen: [each for each in seen if not (isinstance(each, LogLine) and each.file == file)]


def without_statuses(seen: Seen) -> Seen:
    """Let all queries of server states fail."""
    return [
        replace(each, exit_code=1, stdout="", stderr="Cannot send command to MPS control daemon process\n")
        if isinstance(each, ControlReply) and "status" in each.command
        else each
        for each in seen
    ]


def doubled(seen: Seen) -> Seen:
    return [each for one in seen for each in (one, one)]


def without_nvml_events(seen: Seen) -> Seen:
    """Remove the Xid events of NVML, with the error of a driver without support."""
    reduced = (each for each in seen if not isinstance(each, GpuEvent))
    return [
        replace(each, problem=failure("Not Supported"))
        if isinstance(each, SourceReading) and each.name == CollectorName.NVML_EVENTS
        else each
        for each in reduced
    ]


LESS = {
    "no kernel log": without(KernelRecord),
    "no NVML events": without_nvml_events,
    "no Xids at all": lambda seen: without_nvml_events(without(KernelRecord)(seen)),
    "no NVML": lambda seen: without_nvml_events(without(GpuReading)(seen)),
    "no status": without_statuses,
    "no control.log": without_file("control.log"),
    "no named client": without_lines("encountered a fatal GPU error"),
    "no start of the block": without_lines("Client .* to be torn down|error trigging"),
    "no devices": without_lines("devices will be reset"),
    "no exits": without_lines("exiting|disconnected|assuming client"),
    "no recovery": without_lines("Destroy server context"),
    "all observations twice": doubled,
}


def test_one_incident_with_less_evidence(subtests: pytest.Subtests) -> None:
    for recorded, less in product(FAULTS, LESS.values()):
        with subtests.test(recorded=recorded, less=less):
            (incident,) = incidents(less(observed(recorded)))
            assert set(incident.affected) == affected(recorded)
            assert_fair(recorded, incident)


def test_one_incident_without_the_servers_log(subtests: pytest.Subtests) -> None:
    """The server state alone shows a longer fault. The affected clients are then inferred."""
    for recorded in FAULTS:
        with subtests.test(recorded=recorded):
            statuses = [
                each for each in observed(recorded) if isinstance(each, ControlReply) and "FAULT" in each.stdout
            ]
            found = incidents(without_file("server.log")(observed(recorded)))
            assert len(found) <= 1
            if statuses and statuses[-1].at - statuses[0].at > 1.0:
                assert len(found) == 1
            for incident in found:
                assert_fair(recorded, incident)


def test_one_incident_if_the_log_block_is_cut(subtests: pytest.Subtests) -> None:
    """A truncation may remove any lines. A fault whose first line remains is found, without invented clients."""
    for recorded in FAULTS:
        with subtests.test(recorded=recorded):
            seen = observed(recorded)
            begin = next(
                number
                for number, each in enumerate(seen)
                if isinstance(each, LogLine) and "handling a fatal" in each.line
            )
            before, with_incidents = reduced(*seen[:begin]), seen[begin:]
            for cut in range(1, 24, 6):
                for lost in (1, 40):
                    gone = range(cut, cut + lost)
                    left = [
                        each
                        for number, each in enumerate(with_incidents)
                        if number not in gone or not isinstance(each, LogLine)
                    ]
                    (incident,) = incidents(left, after=before)
                    assert_fair(recorded, incident)


@every_fault
@given(st.data())
@settings(max_examples=4)
def test_at_most_one_incident_from_any_start(recorded: Recorded, data: st.DataObject) -> None:
    """The exporter may start before, during or after the fault."""
    seen = observed(recorded)
    begin = data.draw(st.floats(seen[0].at, seen[-1].at))
    found = incidents([each for each in seen if each.at >= begin])
    assert len(found) <= 1
    for each in found:
        assert_fair(recorded, each)


@every_fault
@given(st.integers(0, 1 << 32).map(random.Random), st.floats(0.0, 0.4))
@settings(max_examples=4)
def test_one_incident_with_late_duplicate_or_lost_evidence(
    recorded: Recorded, chance: random.Random, lossy: float
) -> None:
    """The order within a source is fixed, but not between sources. A source may lose or repeat observations.

    No NVML event is lost, because a missing event of a working source is evidence against the fault.
    """
    late = {
        kind: chance.uniform(0.0, 0.3) for kind in ("server.log", "control.log", "kernel", "event", "reply", "nvml")
    }
    observations: list[Observation] = []
    for each in observed(recorded):
        source = _source(each)
        included = source in ("server.log", "nvml", "event") or chance.random() >= lossy
        observations.extend([delayed(each, late[source])] * (included + (chance.random() < lossy)))
    observations.sort(key=lambda each: each.at)
    (incident,) = incidents(observations)
    assert set(incident.affected) == affected(recorded)
    assert_fair(recorded, incident)


def delayed(seen: Observation, seconds: float) -> Observation:
    """Return the observation at a later time. The query of a late reply starts at its original time."""
    if isinstance(seen, ControlReply):
        return replace(seen, at=seen.at + seconds, seconds=(seen.seconds or 0.0) + seconds)
    return replace(seen, at=seen.at + seconds)


def _source(seen: Observation) -> str:
    match seen:
        case LogLine():
            return seen.file
        case KernelRecord():
            return "kernel"
        case GpuEvent():
            return "event"
        case ControlReply():
            return "reply"
        case _:
            return "nvml"
