"""UnitStates asks systemd about the units that are wanted, when somebody waits for it at once, else seldom."""

from pathlib import Path

import pytest

from exporter.collectors.thread import Reading
from exporter.collectors.units import POLL_SECONDS, URGENT_SECONDS, WITHOUT_SYSTEMD_SECONDS, Systemctl, UnitStates
from exporter.model.observation import Observation, UnitState
from exporter.model.problem import command_failed
from tests.clocks import HandClock
from tests.sources.test_units import FakeSystemctl

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

UNIT = "nvidia-cuda-mps.service"
WANTED = frozenset({UNIT})
RUNS = f"Id={UNIT}\nNames={UNIT}\nLoadState=loaded\nActiveState=active\nSubState=running\nResult=success\nMainPID=7\n"


@pytest.fixture
def systemctl(tmp_path: Path) -> FakeSystemctl:
    made = FakeSystemctl(tmp_path)
    made.says(RUNS)
    return made


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def units(systemctl: FakeSystemctl, clock: HandClock) -> UnitStates:
    return UnitStates(systemctl.systemctl(clock), clock)


def seen(units: UnitStates) -> tuple[Observation, ...]:
    reading = units.collect()
    assert reading.problem is None
    return reading.observations


def test_a_unit_that_is_wanted_is_told_with_the_time_at_which_it_was_asked_for(
    units: UnitStates, clock: HandClock
) -> None:
    units.watch(WANTED)
    (state,) = seen(units)
    assert isinstance(state, UnitState)
    assert (state.at, state.unit, state.active, state.main_pid) == (clock.now(), UNIT, "active", 7)


def test_where_nothing_is_wanted_nobody_is_asked(units: UnitStates, systemctl: FakeSystemctl) -> None:
    assert seen(units) == ()
    assert not (systemctl.path.parent / "asked").exists()


def test_it_is_told_again_though_nothing_has_changed_every_two_seconds(units: UnitStates, clock: HandClock) -> None:
    """That it is still so is news, where a daemon has ended."""
    units.watch(WANTED)
    seen(units)
    clock.time += POLL_SECONDS / 2
    assert seen(units) == ()
    clock.time += POLL_SECONDS / 2
    assert len(seen(units)) == 1


def test_while_somebody_waits_for_it_it_is_looked_at_sooner(units: UnitStates, clock: HandClock) -> None:
    units.watch(WANTED, WANTED)
    seen(units)
    clock.time += URGENT_SECONDS
    assert len(seen(units)) == 1


def test_what_is_newly_wanted_or_pressing_is_looked_at_now(units: UnitStates) -> None:
    assert units.watch(WANTED)
    seen(units)
    assert not units.watch(WANTED)
    assert seen(units) == ()
    assert units.watch(WANTED, WANTED)
    assert len(seen(units)) == 1
    assert not units.watch(WANTED)


def test_a_unit_name_is_never_an_option_or_a_pattern(units: UnitStates, systemctl: FakeSystemctl) -> None:
    units.watch(frozenset({UNIT, "--host=evil", "*.service"}))
    seen(units)
    asked = (systemctl.path.parent / "asked").read_text().split()
    assert asked[asked.index("--") + 1 :] == [UNIT]


@pytest.mark.parametrize("said", ["System has not been booted with systemd", "Failed to connect to bus: Host is down"])
def test_where_systemd_does_not_run_nothing_is_seen_and_hardly_tried_again(
    units: UnitStates, systemctl: FakeSystemctl, clock: HandClock, said: str
) -> None:
    systemctl.says(then=f'echo "{said}" >&2; exit 1')
    units.watch(WANTED)
    assert seen(units) == ()
    systemctl.says(RUNS)
    clock.time += WITHOUT_SYSTEMD_SECONDS - 1
    assert seen(units) == ()
    clock.time += 1
    assert len(seen(units)) == 1


def test_where_systemctl_is_missing_too(clock: HandClock) -> None:
    units = UnitStates(Systemctl(clock, executable="/nowhere/systemctl"), clock)
    units.watch(WANTED)
    assert units.collect() == Reading()


def test_reports_another_failure_for_the_unit_and_the_collector(
    units: UnitStates, systemctl: FakeSystemctl
) -> None:
    systemctl.says(then="echo 'Access denied' >&2; exit 1")
    units.watch(WANTED)
    reading = units.collect()
    (state,) = reading.observations
    assert isinstance(state, UnitState)
    assert state.problem == reading.problem == command_failed(str(systemctl.path), 1, "Access denied")
