"""The effect of an action is verified by observations, not by its result alone."""

from dataclasses import replace

import pytest

from exporter.model.action import ActionKind, ActionReason
from exporter.model.event import EventName
from exporter.model.observation import ActionDone, Observation, Resumed
from exporter.model.reason import Reason, ReasonCode
from exporter.model.watchdog import Condition, WatchdogPhase, WatchdogState
from exporter.reducer import reduce
from exporter.watchdog import verification
from tests.builders import AT, CONTROL, DAEMON, SERVER, daemon_process, no_daemon, servers
from tests.watchdog.watched_daemon import (
    DEATH,
    HUNG,
    NEXT,
    WatchedDaemon,
    alive,
    deaf,
    dies,
    hangs,
    left,
    quits,
    returns,
    suspended,
)

ACTED = EventName.WATCHDOG_ACTED
DENIED = Reason(ReasonCode.UNIT_NOT_PERMITTED, unit="nvidia-cuda-mps.service")


def acting() -> WatchedDaemon:
    """It has died, and is being restarted."""
    post = WatchedDaemon()
    post.observe(*dies())
    return post


def outcome(post: WatchedDaemon) -> list[tuple[str | None, str | None]]:
    """Return the result of each action with its problem."""
    return [(each.result, each.problem) for each in post.events if each.event is ACTED]


def test_a_restart_succeeds_when_another_process_answers() -> None:
    post = acting()
    post.finish_action()
    assert (outcome(post), post.watch.phase) == ([], WatchdogPhase.ACTING)
    post.observe(*returns(DEATH + 1))
    assert outcome(post) == [("succeeded", None)]
    assert (post.watch.phase, post.watch.acting, post.watch.failures) == (WatchdogPhase.IDLE, None, 0)
    assert post.action_counts == {("restart", "crashed", "succeeded"): 1}


def test_the_daemon_may_answer_before_the_result_is_reported() -> None:
    post = acting()
    post.observe(*returns(DEATH + 1))
    assert outcome(post) == []
    post.finish_action()
    assert outcome(post) == [("succeeded", None)]


@pytest.mark.parametrize(
    ("seen", "problem"),
    [
        ((), Reason(ReasonCode.DAEMON_NOT_ANSWERING, seconds=30.0)),
        ((daemon_process(NEXT, at=DEATH + 1),), Reason(ReasonCode.DAEMON_NOT_ANSWERING, seconds=30.0)),
        ((servers(at=DEATH + 1),), Reason(ReasonCode.ANSWERING_PROCESS_UNKNOWN)),
        (
            (daemon_process(CONTROL, at=DEATH + 1), servers(at=DEATH + 2)),
            Reason(ReasonCode.OLD_PROCESS_PRESENT, pid=CONTROL),
        ),
    ],
    ids=["no daemon answers", "it runs and does not answer", "the answering process is unknown", "the old one answers"],
)
def test_a_restart_fails_without_an_answer_in_time(seen: tuple[Observation, ...], problem: str) -> None:
    post = acting()
    post.finish_action()
    post.observe(*seen)
    post.until(DEATH + 29)
    assert outcome(post) == []
    post.until(DEATH + 32)
    assert outcome(post)[:1] == [("failed", problem)]
    assert post.watch.failures == 1


def test_reports_the_evidence_directory_with_the_result() -> None:
    post = acting()
    post.finish_action(evidence="/var/lib/cuda-mps-exporter/evidence/training")
    post.observe(*returns(DEATH + 1))
    assert [each.evidence for each in post.events if each.event is ACTED] == [
        "/var/lib/cuda-mps-exporter/evidence/training"
    ]


def test_reports_a_failed_step_at_once() -> None:
    post = acting()
    post.finish_action(problem=DENIED)
    assert outcome(post) == [("failed", DENIED)]


def test_remembers_a_problem_until_the_daemon_is_well() -> None:
    post = acting()
    post.finish_action(problem=DENIED)
    post.until(DEATH + 2)
    assert post.watch.problem == DENIED
    post.observe(*returns(DEATH + 3))
    assert (post.condition, post.watch.problem) == (Condition.WELL, None)


def test_takes_no_second_action_while_one_is_under_way() -> None:
    post = acting()
    post.until(DEATH + 60)
    assert len(post.actions) == 1


def test_an_action_without_a_result_fails() -> None:
    post = acting()
    post.until(DEATH + 179)
    assert outcome(post) == []
    post.until(DEATH + 182)
    assert outcome(post) == [("failed", Reason(ReasonCode.NO_RESULT))]


def test_verifies_an_interrupted_restart_by_observations() -> None:
    post = acting()
    post.restarted()
    watch = verification.end_interrupted(post.watch, DEATH + 5)
    assert watch.acting is not None
    assert watch.acting.done_at == DEATH + 5
    assert verification.end_interrupted(watch, DEATH + 9) == watch
    post.node = replace(post.node, watches={DAEMON: watch})
    post.observe(no_daemon(at=DEATH + 6), left(DEATH + 6))
    post.until(DEATH + 7.5)
    assert len(post.actions) == 1
    post.observe(*returns(DEATH + 7.8))
    assert outcome(post) == [("succeeded", None)]


def test_repeats_an_interrupted_restart_without_effect() -> None:
    post = acting()
    post.restarted()
    post.node = replace(post.node, watches={DAEMON: verification.end_interrupted(post.watch, DEATH + 5)})
    post.observe(no_daemon(at=DEATH + 6), left(DEATH + 6), deaf(DEATH + 6))
    post.until(DEATH + 13)
    assert outcome(post) == [("failed", Reason(ReasonCode.DAEMON_MISSING))]
    assert len(post.actions) == 2


def test_an_interrupted_action_that_cannot_be_verified_fails() -> None:
    post = WatchedDaemon(allow=HUNG)
    post.observe(suspended(SERVER))
    post.until(DEATH + 91)
    watch = verification.end_interrupted(post.watch, post.at)
    post.node = replace(post.node, watches={DAEMON: watch})
    post.evaluate(post.at + 1)
    assert outcome(post) == [("failed", Reason(ReasonCode.EXPORTER_RESTARTED))]


def test_a_state_without_an_action_is_not_interrupted() -> None:
    assert verification.end_interrupted(WatchdogState(), AT) == WatchdogState()


def test_a_restart_of_a_hung_daemon_succeeds() -> None:
    post = WatchedDaemon()
    post.observe(*hangs())
    post.until(DEATH + 91)
    post.observe(*dies(post.at + 0.1))
    post.finish_action()
    post.observe(*returns(post.at + 1))
    assert outcome(post) == [("succeeded", None)]
    assert post.kinds == [("restart", "hung")]


@pytest.mark.parametrize(
    "stray",
    [
        ActionDone(at=AT + 20, daemon=DAEMON, kind=ActionKind.END_SERVER, reason=ActionReason.HUNG, seconds=0.1),
        ActionDone(at=AT + 20, daemon=DAEMON, kind=ActionKind.RESTART, reason=ActionReason.HUNG, seconds=0.1),
        ActionDone(at=AT + 20, daemon="another", kind=ActionKind.RESTART, reason=ActionReason.CRASHED, seconds=0.1),
        Resumed(at=AT + 20, daemon="another"),
    ],
    ids=["another kind", "another reason", "another daemon's", "another daemon is resumed"],
)
def test_ignores_a_result_of_another_action(stray: Observation) -> None:
    post = acting()
    before = post.node.watches
    after, events = reduce(post.node, stray)
    assert (after.watches, events) == (before, ())


def test_resume_without_a_circuit_reports_nothing() -> None:
    post = WatchedDaemon(*alive())
    post.resume()
    assert [each for each in post.events if each.event in (EventName.CIRCUIT_CLOSED, EventName.DAEMON_RELEASED)] == []
    assert post.watch.resumed_at == post.at


def test_resume_starts_no_stopped_daemon() -> None:
    post = WatchedDaemon()
    post.observe(*quits())
    post.resume()
    post.until(DEATH + 100)
    assert post.actions == []


def test_a_crash_before_the_result_ends_the_verification() -> None:
    """The limits are set once the daemon answers, which takes long if it dies before."""
    post = acting()
    post.observe(*returns(post.at + 0.2), *dies(post.at + 1, NEXT))
    post.until(post.at + 5)
    post.finish_action()
    assert outcome(post) == [("failed", Reason(ReasonCode.DAEMON_ENDED_AGAIN))]


def test_the_end_of_a_hung_daemon_is_no_second_crash() -> None:
    post = WatchedDaemon()
    post.observe(*hangs())
    post.until(DEATH + 91)
    post.observe(*dies(post.at + 0.5))
    post.finish_action()
    post.until(post.at + 5)
    assert (outcome(post), len(post.actions)) == ([], 1)
