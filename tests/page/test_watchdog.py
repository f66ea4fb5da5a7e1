"""What it did and would do."""

from dataclasses import replace

from exporter.core.watchdog.orders import Orders
from exporter.model.event import Event, EventName
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import Mode
from exporter.page.watchdog import MOST_DEEDS, watchdog
from exporter.telling.level import Level
from tests.builders import AT, DAEMON
from tests.page.scenes import HAPPENINGS, busy, dead, given_up, nobody


def test_it_says_what_it_would_do_where_it_observes() -> None:
    (row,) = watchdog(dead()).rows
    assert (row.mode, row.state, row.next, row.restarts) == (
        "observes",
        "idle",
        "would restart: crashed",
        "5 restarts left",
    )
    assert row.counts == ("restart (crashed): 1 observed",)


def test_it_says_that_it_acts_where_it_does() -> None:
    (row,) = watchdog(replace(given_up(), orders=Orders(mode=Mode.ACT))).rows
    assert (row.mode, row.state, row.level, row.restarts) == (
        "acts",
        "circuit open",
        Level.GRAVE,
        "0 restarts left",
    )


def test_the_last_happenings_are_those_that_concern_it() -> None:
    assert [each.words for each in watchdog(busy()).deeds] == [
        "would restart; crashed",
        "the daemon was lost; died",
        "the daemon answers",
    ]
    many = tuple(replace(HAPPENINGS[0], at=AT - number) for number in range(MOST_DEEDS + 5))
    assert len(watchdog(replace(busy(), events=many)).deeds) == MOST_DEEDS


def test_what_was_done_says_what_came_of_it() -> None:
    done = Event(
        at=AT,
        event=EventName.WATCHDOG_ACTED,
        daemon=DAEMON,
        action="restart",
        reason="crashed",
        result="failed",
        problem=Reason(ReasonCode.UNIT_NOT_RESTARTED, unit="a.service", text="no"),
    )
    (deed,) = watchdog(replace(busy(), events=(done,))).deeds
    assert deed.words == "has done: restart; failed; crashed; systemctl could not restart a.service: no"


def test_where_none_runs_or_none_is_watched_it_says_so() -> None:
    assert not watchdog(replace(busy(), orders=None)).there
    assert watchdog(nobody()).rows == ()
