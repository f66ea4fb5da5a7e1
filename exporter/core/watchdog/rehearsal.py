"""What the watchdog would have told, or done, in a recording: nothing is done, but each action counts as done at once.

What followed is as it was recorded: a daemon that nobody brought back stays away, however often it was restarted here.
"""

from collections.abc import Iterable, Iterator

from exporter.core.fold import Told, fold, fold_all
from exporter.core.watchdog.judge import judge
from exporter.core.watchdog.orders import Mandate, Orders
from exporter.model.action import Action, ActionDone
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.settings import Mode, Rules

ACTION_SECONDS = 0.1
"""How long an action is taken to last."""

CHANCE = 0.5
"""A rehearsal is the same each time."""

START = ("nvidia-cuda-mps-control", "-d")
"""What is taken to start a daemon of which no unit is known."""


def orders_for(node: Node, mode: Mode, rules: Rules) -> Orders:
    """The orders by which the daemons of a recording are watched."""
    mandates = {
        name: Mandate() if daemon.declared.unit is not None else Mandate(command=START)
        for name, daemon in node.daemons.items()
    }
    return Orders(mode=mode, rules=rules, mandates=mandates)


def rehearse(node: Node, observations: Iterable[Observation], orders: Orders) -> Iterator[Told]:
    """Take in a recording's observations one by one, and judge after each; at last, settle what was still open."""
    begun: list[ActionDone] = []
    for seen in observations:
        done = [each for each in begun if each.at <= seen.at]
        begun = [each for each in begun if each.at > seen.at]
        for each in (*done, seen):
            node, events = fold(node, each)
            node, said, actions = judge(node, orders, at=node.at, chance=CHANCE)
            begun += [_done(action, node.at) for action in actions]
            yield node, (*events, *said)
    for settled, events in fold_all(node, ()):
        node, said, _ = judge(settled, orders, at=settled.at, chance=CHANCE)
        yield node, (*events, *said)


def _done(action: Action, at: float) -> ActionDone:
    return ActionDone(
        at=at + ACTION_SECONDS,
        daemon=action.daemon,
        kind=action.kind,
        reason=action.reason,
        seconds=ACTION_SECONDS,
    )
