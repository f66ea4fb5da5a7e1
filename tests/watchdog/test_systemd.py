"""Of a unit's failures, systemd owns those that it mends by itself; the watchdog counts them, and has the rest."""

import pytest

from exporter.model.action import RestartUnit
from exporter.model.event import EventName
from exporter.model.observation import Observation, UnitState
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import Mode, Thresholds
from exporter.model.watchdog import Condition, WatchdogPhase
from exporter.watchdog import restart as watchdog_restart
from tests.builders import failure
from tests.watchdog.watched_daemon import BY_UNIT, DEATH, NEXT, UNIT, Post, alive, dies, hangs, returns, unit

DEFERRED = WatchdogPhase.DEFERRED_TO_SYSTEMD


def died(*then: Observation, mode: Mode = Mode.ACT, before: UnitState | None = None) -> Post:
    """Its daemon has died, and systemd tells this of its unit."""
    at_first = unit("active", at=DEATH - 5) if before is None else before
    post = Post(*alive(), at_first, daemon_policy=BY_UNIT, mode=mode)
    post.see(*dies(), *then)
    post.until(DEATH + 3)
    return post


@pytest.mark.parametrize(
    ("told", "state", "reason"),
    [
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
    ],
    ids=lambda each: (
        " ".join(filter(None, (each.active, each.sub, each.result, each.restart)))
        if isinstance(each, UnitState)
        else ""
    ),
)
def test_who_restarts_it(told: UnitState, state: WatchdogPhase, reason: Reason | None) -> None:
    post = died(told)
    assert (post.watch.phase, post.watch.reason) == (state, reason)
    assert bool(post.actions) == (state is WatchdogPhase.ACTING)


@pytest.mark.parametrize(
    ("told", "only_start"),
    [
        (unit("failed", result="signal"), True),
        (unit("inactive", result="signal"), True),
        (unit("active", restart="no", sub="exited"), False),
    ],
    ids=["failed", "inactive", "active without its daemon"],
)
def test_one_that_somebody_else_starts_at_the_same_moment_is_not_restarted(
    told: UnitState, *, only_start: bool
) -> None:
    assert RestartUnit(unit=UNIT, only_start=only_start) in died(told).actions[0].steps


def test_an_operators_stop_of_one_that_hangs_is_not_undone_while_it_lasts() -> None:
    post = Post(*alive(), unit("active", at=DEATH - 5), daemon_policy=BY_UNIT)
    post.see(*hangs())
    post.until(DEATH + 80)
    post.see(unit("deactivating", at=DEATH + 80, sub="stop-sigterm"))
    post.until(DEATH + 110)
    assert (post.actions, post.watch.reason) == ([], Reason(ReasonCode.UNIT_STOPPING, unit=UNIT))


@pytest.mark.parametrize(("restart", "condition"), [("on-failure", Condition.STOPPED), ("no", Condition.CRASHED)])
def test_nor_when_it_had_to_be_killed_for_it(restart: str, condition: Condition) -> None:
    """Had nobody told the unit to stop, systemd would have restarted it."""
    assert died(unit("failed", result="timeout", restart=restart)).condition is condition


def test_nothing_is_done_before_systemd_was_asked_about_this_death() -> None:
    post = died()
    post.until(DEATH + 4.5)
    assert (post.actions, post.watch.reason) == ([], None)
    post.see(unit("failed", at=DEATH + 4.7, result="signal"))
    assert post.kinds == [("restart", "crashed")]


def test_where_no_systemd_tells_anything_nothing_is_done_and_it_is_said() -> None:
    post = Post(daemon_policy=BY_UNIT)
    post.see(*dies())
    post.until(DEATH + 600)
    assert post.actions == []
    assert post.told(EventName.WATCHDOG_WAITS) == [
        ("watchdog_waits", Reason(ReasonCode.SYSTEMD_UNREACHABLE, unit=UNIT))
    ]


def test_what_was_last_told_holds_where_nothing_new_is() -> None:
    post = died(before=unit("active", at=DEATH - 5, restart="no"))
    post.until(DEATH + 6)
    assert post.kinds == [("restart", "crashed")]


def test_systemd_has_its_time_and_then_it_is_ours() -> None:
    post = died(unit("activating", sub="auto-restart"))
    post.until(DEATH + 29.5)
    assert (post.actions, post.watch.phase) == ([], DEFERRED)
    post.until(DEATH + 31)
    assert post.kinds == [("restart", "crashed")]


def test_it_is_ours_at_once_where_systemd_has_failed() -> None:
    post = died(unit("activating", sub="auto-restart"), unit("failed", at=DEATH + 3, result="exit-code"))
    assert post.kinds == [("restart", "crashed")]


@pytest.mark.parametrize("mode", Mode)
def test_what_systemd_did_is_counted_and_said_once(mode: Mode) -> None:
    post = died(unit("activating", sub="auto-restart"), mode=mode)
    post.see(unit("active", at=DEATH + 1, restarts=1))
    assert post.told(EventName.WATCHDOG_ACTED) == []
    post.see(*returns(DEATH + 1.2))
    post.see(unit("active", at=DEATH + 3, restarts=1))
    assert post.told(EventName.WATCHDOG_ACTED) == [("watchdog_acted", "by_systemd")]
    assert post.action_counts == {("restart", "crashed", "by_systemd"): 1}
    assert (post.actions, post.watch.phase) == ([], WatchdogPhase.IDLE)
    assert watchdog_restart.restarts_left(post.watch, Thresholds(), post.at) == 4


def test_also_what_it_did_before_anybody_saw_the_death() -> None:
    post = Post(*alive(), unit("active", at=DEATH - 5, restarts=3), daemon_policy=BY_UNIT)
    post.see(*returns(DEATH), unit("active", at=DEATH + 2, restarts=5))
    assert post.action_counts == {("restart", "crashed", "by_systemd"): 2}


def test_its_count_begins_anew_when_somebody_starts_the_unit() -> None:
    post = Post(*alive(), unit("active", at=DEATH - 5, restarts=3), daemon_policy=BY_UNIT)
    post.see(unit("active", at=DEATH), unit("active", at=DEATH + 5, restarts=1))
    assert post.action_counts == {("restart", "crashed", "by_systemd"): 1}


def test_what_systemd_did_leaves_less_for_us() -> None:
    post = Post(*alive(), unit("active", at=DEATH - 5), daemon_policy=BY_UNIT)
    post.see(unit("active", at=DEATH - 4, restarts=4), *dies(), unit("failed", result="signal"))
    post.until(DEATH + 3)
    assert post.watch.phase is WatchdogPhase.BACKOFF
    post.until(DEATH + 30)
    post.did()
    post.see(*returns(post.at + 1), *dies(post.at + 3, NEXT), unit("failed", at=post.at + 5, result="signal"))
    post.until(post.at + 3)
    assert post.watch.phase is WatchdogPhase.CIRCUIT_OPEN


def test_who_only_observes_does_not_count_what_systemd_may_still_do() -> None:
    post = died(unit("activating", sub="auto-restart"), mode=Mode.OBSERVE)
    post.until(DEATH + 20)
    assert post.action_counts == {}
    post.until(DEATH + 60)
    assert post.action_counts == {("restart", "crashed", "observed"): 1}
