"""What systemd says of a daemon's end: an operator stopped its unit, or it failed; and when it says nothing."""

import pytest

from exporter.model.daemon import DaemonState
from exporter.model.event import EventName
from exporter.model.node import Node
from exporter.model.observation import DaemonFound, Observation, UnitState
from exporter.model.values import replace
from exporter.state import lifecycle, poll_schedule
from tests.builders import (
    AT,
    CONTROL,
    DAEMON,
    UNIT,
    control_log,
    daemon_process,
    exited,
    failure,
    look,
    process,
    reduced,
    servers,
    unit_state,
)

NAMED = DaemonFound(
    at=AT, daemon=DAEMON, pipe_directory=DAEMON, log_directory="/log", expected=True, unit=UNIT, by="configuration"
)
ENDS = AT + 100
STOPPED, LOST = [EventName.DAEMON_STOPPED], [EventName.DAEMON_LOST]


def running(unit: str | None = UNIT) -> Node:
    """A daemon that answers, whose unit was looked at; `unit` is the one that it runs in."""
    seen = (NAMED, daemon_process(unit=unit), process(CONTROL, uid=0), *control_log("UI closed"), servers())
    return reduced(*seen, unit_state()).node


def ended(*seen: Observation, start: Node | None = None, for_: float = 30.0) -> list[EventName]:
    """What is told of its end, by SIGTERM or worse; its log is read whole at once, and tells nothing."""
    end = (exited(CONTROL, at=ENDS), look("log", at=ENDS + 0.2))
    after = reduced(*end, *seen, look("process", at=ENDS + for_), start=running() if start is None else start)
    return after.names(EventName.DAEMON_UP)


def test_a_unit_that_is_inactive_and_well_was_stopped_by_an_operator() -> None:
    assert ended(unit_state("inactive", at=ENDS + 0.5)) == STOPPED


def test_so_was_one_that_stops_and_is_not_to_come_back() -> None:
    assert ended(unit_state("deactivating", at=ENDS + 1.5, restart="on-failure")) == STOPPED


def test_one_that_stops_for_a_moment_may_yet_come_back() -> None:
    """As one does whose daemon was ended by SIGTERM, and that has RestartForceExitStatus=SIGTERM."""
    leaving = unit_state("deactivating", at=ENDS + 0.5, restart="on-failure")
    assert ended(leaving, unit_state("activating", at=ENDS + 0.8, sub="auto-restart", restart="on-failure")) == LOST
    assert ended(leaving, unit_state("active", at=ENDS + 0.8, restart="on-failure")) == LOST
    assert ended(leaving, unit_state("inactive", at=ENDS + 0.8, restart="on-failure")) == STOPPED


def test_so_was_one_that_had_to_be_killed_at_last_and_that_systemd_lets_be() -> None:
    """After a timeout systemd restarts a unit by its Restart=, unless somebody had stopped it (tried: 252)."""
    killed = unit_state("failed", at=ENDS + 0.5, sub="failed", result="timeout", restart="on-failure")
    assert ended(killed) == STOPPED
    assert ended(replace(killed, restart="no")) == LOST
    assert ended(replace(killed, sub="failed-before-auto-restart")) == LOST


def test_one_that_comes_back_however_it_ends_stops_for_a_moment_anyhow() -> None:
    leaving = unit_state("deactivating", at=ENDS + 0.5, restart="always")
    assert ended(leaving, unit_state("activating", at=ENDS + 1, sub="auto-restart", restart="always")) == LOST
    assert ended(leaving, unit_state("inactive", at=ENDS + 1, restart="always")) == STOPPED


@pytest.mark.parametrize(
    "state",
    [
        unit_state("failed", at=ENDS + 0.5, result="signal"),
        unit_state("activating", at=ENDS + 0.5, sub="auto-restart", result="signal"),
        unit_state("inactive", at=ENDS + 0.5, result="oom-kill"),
        unit_state("deactivating", at=ENDS + 0.5, result="watchdog"),
        unit_state("active", at=ENDS + 0.5),
    ],
    ids=lambda state: f"{state.active} {state.result}",
)
def test_any_other_end_is_a_loss(state: UnitState) -> None:
    assert ended(state) == LOST


def test_a_unit_that_failed_is_not_waited_for() -> None:
    seen = unit_state("failed", at=ENDS + 0.3, result="signal")
    assert ended(seen, look("log", at=ENDS + 0.4), for_=0.5) == LOST


def test_systemd_has_a_moment_and_no_more() -> None:
    assert ended(for_=lifecycle.SYSTEMD_SECONDS - 0.1) == []
    assert ended(for_=lifecycle.SYSTEMD_SECONDS + 0.1) == LOST


def test_what_was_so_before_the_end_says_nothing_of_it() -> None:
    """A daemon that was started by hand beside its unit, which never ran."""
    idle = reduced(unit_state("inactive", at=ENDS - 1), start=running()).node
    assert ended(start=idle) == LOST


@pytest.mark.parametrize(
    "seen",
    [
        unit_state("inactive", at=ENDS + 0.1, load="not-found"),
        unit_state("inactive", at=ENDS + 0.1, problem=failure("systemctl cannot list the units")),
        unit_state("inactive", at=ENDS + 0.1, unit="other.service"),
    ],
    ids=("not known to systemd", "not to be seen", "another"),
)
def test_of_a_unit_that_cannot_be_seen_nothing_follows(seen: UnitState) -> None:
    assert ended(seen) == LOST


def test_nor_of_one_that_did_not_run_it() -> None:
    assert ended(unit_state("inactive", at=ENDS + 0.5), start=running("session-3.scope")) == LOST


def test_a_daemon_that_was_told_to_quit_is_stopped_whatever_its_unit_says() -> None:
    start = reduced(*control_log("Cmd:quit", at=ENDS - 1), start=running()).node
    assert ended(unit_state("failed", at=ENDS + 0.5, result="exit-code"), start=start) == STOPPED


def test_one_that_was_stopped_stays_so() -> None:
    end = (exited(CONTROL, at=ENDS), unit_state("inactive", at=ENDS + 0.5), look("log", at=ENDS + 1))
    assert reduced(*end, look(at=ENDS + 300), start=running()).daemon.state is DaemonState.STOPPED


# -- which are looked at -------------------------------------------------------------------------------------------


def wanted(node: Node, at: float) -> frozenset[str]:
    return poll_schedule.units_wanted(replace(node, at=at))


def test_each_unit_is_looked_at_once_at_first() -> None:
    start = reduced(NAMED).node
    assert wanted(start, AT) == {UNIT}
    up = reduced(daemon_process(unit=UNIT), servers(), start=start).node
    assert wanted(up, AT + 600) == {UNIT}
    assert wanted(reduced(unit_state(at=AT + 600), start=up).node, AT + 601) == frozenset()


def test_then_while_its_daemon_does_not_answer_and_a_minute_longer() -> None:
    gone = reduced(exited(CONTROL, at=ENDS), look("log", at=ENDS + 10), start=running()).node
    assert wanted(gone, ENDS + 3600) == {UNIT}
    back = reduced(daemon_process(CONTROL + 1, at=ENDS + 20), servers(at=ENDS + 21), start=gone).node
    assert wanted(back, ENDS + 21 + 59) == {UNIT}
    assert wanted(back, ENDS + 21 + 61) == frozenset()


def test_a_daemon_that_nobody_expects_has_none_that_matters() -> None:
    found = replace(NAMED, expected=False)
    assert wanted(reduced(found).node, AT) == frozenset()


def test_it_presses_until_it_is_told_what_became_of_the_daemon() -> None:
    gone = reduced(exited(CONTROL, at=ENDS), start=running()).node
    assert poll_schedule.units_urgent(running()) == frozenset()
    assert poll_schedule.units_urgent(gone) == {UNIT}
    explained = reduced(unit_state("failed", at=ENDS + 0.5), look("log", at=ENDS + 2), start=gone).node
    assert poll_schedule.units_urgent(explained) == frozenset()


def test_a_unit_that_names_no_daemon_any_more_is_forgotten() -> None:
    unnamed = replace(NAMED, unit=None, at=AT + 1)
    assert reduced(unnamed, look(at=AT + 2), start=running()).node.units == {}
