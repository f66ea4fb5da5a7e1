"""Random sequences with many faults: each incident opens once and ends once, and the counters agree."""

from collections import Counter
from collections.abc import Iterable

from hypothesis import given, settings

from exporter.model.event import Event, EventName
from exporter.model.incident import Incident, IncidentEnd
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.reason import ReasonCode
from exporter.reducer import reduce_all
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
        for name, incident in present.incidents.items():
            assert name == incident.id
            _assert_consistent(incident)
            _assert_monotonic(known.get(name), incident)
            if incident.affected_confirmed or incident.settled:
                most[name] = max(most[name], len(incident.affected))
        known.update(present.incidents)
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
