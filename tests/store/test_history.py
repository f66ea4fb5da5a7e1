"""The last incidents and events in memory."""

from dataclasses import replace

from exporter.history import History, Sample, sample_of
from exporter.model.event import Event, EventName
from exporter.model.incident import Incident
from exporter.model.node import Node
from tests.builders import AT, DAEMON, idle, with_fields
from tests.incidents.values import ended, incident


def node(*incidents: Incident) -> Node:
    return Node(incidents={incident.id: incident for incident in incidents})


def event(at: float) -> Event:
    return Event(at=at, event=EventName.SERVER_STARTED)


def test_is_empty_at_first_and_has_the_newest_first() -> None:
    history = History()
    history.add(node(), ())
    assert (history.incidents, history.events) == ((), ())

    history.add(node(incident(id="a"), incident(id="b", detected_at=AT + 9)), (event(1), event(2)))
    history.add(node(), (event(3),))
    assert [stored.id for stored in history.incidents] == ["b", "a"], "the node may drop them"
    assert [stored.at for stored in history.events] == [3, 2, 1]


def test_a_changed_incident_replaces_its_earlier_state_but_not_for_a_reader() -> None:
    history = History()
    history.add(node(incident()), (event(1),))
    incidents, events = history.incidents, history.events
    history.add(node(ended()), (event(2),))

    assert history.incidents == (ended(),)
    assert (incidents, events) == ((incident(),), (event(1),))


def test_does_nothing_without_a_change() -> None:
    history = History()
    present = node(incident())
    history.add(present, (event(1),))
    before = history.incidents, history.events
    history.add(replace(present, at=AT + 1), ())

    assert history.incidents is before[0]
    assert history.events is before[1]


def test_drops_the_oldest_but_no_open_incident() -> None:
    history = History(max_incidents=2, max_events=2)
    past = [ended(id=str(number), detected_at=AT + number) for number in range(1, 5)]
    history.add(node(incident(id="open"), *past), tuple(event(at) for at in range(4)))

    assert [stored.id for stored in history.incidents] == ["4", "3", "open"]
    assert [stored.at for stored in history.events] == [3, 2]


def test_begins_with_earlier_values_in_any_order() -> None:
    samples = [Sample(at=AT - seconds) for seconds in (30, 90, 60)]
    incidents, events = [ended(id="a"), ended(id="b", detected_at=AT + 9)], [event(1), event(3), event(2)]
    history = History(incidents, events, samples, max_events=2)
    died = [Event(at=at, event=EventName.DAEMON_LOST, daemon="a") for at in (1, 3, 2)]
    assert [stored.at for stored in History(events=died, max_events=1).timeline] == [3, 2, 1]
    assert [stored.at for stored in history.samples] == [AT - 90, AT - 60, AT - 30]
    history.add(node(incident(id="c", detected_at=AT + 5)), ())

    assert [stored.id for stored in history.incidents] == ["b", "c", "a"]
    assert [stored.at for stored in history.events] == [3, 2]


def test_returns_a_new_sample_once_and_keeps_those_of_an_earlier_run() -> None:
    before, present = Sample(at=idle().at - 600, clients=7), idle()
    history = History(samples=[before])

    (taken,) = history.add(present, ())
    assert history.add(replace(present, at=present.at + 1), ()) == ()
    (later,) = history.add(replace(present, at=present.at + 30), ())
    assert history.samples == (before, taken, later)


def test_the_clients_of_an_unsupported_daemon_are_in_the_sample() -> None:
    unsupported = with_fields(idle().daemons[DAEMON], state=None, runtime__protocol=9)
    assert sample_of(replace(idle(), daemons={DAEMON: unsupported})).clients == 0
