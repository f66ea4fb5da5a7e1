"""The effect of an action is verified by observations, not by its result alone."""

from dataclasses import replace
from typing import Any

import pytest

from exporter.model.action import ActionKind, ActionReason, DeletePod, RestartUnit, SaveEvidence
from exporter.model.event import EventName
from exporter.model.observation import ActionDone, Observation, PodFound, Resumed, UnitState
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import AllowedAction, Mode, Thresholds
from exporter.model.watchdog import Condition, WatchdogPhase, WatchdogState
from exporter.reducer import reduce
from exporter.report.remedy import commands_to_restart, commands_to_start
from exporter.state.processes import cgroup_of
from exporter.watchdog import restart as watchdog_restart
from exporter.watchdog.context import DaemonPolicy
from exporter.watchdog.restart import POD_SECONDS
from tests.builders import AT, CONTROL, DAEMON, SERVER, daemon_process, exited, failure, no_daemon, servers
from tests.watchdog.watched_daemon import (
    BY_COMMAND,
    BY_UNIT,
    DEATH,
    HUNG,
    NEXT,
    UNIT,
    WatchedDaemon,
    alive,
    deaf,
    dies,
    hangs,
    left,
    quits,
    returns,
    suspended,
    unit,
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
    assert post.action_counts == {("restart", "down", "succeeded"): 1}


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


def test_remembers_a_problem_until_the_daemon_is_well() -> None:
    post = acting()
    post.finish_action(problem=DENIED)
    post.until(DEATH + 2)
    assert post.watch.problem == DENIED
    post.observe(*returns(DEATH + 3))
    assert (post.condition, post.watch.problem) == (Condition.WELL, None)


def test_an_action_without_a_result_fails() -> None:
    post = acting()
    post.until(DEATH + 179)
    assert outcome(post) == []
    post.until(DEATH + 182)
    assert outcome(post) == [("failed", Reason(ReasonCode.NO_RESULT))]


def test_verifies_an_interrupted_restart_by_observations() -> None:
    post = acting()
    post.restarted()
    watch = watchdog_restart.end_interrupted(post.watch, DEATH + 5)
    assert watch.acting is not None
    assert watch.acting.done_at == DEATH + 5
    assert watchdog_restart.end_interrupted(watch, DEATH + 9) == watch
    post.node = replace(post.node, watches={DAEMON: watch})
    post.observe(no_daemon(at=DEATH + 6), left(DEATH + 6))
    post.until(DEATH + 7.5)
    assert len(post.actions) == 1
    post.observe(*returns(DEATH + 7.8))
    assert outcome(post) == [("succeeded", None)]


def test_repeats_an_interrupted_restart_without_effect() -> None:
    post = acting()
    post.restarted()
    post.node = replace(post.node, watches={DAEMON: watchdog_restart.end_interrupted(post.watch, DEATH + 5)})
    post.observe(no_daemon(at=DEATH + 6), left(DEATH + 6), deaf(DEATH + 6))
    post.until(DEATH + 13)
    assert outcome(post) == [("failed", Reason(ReasonCode.DAEMON_MISSING))]
    assert len(post.actions) == 2


def test_an_interrupted_action_that_cannot_be_verified_fails() -> None:
    post = WatchedDaemon(allow=HUNG)
    post.observe(suspended(SERVER))
    post.until(DEATH + 91)
    watch = watchdog_restart.end_interrupted(post.watch, post.at)
    post.node = replace(post.node, watches={DAEMON: watch})
    post.evaluate(post.at + 1)
    assert outcome(post) == [("failed", Reason(ReasonCode.EXPORTER_RESTARTED))]


def test_a_state_without_an_action_is_not_interrupted() -> None:
    assert watchdog_restart.end_interrupted(WatchdogState(), AT) == WatchdogState()


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
        ActionDone(at=AT + 20, daemon="another", kind=ActionKind.RESTART, reason=ActionReason.DOWN, seconds=0.1),
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


# systemd restarts a unit if Restart= applies, and the watchdog counts it. The watchdog restarts in all other cases.


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


def test_waits_for_the_unit_state_after_the_exit() -> None:
    post = died()
    post.until(DEATH + 4.5)
    assert (post.actions, post.watch.reason) == ([], None)
    post.observe(unit("failed", at=DEATH + 4.7, result="signal"))
    assert post.kinds == [("restart", "down")]


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
    assert post.kinds == [("restart", "down")]


def test_restarts_after_systemds_time() -> None:
    post = died(unit("activating", sub="auto-restart"))
    post.until(DEATH + 29.5)
    assert (post.actions, post.watch.phase) == ([], DEFERRED)
    post.until(DEATH + 31)
    assert post.kinds == [("restart", "down")]


def test_restarts_at_once_if_the_unit_has_failed() -> None:
    post = died(unit("activating", sub="auto-restart"), unit("failed", at=DEATH + 3, result="exit-code"))
    assert post.kinds == [("restart", "down")]


@pytest.mark.parametrize("mode", Mode)
def test_counts_and_reports_a_restart_by_systemd_once(mode: Mode) -> None:
    post = died(unit("activating", sub="auto-restart"), mode=mode)
    post.observe(unit("active", at=DEATH + 1, restarts=1))
    assert post.reported(EventName.WATCHDOG_ACTED) == []
    post.observe(*returns(DEATH + 1.2))
    post.observe(unit("active", at=DEATH + 3, restarts=1))
    assert post.reported(EventName.WATCHDOG_ACTED) == [("watchdog_acted", "by_systemd")]
    assert post.action_counts == {("restart", "down", "by_systemd"): 1}
    assert (post.actions, post.watch.phase) == ([], WatchdogPhase.IDLE)
    assert watchdog_restart.restarts_left(post.watch, Thresholds(), post.at) == 4


def test_counts_a_restart_by_systemd_before_the_exit_was_observed() -> None:
    post = WatchedDaemon(*alive(), unit("active", at=DEATH - 5, restarts=3), daemon_policy=BY_UNIT)
    post.observe(*returns(DEATH), unit("active", at=DEATH + 2, restarts=5))
    assert post.action_counts == {("restart", "down", "by_systemd"): 2}


def test_follows_a_reset_of_the_units_restart_counter() -> None:
    post = WatchedDaemon(*alive(), unit("active", at=DEATH - 5, restarts=3), daemon_policy=BY_UNIT)
    post.observe(unit("active", at=DEATH), unit("active", at=DEATH + 5, restarts=1))
    assert post.action_counts == {("restart", "down", "by_systemd"): 1}


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
    assert post.action_counts == {("restart", "down", "observed"): 1}


# Restart of a daemon that a pod runs: the watchdog deletes the pod if it is allowed to.


UID = "6f9a2c1e-1b5d-4c57-9b0e-3d0f5a7c2b11"
SUCCESSOR = "7f9a2c1e-1b5d-4c57-9b0e-3d0f5a7c2b11"
ALLOWED = frozenset({AllowedAction.DELETE_POD})
DELETION = DeletePod(namespace="gpu-operator", name="mps-x7k2p", uid=UID)
COMMAND = "kubectl delete pod --namespace gpu-operator mps-x7k2p"


def cgroup(uid: str) -> str:
    """Return the cgroup of a process in a pod."""
    return f"0::/kubepods/burstable/pod{uid}/{'a' * 64}\n"


def in_pod(*, named: bool = True, daemon_policy: DaemonPolicy | None = None, **rules: Any) -> WatchedDaemon:
    name = (PodFound(at=AT, uid=UID, name="mps-x7k2p", namespace="gpu-operator"),) if named else ()
    seen = (replace(daemon_process(), cgroup=cgroup(UID)), *alive()[1:], *name)
    return WatchedDaemon(*seen, daemon_policy=daemon_policy or DaemonPolicy(), **{"allow": ALLOWED, **rules})


def waits(post: WatchedDaemon) -> list[Reason | None]:
    """Return why the watchdog waits."""
    return [each.reason for each in post.events if each.event is EventName.WATCHDOG_WAITS]


@pytest.mark.parametrize("seen", [dies(), hangs()], ids=["down", "hung"])
def test_deletes_the_pod_of_a_dead_or_hung_daemon(seen: tuple[Observation, ...]) -> None:
    post = in_pod()
    post.observe(*seen)
    post.until(DEATH + 200)
    assert [each.steps for each in post.actions[:1]] == [(SaveEvidence(), DELETION)]


def test_a_pod_may_take_its_grace_period_to_end() -> None:
    """A daemon that hangs ends with the pod, after the API server has answered."""
    post = in_pod()
    post.observe(*hangs())
    post.until(DEATH + 100)
    post.finish_action()
    post.until(post.at + 30)
    post.observe(exited(CONTROL, at=post.at))
    post.until(post.at + 10)
    started = replace(daemon_process(NEXT, at=post.at), cgroup=cgroup(SUCCESSOR))
    post.observe(started, *returns(post.at)[1:])
    post.until(post.at + 2)
    assert post.reported(EventName.WATCHDOG_ACTED) == [("watchdog_acted", "succeeded")]


def test_reports_a_pod_without_a_successor() -> None:
    post = in_pod()
    post.observe(*dies())
    post.until(DEATH + 1)
    post.finish_action()
    post.until(DEATH + POD_SECONDS + 60)
    assert post.reported(EventName.WATCHDOG_ACTED)[:1] == [("watchdog_acted", "failed")]
    (problem, *_) = [each.problem for each in post.events if each.event is EventName.WATCHDOG_ACTED]
    assert problem == Reason(ReasonCode.DAEMON_NOT_ANSWERING, seconds=POD_SECONDS + 30)


def test_pods_have_the_same_budget_as_units() -> None:
    post = in_pod()
    post.observe(*dies())
    for _ in range(8):
        post.until(post.at + 330, every=5.0)
        if post.actions and post.watch.acting is not None and post.watch.acting.done_at is None:
            post.finish_action()
    assert [each.kind for each in post.actions] == [ActionKind.RESTART] * 3
    assert post.watch.circuit_opened_at is not None


@pytest.mark.parametrize(
    ("post", "reason"),
    [
        (in_pod(allow=frozenset()), ReasonCode.POD_DELETION_NOT_ALLOWED),
        (in_pod(named=False), ReasonCode.POD_NAME_UNKNOWN),
    ],
    ids=["not allowed", "name unknown"],
)
def test_waits_without_permission_or_name(post: WatchedDaemon, reason: ReasonCode) -> None:
    post.observe(*dies())
    post.until(DEATH + 200)
    assert post.actions == []
    assert Reason(reason) in waits(post)


def test_a_configured_command_has_precedence() -> None:
    post = in_pod(daemon_policy=BY_COMMAND)
    post.observe(*dies())
    assert DELETION not in post.actions[0].steps


def test_remembers_the_pod_after_an_exporter_restart() -> None:
    post = in_pod()
    post.restarted()
    post.observe(PodFound(at=DEATH, uid=UID, name="mps-x7k2p", namespace="gpu-operator"))
    assert UID in post.node.pods
    assert post.watch.process is not None
    assert cgroup_of(post.watch.process).pod_uid == UID


def test_shows_the_command_that_restarts_the_daemon() -> None:
    post = in_pod(allow=frozenset())
    assert commands_to_restart(post.node, post.daemon, post.policy) == (COMMAND,)
    post.observe(*dies())
    post.until(DEATH + 10)
    assert commands_to_start(post.node, post.daemon, post.policy) == (COMMAND,)
