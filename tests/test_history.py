"""The last incidents and events, the newest first, and no more than so many."""

from dataclasses import replace

from exporter.history import History
from exporter.model.event import Event, EventName
from exporter.model.incident import Incident
from exporter.model.node import Node
from tests.builders import AT
from tests.incidents import ended, incident


def node(*incidents: Incident) -> Node:
    return Node(incidents={each.id: each for each in incidents})


def event(at: float) -> Event:
    return Event(at=at, event=EventName.SERVER_STARTED)


def test_nothing_has_happened_yet() -> None:
    history = History()
    history.add(node(), ())

    assert (history.incidents, history.events) == ((), ())


def test_the_newest_comes_first() -> None:
    history = History()
    history.add(node(incident(id="a"), incident(id="b", detected_at=AT + 9)), (event(1), event(2)))
    history.add(node(), (event(3),))

    assert [each.id for each in history.incidents] == ["b", "a"]
    assert [each.at for each in history.events] == [3, 2, 1]


def test_what_changes_of_an_incident_replaces_what_was_known_of_it() -> None:
    history = History()
    history.add(node(incident()), ())
    history.add(node(ended()), ())

    assert history.incidents == (ended(),)


def test_an_incident_that_the_node_forgets_is_remembered() -> None:
    history = History()
    history.add(node(ended()), ())
    history.add(node(), ())

    assert history.incidents == (ended(),)


def test_where_nothing_is_new_nothing_is_done() -> None:
    history = History()
    present = node(incident())
    history.add(present, (event(1),))
    before = history.incidents, history.events
    history.add(replace(present, at=AT + 1), ())

    assert history.incidents is before[0]
    assert history.events is before[1]


def test_the_eldest_go_but_no_open_incident_does() -> None:
    history = History(max_incidents=2, max_events=2)
    past = [ended(id=str(number), detected_at=AT + number) for number in range(1, 5)]
    history.add(node(incident(id="open"), *past), tuple(event(at) for at in range(4)))

    assert [each.id for each in history.incidents] == ["4", "3", "open"]
    assert [each.at for each in history.events] == [3, 2]


def test_it_begins_with_what_is_known_from_before_in_any_order() -> None:
    history = History([ended(id="a"), ended(id="b", detected_at=AT + 9)], [event(1), event(3), event(2)], max_events=2)
    history.add(node(incident(id="c", detected_at=AT + 5)), ())

    assert [each.id for each in history.incidents] == ["b", "c", "a"]
    assert [each.at for each in history.events] == [3, 2]


def test_a_reader_keeps_what_it_has_read() -> None:
    history = History()
    history.add(node(incident()), (event(1),))
    read, seen = history.incidents, history.events
    history.add(node(ended()), (event(2),))

    assert read == (incident(),)
    assert seen == (event(1),)
