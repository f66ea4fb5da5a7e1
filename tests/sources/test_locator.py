"""The locator tells those who follow the daemons where these are, and in which journal their logs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from exporter.clock import SystemClock
from exporter.collectors.discovery import Discovery
from exporter.collectors.journal import Journal
from exporter.collectors.location_registry import LocationRegistry
from exporter.collectors.pipe_dir import DaemonLocation, on_host
from exporter.collectors.processes import Processes
from exporter.model.daemon import Daemon, DaemonRuntime, DaemonState, NamedBy
from exporter.model.observation import DaemonProcess
from tests.builders import with_fields


@dataclass(slots=True)
class Followed:
    """What the follower of journals was told."""

    units: Mapping[str, str] = field(default_factory=dict)


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> Followed:
    """Of all journals."""
    told = Followed()
    monkeypatch.setattr(Journal, "follow", lambda _self, units: setattr(told, "units", units))
    return told


DAEMON = Daemon(name="one", pipe_directory="/one", log_directory="/log", runtime=DaemonRuntime(foreground=True))


def location_registry(discovery: Discovery | None = None) -> LocationRegistry:
    clock = SystemClock()
    return LocationRegistry(
        discovery=discovery,
        processes=Processes({}, proc=Path("/proc"), clock=clock),
        journal=Journal(clock),
    )


def locate(unit: str | None, *, foreground: bool = True, stdout_in_file: bool = False) -> DaemonLocation:
    """The place of a daemon of this unit."""
    daemon = replace(
        DAEMON, runtime=replace(DAEMON.runtime, unit=unit, foreground=foreground, stdout_in_file=stdout_in_file)
    )
    return location_registry().locate({"one": daemon})["one"]


def test_the_log_of_a_foreground_service_is_in_its_journal(followed: Followed) -> None:
    location = locate("mps.service")

    assert followed.units == {"one": "mps.service"}
    assert location.logs == ()


@pytest.mark.parametrize("unit", ["user@1000.service", "session-3.scope", None])
def test_where_its_unit_is_no_service_of_its_own_no_journal_is_followed(followed: Followed, unit: str | None) -> None:
    """A user's manager has all that the user runs: there may be as many as users, and their journals are theirs."""
    location = locate(unit)

    assert not followed.units
    assert location.logs


def test_the_log_of_one_in_the_background_is_in_its_files(followed: Followed) -> None:
    location = locate("mps.service", foreground=False)

    assert not followed.units
    assert location.logs == ("server.log", "control.log")


def test_the_log_of_a_foreground_service_whose_stdout_is_a_file_is_in_that(followed: Followed) -> None:
    location = locate("mps.service", stdout_in_file=True)

    assert not followed.units
    assert location.logs == ("stdout.log",)


def test_what_is_said_of_its_logs_outweighs_what_was_guessed() -> None:
    """Found by its pipe directory first: the log beside that, or in MPS' default place, may be another daemon's."""
    clock = SystemClock()
    discovery = Discovery(patterns=(), proc=Path("/proc"), clock=clock)
    found = replace(on_host("one", Path("/one"), Path("/var/log/nvidia-mps")), process=(4711, 1))
    discovery.locations = {"one": found}
    follower = location_registry(discovery)

    location = follower.locate({"one": DAEMON})["one"]
    assert location.log.path == Path("/log")
    assert location.process == (4711, 1)

    daemon = replace(DAEMON, declared=replace(DAEMON.declared, by=NamedBy.DISCOVERED), log_directory="/elsewhere")
    assert follower.locate({"one": daemon})["one"].log == found.log


RUNNING = DaemonProcess(at=1.0, daemon="one", pid=4711, start_ticks=1)


@pytest.mark.parametrize(
    "unfinished",
    [{"runtime__process": RUNNING}, {"state": DaemonState.ABSENT, "lifecycle__unexplained_end_at": 1.0}],
    ids=["it runs", "its end is not explained"],
)
def test_one_that_is_named_no_more_is_followed_to_its_end(unfinished: Mapping[str, Any]) -> None:
    """Its unit was disabled while it stopped, say: that it was told to quit is still to be read."""
    follower, nameless = location_registry(), replace(DAEMON, declared=replace(DAEMON.declared, by=NamedBy.DISCOVERED))
    follower.locate({"one": DAEMON})

    assert list(follower.locate({"one": with_fields(nameless, **unfinished)})) == ["one"]

    assert not follower.locate({"one": replace(nameless, state=DaemonState.STOPPED)})
