"""Whatever becomes of a node in which faults come thick: one opening and one end each, and all of it adds up."""

from collections import Counter
from collections.abc import Iterable

from hypothesis import given, settings

from exporter.model.event import Event, EventName
from exporter.model.incident import Incident, IncidentEnd
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.reason import ReasonCode
from exporter.state.reducer import reduce_all
from tests.incidents.fault_sequences import START, fault_lives, untimely_fault_lives

SURE = 0.8
"""Nobody is suspected so much without a sign that tells more than chance."""

ROUNDED = 0.005


@given(fault_lives)
@settings(max_examples=200)
def test_any_faults(seen: list[Observation]) -> None:
    _live(seen)


@given(untimely_fault_lives)
@settings(max_examples=100)
def test_any_faults_under_a_clock_that_is_set_back(seen: list[Observation]) -> None:
    _live(seen)


def _live(seen: Iterable[Observation]) -> None:
    known: dict[str, Incident] = {}
    most: Counter[str] = Counter()
    events: list[Event] = []
    present = START
    for after, told in reduce_all(START, seen):
        present = after
        events.extend(told)
        for name, incident in present.incidents.items():
            assert name == incident.id
            _assert_sound(incident)
            _assert_grown(known.get(name), incident)
            if incident.affected_confirmed or incident.settled:
                most[name] = max(most[name], len(incident.affected))
        known.update(present.incidents)
    _assert_told(known, events)
    _assert_counted(present, known.values(), most.total())


def _assert_sound(incident: Incident) -> None:
    """What an incident says of those whom it hit and of those who may have done it fits together."""
    affected = set(incident.affected)
    assert len(affected) == len(incident.affected)
    assert affected >= incident.blocking.keys()
    assert affected.issuperset(incident.disconnected)
    assert affected <= incident.client_details.keys()
    assert sum(each.confidence for each in incident.suspects) <= 1 + ROUNDED * len(incident.suspects)
    for suspect in incident.suspects:
        codes = {each.code for each in suspect.indications}
        strong = {ReasonCode.WORKER_IN_RESET, ReasonCode.INSTRUCTION_FETCH_FAILED}
        assert suspect.confidence < SURE or codes & strong
    assert not incident.end_reported or (incident.settled and not incident.open)


def _assert_grown(before: Incident | None, incident: Incident) -> None:
    """Whom the log told of stays affected; what has been told to its end never changes."""
    if before is not None and before.end_reported:
        assert incident is before
    if before is not None and before.affected_confirmed:
        assert set(before.affected) <= set(incident.affected)


def _assert_told(known: dict[str, Incident], events: Iterable[Event]) -> None:
    told = Counter((event.event, event.incident.id) for event in events if event.incident is not None)
    assert {name for _, name in told} == known.keys()
    for name in known:
        assert told[EventName.FAULT, name] == 1
        assert told[EventName.FAULT_RECOVERED, name] + told[EventName.FAULT_OPEN, name] == 1


def _assert_counted(node: Node, known: Iterable[Incident], affected: int) -> None:
    """Whom it surely hit is counted, and stays so even if a log that comes late names fewer: a counter never falls."""
    totals = [daemon.totals for daemon in node.daemons.values()]
    incidents = list(known)
    assert sum(each.faults for each in totals) == len(incidents)
    assert sum(each.fault_affected for each in totals) == affected
    recovered = [each for each in incidents if each.end_reported and each.ending is IncidentEnd.RECOVERED]
    assert sum(each.fault_recoveries.count for each in totals) == len(recovered)
