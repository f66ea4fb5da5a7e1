"""Without a readable and writable state, the watchdog restarts nothing until an operator's `resume`."""

from dataclasses import replace
from pathlib import Path

from exporter.model.action import ActionKind, ActionReason, ActionResult
from exporter.model.daemon import Daemon, Declaration
from exporter.model.event import EventName
from exporter.model.identity import ProcessIdentity
from exporter.model.observation import Observation
from exporter.model.settings import AllowedAction, Limits, Mode, Thresholds
from exporter.model.watchdog import (
    ActionCount,
    BlockReason,
    LimitEnforcement,
    OngoingAction,
    WatchdogPhase,
    WatchdogState,
)
from exporter.policy import policy_of
from exporter.watchdog import evaluation
from exporter.watchdog.context import DaemonPolicy, Policy, block_reasons
from tests.builders import AT, DAEMON, daemon_process, node
from tests.config.reading import config, written
from tests.program import constants
from tests.watchdog.watched_daemon import DEATH, WatchedDaemon, alive, dies, returns

OPEN = WatchdogState(
    phase=WatchdogPhase.CIRCUIT_OPEN,
    circuit_opened_at=AT - 60,
    restarts=(AT - 70, AT - 65),
    action_counts=(
        ActionCount(kind=ActionKind.RESTART, reason=ActionReason.DOWN, result=ActionResult.FAILED, count=2),
    ),
)


def lost(*seen: Observation, mode: Mode = Mode.ACT) -> WatchedDaemon:
    """Return a watchdog without its earlier state, and what it has seen since its start."""
    post = WatchedDaemon(mode=mode)
    post.policy = replace(post.policy, state_lost=True)
    post.node = replace(post.node, watches={})
    post.observe(*alive())
    post.observe(*seen)
    return post


def test_reports_a_lost_state_and_restarts_nothing() -> None:
    post = lost()
    assert post.watch.phase is WatchdogPhase.STATE_LOST
    assert block_reasons(post.policy, post.daemon, post.watch) == (BlockReason.STATE_LOST,)

    post.observe(*dies())
    post.until(DEATH + 2000)
    assert (post.actions, post.watch.phase) == ([], WatchdogPhase.STATE_LOST)
    assert len(post.reported(EventName.WATCHDOG_WAITS)) == 1


def test_restarts_after_an_operators_resume() -> None:
    post = lost(*dies())
    post.resume()

    assert post.kinds == [("restart", "down")]
    assert block_reasons(post.policy, post.daemon, post.watch) == ()


def test_a_lost_state_outlives_an_exporter_restart_until_resume() -> None:
    post = lost()
    post.policy = replace(post.policy, state_lost=False)
    post.restarted()
    post.observe(*alive(), *dies())
    assert post.actions == []

    post.resume()
    assert post.kinds == [("restart", "down")]


def test_a_watchdog_that_only_observes_is_not_affected() -> None:
    post = lost(*dies(), mode=Mode.OBSERVE)

    assert post.reported(EventName.WATCHDOG_WOULD_ACT) == [("watchdog_would_act", "down")]
    assert block_reasons(post.policy, post.daemon, post.watch) == ()


def test_a_state_that_cannot_be_written_is_lost() -> None:
    present = evaluation.mark_state_lost(replace(node(), watches={DAEMON: WatchdogState(restarts=(AT,))}), AT)

    assert present.watches == {DAEMON: WatchdogState(restarts=(AT,), state_lost_at=AT)}


def regained(post: WatchedDaemon, watches: dict[str, WatchdogState], *, whole: bool = True) -> None:
    """Let the state be read now."""
    post.node = evaluation.restore_state(post.node, watches, post.at, whole=whole)
    post.policy = replace(post.policy, state_lost=not whole)
    post.evaluate(post.at)


def test_an_open_circuit_is_open_again_after_the_state_is_read() -> None:
    post = lost(*dies())
    regained(post, {DAEMON: OPEN})

    assert (post.watch.circuit_opened_at, post.watch.state_lost_at) == (OPEN.circuit_opened_at, None)
    assert (post.watch.phase, post.actions) == (WatchdogPhase.CIRCUIT_OPEN, [])


def test_restarts_a_daemon_that_a_whole_state_does_not_have() -> None:
    post = lost(*dies())
    regained(post, {})

    assert post.kinds == [("restart", "down")]


def test_does_not_restart_a_daemon_that_a_damaged_state_does_not_have() -> None:
    post = lost(*dies())
    regained(post, {"another": OPEN}, whole=False)

    assert (post.watch.phase, post.actions) == (WatchdogPhase.STATE_LOST, [])
    assert post.node.watches["another"] == OPEN


def test_clients_before_limits_are_counted_before_and_after_the_state_was_lost() -> None:
    post = lost()
    post.node = replace(post.node, watches={DAEMON: replace(post.watch, bypassed=1)})
    regained(post, {DAEMON: replace(OPEN, bypassed=2)})

    assert post.watch.bypassed == 3


def test_a_resume_takes_precedence_over_the_state_read_later() -> None:
    post = lost(*dies())
    post.resume()
    regained(post, {DAEMON: OPEN})

    assert (post.watch.circuit_opened_at, post.kinds) == (None, [("restart", "down")])


def test_counters_do_not_fall_when_the_state_is_read_late() -> None:
    post = lost()
    post.resume()
    post.observe(*dies())
    post.finish_action()
    post.observe(*returns(DEATH + 2))
    post.node = evaluation.mark_state_lost(post.node, post.at)
    before = post.action_counts
    assert before

    regained(post, {DAEMON: OPEN})
    assert post.action_counts == {**before, ("restart", "down", "failed"): 2}


def policy(**known: object) -> Policy:
    """Return orders to act by a command."""
    return Policy(mode=Mode.ACT, daemon_policies={DAEMON: DaemonPolicy(command=("start",))}, **known)  # type: ignore[arg-type]


def test_without_the_daemons_lock_the_watchdog_only_observes() -> None:
    daemon = node().daemons[DAEMON]

    assert policy().mode_of(daemon) is Mode.ACT
    assert policy(locks={DAEMON: None}).mode_of(daemon) is Mode.ACT
    for locks, block in (
        ({DAEMON: BlockReason.ANOTHER_EXPORTER}, BlockReason.ANOTHER_EXPORTER),
        ({}, BlockReason.NO_LOCK),
    ):
        held_by_another = policy(locks=locks)
        assert held_by_another.mode_of(daemon) is Mode.OBSERVE
        assert block_reasons(held_by_another, daemon, WatchdogState()) == (block,)


def test_acts_only_after_the_lock_is_held() -> None:
    post = WatchedDaemon()
    post.policy = replace(post.policy, locks={DAEMON: BlockReason.ANOTHER_EXPORTER})
    post.observe(*dies())
    assert post.actions == []

    post.policy = replace(post.policy, locks={DAEMON: None})
    post.evaluate(post.at + 1)
    assert post.kinds == [("restart", "down")]


# The policy of the watchdog that follows from the configuration.


FILE = """
[watchdog]
mode = "act"
allow = ["kill_clients", "end_hung_server"]

[[daemons]]
name = "training"
pipe_directory = "/run/a"
log_directory = "/log/a"
restart_command = ["env", "CUDA_VISIBLE_DEVICES=0,1", "EMPTY=", "/opt/wait", "1", "1"]

[[daemons]]
name = "inference"
pipe_directory = "/run/b"
unit = "nvidia-mps@b.service"
watchdog = "observe"
"""


def policy_from_file(directory: Path, text: str, *arguments: str) -> Policy:
    return policy_of(config("serve", "--config.file", written(directory, text), *arguments))


def daemon(name: str, *, expected: bool = True) -> Daemon:
    return Daemon(name=name, pipe_directory="/run/a", log_directory="/log/a", declared=Declaration(expected=expected))


def test_the_watchdog_observes_by_default_and_ends_no_client() -> None:
    given = policy_of(config("serve", "--pipe-directory=/run/a"))
    assert (given.mode, given.thresholds, given.thresholds.allow) == (Mode.OBSERVE, Thresholds(), frozenset())
    assert list(given.daemon_policies.values()) == [DaemonPolicy()]


def test_the_policy_has_the_values_of_the_file(tmp_path: Path) -> None:
    given = policy_from_file(tmp_path, FILE)
    assert given.thresholds == Thresholds(allow=frozenset({AllowedAction.KILL_CLIENTS, AllowedAction.END_HUNG_SERVER}))
    assert given.daemon_policies == {
        "training": DaemonPolicy(command=("env", "CUDA_VISIBLE_DEVICES=0,1", "EMPTY=", "/opt/wait", "1", "1")),
        "inference": DaemonPolicy(mode=Mode.OBSERVE, unit="nvidia-mps@b.service"),
    }


def test_other_intervals_do_not_change_permissions(tmp_path: Path) -> None:
    read = config("serve", "--config.file", written(tmp_path, FILE))
    given = policy_of(replace(read, constants=constants({"rules": {"restarts": 2}})))
    assert (given.thresholds.restarts, given.thresholds.allow) == (2, read.watchdog_allow)


def test_the_mode_of_a_daemon_overrides_the_general_one(tmp_path: Path) -> None:
    given = policy_from_file(tmp_path, FILE)
    assert [given.mode_of(daemon(name)) for name in ("training", "inference", "another")] == ["act", "observe", "act"]
    assert given.mode_of(daemon("another", expected=False)) is Mode.OBSERVE


def test_what_was_seen_since_the_loss_takes_precedence_over_the_stored_state() -> None:
    post = lost()
    seen = replace(post.watch, limits=Limits(client_priority=1), wanted_limits=Limits(client_priority=2))
    seen = replace(seen, unit_restarts=4, enforcement=LimitEnforcement(restoring=True))
    earlier = replace(daemon_process(77), uid=5)
    stored = replace(
        OPEN,
        process=earlier,
        children=(ProcessIdentity(pid=78, start_ticks=1),),
        limits=Limits(client_priority=3),
        wanted_limits=Limits(client_priority=4),
        unit_restarts=9,
        acting=OngoingAction(kind=ActionKind.RESTART, reason=ActionReason.DOWN, began_at=AT - 5),
    )

    def merged(now: WatchdogState | None) -> WatchdogState:
        node = replace(post.node, watches={} if now is None else {DAEMON: now})
        return evaluation.restore_state(node, {DAEMON: stored}, AT, whole=True).watches[DAEMON]

    found = merged(seen)
    assert (found.process, found.children, found.unit_restarts) == (seen.process, seen.children, 4)
    assert (found.limits, found.wanted_limits) == (seen.limits, seen.wanted_limits)
    assert (found.enforcement, found.restarts) == (seen.enforcement, stored.restarts)
    found = merged(WatchdogState(state_lost_at=AT, unit_restarts=0))
    assert (found.process, found.children, found.unit_restarts) == (earlier, stored.children, 0)
    assert (found.limits, found.wanted_limits) == (stored.limits, stored.wanted_limits)
    assert found.acting is not None
    assert (found.acting.done_at, found.state_lost_at) == (AT, None)
    assert merged(None) == replace(stored, acting=found.acting)
    assert merged(WatchdogState(state_lost_at=AT)).unit_restarts == 9
