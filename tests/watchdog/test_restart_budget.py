"""How often, how soon again, and when no more."""

from dataclasses import replace

import pytest

from exporter.model.event import EventName
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import Mode, Thresholds
from exporter.model.watchdog import Condition, WatchdogPhase, WatchdogState
from exporter.watchdog import restart_budget
from tests.builders import AT, DAEMON, daemon_process, no_daemon, refusal
from tests.watchdog.watched_daemon import DEATH, NEXT, WatchedDaemon, alive, dies, hangs, left, returns

FAILED = Reason(ReasonCode.PROGRAM_FAILED, command="start", exit_code=1)
BREAKER = (EventName.CIRCUIT_OPENED, EventName.CIRCUIT_CLOSED)


def crash(post: WatchedDaemon, times: int, *, every: float = 20.0, lasts: float = 1.0) -> list[float]:
    """It dies so many times, and is brought back each time where the watchdog does so; how long that took it."""
    took = []
    for _ in range(times):
        process = post.daemon.runtime.process
        assert process is not None
        assert process.pid is not None
        died, done = post.at + lasts, len(post.actions)
        post.observe(*dies(died, process.pid))
        while len(post.actions) == done and post.at < died + every:
            post.evaluate(post.at + 0.25)
        if len(post.actions) == done:
            break
        took.append(post.at - died)
        post.finish_action()
        post.observe(*returns(post.at + 0.1, process.pid + 1000))
        post.until(died + every)
    return took


def test_the_backoff_doubles_after_the_first_restart(subtests: pytest.Subtests) -> None:
    for times, seconds in [(0, 0), (1, 2), (2, 4), (3, 8), (4, 16), (8, 256), (9, 300), (5000, 300)]:
        with subtests.test(times=times, seconds=seconds):
            rules = Thresholds()
            assert restart_budget.backoff(times, rules, 0.0) == seconds
            assert restart_budget.backoff(times, rules, 1.0) == seconds * 1.25


def test_computes_the_remaining_restarts(subtests: pytest.Subtests) -> None:
    for restarts, at, remaining in [
        ((), 0, 5),
        ((0.0,), 1, 4),
        ((0.0,), 900, 5),
        ((0.0, 100.0), 950, 4),
        ((1.0,) * 7, 2, 0),
    ]:
        with subtests.test(restarts=restarts, at=at, remaining=remaining):
            assert restart_budget.restarts_left(WatchdogState(restarts=restarts), Thresholds(), at) == remaining
            assert (
                restart_budget.restarts_left(WatchdogState(restarts=restarts, circuit_opened_at=0.0), Thresholds(), at)
                == 0
            )


def test_opens_the_circuit_after_the_last_restart_of_the_budget() -> None:
    post = WatchedDaemon()
    took = crash(post, 8)
    assert took == pytest.approx([0.5, 2.5, 4.5, 8.5, 16.5], abs=0.5)
    assert post.reported(EventName.WATCHDOG_WAITS)[0] == (
        "watchdog_waits",
        Reason(ReasonCode.BACKOFF, seconds=900.0, count=1),
    )
    assert post.reported(*BREAKER) == [
        ("circuit_opened", Reason(ReasonCode.RESTARTS_DID_NOT_HELP, seconds=900.0, count=5))
    ]
    assert (post.watch.phase, len(post.watch.restarts)) == (WatchdogPhase.CIRCUIT_OPEN, 5)
    assert post.action_counts == {("restart", "crashed", "succeeded"): 5}


def test_the_circuit_stays_open_after_the_window_and_an_exporter_restart() -> None:
    post = WatchedDaemon()
    crash(post, 6)
    circuit_opened_at = post.watch.circuit_opened_at
    assert circuit_opened_at is not None
    post.restarted()
    post.observe(no_daemon(at=post.at + 1), left(post.at + 1))
    post.until(circuit_opened_at + 5000, every=60.0)
    assert (len(post.actions), post.watch.circuit_opened_at) == (5, circuit_opened_at)
    assert post.watch.reason == Reason(ReasonCode.CIRCUIT_OPEN)


def test_resume_closes_the_circuit_and_resets_the_budget() -> None:
    post = WatchedDaemon()
    crash(post, 6)
    post.resume()
    assert post.reported(*BREAKER)[-1] == ("circuit_closed", Reason(ReasonCode.OPERATOR_RESUMED))
    assert len(post.actions) == 6
    assert restart_budget.restarts_left(post.watch, Thresholds(), post.at) == 4


def test_the_circuit_closes_after_the_daemon_was_well_for_a_window() -> None:
    post = WatchedDaemon()
    crash(post, 6)
    back = post.at + 1
    post.observe(*returns(back, 99))
    post.until(back + 899, every=10.0)
    assert post.watch.phase is WatchdogPhase.CIRCUIT_OPEN
    post.until(back + 901)
    assert post.reported(*BREAKER)[-1] == ("circuit_closed", Reason(ReasonCode.WELL_FOR_WINDOW, seconds=900.0))
    assert post.watch.phase is WatchdogPhase.IDLE


def test_failures_do_not_count_after_a_window() -> None:
    post = WatchedDaemon()
    assert crash(post, 3, every=1000.0, lasts=1.0) == pytest.approx([0.5] * 3, abs=0.3)
    assert post.reported(*BREAKER) == []


def restarts_fail(post: WatchedDaemon, times: int) -> None:
    for _ in range(times):
        post.until(post.at + 20)
        post.finish_action(problem=FAILED)


def test_three_failed_restarts_open_the_circuit() -> None:
    post = WatchedDaemon(restarts=50)
    post.observe(*dies())
    restarts_fail(post, 3)
    post.until(post.at + 600)
    assert len(post.actions) == 3
    assert post.reported(*BREAKER) == [("circuit_opened", Reason(ReasonCode.RESTARTS_FAILED, count=3))]
    assert post.action_counts == {("restart", "crashed", "failed"): 3}
    back = post.at + 1
    post.observe(*returns(back, 99))
    post.until(back + 899, every=10.0)
    assert (post.watch.phase, post.watch.failures) == (WatchdogPhase.CIRCUIT_OPEN, 3)
    post.until(back + 901)
    assert (post.watch.phase, post.watch.failures) == (WatchdogPhase.IDLE, 0)


def test_after_resume_three_restarts_may_fail_again() -> None:
    post = WatchedDaemon(restarts=50)
    post.observe(*dies())
    restarts_fail(post, 3)
    post.resume()
    restarts_fail(post, 2)
    assert len(post.actions) == 5
    assert post.watch.phase is not WatchdogPhase.CIRCUIT_OPEN


def test_a_second_crash_ends_the_verification() -> None:
    """It has failed as soon as that is known, not when it should have answered."""
    post = WatchedDaemon()
    post.observe(*dies())
    post.finish_action()
    post.observe(daemon_process(NEXT, at=post.at + 0.1))
    post.observe(*dies(post.at + 0.2, NEXT), left(post.at + 0.8))
    died = post.at
    assert post.action_counts == {("restart", "crashed", "failed"): 1}

    post.until(died + 3.0)
    assert len(post.actions) == 2


def test_a_crash_before_the_last_step_ends_the_verification() -> None:
    post = WatchedDaemon()
    post.observe(*dies())
    post.observe(daemon_process(NEXT, at=post.at + 0.1))
    post.observe(*dies(post.at + 0.2, NEXT), left(post.at + 0.8))
    assert not post.action_counts
    post.finish_action()
    assert post.action_counts == {("restart", "crashed", "failed"): 1}


def test_the_exit_of_the_hung_daemon_is_not_a_second_crash() -> None:
    post = WatchedDaemon(*alive(), *hangs())
    post.until(DEATH + 120)
    assert post.kinds == [("restart", "hung")]
    post.observe(*dies(post.at + 0.1), left(post.at + 0.6))
    assert post.condition is Condition.CRASHED
    post.finish_action()
    assert not post.action_counts
    post.observe(*returns(post.at + 0.5))
    assert post.action_counts == {("restart", "hung", "succeeded"): 1}


def test_reports_the_time_of_the_next_restart() -> None:
    post = WatchedDaemon()
    post.observe(*dies())
    post.finish_action(problem=FAILED)
    assert (post.watch.phase, post.watch.not_before) == (WatchdogPhase.BACKOFF, pytest.approx(post.at + 2.0))
    post.restarted()
    assert post.watch.not_before is not None
    post.until(post.at + 1.5)
    assert len(post.actions) == 1


def test_draws_the_jitter_once_for_each_restart() -> None:
    """Or else the least that is ever drawn would win."""
    post = WatchedDaemon()
    post.observe(*dies())
    post.finish_action(problem=FAILED)
    waited_for = post.watch.not_before
    post.until(post.at + 1)
    assert post.watch.not_before == waited_for


def test_observe_mode_uses_no_budget() -> None:
    post = WatchedDaemon(mode=Mode.OBSERVE)
    for number in range(9):
        died = DEATH + 30 * number
        process = post.daemon.runtime.process
        assert process is not None
        assert process.pid is not None
        post.observe(*dies(died, process.pid), *returns(died + 10, NEXT + number))
    assert (post.watch.restarts, post.reported(*BREAKER)) == ((), [])
    assert post.action_counts == {("restart", "crashed", "observed"): 9}


def test_counts_restarts_only_within_the_window() -> None:
    post = WatchedDaemon(window=60.0, restarts=2, backoff=0.5)
    crash(post, 2)
    assert len(post.watch.restarts) == 2
    post.until(AT + 500)
    assert post.watch.restarts == ()


def test_another_condition_does_not_close_the_circuit() -> None:
    post = WatchedDaemon()
    post.node = replace(post.node, watches={DAEMON: replace(post.watch, circuit_opened_at=AT, healthy_since=None)})
    post.observe(refusal(at=AT), refusal(at=AT + 3))
    post.until(AT + 1000, every=50.0)
    assert (post.condition, post.watch.circuit_opened_at) == (Condition.HELD, AT)
