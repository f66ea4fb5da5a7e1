"""What is seen, and how old that is."""

from exporter.page.sources import sources
from exporter.telling.level import Level
from tests.builders import AT, failure, idle, look, told
from tests.page.scenes import busy, nothing, sight


def test_each_eye_has_its_age() -> None:
    assert [(row.name, row.state, row.age) for row in sources(sight(idle(), after=7.0))] == [
        (name, "sees", "7.0 s ago") for name in ("control", "log", "nvml", "process")
    ]


def test_one_that_fails_says_why_and_its_age_grows() -> None:
    blind = sight(told(look(problem=failure("no driver"), at=AT + 60), start=idle()).node)
    row = next(row for row in sources(blind) if row.name == "nvml")
    assert (row.level, row.state, row.age) == (
        Level.CARE,
        "NVML: no driver. Check the driver with nvidia-smi",
        "1 min 1 s ago",
    )


def test_a_log_that_cannot_be_followed_is_a_blind_eye_too() -> None:
    assert sources(busy())[-1].state == "server.log cannot be read: Permission denied"


def test_before_anything_was_seen_there_is_none() -> None:
    assert sources(nothing()) == ()
