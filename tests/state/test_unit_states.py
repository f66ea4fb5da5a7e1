"""What the state of its unit shows about a daemon's end: an operator stopped it, it failed, or nothing."""

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
    """A daemon that answers and whose unit was collected. `unit` is the one that it runs in."""
    seen = (NAMED, daemon_process(unit=unit), process(CONTROL, uid=0), *control_log("UI closed"), servers())
    return reduced(*seen, unit_state()).node


def ended(*seen: Observation, start: Node | None = None, for_: float = 30.0) -> list[EventName]:
    """The end of a daemon by SIGTERM or SIGKILL. Its log is read completely, and has nothing about it."""
    end = (exited(CONTROL, at=ENDS), look("log", at=ENDS + 0.2))
    after = reduced(*end, *seen, look("process", at=ENDS + for_), start=running() if start is None else start)
    return after.names(EventName.DAEMON_UP)


def test_an_operator_stopped_an_inactive_unit_without_failure() -> None:
    assert ended(unit_state("inactive", at=ENDS + 0.5)) == STOPPED


def test_an_operator_stopped_a_unit_that_is_stopping_without_restart() -> None:
    assert ended(unit_state("deactivating", at=ENDS + 1.5, restart="on-failure")) == STOPPED


def test_a_unit_that_stops_briefly_may_be_restarted() -> None:
    """The daemon was ended by SIGTERM, and the unit has RestartForceExitStatus=SIGTERM."""
    leaving = unit_state("deactivating", at=ENDS + 0.5, restart="on-failure")
    assert ended(leaving, unit_state("activating", at=ENDS + 0.8, sub="auto-restart", restart="on-failure")) == LOST
    assert ended(leaving, unit_state("active", at=ENDS + 0.8, restart="on-failure")) == LOST
    assert ended(leaving, unit_state("inactive", at=ENDS + 0.8, restart="on-failure")) == STOPPED


def test_an_operator_stopped_a_unit_that_systemd_killed_and_does_not_restart() -> None:
    """After a timeout, systemd restarts a unit by its Restart=, unless an operator stopped it (tried: 252)."""
    killed = unit_state("failed", at=ENDS + 0.5, sub="failed", result="timeout", restart="on-failure")
    assert ended(killed) == STOPPED
    assert ended(replace(killed, restart="no")) == LOST
    assert ended(replace(killed, sub="failed-before-auto-restart")) == LOST


def test_a_unit_that_is_always_restarted_stops_only_briefly() -> None:
    leaving = unit_state("deactivating", at=ENDS + 0.5, restart="always")
    assert ended(leaving, unit_state("activating", at=ENDS + 1, sub="auto-restart", restart="always")) == LOST
    assert ended(leaving, unit_state("inactive", at=ENDS + 1, restart="always")) == STOPPED


def test_any_other_end_of_a_unit_is_a_loss(subtests: pytest.Subtests) -> None:
    for state in [
        unit_state("failed", at=ENDS + 0.5, result="signal"),
        unit_state("activating", at=ENDS + 0.5, sub="auto-restart", result="signal"),
        unit_state("inactive", at=ENDS + 0.5, result="oom-kill"),
        unit_state("deactivating", at=ENDS + 0.5, result="watchdog"),
        unit_state("active", at=ENDS + 0.5),
    ]:
        with subtests.test(state=state):
            assert ended(state) == LOST


def test_does_not_wait_for_a_failed_unit() -> None:
    seen = unit_state("failed", at=ENDS + 0.3, result="signal")
    assert ended(daemon_process(None, at=ENDS), seen, look("log", at=ENDS + 0.4), for_=0.5) == LOST


def test_waits_for_systemd_only_briefly() -> None:
    assert ended(for_=lifecycle.SYSTEMD_SECONDS - 0.1) == []
    assert ended(for_=lifecycle.SYSTEMD_SECONDS + 0.1) == LOST


def test_a_unit_state_from_before_the_end_proves_nothing() -> None:
    """The daemon was started outside its unit, which never ran."""
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
def test_an_unreadable_unit_proves_nothing(seen: UnitState) -> None:
    assert ended(seen) == LOST


def test_a_unit_that_did_not_run_the_daemon_proves_nothing() -> None:
    assert ended(unit_state("inactive", at=ENDS + 0.5), start=running("session-3.scope")) == LOST


def test_a_daemon_after_a_quit_is_stopped_in_any_state_of_its_unit() -> None:
    start = reduced(*control_log("Cmd:quit", at=ENDS - 1), start=running()).node
    assert ended(unit_state("failed", at=ENDS + 0.5, result="exit-code"), start=start) == STOPPED


def test_a_stopped_daemon_remains_stopped() -> None:
    end = (exited(CONTROL, at=ENDS), unit_state("inactive", at=ENDS + 0.5), look("log", at=ENDS + 1))
    assert reduced(*end, look(at=ENDS + 300), start=running()).daemon.state is DaemonState.STOPPED


# -- units that are collected ------------------------------------------------------------------------------------------


def wanted(node: Node, at: float) -> frozenset[str]:
    return poll_schedule.units_wanted(replace(node, at=at))


def test_collects_each_unit_once_at_first() -> None:
    start = reduced(NAMED).node
    assert wanted(start, AT) == {UNIT}
    up = reduced(daemon_process(unit=UNIT), servers(), start=start).node
    assert wanted(up, AT + 600) == {UNIT}
    assert wanted(reduced(unit_state(at=AT + 600), start=up).node, AT + 601) == frozenset()


def test_collects_a_unit_while_its_daemon_does_not_answer_and_a_minute_longer() -> None:
    gone = reduced(exited(CONTROL, at=ENDS), look("log", at=ENDS + 10), start=running()).node
    assert wanted(gone, ENDS + 3600) == {UNIT}
    back = reduced(daemon_process(CONTROL + 1, at=ENDS + 20), servers(at=ENDS + 21), start=gone).node
    assert wanted(back, ENDS + 21 + 59) == {UNIT}
    assert wanted(back, ENDS + 21 + 61) == frozenset()


def test_collects_no_unit_of_a_discovered_daemon() -> None:
    found = replace(NAMED, expected=False)
    assert wanted(reduced(found).node, AT) == frozenset()


def test_a_unit_is_urgent_until_the_end_of_its_daemon_is_explained() -> None:
    gone = reduced(exited(CONTROL, at=ENDS), start=running()).node
    assert poll_schedule.units_urgent(running()) == frozenset()
    assert poll_schedule.units_urgent(gone) == {UNIT}
    explained = reduced(unit_state("failed", at=ENDS + 0.5), look("log", at=ENDS + 2), start=gone).node
    assert poll_schedule.units_urgent(explained) == frozenset()


def test_removes_a_unit_without_a_daemon() -> None:
    unnamed = replace(NAMED, unit=None, at=AT + 1)
    assert reduced(unnamed, look(at=AT + 2), start=running()).node.units == {}
