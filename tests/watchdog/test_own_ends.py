"""An end that the watchdog itself causes is no loss: one ticket says that the watchdog restarted the daemon."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from exporter.demo.simulation import PlannedFailure, Simulation
from exporter.model.daemon import DaemonState, LossReason, StopReason, with_lifecycle
from exporter.model.event import EventName
from exporter.model.observation import Observation
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import AllowedAction
from exporter.model.watchdog import Condition, WatchdogPhase
from exporter.report.findings import findings
from exporter.report.problems import DaemonProblem
from exporter.report.process_status import described
from tests.builders import AT, CONTROL, DAEMON, SERVER, at_work, daemon_process, exited, no_daemon, silence
from tests.clocks import HandClock
from tests.simulated import ACTING, minutes
from tests.watchdog.test_fault_remedies import VICTIM, faulted
from tests.watchdog.test_verification_and_units import in_pod
from tests.watchdog.watched_daemon import (
    BY_UNIT,
    DEATH,
    HUNG,
    NEXT,
    UNIT,
    WatchedDaemon,
    alive,
    asks_a_server,
    dies,
    hangs,
    left,
    returns,
    suspended,
    unit,
)

ENDS = (EventName.DAEMON_LOST, EventName.DAEMON_STOPPED)
OWN_END = [("daemon_stopped", StopReason.WATCHDOG)]
NOT_STARTED = Reason(ReasonCode.PROGRAM_NOT_STARTED, command="start", text="No such file or directory")


def hung(post: WatchedDaemon | None = None) -> WatchedDaemon:
    """Return a daemon with clients that hung, and that the watchdog is restarting."""
    post = post or WatchedDaemon(*alive(VICTIM))
    post.observe(*hangs())
    post.until(DEATH + 91)
    assert post.kinds == [("restart", "hung")]
    return post


def hung_by_unit() -> WatchedDaemon:
    return hung(WatchedDaemon(*alive(VICTIM), unit("active", at=DEATH - 5), daemon_policy=BY_UNIT))


def in_fault() -> WatchedDaemon:
    """Return a daemon that the watchdog is restarting because a fault does not end."""
    post = faulted(VICTIM, allow=frozenset({AllowedAction.RESTART_DAEMON}))
    post.until(DEATH + 61)
    assert post.kinds == [("restart", "fault")]
    return post


def is_gone(at: float) -> tuple[Observation, ...]:
    """Return what shows that no daemon runs, without an exit of its process."""
    return no_daemon(at=at), left(at)


@pytest.mark.parametrize("restarting", [hung, hung_by_unit, in_fault, lambda: hung(in_pod())])
@pytest.mark.parametrize(
    "ends", [dies, is_gone, lambda at: (), lambda at: (left(at, behind=False),)], ids=["exit", "gone", "next", "no pid"]
)
def test_an_end_by_a_restart_is_no_loss(
    restarting: Callable[[], WatchedDaemon], ends: Callable[[float], tuple[Observation, ...]]
) -> None:
    """However the end becomes known, and whatever ends the daemon: a signal, its unit or its pod."""
    post = restarting()
    clients = tuple(described(post.node, pid) for pid in post.daemon.clients)
    post.observe(*ends(post.at + 0.1))
    post.finish_action()
    post.observe(*returns(post.at + 1))
    post.until(post.at + 20)

    assert post.reported(*ENDS) == OWN_END
    assert post.reported(EventName.WATCHDOG_ACTED) == [("watchdog_acted", "succeeded")]
    assert (post.daemon.lifecycle.last_loss_at, sum(post.daemon.totals.losses.values())) == (None, 0)
    of_daemon = {each.problem: each for each in findings(post.node, post.at, post.policy)}
    assert of_daemon.keys().isdisjoint((DaemonProblem.DAEMON_DIED, DaemonProblem.DAEMON_DIED_WITH_CLIENTS))
    assert of_daemon[DaemonProblem.DAEMON_RESTARTED].affected_names == clients


def test_a_restart_of_a_hung_daemon_reports_no_old_loss() -> None:
    post = hung()
    daemon = with_lifecycle(post.daemon, last_loss_at=DEATH - 3600)
    post.node = replace(post.node, daemons={**post.node.daemons, DAEMON: daemon})
    post.observe(*dies(post.at + 0.1))
    assert post.daemon.lifecycle.last_loss_at is None
    post.finish_action()
    post.observe(*returns(post.at + 1))
    post.until(post.at + 20)
    of_daemon = {each.problem for each in findings(post.node, post.at, post.policy)}
    assert of_daemon & {DaemonProblem.DAEMON_RESTARTED, DaemonProblem.DAEMON_WAS_DOWN} == {
        DaemonProblem.DAEMON_RESTARTED
    }


def test_the_stop_of_a_unit_that_the_watchdog_restarts_is_no_operators_stop() -> None:
    post = hung_by_unit()
    post.observe(unit("deactivating", at=post.at + 0.1, sub="stop-sigterm"), *dies(post.at + 4))
    post.observe(unit("deactivating", at=post.at + 3, sub="stop-post"))
    assert (post.daemon.state, post.reported(*ENDS)) == (DaemonState.DOWN, OWN_END)


@pytest.mark.parametrize("behind", [True, False, None])
def test_starts_a_daemon_that_it_has_ended_and_that_did_not_start(behind: bool | None) -> None:
    """It is down, and not stopped by an operator, also if its end removed the pid file."""
    post = hung()
    post.observe(*dies(post.at + 0.1), *(() if behind is None else (left(post.at + 0.7, behind=behind),)))
    post.finish_action(problem=NOT_STARTED)
    post.observe(no_daemon(at=post.at + 1))
    post.until(post.at + 15)
    assert (post.condition, post.reported(*ENDS)) == (Condition.DOWN, OWN_END)
    assert post.kinds == [("restart", "hung"), ("restart", "down")]


def test_an_end_that_becomes_known_after_the_failed_action_is_no_loss() -> None:
    post = hung()
    post.finish_action(problem=NOT_STARTED)
    post.until(post.at + 0.3, every=0.1)
    post.observe(*dies(post.at))
    post.until(post.at + 2)
    assert post.reported(*ENDS) == OWN_END


def test_an_end_long_after_sigkill_is_no_loss() -> None:
    """A process that is stuck in the driver ends only when its call returns."""
    post = hung(WatchedDaemon(*alive(VICTIM), restarts=1))
    post.finish_action(problem=Reason(ReasonCode.PROCESS_NOT_ENDED, pid=CONTROL))
    post.until(post.at + 60)
    post.observe(*dies(post.at))
    post.until(post.at + 2)
    assert post.reported(*ENDS) == OWN_END


def test_an_end_while_systemd_still_stops_the_unit_is_no_loss_and_no_operators_stop() -> None:
    """A unit may give the daemon longer to stop than the watchdog waits. If it then fails, the watchdog starts it."""
    post = hung_by_unit()
    post.observe(unit("deactivating", at=post.at + 1, sub="stop-sigterm"))
    post.finish_action(problem=Reason(ReasonCode.UNIT_TIMED_OUT, unit=UNIT, seconds=100))
    for _ in range(20):
        post.observe(unit("deactivating", at=post.at + 2, sub="stop-sigterm"), silence(at=post.at + 2))
    assert post.watch.phase is WatchdogPhase.ACTING
    post.observe(*dies(post.at + 0.1), unit("failed", at=post.at + 1, result="exit-code"))
    assert post.reported(*ENDS) == OWN_END
    post.observe(left(post.at + 1), no_daemon(at=post.at + 1))
    post.until(post.at + 15)
    assert (post.condition, post.kinds) == (Condition.DOWN, [("restart", "hung"), ("restart", "down")])


def test_a_later_death_is_a_loss() -> None:
    """Of the new daemon, and of one that the watchdog could not end."""
    post = hung()
    post.observe(*dies(post.at + 0.1))
    post.finish_action()
    post.observe(*returns(post.at + 1))
    post.observe(*dies(post.at + 60, NEXT))
    assert post.reported(*ENDS) == [*OWN_END, ("daemon_lost", LossReason.DIED)]

    post = hung(WatchedDaemon(*alive(VICTIM), restarts=1))
    post.finish_action(problem=Reason(ReasonCode.PROCESS_NOT_KILLABLE, pid=CONTROL))
    post.until(post.at + 5)
    post.observe(*dies(post.at))
    post.until(post.at + 2)
    assert post.reported(*ENDS) == [("daemon_lost", LossReason.DIED)]


@pytest.mark.parametrize("dead", [False, True], ids=["hung", "down"])
def test_a_new_daemon_that_answers_is_a_success_whatever_its_start_time(*, dead: bool) -> None:
    """Start times can have whole seconds, so that they seem to be before the action."""
    post = WatchedDaemon() if dead else hung()
    if dead:
        post.observe(*dies(DEATH + 0.3))
    assert post.watch.acting is not None
    whole = float(int(post.at))
    acting = replace(post.watch.acting, began_at=whole + 0.9)
    post.at, post.node = acting.began_at, replace(post.node, watches={DAEMON: replace(post.watch, acting=acting)})
    post.observe(*(() if dead else dies(whole)), daemon_process(NEXT, at=whole))
    post.observe(*at_work(at=whole))
    post.finish_action()
    assert post.reported(EventName.WATCHDOG_ACTED) == [("watchdog_acted", "succeeded")]


def test_an_end_of_a_hung_server_is_no_loss_and_no_crash_loop() -> None:
    post = WatchedDaemon(*alive(VICTIM), allow=HUNG)
    post.observe(*asks_a_server(), suspended(SERVER))
    post.until(DEATH + 95)
    assert post.kinds == [("end_server", "hung")]
    post.observe(exited(SERVER, at=post.at + 0.1))
    post.finish_action()
    post.observe(*at_work(at=post.at + 1))
    post.until(post.at + 5)
    assert post.reported(*ENDS, EventName.SERVER_CRASH_LOOP, EventName.FAULT) == []
    assert post.daemon.lifecycle.last_loss_at is None


@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.9])
def test_the_demo_restarts_a_hung_daemon_without_a_loss(fraction: float) -> None:
    clock = HandClock(AT + fraction)
    simulation = Simulation(1, clock, calm=True)
    simulation.plan([PlannedFailure(20.0, "daemon-hangs", 300.0)])
    node = minutes(clock, simulation, ACTING)
    events = [event for _ in range(20) for event in next(node).events]
    assert [event.reason for event in events if event.event in ENDS] == [StopReason.WATCHDOG]
    [acted] = [event for event in events if event.event is EventName.WATCHDOG_ACTED]
    assert (acted.result, acted.problem) == ("succeeded", None)
