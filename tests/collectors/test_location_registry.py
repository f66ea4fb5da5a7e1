"""Tests of LocationRegistry: locations of daemons, and the journals with their logs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from exporter.clock import SystemClock
from exporter.collectors.discovery import Discovery
from exporter.collectors.pipe_dir import DaemonLocation, on_host
from exporter.collectors.pool import LocationRegistry
from exporter.collectors.systemd import Journal
from exporter.model.daemon import Daemon, DaemonRuntime, DaemonState, NamedBy
from exporter.model.observation import DaemonProcess
from tests.builders import with_fields


@dataclass(slots=True)
class Followed:
    """The units whose journals are followed."""

    units: Mapping[str, str] = field(default_factory=dict)


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> Followed:
    followed = Followed()
    monkeypatch.setattr(Journal, "follow", lambda _self, units: setattr(followed, "units", units))
    return followed


DAEMON = Daemon(name="one", pipe_directory="/one", log_directory="/log", runtime=DaemonRuntime(foreground=True))


def location_registry(discovery: Discovery | None = None) -> LocationRegistry:
    clock = SystemClock()
    return LocationRegistry(
        discovery=discovery,
        journal=Journal(clock),
    )


def locate(
    unit: str | None,
    *,
    foreground: bool = True,
    stdout_in_file: bool | None = False,
    stdout_in_journal: bool | None = None,
) -> DaemonLocation:
    runtime = replace(
        DAEMON.runtime,
        unit=unit,
        foreground=foreground,
        stdout_in_file=stdout_in_file,
        stdout_in_journal=stdout_in_journal,
    )
    daemon = replace(DAEMON, runtime=runtime)
    return location_registry().locate({"one": daemon})["one"]


def test_follows_the_journal_of_a_foreground_service(followed: Followed) -> None:
    location = locate("mps.service")

    assert followed.units == {"one": "mps.service"}
    assert location.logs == ()


@pytest.mark.parametrize("unit", ["user@1000.service", "session-3.scope", None])
def test_follows_no_journal_for_a_unit_that_is_not_a_service_of_its_own(followed: Followed, unit: str | None) -> None:
    """The unit of a user's manager contains all programs of that user."""
    location = locate(unit)

    assert not followed.units
    assert location.logs == ()


def test_follows_no_journal_for_a_stdout_that_is_a_pipe(followed: Followed) -> None:
    locate("mps.service", stdout_in_journal=False)

    assert not followed.units


def test_tries_the_log_file_of_a_foreground_daemon_if_its_stdout_is_unknown(followed: Followed) -> None:
    assert locate(None, stdout_in_file=None).logs == ("stdout.log",)
    assert not followed.units


def test_reads_the_log_files_of_a_background_daemon(followed: Followed) -> None:
    location = locate("mps.service", foreground=False)

    assert not followed.units
    assert location.logs == ("server.log", "control.log")


def test_reads_the_file_to_which_a_foreground_service_writes_its_stdout(followed: Followed) -> None:
    location = locate("mps.service", stdout_in_file=True)

    assert not followed.units
    assert location.logs == ("stdout.log",)


def test_prefers_the_configured_log_directory_to_the_discovered_one() -> None:
    """Discovery knows only the pipe directory. A log in the default directory can be another daemon's."""
    clock = SystemClock()
    discovery = Discovery(patterns=(), proc=Path("/proc"), clock=clock)
    found = replace(on_host("one", Path("/one"), Path("/var/log/nvidia-mps")), process=(4711, 1))
    discovery.locations = {"one": found}
    registry = location_registry(discovery)

    location = registry.locate({"one": DAEMON})["one"]
    assert location.log.path == Path("/log")
    assert location.process == (4711, 1)

    daemon = replace(DAEMON, declared=replace(DAEMON.declared, by=NamedBy.DISCOVERED), log_directory="/elsewhere")
    assert registry.locate({"one": daemon})["one"].log == found.log


RUNNING = DaemonProcess(at=1.0, daemon="one", pid=4711, start_ticks=1)


@pytest.mark.parametrize(
    "unfinished",
    [{"runtime__process": RUNNING}, {"state": DaemonState.DOWN, "lifecycle__unexplained_end_at": 1.0}],
    ids=["running", "unexplained end"],
)
def test_keeps_a_daemon_that_is_no_longer_named_until_its_end_is_explained(unfinished: Mapping[str, Any]) -> None:
    """For example, its unit was disabled while it stopped. The log line about `quit` is still unread."""
    registry, discovered = (
        location_registry(),
        replace(DAEMON, declared=replace(DAEMON.declared, by=NamedBy.DISCOVERED)),
    )
    registry.locate({"one": DAEMON})

    assert list(registry.locate({"one": with_fields(discovered, **unfinished)})) == ["one"]

    assert not registry.locate({"one": replace(discovered, state=DaemonState.STOPPED)})
