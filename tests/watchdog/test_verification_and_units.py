"""The effect of an action is verified by observations, not by its result alone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from exporter.demo.simulation import PlannedFailure, Simulation
from exporter.model.action import ActionKind, ActionReason, DeletePod, EndProcess, RestartUnit, SaveEvidence
from exporter.model.daemon import DaemonState, LossReason, StopReason, with_lifecycle
from exporter.model.event import EventName
from exporter.model.observation import ActionDone, Observation, PodFound, Resumed, UnitState
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import AllowedAction, Mode, Thresholds
from exporter.model.watchdog import Condition, WatchdogPhase, WatchdogState
from exporter.reducer import reduce
from exporter.report.node_findings import findings
from exporter.report.problems import DaemonProblem
from exporter.report.process_status import described
from exporter.report.remedy import commands_to_restart, commands_to_start
from exporter.state.processes import cgroup_of
from exporter.watchdog import restart as watchdog_restart
from exporter.watchdog.context import DaemonPolicy
from exporter.watchdog.restart import POD_SECONDS, START_SECONDS
from tests.builders import (
    AT,
    CONTROL,
    DAEMON,
    SERVER,
    at_work,
    daemon_process,
    exited,
    failure,
    no_daemon,
    probe,
    servers,
    silence,
)
from tests.clocks import HandClock
from tests.simulated import ACTING, minutes
from tests.watchdog.test_fault_remedies import VICTIM, faulted
from tests.watchdog.watched_daemon import (
    BY_COMMAND,
    BY_UNIT,
    DEATH,
    HUNG,
    NEXT,
    UNIT,
    WatchedDaemon,
    alive,
    asks_a_server,
    deaf,
    dies,
    hangs,
    left,
    quits,
    returns,
    silences,
    suspended,
    unit,
)

ACTED = EventName.WATCHDOG_ACTED
DENIED = Reason(ReasonCode.UNIT_NOT_PERMITTED, unit="nvidia-cuda-mps.service")


def acting() -> WatchedDaemon:
    """It has died, and is being restarted."""
    return WatchedDaemon().observe(*dies())


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
    post = WatchedDaemon(allow=HUNG).observe(suspended(SERVER))
    post.until(DEATH + 91)
    watch = watchdog_restart.end_interrupted(post.watch, post.at)
    post.node = replace(post.node, watches={DAEMON: watch})
    post.evaluate(post.at + 1)
    assert outcome(post) == [("failed", Reason(ReasonCode.EXPORTER_RESTARTED))]


def test_a_state_without_an_action_is_not_interrupted() -> None:
    assert watchdog_restart.end_interrupted(WatchdogState(), AT) == WatchdogState()


def test_a_restart_of_a_hung_daemon_succeeds() -> None:
    post = WatchedDaemon().observe(*hangs())
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
    post = WatchedDaemon().observe(*quits())
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
    post = WatchedDaemon(*alive(), at_first, daemon_policy=BY_UNIT, mode=mode).observe(*dies(), *then)
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
    post = WatchedDaemon(*alive(), unit("active", at=DEATH - 5), daemon_policy=BY_UNIT).observe(*hangs())
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
    post = WatchedDaemon(daemon_policy=BY_UNIT).observe(*dies())
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


def test_the_budget_has_the_newest_restarts_by_systemd() -> None:
    """Else it would be free again too early for a daemon that dies often."""
    post = WatchedDaemon(*alive(), unit("active", at=AT), daemon_policy=BY_UNIT, restarts=2)
    for number in (1, 2, 3):
        post.observe(unit("active", at=AT + 100 * number, restarts=number))
    thresholds = post.policy.thresholds
    assert watchdog_restart.restarts_left(post.watch, thresholds, AT + 1050) == 0
    assert watchdog_restart.restarts_left(post.watch, thresholds, AT + 1150) == 1
    assert (post.watch.last_restart_at, post.watch.unit_restarts) == (AT + 300, 3)


@pytest.mark.parametrize(
    ("reported", "deferred"),
    [
        (unit("active", restart="on-abnormal"), True),
        (unit("active", restart="on-abort"), True),
        (unit("reloading", restart="no"), True),
        (unit("inactive", restart="always", result="signal"), False),
    ],
)
def test_defers_to_systemd_only_if_the_unit_may_start_again(reported: UnitState, *, deferred: bool) -> None:
    assert (died(reported).watch.phase is DEFERRED) is deferred


def test_ends_a_hung_daemon_that_runs_outside_its_unit_before_the_unit_is_started() -> None:
    """The unit may be considered active: then a start alone would do nothing."""
    outside = replace(daemon_process(), unit="other.service")
    post = WatchedDaemon(outside, *alive()[1:], unit("inactive", at=DEATH - 5), daemon_policy=BY_UNIT).observe(*hangs())
    post.until(DEATH + 95)
    ends = [each.identity.pid for each in post.actions[0].steps if isinstance(each, EndProcess)]
    assert (ends, post.actions[0].steps[-1]) == ([CONTROL, SERVER], RestartUnit(unit=UNIT))


@pytest.mark.parametrize("in_a_pod", [False, True])
def test_a_restart_before_a_start_of_the_exporter_may_take_as_long_as_usual(*, in_a_pod: bool) -> None:
    post, usual = (in_pod(), POD_SECONDS) if in_a_pod else (WatchedDaemon(), 0.0)
    post.observe(*dies())
    post.restarted()
    post.node = replace(post.node, watches={DAEMON: watchdog_restart.end_interrupted(post.watch, DEATH + 5)})
    named = PodFound(at=DEATH + 5, uid=UID, name="mps-x7k2p", namespace="gpu-operator")
    post.observe(named, no_daemon(at=DEATH + 5), left(DEATH + 5), deaf(DEATH + 5))
    post.until(DEATH + 5 + usual + START_SECONDS)
    assert outcome(post) == []
    post.until(DEATH + 5 + usual + START_SECONDS + 1)
    assert outcome(post) == [("failed", Reason(ReasonCode.DAEMON_MISSING))]


def test_a_hung_daemon_that_continued_after_the_last_query_is_asked_again_first() -> None:
    post = WatchedDaemon().observe(*hangs())
    post.observe(suspended(at=DEATH + 89, state="S"))
    post.until(DEATH + 100)
    assert (post.actions, post.watch.reason) == ([], Reason(ReasonCode.PROCESS_CONTINUED))
    post.observe(silence(at=DEATH + 105), probe(False, at=DEATH + 106), silence(at=DEATH + 111))
    post.until(DEATH + 250)
    assert post.kinds == [("restart", "hung")]


def test_a_hung_daemon_without_a_known_process_is_not_replaced() -> None:
    post = WatchedDaemon().observe(*silences())
    daemon = replace(post.daemon, runtime=replace(post.daemon.runtime, process=None))
    post.node = replace(post.node, daemons={DAEMON: daemon})
    post.until(DEATH + 200)
    assert post.actions == []


# An end that the watchdog itself causes is no loss: one ticket says that the watchdog restarted the daemon.


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
    assert DaemonProblem.DAEMON_DIED not in of_daemon
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
    post = WatchedDaemon(*alive(VICTIM), allow=HUNG).observe(*asks_a_server(), suspended(SERVER))
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
