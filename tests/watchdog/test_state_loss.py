"""If the watchdog's state could not be read or written at the start, nothing is restarted until an operator says so."""

from dataclasses import replace

from exporter.model.action import ActionKind, ActionReason, ActionResult
from exporter.model.event import EventName
from exporter.model.node import Node
from exporter.model.settings import Mode
from exporter.model.watchdog import ActionCount, BlockReason, WatchdogPhase, WatchdogState
from exporter.watchdog import evaluation
from exporter.watchdog.context import DaemonPolicy, Policy, block_reasons
from tests.builders import AT, DAEMON, node
from tests.watchdog.watched_daemon import DEATH, Post, alive, dies, returns

OPEN = WatchdogState(
    phase=WatchdogPhase.CIRCUIT_OPEN,
    circuit_opened_at=AT - 60,
    restarts=(AT - 70, AT - 65),
    action_counts=(
        ActionCount(kind=ActionKind.RESTART, reason=ActionReason.CRASHED, result=ActionResult.FAILED, count=2),
    ),
)


def lost(mode: Mode = Mode.ACT) -> Post:
    """Return a watchdog of which nobody knows what it knew before."""
    post = Post(mode=mode)
    post.policy = replace(post.policy, state_lost=True)
    post.node = replace(post.node, watches={})
    post.see(*alive())
    return post


def test_restarts_nothing_and_says_so_while_the_daemon_is_still_well() -> None:
    post = lost()
    assert post.watch.phase is WatchdogPhase.STATE_LOST
    assert block_reasons(post.policy, post.daemon, post.watch) == (BlockReason.STATE_LOST,)

    post.see(*dies())
    post.until(DEATH + 2000)
    assert (post.actions, post.watch.phase) == ([], WatchdogPhase.STATE_LOST)
    assert len(post.told(EventName.WATCHDOG_WAITS)) == 1


def test_restarts_after_an_operators_resume() -> None:
    post = lost()
    post.see(*dies())
    post.resume()

    assert post.kinds == [("restart", "crashed")]
    assert block_reasons(post.policy, post.daemon, post.watch) == ()


def test_it_outlives_another_start_of_the_exporter_until_the_resume() -> None:
    post = lost()
    post.policy = replace(post.policy, state_lost=False)
    post.restarted()
    post.see(*alive(), *dies())
    assert post.actions == []

    post.resume()
    assert post.kinds == [("restart", "crashed")]


def test_a_watchdog_that_only_observes_is_not_affected() -> None:
    post = lost(Mode.OBSERVE)
    post.see(*dies())

    assert post.told(EventName.WATCHDOG_WOULD_ACT) == [("watchdog_would_act", "crashed")]
    assert block_reasons(post.policy, post.daemon, post.watch) == ()


def test_a_first_start_with_an_empty_state_directory_acts() -> None:
    post = Post()
    post.see(*dies())

    assert post.kinds == [("restart", "crashed")]


def test_watches_that_could_be_read_and_not_written_are_lost_too() -> None:
    present = evaluation.mark_state_lost(replace(node(), watches={DAEMON: WatchdogState(restarts=(AT,))}), AT)

    assert present.watches == {DAEMON: WatchdogState(restarts=(AT,), state_lost_at=AT)}


def regained(post: Post, watches: dict[str, WatchdogState], *, whole: bool = True) -> None:
    """Let the state be read now."""
    post.node = evaluation.restore_state(post.node, watches, post.at, whole=whole)
    post.policy = replace(post.policy, state_lost=not whole)
    post.judge(post.at)


def test_a_circuit_that_was_open_is_open_again_once_the_state_can_be_read() -> None:
    post = lost()
    post.see(*dies())
    regained(post, {DAEMON: OPEN})

    assert (post.watch.circuit_opened_at, post.watch.state_lost_at) == (OPEN.circuit_opened_at, None)
    assert (post.watch.phase, post.actions) == (WatchdogPhase.CIRCUIT_OPEN, [])


def test_a_daemon_that_the_state_does_not_have_is_restarted_once_the_state_can_be_read() -> None:
    post = lost()
    post.see(*dies())
    regained(post, {})

    assert post.kinds == [("restart", "crashed")]


def test_a_daemon_that_a_spoilt_state_does_not_have_stays_as_it_is() -> None:
    post = lost()
    post.see(*dies())
    regained(post, {"another": OPEN}, whole=False)

    assert (post.watch.phase, post.actions) == (WatchdogPhase.STATE_LOST, [])
    assert post.node.watches["another"] == OPEN


def test_an_operators_resume_outweighs_what_is_read_later() -> None:
    post = lost()
    post.see(*dies())
    post.resume()
    regained(post, {DAEMON: OPEN})

    assert (post.watch.circuit_opened_at, post.kinds) == (None, [("restart", "crashed")])


def test_counters_do_not_fall_when_the_state_is_read_late() -> None:
    post = lost()
    post.resume()
    post.see(*dies())
    post.did()
    post.see(*returns(DEATH + 2))
    post.node = evaluation.mark_state_lost(post.node, post.at)
    before = post.action_counts
    assert before

    regained(post, {DAEMON: OPEN})
    assert post.action_counts == {**before, ("restart", "crashed", "failed"): 2}


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


def test_nothing_is_decided_before_the_lock_is_held_and_all_after_it_is() -> None:
    post = Post()
    post.policy = replace(post.policy, locks={DAEMON: BlockReason.ANOTHER_EXPORTER})
    post.see(*dies())
    assert post.actions == []

    post.policy = replace(post.policy, locks={DAEMON: None})
    post.judge(post.at + 1)
    assert post.kinds == [("restart", "crashed")]


def test_a_node_without_watches_stays_as_it_is() -> None:
    assert evaluation.restore_state(Node(), {}, AT, whole=True) == Node()
