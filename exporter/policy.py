"""The policy of the watchdog that follows from the configuration, and a dry run over a recording."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from exporter.config.settings import Config
from exporter.model.node import Node
from exporter.model.observation import ActionDone, Observation
from exporter.model.settings import Mode, Thresholds
from exporter.model.values import made_of
from exporter.reducer import Reduced, finish, reduce
from exporter.watchdog.context import DaemonPolicy, Policy
from exporter.watchdog.evaluation import evaluate


def policy_of(config: Config) -> Policy:
    """Return the policy of the watchdog. The general mode applies to a daemon that is not configured."""
    daemon_policies = {
        daemon.name: DaemonPolicy(
            mode=daemon.watchdog, unit=daemon.unit, command=daemon.restart_command, limits=daemon.limits
        )
        for daemon in config.daemons
    }
    return Policy(
        mode=config.watchdog,
        thresholds=replace(config.constants.rules, allow=config.watchdog_allow),
        daemon_policies=daemon_policies,
        program=config.constants.control_executable,
    )


ACTION_SECONDS = 0.1
"""Assumed duration of an action."""

CHANCE = 0.5
"""The same in each run, so that the results are the same."""

START = ("nvidia-cuda-mps-control", "-d")
"""Assumed start command of a daemon without a known unit."""


def policy_for(node: Node, mode: Mode, thresholds: Thresholds) -> Policy:
    """Return the policy for the daemons of a recording."""
    daemon_policies = {
        name: DaemonPolicy() if daemon.declared.unit is not None else DaemonPolicy(command=START)
        for name, daemon in node.daemons.items()
    }
    return Policy(mode=mode, thresholds=thresholds, daemon_policies=daemon_policies)


def dry_run(node: Node, observations: Iterable[Observation], policy: Policy) -> Iterator[Reduced]:
    """Reduce the observations of a recording, and evaluate the node after each one and at the end."""
    pending: list[ActionDone] = []
    for observation in observations:
        done = [result for result in pending if result.at <= observation.at]
        pending = [result for result in pending if result.at > observation.at]
        for seen in (*done, observation):
            node, events = reduce(node, seen)
            node, evaluated, actions = evaluate(node, policy, at=node.at, chance=CHANCE)
            done_at = node.at + ACTION_SECONDS
            pending += (made_of(ActionDone, each, at=done_at, seconds=ACTION_SECONDS) for each in actions)
            yield node, (*events, *evaluated)
    node, events = finish(node)
    node, evaluated, _ = evaluate(node, policy, at=node.at, chance=CHANCE)
    yield node, (*events, *evaluated)
