"""What it did and would do."""

from dataclasses import replace

from exporter.model.event import Event, EventName
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import Mode
from exporter.page.cards import MOST_ACTIONS, watchdog
from exporter.report.problem import Severity
from exporter.report.status_view import status_view
from exporter.watchdog.context import Policy
from tests.builders import AT, DAEMON
from tests.page.scenes import EVENTS, busy, circuit_opened, dead, no_daemon


def test_shows_what_it_would_do_if_it_observes() -> None:
    (row,) = watchdog(status_view(dead())).rows
    assert (row.mode, row.state, row.next, row.restarts) == (
        "observes",
        "idle",
        "would restart: crashed",
        "5 restarts left",
    )
    assert row.counts == ("restart (crashed): 1 observed",)


def test_shows_that_it_acts() -> None:
    (row,) = watchdog(status_view(replace(circuit_opened(), policy=Policy(mode=Mode.ACT)))).rows
    assert (row.mode, row.state, row.severity, row.restarts) == (
        "acts",
        "circuit open",
        Severity.CRITICAL,
        "0 restarts left",
    )


def test_shows_the_last_relevant_events() -> None:
    assert [each.words for each in watchdog(status_view(busy())).actions] == [
        "would restart; crashed",
        "the daemon died; died",
        "the daemon answers",
    ]
    many = tuple(replace(EVENTS[0], at=AT - number) for number in range(MOST_ACTIONS + 5))
    assert len(watchdog(status_view(replace(busy(), events=many))).actions) == MOST_ACTIONS


def test_shows_the_result_of_an_action() -> None:
    done = Event(
        at=AT,
        event=EventName.WATCHDOG_ACTED,
        daemon=DAEMON,
        action="restart",
        reason="crashed",
        result="failed",
        problem=Reason(ReasonCode.UNIT_NOT_RESTARTED, unit="a.service", text="no"),
    )
    (deed,) = watchdog(status_view(replace(busy(), events=(done,)))).actions
    assert deed.words == "finished: restart; failed; crashed; systemctl could not restart a.service: no"


def test_reports_no_watchdog_or_no_expected_daemon() -> None:
    assert not watchdog(status_view(replace(busy(), policy=None))).exists
    assert watchdog(status_view(no_daemon())).rows == ()
