"""What is seen, and how old that is."""

from exporter.page.cards import collectors
from exporter.report.problem import Severity
from exporter.report.status_view import status_view
from tests.builders import AT, failure, idle, look, reduced
from tests.page.scenes import busy, nothing, sight

NO_DRIVER = "NVML: no driver. Check the driver with nvidia-smi"


def test_each_eye_has_its_age() -> None:
    assert [(row.name, row.state, row.age) for row in collectors(status_view(sight(idle(), after=7.0)))] == [
        (name, "works", "7.0 s ago") for name in ("control", "log", "nvml", "process")
    ]


def test_one_that_fails_says_why_and_its_age_grows() -> None:
    blind = sight(reduced(look(problem=failure("no driver"), at=AT + 60), start=idle()).node)
    row = next(row for row in collectors(status_view(blind)) if row.name == "nvml")
    assert (row.severity, row.state, row.age) == (
        Severity.WARNING,
        NO_DRIVER,
        "1 min 1 s ago",
    )


def test_a_log_that_cannot_be_followed_is_a_blind_eye_too() -> None:
    assert collectors(status_view(busy()))[-1].state == "server.log cannot be read: Permission denied"


def test_before_anything_was_seen_there_is_none() -> None:
    assert collectors(status_view(nothing())) == ()
