"""The watchdog in the service: it judges when something has happened, and else now and then; it acts once."""

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


class Stand:
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
        self.judge(news=True)

    def do(self, action: Action, _node: Node) -> None:
        """Remember the action."""
        self.done.append(action)

    def break_off(self) -> None:
        """Do nothing: no action takes time."""

    def judge(self, *, news: bool = False) -> list[EventName]:
        """Return the events of an evaluation."""
        self.node, events = self.watchdog.evaluate(self.node, changed=news)
        return [event.event for event in events]


def after(node: Node, *seen: Observation) -> Node:
    for each in seen:
        node, _ = reduce(node, each)
    return node


def test_reports_an_action_before_it_runs_it_once() -> None:
    stand = Stand()
    stand.node = after(stand.node, *dies(), look("log", at=DEATH + 1))

    assert EventName.WATCHDOG_ACTS in stand.judge(news=True)
    assert stand.done == []

    stand.watchdog.act(stand.node)
    stand.watchdog.act(stand.node)
    assert [action.daemon for action in stand.done] == [DAEMON]


def test_evaluates_less_often_without_changes() -> None:
    stand = Stand()
    stand.node = after(stand.node, *dies(), look("log", at=DEATH + 1))

    stand.clock.time += EVALUATION_SECONDS / 2
    assert stand.judge() == []
    stand.clock.time += EVALUATION_SECONDS
    assert EventName.WATCHDOG_ACTS in stand.judge()


def test_does_nothing_in_observe_mode() -> None:
    stand = Stand(Mode.OBSERVE)
    stand.node = after(stand.node, *dies(), look("log", at=DEATH + 1))

    assert EventName.WATCHDOG_WOULD_ACT in stand.judge(news=True)
    stand.watchdog.act(stand.node)
    assert stand.done == []


def test_acts_on_nothing_that_it_knew_before_the_exporter_was_stopped() -> None:
    """While the exporter was stopped, a hung daemon has gone on: when its deadline passed, nobody looked."""
    stand = Stand()
    stand.node = after(stand.node, *hangs())
    stand.judge(news=True)

    stand.clock.time += 300
    stand.judge(news=True)
    stand.watchdog.act(stand.node)
    stand.node = after(stand.node, *returns(stand.clock.time, pid=CONTROL))
    for _ in range(int(SETTLE_SECONDS) + 5):
        stand.clock.time += 1
        stand.judge(news=True)
        stand.watchdog.act(stand.node)
    assert stand.done == []

    stand.node = after(stand.node, *dies(stand.clock.time), look("log", at=stand.clock.time + 1))
    stand.clock.time += 2
    stand.judge(news=True)
    stand.watchdog.act(stand.node)
    assert [action.daemon for action in stand.done] == [DAEMON]
