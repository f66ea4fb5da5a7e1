"""Moments, and how long something took, as they are written."""

import time
from collections.abc import Iterator

import pytest

from exporter.report.text import duration_text, local_time, short_time, utc_time


@pytest.fixture
def in_kathmandu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "NPT-5:45")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("in_kathmandu")
def test_utc_and_local_time() -> None:
    assert utc_time(1_763_733_903.147) == "2025-11-21T14:05:03.147Z"
    assert local_time(1_763_733_903.147) == "2025-11-21 19:50:03"


@pytest.mark.usefixtures("in_kathmandu")
def test_short_time_has_the_date_only_of_other_days() -> None:
    assert short_time(1_763_733_903.147, 1_763_740_000.0) == "19:50:03"
    assert short_time(1_763_733_903.147, 1_763_750_000.0) == "2025-11-21 19:50"
    assert short_time(1e300, 1_763_750_000.0) == "invalid time"


def test_rounds_to_milliseconds() -> None:
    assert utc_time(0.9999) == "1970-01-01T00:00:01.000Z"


@pytest.mark.parametrize("at", [1e300, -1e300, 2.0**63])
def test_formats_invalid_times(at: float) -> None:
    assert "invalid time" in utc_time(at)
    assert "invalid time" in local_time(at)


def test_formats_durations(subtests: pytest.Subtests) -> None:
    for seconds, text in [
        (-3, "0 ms"),
        (0.0174, "17 ms"),
        (0.13, "0.1 s"),
        (9.94, "9.9 s"),
        (10, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (182, "3 min 2 s"),
        (7500, "2 h 5 min"),
        (100 * 3600, "4 d 4 h"),
    ]:
        with subtests.test(seconds=seconds, text=text):
            assert duration_text(seconds) == text
