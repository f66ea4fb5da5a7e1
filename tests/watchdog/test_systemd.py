"""systemd restarts a unit if Restart= applies, and the watchdog counts it. The watchdog restarts in all other cases."""

import pytest

from exporter.model.action import RestartUnit
from exporter.model.event import EventName
from exporter.model.observation import Observation, UnitState
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import Mode, Thresholds
from exporter.model.watchdog import Condition, WatchdogPhase
from exporter.watchdog import restart as watchdog_restart
from tests.builders import failure
from tests.watchdog.watched_daemon import BY_UNIT, DEATH, NEXT, UNIT, WatchedDaemon, alive, dies, hangs, returns, unit

DEFERRED = WatchdogPhase.DEFERRED_TO_SYSTEMD


def died(*then: Observation, mode: Mode = Mode.ACT, before: UnitState | None = None) -> WatchedDaemon:
    """Return a watched daemon that has died, with this state of its unit."""
    at_first = unit("active", at=DEATH - 5) if before is None else before
    post = WatchedDaemon(*alive(), at_first, daemon_policy=BY_UNIT, mode=mode)
    post.observe(*dies(), *then)
    post.until(DEATH + 3)
    return post


def test_defers_to_systemd_if_restart_applies(subtests: pytest.Subtests) -> None:
    for reported, state, reason in [
        (unit("activating", sub="auto-restart"), DEFERRED, Reason(ReasonCode.RESTARTED_BY_SYSTEMD, unit=UNIT)),
        (unit("activating", sub="start"), DEFERRED, Reason(ReasonCode.RESTARTED_BY_SYSTEMD, unit=UNIT)),
        (
            unit("deactivating", sub="stop-sigterm", result="signal"),
            DEFERRED,
            Reason(ReasonCode.RESTARTED_BY_SYSTEMD, unit=UNIT),
        ),
        (unit("active", restart="always"), DEFERRED, Reason(ReasonCode.RESTARTED_BY_SYSTEMD, unit=UNIT)),
        (unit("active", restart="on-success"), WatchdogPhase.ACTING, None),
        (unit("active", restart="no", sub="exited"), WatchdogPhase.ACTING, None),
        (unit("failed", result="signal"), WatchdogPhase.ACTING, None),
        (unit("inactive", result="signal"), WatchdogPhase.ACTING, None),
        (unit("inactive"), WatchdogPhase.IDLE, Reason(ReasonCode.STOPPED_BY_OPERATOR)),
        (unit("failed", sub="failed", result="timeout"), WatchdogPhase.IDLE, Reason(ReasonCode.STOPPED_BY_OPERATOR)),
        (unit("failed", sub="failed", result="timeout", restart="no"), WatchdogPhase.ACTING, None),
        (
            unit("failed", result="start-limit-hit"),
            DEFERRED,
            Reason(ReasonCode.START_LIMIT_HIT, unit=UNIT),
        ),
        (
            unit("inactive", load="not-found", result=""),
            WatchdogPhase.IDLE,
            Reason(ReasonCode.UNIT_NOT_LOADED, unit=UNIT, state="not-found"),
        ),
        (
            unit("", problem=failure("Access denied")),
            WatchdogPhase.IDLE,
            Reason(ReasonCode.UNIT_UNREADABLE, unit=UNIT, state=failure("").code, text="Access denied"),
        ),
    ]:
        with subtests.test(reported=reported, state=state, reason=reason):
            post = died(reported)
            assert (post.watch.phase, post.watch.reason) == (state, reason)
            assert bool(post.actions) == (state is WatchdogPhase.ACTING)


@pytest.mark.parametrize(
    ("reported", "only_start"),
    [
        (unit("failed", result="signal"), True),
        (unit("inactive", result="signal"), True),
        (unit("active", restart="no", sub="exited"), False),
    ],
    ids=["failed", "inactive", "active without its daemon"],
)
def test_only_starts_the_unit_of_a_daemon_that_ended(reported: UnitState, *, only_start: bool) -> None:
    assert RestartUnit(unit=UNIT, only_start=only_start) in died(reported).actions[0].steps


def test_does_not_cancel_an_operators_stop_of_a_hung_daemon() -> None:
    post = WatchedDaemon(*alive(), unit("active", at=DEATH - 5), daemon_policy=BY_UNIT)
    post.observe(*hangs())
    post.until(DEATH + 80)
    post.observe(unit("deactivating", at=DEATH + 80, sub="stop-sigterm"))
    post.until(DEATH + 110)
    assert (post.actions, post.watch.reason) == ([], Reason(ReasonCode.UNIT_STOPPING, unit=UNIT))


@pytest.mark.parametrize(("restart", "condition"), [("on-failure", Condition.STOPPED), ("no", Condition.CRASHED)])
def test_does_not_restart_a_stopped_unit_that_systemd_killed(restart: str, condition: Condition) -> None:
    """Without a stop of the unit, systemd would have restarted it."""
    assert died(unit("failed", result="timeout", restart=restart)).condition is condition


def test_waits_for_the_unit_state_after_the_exit() -> None:
    post = died()
    post.until(DEATH + 4.5)
    assert (post.actions, post.watch.reason) == ([], None)
    post.observe(unit("failed", at=DEATH + 4.7, result="signal"))
    assert post.kinds == [("restart", "crashed")]


def test_reports_that_systemd_is_unreachable() -> None:
    post = WatchedDaemon(daemon_policy=BY_UNIT)
    post.observe(*dies())
    post.until(DEATH + 600)
    assert post.actions == []
    assert post.reported(EventName.WATCHDOG_WAITS) == [
        ("watchdog_waits", Reason(ReasonCode.SYSTEMD_UNREACHABLE, unit=UNIT))
    ]


def test_uses_the_last_unit_state_if_no_newer_is_read() -> None:
    post = died(before=unit("active", at=DEATH - 5, restart="no"))
    post.until(DEATH + 6)
    assert post.kinds == [("restart", "crashed")]


def test_restarts_after_systemds_time() -> None:
    post = died(unit("activating", sub="auto-restart"))
    post.until(DEATH + 29.5)
    assert (post.actions, post.watch.phase) == ([], DEFERRED)
    post.until(DEATH + 31)
    assert post.kinds == [("restart", "crashed")]


def test_restarts_at_once_if_the_unit_has_failed() -> None:
    post = died(unit("activating", sub="auto-restart"), unit("failed", at=DEATH + 3, result="exit-code"))
    assert post.kinds == [("restart", "crashed")]


@pytest.mark.parametrize("mode", Mode)
def test_counts_and_reports_a_restart_by_systemd_once(mode: Mode) -> None:
    post = died(unit("activating", sub="auto-restart"), mode=mode)
    post.observe(unit("active", at=DEATH + 1, restarts=1))
    assert post.reported(EventName.WATCHDOG_ACTED) == []
    post.observe(*returns(DEATH + 1.2))
    post.observe(unit("active", at=DEATH + 3, restarts=1))
    assert post.reported(EventName.WATCHDOG_ACTED) == [("watchdog_acted", "by_systemd")]
    assert post.action_counts == {("restart", "crashed", "by_systemd"): 1}
    assert (post.actions, post.watch.phase) == ([], WatchdogPhase.IDLE)
    assert watchdog_restart.restarts_left(post.watch, Thresholds(), post.at) == 4


def test_counts_a_restart_by_systemd_before_the_exit_was_observed() -> None:
    post = WatchedDaemon(*alive(), unit("active", at=DEATH - 5, restarts=3), daemon_policy=BY_UNIT)
    post.observe(*returns(DEATH), unit("active", at=DEATH + 2, restarts=5))
    assert post.action_counts == {("restart", "crashed", "by_systemd"): 2}


def test_follows_a_reset_of_the_units_restart_counter() -> None:
    post = WatchedDaemon(*alive(), unit("active", at=DEATH - 5, restarts=3), daemon_policy=BY_UNIT)
    post.observe(unit("active", at=DEATH), unit("active", at=DEATH + 5, restarts=1))
    assert post.action_counts == {("restart", "crashed", "by_systemd"): 1}


def test_restarts_by_systemd_use_the_budget() -> None:
    post = WatchedDaemon(*alive(), unit("active", at=DEATH - 5), daemon_policy=BY_UNIT)
    post.observe(unit("active", at=DEATH - 4, restarts=4), *dies(), unit("failed", result="signal"))
    post.until(DEATH + 3)
    assert post.watch.phase is WatchdogPhase.BACKOFF
    post.until(DEATH + 30)
    post.finish_action()
    post.observe(*returns(post.at + 1), *dies(post.at + 3, NEXT), unit("failed", at=post.at + 5, result="signal"))
    post.until(post.at + 3)
    assert post.watch.phase is WatchdogPhase.CIRCUIT_OPEN


def test_plans_no_restart_while_systemd_may_restart() -> None:
    post = died(unit("activating", sub="auto-restart"), mode=Mode.OBSERVE)
    post.until(DEATH + 20)
    assert post.action_counts == {}
    post.until(DEATH + 60)
    assert post.action_counts == {("restart", "crashed", "observed"): 1}
