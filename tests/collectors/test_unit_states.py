"""Tests of UnitStates: states of watched units, more often if they are urgent."""

from pathlib import Path

import pytest

from exporter.collectors.systemd import Systemctl, UnitStates
from exporter.collectors.thread import Reading
from exporter.model.observation import Observation, UnitState
from exporter.model.reason import command_failed
from tests.clocks import HandClock
from tests.collectors.test_units import FakeSystemctl

# The tests state these values, so that they notice a change of the program's constants.
POLL_SECONDS = 2.0
URGENT_SECONDS = 0.3
WITHOUT_SYSTEMD_SECONDS = 60.0

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

UNIT = "nvidia-cuda-mps.service"
WATCHED = frozenset({UNIT})
RUNS = f"Id={UNIT}\nNames={UNIT}\nLoadState=loaded\nActiveState=active\nSubState=running\nResult=success\nMainPID=7\n"


@pytest.fixture
def systemctl(tmp_path: Path) -> FakeSystemctl:
    systemctl = FakeSystemctl(tmp_path)
    systemctl.says(RUNS)
    return systemctl


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def units(systemctl: FakeSystemctl, clock: HandClock) -> UnitStates:
    return UnitStates(systemctl.systemctl(clock), clock)


def collect(units: UnitStates) -> tuple[Observation, ...]:
    reading = units.collect()
    assert reading.problem is None
    return reading.observations


def test_reports_the_state_of_a_watched_unit_with_its_time(units: UnitStates, clock: HandClock) -> None:
    units.watch(WATCHED)
    (state,) = collect(units)
    assert isinstance(state, UnitState)
    assert (state.at, state.unit, state.active) == (clock.now(), UNIT, "active")


def test_does_not_run_systemctl_without_watched_units(units: UnitStates, systemctl: FakeSystemctl) -> None:
    assert collect(units) == ()
    assert not (systemctl.path.parent / "arguments").exists()


def test_reports_an_unchanged_state_at_the_poll_interval(units: UnitStates, clock: HandClock) -> None:
    """After the end of a daemon, the age of an unchanged state matters."""
    units.watch(WATCHED)
    collect(units)
    clock.time += POLL_SECONDS / 2
    assert collect(units) == ()
    clock.time += POLL_SECONDS / 2
    assert len(collect(units)) == 1


def test_reads_urgent_units_more_often(units: UnitStates, clock: HandClock) -> None:
    units.watch(WATCHED, WATCHED)
    collect(units)
    clock.time += URGENT_SECONDS
    assert len(collect(units)) == 1


def test_reads_newly_watched_or_urgent_units_at_once(units: UnitStates) -> None:
    assert units.watch(WATCHED)
    collect(units)
    assert not units.watch(WATCHED)
    assert collect(units) == ()
    assert units.watch(WATCHED, WATCHED)
    assert len(collect(units)) == 1
    assert not units.watch(WATCHED)


def test_a_unit_name_is_never_an_option_or_a_pattern(units: UnitStates, systemctl: FakeSystemctl) -> None:
    units.watch(frozenset({UNIT, "--host=evil", "*.service"}))
    collect(units)
    arguments = (systemctl.path.parent / "arguments").read_text().split()
    assert arguments[arguments.index("--") + 1 :] == [UNIT]


@pytest.mark.parametrize("error", ["System has not been booted with systemd", "Failed to connect to bus: Host is down"])
def test_tries_rarely_without_systemd(
    units: UnitStates, systemctl: FakeSystemctl, clock: HandClock, error: str
) -> None:
    systemctl.says(then=f'echo "{error}" >&2; exit 1')
    units.watch(WATCHED)
    assert collect(units) == ()
    systemctl.says(RUNS)
    clock.time += WITHOUT_SYSTEMD_SECONDS - 1
    assert collect(units) == ()
    clock.time += 1
    assert len(collect(units)) == 1


def test_reports_nothing_without_systemctl(clock: HandClock) -> None:
    units = UnitStates(Systemctl(clock, executable="/nowhere/systemctl"), clock)
    units.watch(WATCHED)
    assert units.collect() == Reading()


def test_reports_another_failure_for_the_unit_and_the_collector(units: UnitStates, systemctl: FakeSystemctl) -> None:
    systemctl.says(then="echo 'Access denied' >&2; exit 1")
    units.watch(WATCHED)
    reading = units.collect()
    (state,) = reading.observations
    assert isinstance(state, UnitState)
    assert state.problem == reading.problem == command_failed(str(systemctl.path), 1, "Access denied")
