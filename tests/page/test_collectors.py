"""What is seen, and how old that is."""

from exporter.page.cards import collectors
from exporter.report.problem import Severity
from exporter.report.status_view import status_view
from tests.builders import AT, failure, idle, look, reduced
from tests.page.scenes import busy, nothing_collected, status_input

NO_DRIVER = "NVML: no driver. Check the driver with nvidia-smi"


def test_each_collector_has_an_age() -> None:
    assert [(row.name, row.state, row.age) for row in collectors(status_view(status_input(idle(), after=7.0)))] == [
        (name, "works", "7.0 s ago") for name in ("control", "log", "nvml", "process")
    ]


def test_a_failing_collector_has_its_error_and_a_growing_age() -> None:
    blind = status_input(reduced(look(problem=failure("no driver"), at=AT + 60), start=idle()).node)
    row = next(row for row in collectors(status_view(blind)) if row.name == "nvml")
    assert (row.severity, row.state, row.age) == (
        Severity.WARNING,
        NO_DRIVER,
        "1 min 1 s ago",
    )


def test_a_log_that_cannot_be_followed_is_listed() -> None:
    assert collectors(status_view(busy()))[-1].state == "server.log cannot be read: Permission denied"


def test_no_collectors_before_the_first_collection() -> None:
    assert collectors(status_view(nothing_collected())) == ()
