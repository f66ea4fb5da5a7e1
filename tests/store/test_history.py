"""The last incidents and events in memory."""

from dataclasses import replace

from exporter.history import History
from exporter.model.event import Event, EventName
from exporter.model.incident import Incident
from exporter.model.node import Node
from exporter.model.usage import Sample
from tests.builders import AT, idle
from tests.incidents.values import ended, incident


def node(*incidents: Incident) -> Node:
    return Node(incidents={each.id: each for each in incidents})


def event(at: float) -> Event:
    return Event(at=at, event=EventName.SERVER_STARTED)


def test_is_empty_at_first() -> None:
    history = History()
    history.add(node(), ())

    assert (history.incidents, history.events) == ((), ())


def test_the_newest_comes_first() -> None:
    history = History()
    history.add(node(incident(id="a"), incident(id="b", detected_at=AT + 9)), (event(1), event(2)))
    history.add(node(), (event(3),))

    assert [each.id for each in history.incidents] == ["b", "a"]
    assert [each.at for each in history.events] == [3, 2, 1]


def test_a_changed_incident_replaces_its_earlier_state() -> None:
    history = History()
    history.add(node(incident()), ())
    history.add(node(ended()), ())

    assert history.incidents == (ended(),)


def test_retains_an_incident_that_the_node_no_longer_has() -> None:
    history = History()
    history.add(node(ended()), ())
    history.add(node(), ())

    assert history.incidents == (ended(),)


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

    assert [each.id for each in history.incidents] == ["4", "3", "open"]
    assert [each.at for each in history.events] == [3, 2]


def test_begins_with_earlier_values_in_any_order() -> None:
    history = History([ended(id="a"), ended(id="b", detected_at=AT + 9)], [event(1), event(3), event(2)], max_events=2)
    history.add(node(incident(id="c", detected_at=AT + 5)), ())

    assert [each.id for each in history.incidents] == ["b", "c", "a"]
    assert [each.at for each in history.events] == [3, 2]


def test_a_readers_values_do_not_change() -> None:
    history = History()
    history.add(node(incident()), (event(1),))
    read, seen = history.incidents, history.events
    history.add(node(ended()), (event(2),))

    assert read == (incident(),)
    assert seen == (event(1),)


def test_returns_a_new_sample_once() -> None:
    history = History()
    present = idle()

    (taken,) = history.add(present, ())
    assert history.add(replace(present, at=present.at + 1), ()) == ()
    (later,) = history.add(replace(present, at=present.at + 30), ())
    assert history.samples == (taken, later)


def test_samples_of_an_earlier_run_remain_with_a_gap() -> None:
    before = Sample(at=idle().at - 600, clients=7)
    history = History(samples=[before])
    history.add(idle(), ())

    assert [each.clients for each in history.samples] == [7, 0]
