"""What it did and would do."""

from dataclasses import replace

from exporter.model.settings import Mode
from exporter.page.cards import watchdog
from exporter.report.problem import Severity
from exporter.report.status_view import status_view
from exporter.watchdog.context import Policy
from tests.page.scenes import busy, circuit_opened, dead, no_daemon


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


def test_reports_no_watchdog_or_no_expected_daemon() -> None:
    assert not watchdog(status_view(replace(busy(), policy=None))).exists
    assert watchdog(status_view(no_daemon())).rows == ()
