"""The locator tells those who follow the daemons where these are, and in which journal their logs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.model.daemon import Daemon
from exporter.sources.journal import Journal
from exporter.sources.locator import Locator
from exporter.sources.logs import DaemonLogs
from exporter.sources.place import Place
from exporter.sources.processes import Processes


@dataclass(slots=True)
class Followed:
    """What the followers of logs were told."""

    units: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> Followed:
    """Of all journals and logs."""
    told = Followed()
    monkeypatch.setattr(Journal, "follow", lambda _self, units: setattr(told, "units", units))
    monkeypatch.setattr(DaemonLogs, "follow", lambda _self, places: setattr(told, "places", places))
    return told


def locate(unit: str | None, *, foreground: bool = True, stdout_kept: bool = False) -> None:
    clock = SystemClock()
    locator = Locator(
        finder=None,
        processes=Processes({}, proc=Path("/proc"), clock=clock),
        logs=DaemonLogs({}, clock),
        journal=Journal(clock),
    )
    daemon = Daemon(name="one", pipe_directory="/one", log_directory="/log", unit=unit)
    daemon = replace(daemon, foreground=foreground, stdout_kept=stdout_kept)
    locator.locate({"one": daemon})


def test_the_log_of_a_foreground_service_is_in_its_journal(followed: Followed) -> None:
    locate("mps.service")

    assert followed.units == {"one": "mps.service"}
    assert not followed.places


@pytest.mark.parametrize("unit", ["user@1000.service", "session-3.scope", None])
def test_where_its_unit_is_no_service_of_its_own_no_journal_is_followed(followed: Followed, unit: str | None) -> None:
    """A user's manager has all that the user runs: there may be as many as users, and their journals are theirs."""
    locate(unit)

    assert not followed.units
    assert list(followed.places) == ["one"]


def test_the_log_of_one_in_the_background_is_in_its_files(followed: Followed) -> None:
    locate("mps.service", foreground=False)

    assert not followed.units
    assert followed.places["one"].logs == ("server.log", "control.log")


def test_the_log_of_a_foreground_service_whose_stdout_is_a_file_is_in_that(followed: Followed) -> None:
    locate("mps.service", stdout_kept=True)

    assert not followed.units
    assert followed.places["one"].logs == ("stdout.log",)
