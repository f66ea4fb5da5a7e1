"""Dry run: what the watchdog would have done in a recording."""

from collections.abc import Iterable, Iterator

from exporter.model.action import Action
from exporter.model.node import Node
from exporter.model.observation import ActionDone, Observation
from exporter.model.settings import Mode, Thresholds
from exporter.state.reducer import Reduced, reduce, reduce_all
from exporter.watchdog.context import DaemonPolicy, Policy
from exporter.watchdog.evaluation import evaluate

ACTION_SECONDS = 0.1
"""How long an action is taken to last."""

CHANCE = 0.5
"""A rehearsal is the same each time."""

START = ("nvidia-cuda-mps-control", "-d")
"""What is taken to start a daemon of which no unit is known."""


def policy_for(node: Node, mode: Mode, thresholds: Thresholds) -> Policy:
    """The orders by which the daemons of a recording are watched."""
    daemon_policies = {
        name: DaemonPolicy() if daemon.declared.unit is not None else DaemonPolicy(command=START)
        for name, daemon in node.daemons.items()
    }
    return Policy(mode=mode, thresholds=thresholds, daemon_policies=daemon_policies)


def dry_run(node: Node, observations: Iterable[Observation], policy: Policy) -> Iterator[Reduced]:
    """Take in a recording's observations one by one, and judge after each; at last, settle what was still open."""
    begun: list[ActionDone] = []
    for seen in observations:
        done = [each for each in begun if each.at <= seen.at]
        begun = [each for each in begun if each.at > seen.at]
        for each in (*done, seen):
            node, events = reduce(node, each)
            node, said, actions = evaluate(node, policy, at=node.at, chance=CHANCE)
            begun += [_done(action, node.at) for action in actions]
            yield node, (*events, *said)
    for settled, events in reduce_all(node, ()):
        node, said, _ = evaluate(settled, policy, at=settled.at, chance=CHANCE)
        yield node, (*events, *said)


def _done(action: Action, at: float) -> ActionDone:
    return ActionDone(
        at=at + ACTION_SECONDS,
        daemon=action.daemon,
        kind=action.kind,
        reason=action.reason,
        seconds=ACTION_SECONDS,
    )
