"""Evidence of a fault that is cut, doubled, late or missing: still one incident, with what can be known.

Each of these is a real fault, of which a recording tells less, or more often, or in another order, than it was.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.model.event import EventName
from exporter.model.incident import Incident
from exporter.model.observation import (
    ControlReply,
    GpuEvent,
    GpuReading,
    KernelRecord,
    LogLine,
    Observation,
    SourceReading,
)
from exporter.parse import log_message
from exporter.parse.log_line import parse_log_line
from exporter.state.reducer import reduce_all
from exporter.state.xids import NVML_EVENTS
from tests.builders import RECORDINGS, Recorded, Reduced, failure, node, reduced

ALL_FAULTS = [each for each in RECORDINGS if each.text.count("Server is handling a fatal GPU error.") == 1]
FAULTS = list({re.sub(r"_\d(?=_|$)", "", repr(each)): each for each in ALL_FAULTS}.values())
"""One recording of each kind of fault: trials of the same kind differ by the number in their name."""

NEVER = 0.8
"""So sure nobody innocent is ever suspected."""

every_fault = pytest.mark.parametrize("recorded", FAULTS, ids=repr)

Seen = Sequence[Observation]


@cache
def observed(recorded: Recorded) -> Seen:
    """The recording without what control.log tells of each question: nine lines in ten, and nothing about a fault."""
    return [each for each in recorded.observations if not (isinstance(each, LogLine) and _is_of_a_question(each))]


def _is_of_a_question(line: LogLine) -> bool:
    entry = parse_log_line(line.line)
    of_a_question = log_message.Noise | log_message.BareNumber | log_message.CommandReceived | log_message.SessionClosed
    return line.file == "control.log" and entry is not None and isinstance(entry.message, of_a_question)


def incidents(seen: Seen, *, after: Reduced | None = None) -> list[Incident]:
    """What becomes of these observations, `after` others; and each incident opens and ends once."""
    present, events = (node(), []) if after is None else (after.node, list(after.events))
    for later, news in reduce_all(present, seen):
        present = later
        events.extend(news)
    for name in (EventName.FAULT, EventName.FAULT_RECOVERED):
        ids = [event.incident.id for event in events if event.event is name and event.incident is not None]
        assert len(ids) == len(set(ids))
    return list(present.incidents.values())


def affected(recorded: Recorded) -> set[int]:
    """Everyone with the sticky error: the victims, and the culprit unless it had gone."""
    culprit = recorded.truth["culprit"]
    alive = {culprit} if recorded.truth["clients"][str(culprit)].get("cuda_errors") else set()
    return {*recorded.truth["victims"], *alive}


def assert_fair(recorded: Recorded, incident: Incident) -> None:
    """Nobody innocent is as good as named, and nobody is affected who was not there."""
    assert all(each.confidence < NEVER for each in incident.suspects if each.client.pid != recorded.truth["culprit"])
    assert set(incident.affected) <= {int(pid) for pid in recorded.truth["clients"]}


def without(*kinds: type[Observation]) -> Callable[[Seen], Seen]:
    return lambda seen: [each for each in seen if not isinstance(each, kinds)]


def without_lines(pattern: str) -> Callable[[Seen], Seen]:
    """The log's lines that look like this are lost."""
    return lambda seen: [each for each in seen if not (isinstance(each, LogLine) and re.search(pattern, each.line))]


def without_file(file: str) -> Callable[[Seen], Seen]:
    return lambda seen: [each for each in seen if not (isinstance(each, LogLine) and each.file == file)]


def without_statuses(seen: Seen) -> Seen:
    """Every question for a server's state fails."""
    return [
        replace(each, exit_code=1, stdout="", stderr="Cannot send command to MPS control daemon process\n")
        if isinstance(each, ControlReply) and "status" in each.command
        else each
        for each in seen
    ]


def doubled(seen: Seen) -> Seen:
    return [each for one in seen for each in (one, one)]


def without_nvml_events(seen: Seen) -> Seen:
    """The driver has none, and the source says so."""
    reduced = (each for each in seen if not isinstance(each, GpuEvent))
    return [
        replace(each, problem=failure("Not Supported"))
        if isinstance(each, SourceReading) and each.name == NVML_EVENTS
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
    "nobody named": without_lines("encountered a fatal GPU error"),
    "no begin of the block": without_lines("Client .* to be torn down|error trigging"),
    "no devices": without_lines("devices will be reset"),
    "no exits": without_lines("exiting|disconnected|assuming client"),
    "no recovery": without_lines("Destroy server context"),
    "everything twice": doubled,
}


@every_fault
@pytest.mark.parametrize("less", LESS.values(), ids=LESS)
def test_one_incident_of_less(recorded: Recorded, less: Callable[[Seen], Seen]) -> None:
    """Whatever one witness does not tell, the others do."""
    (incident,) = incidents(less(observed(recorded)))
    assert set(incident.affected) == affected(recorded)
    assert_fair(recorded, incident)


@every_fault
def test_one_incident_without_the_servers_log(recorded: Recorded) -> None:
    """The state alone tells of a fault that lasts; whom it hit is then inferred."""
    statuses = [each for each in observed(recorded) if isinstance(each, ControlReply) and "FAULT" in each.stdout]
    found = incidents(without_file("server.log")(observed(recorded)))
    assert len(found) <= 1
    if statuses and statuses[-1].at - statuses[0].at > 1.0:
        assert len(found) == 1
    for incident in found:
        assert_fair(recorded, incident)


@every_fault
def test_one_incident_where_the_log_is_cut_in_the_midst_of_the_block(recorded: Recorded) -> None:
    """A truncation may take any lines along: a fault whose first line is left is found, and nobody is made up."""
    seen = observed(recorded)
    begin = next(
        number for number, each in enumerate(seen) if isinstance(each, LogLine) and "handling a fatal" in each.line
    )
    before, struck = reduced(*seen[:begin]), seen[begin:]
    for cut in range(1, 24, 6):
        for lost in (1, 40):
            gone = range(cut, cut + lost)
            left = [each for number, each in enumerate(struck) if number not in gone or not isinstance(each, LogLine)]
            (incident,) = incidents(left, after=before)
            assert_fair(recorded, incident)


@every_fault
@given(st.data())
@settings(max_examples=4)
def test_at_most_one_incident_from_any_moment_on(recorded: Recorded, data: st.DataObject) -> None:
    """The exporter may start before the fault, in its midst, or after it."""
    seen = observed(recorded)
    begin = data.draw(st.floats(seen[0].at, seen[-1].at))
    found = incidents([each for each in seen if each.at >= begin])
    assert len(found) <= 1
    for each in found:
        assert_fair(recorded, each)


@every_fault
@given(st.integers(0, 1 << 32).map(random.Random), st.floats(0.0, 0.4))
@settings(max_examples=4)
def test_one_incident_of_evidence_that_comes_late_twice_or_never(
    recorded: Recorded, chance: random.Random, lossy: float
) -> None:
    """Each source keeps its own order; between them there is none, and any of them may lose or repeat what it tells.

    An NVML event that is lost while its source is well would be evidence against the fault, so none is lost.
    """
    late = {
        kind: chance.uniform(0.0, 0.3) for kind in ("server.log", "control.log", "kernel", "event", "reply", "nvml")
    }
    tellings: list[Observation] = []
    for each in observed(recorded):
        source = _source(each)
        keep = source in ("server.log", "nvml", "event") or chance.random() >= lossy
        tellings.extend([delayed(each, late[source])] * (keep + (chance.random() < lossy)))
    tellings.sort(key=lambda each: each.at)
    (incident,) = incidents(tellings)
    assert set(incident.affected) == affected(recorded)
    assert_fair(recorded, incident)


def delayed(seen: Observation, seconds: float) -> Observation:
    """It is seen later. An answer that comes late was asked for when it was."""
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
