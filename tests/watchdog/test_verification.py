"""What an action has done is what is seen after it, not what is said of it."""

from dataclasses import replace

import pytest

from exporter.model.action import ActionKind, ActionReason
from exporter.model.event import EventName
from exporter.model.observation import ActionDone, Observation, Resumed
from exporter.model.reason import Reason, ReasonCode
from exporter.model.watchdog import Condition, WatchdogPhase, WatchdogState
from exporter.state.reducer import reduce
from exporter.watchdog import verification
from tests.builders import AT, CONTROL, DAEMON, SERVER, daemon_process, no_daemon, servers
from tests.watchdog.watched_daemon import (
    DEATH,
    HUNG,
    NEXT,
    Post,
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


def acting() -> Post:
    """It has died, and is being restarted."""
    post = Post()
    post.see(*dies())
    return post


def outcome(post: Post) -> list[tuple[str | None, str | None]]:
    """What came of each action, and what kept it from success."""
    return [(each.result, each.problem) for each in post.events if each.event is ACTED]


def test_it_has_helped_when_another_one_answers() -> None:
    post = acting()
    post.did()
    assert (outcome(post), post.watch.phase) == ([], WatchdogPhase.ACTING)
    post.see(*returns(DEATH + 1))
    assert outcome(post) == [("succeeded", None)]
    assert (post.watch.phase, post.watch.acting, post.watch.failures) == (WatchdogPhase.IDLE, None, 0)
    assert post.action_counts == {("restart", "crashed", "succeeded"): 1}


def test_it_may_answer_before_it_is_told_that_it_was_started() -> None:
    post = acting()
    post.see(*returns(DEATH + 1))
    assert outcome(post) == []
    post.did()
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
    ids=["nobody answers", "it runs and does not answer", "nobody knows who answers", "the old one answers"],
)
def test_it_has_failed_where_that_is_not_seen_in_time(seen: tuple[Observation, ...], problem: str) -> None:
    post = acting()
    post.did()
    post.see(*seen)
    post.until(DEATH + 29)
    assert outcome(post) == []
    post.until(DEATH + 32)
    assert outcome(post)[:1] == [("failed", problem)]
    assert post.watch.failures == 1


def test_where_the_evidence_was_saved_is_told_with_what_came_of_it() -> None:
    post = acting()
    post.did(evidence="/var/lib/cuda-mps-exporter/evidence/training")
    post.see(*returns(DEATH + 1))
    assert [each.evidence for each in post.events if each.event is ACTED] == [
        "/var/lib/cuda-mps-exporter/evidence/training"
    ]


def test_a_step_that_failed_is_told_at_once_with_its_reason() -> None:
    post = acting()
    post.did(problem=DENIED)
    assert outcome(post) == [("failed", DENIED)]


def test_why_it_failed_is_remembered_until_it_is_well() -> None:
    post = acting()
    post.did(problem=DENIED)
    post.until(DEATH + 2)
    assert post.watch.problem == DENIED
    post.see(*returns(DEATH + 3))
    assert (post.condition, post.watch.problem) == (Condition.WELL, None)


def test_nothing_else_is_done_meanwhile() -> None:
    post = acting()
    post.until(DEATH + 60)
    assert len(post.actions) == 1


def test_an_action_of_which_nothing_is_heard_has_failed_in_the_end() -> None:
    post = acting()
    post.until(DEATH + 179)
    assert outcome(post) == []
    post.until(DEATH + 182)
    assert outcome(post) == [("failed", Reason(ReasonCode.NO_RESULT))]


def test_one_that_was_under_way_when_the_exporter_ended_is_judged_by_what_is_seen() -> None:
    post = acting()
    post.restarted()
    watch = verification.end_interrupted(post.watch, DEATH + 5)
    assert watch.acting is not None
    assert watch.acting.done_at == DEATH + 5
    assert verification.end_interrupted(watch, DEATH + 9) == watch
    post.node = replace(post.node, watches={DAEMON: watch})
    post.see(no_daemon(at=DEATH + 6), left(DEATH + 6))
    post.until(DEATH + 7.5)
    assert len(post.actions) == 1
    post.see(*returns(DEATH + 7.8))
    assert outcome(post) == [("succeeded", None)]


def test_if_nothing_comes_of_it_it_is_done_again() -> None:
    post = acting()
    post.restarted()
    post.node = replace(post.node, watches={DAEMON: verification.end_interrupted(post.watch, DEATH + 5)})
    post.see(no_daemon(at=DEATH + 6), left(DEATH + 6), deaf(DEATH + 6))
    post.until(DEATH + 13)
    assert outcome(post) == [("failed", Reason(ReasonCode.DAEMON_MISSING))]
    assert len(post.actions) == 2


def test_of_what_cannot_be_seen_nobody_says_that_it_succeeded() -> None:
    post = Post(allow=HUNG)
    post.see(suspended(SERVER))
    post.until(DEATH + 91)
    watch = verification.end_interrupted(post.watch, post.at)
    post.node = replace(post.node, watches={DAEMON: watch})
    post.judge(post.at + 1)
    assert outcome(post) == [("failed", Reason(ReasonCode.EXPORTER_RESTARTED))]


def test_what_is_not_under_way_is_not_interrupted() -> None:
    assert verification.end_interrupted(WatchdogState(), AT) == WatchdogState()


def test_who_hung_has_gone_and_another_one_answers() -> None:
    post = Post()
    post.see(*hangs())
    post.until(DEATH + 91)
    post.see(*dies(post.at + 0.1))
    post.did()
    post.see(*returns(post.at + 1))
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
def test_what_was_not_asked_for_is_passed_over(stray: Observation) -> None:
    post = acting()
    before = post.node.watches
    after, events = reduce(post.node, stray)
    assert (after.watches, events) == (before, ())


def test_resume_where_nothing_is_closed_tells_nothing() -> None:
    post = Post(*alive())
    post.resume()
    assert [each for each in post.events if each.event in (EventName.CIRCUIT_CLOSED, EventName.DAEMON_RELEASED)] == []
    assert post.watch.resumed_at == post.at


def test_resume_starts_nobody_whom_an_operator_stopped() -> None:
    post = Post()
    post.see(*quits())
    post.resume()
    post.until(DEATH + 100)
    assert post.actions == []


def test_one_that_died_again_before_the_action_had_ended_is_not_waited_for() -> None:
    """Limits are given once it answers, which takes long where it dies meanwhile."""
    post = acting()
    post.see(*returns(post.at + 0.2), *dies(post.at + 1, NEXT))
    post.until(post.at + 5)
    post.did()
    assert outcome(post) == [("failed", Reason(ReasonCode.DAEMON_ENDED_AGAIN))]


def test_one_that_hung_and_was_ended_for_its_restart_has_not_died_again() -> None:
    post = Post()
    post.see(*hangs())
    post.until(DEATH + 91)
    post.see(*dies(post.at + 0.5))
    post.did()
    post.until(post.at + 5)
    assert (outcome(post), len(post.actions)) == ([], 1)
