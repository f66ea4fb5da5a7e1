"""Restart of a daemon that a pod runs: the watchdog deletes the pod if it is allowed to."""

from dataclasses import replace
from typing import Any

import pytest

from exporter.model.action import ActionKind, DeletePod, SaveEvidence
from exporter.model.event import EventName
from exporter.model.observation import Observation, PodFound
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import AllowedAction, Mode
from exporter.report.remedy import commands_to_restart, commands_to_start
from exporter.state.processes import cgroup_of
from exporter.watchdog.context import DaemonPolicy
from exporter.watchdog.verification import POD_SECONDS
from tests.builders import AT, CONTROL, daemon_process, exited
from tests.watchdog.watched_daemon import BY_COMMAND, DEATH, NEXT, WatchedDaemon, alive, dies, hangs, returns

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


@pytest.mark.parametrize("seen", [dies(), hangs()], ids=["crashed", "hung"])
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


def test_only_observes_by_default() -> None:
    post = in_pod(mode=Mode.OBSERVE)
    post.observe(*dies())
    post.until(DEATH + 10)
    assert post.actions == []
    assert post.reported(EventName.WATCHDOG_WOULD_ACT) == [("watchdog_would_act", "crashed")]


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
