"""The watchdog in the service: it evaluates after each change, and at intervals; it acts once."""

from pathlib import Path

from exporter.config.settings import Config, DaemonConfig
from exporter.loop import EVALUATION_SECONDS, SETTLE_SECONDS, Watchdog
from exporter.model.action import Action
from exporter.model.event import EventName
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.settings import Mode
from exporter.reducer import reduce
from tests.builders import CONTROL, DAEMON, look
from tests.builders import node as fresh
from tests.clocks import HandClock
from tests.watchdog.watched_daemon import DEATH, alive, dies, hangs, returns


class WatchdogHarness:
    """A watchdog that may act, and what it has done."""

    def __init__(self, mode: Mode = Mode.ACT) -> None:
        self.clock = HandClock(DEATH)
        self.done: list[Action] = []
        daemon = DaemonConfig(
            label=DAEMON, pipe_directory=Path(DAEMON), log_directory=Path(DAEMON), restart_command=("start",)
        )
        config = Config(watchdog=mode, daemons=(daemon,))
        self.watchdog = Watchdog(config, self.clock, runner=self, chance=lambda: 0.0)
        self.node = after(fresh(), *alive())
        self.evaluate(news=True)

    def do(self, action: Action, _node: Node) -> None:
        """Remember the action."""
        self.done.append(action)

    def break_off(self) -> None:
        """Do nothing: no action takes time."""

    def evaluate(self, *, news: bool = False) -> list[EventName]:
        """Return the events of an evaluation."""
        self.node, events = self.watchdog.evaluate(self.node, changed=news)
        return [event.event for event in events]


def after(node: Node, *seen: Observation) -> Node:
    for each in seen:
        node, _ = reduce(node, each)
    return node


def test_reports_an_action_before_it_runs_it_once() -> None:
    harness = WatchdogHarness()
    harness.node = after(harness.node, *dies(), look("log", at=DEATH + 1))

    assert EventName.WATCHDOG_ACTS in harness.evaluate(news=True)
    assert harness.done == []

    harness.watchdog.act(harness.node)
    harness.watchdog.act(harness.node)
    assert [action.daemon for action in harness.done] == [DAEMON]


def test_evaluates_less_often_without_changes() -> None:
    harness = WatchdogHarness()
    harness.node = after(harness.node, *dies(), look("log", at=DEATH + 1))

    harness.clock.time += EVALUATION_SECONDS / 2
    assert harness.evaluate() == []
    harness.clock.time += EVALUATION_SECONDS
    assert EventName.WATCHDOG_ACTS in harness.evaluate()


def test_acts_on_nothing_that_it_knew_before_the_exporter_was_stopped() -> None:
    """While the exporter was stopped, a hung daemon has gone on: when its deadline passed, nobody looked."""
    harness = WatchdogHarness()
    harness.node = after(harness.node, *hangs())
    harness.evaluate(news=True)

    harness.clock.time += 300
    harness.evaluate(news=True)
    harness.watchdog.act(harness.node)
    harness.node = after(harness.node, *returns(harness.clock.time, pid=CONTROL))
    for _ in range(int(SETTLE_SECONDS) + 5):
        harness.clock.time += 1
        harness.evaluate(news=True)
        harness.watchdog.act(harness.node)
    assert harness.done == []

    harness.node = after(harness.node, *dies(harness.clock.time), look("log", at=harness.clock.time + 1))
    harness.clock.time += 2
    harness.evaluate(news=True)
    harness.watchdog.act(harness.node)
    assert [action.daemon for action in harness.done] == [DAEMON]
