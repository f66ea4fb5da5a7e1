"""The watchdog in the service: it evaluates after each change, and at intervals; it acts once."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from exporter.config.settings import Config, DaemonConfig
from exporter.loop import Watchdog
from exporter.model.action import Action
from exporter.model.event import EventName
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.settings import Mode
from exporter.reducer import reduce
from exporter.watchdog.context import DaemonPolicy
from tests.builders import CONTROL, DAEMON, SERVER, exited, look, servers, silence
from tests.clocks import HandClock
from tests.watchdog.watched_daemon import (
    DEATH,
    UNIT,
    alive,
    begun,
    dies,
    hangs,
    left,
    quits,
    returns,
    suspended,
    unit,
)

# The tests state these values, so that they notice a change of the program's constants.
EVALUATION_SECONDS = 0.25
READ_SECONDS = 2.0
SETTLE_SECONDS = 30.0
STOPPED_SECONDS = 5.0


class WatchdogHarness:
    """A watchdog that may act, and what it has done."""

    def __init__(self, mode: Mode = Mode.ACT, unit: str | None = None) -> None:
        self.clock = HandClock(DEATH)
        self.done: list[Action] = []
        daemon = DaemonConfig(
            label=DAEMON,
            pipe_directory=Path(DAEMON),
            log_directory=Path(DAEMON),
            restart_command=() if unit else ("start",),
            unit=unit,
        )
        config = Config(watchdog=mode, daemons=(daemon,))
        self.watchdog = Watchdog(config, self.clock, runner=self, chance=lambda: 0.0)
        self.node = after(begun(DaemonPolicy(unit=unit)), *alive())
        self.evaluate(news=True)

    def do(self, action: Action, _node: Node) -> None:
        """Remember the action."""
        self.done.append(action)

    def break_off(self) -> None:
        """Do nothing: no action takes time."""

    def act(self) -> None:
        """Evaluate news, and act."""
        self.evaluate(news=True)
        self.watchdog.act(self.node)

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
    harness.act()
    harness.node = after(harness.node, *returns(harness.clock.time, pid=CONTROL))
    for _ in range(int(SETTLE_SECONDS) + 5):
        harness.clock.time += 1
        harness.act()
    assert harness.done == []

    harness.node = after(harness.node, *dies(harness.clock.time), look("log", at=harness.clock.time + 1))
    harness.clock.time += 2
    harness.act()
    assert [action.daemon for action in harness.done] == [DAEMON]


def seconds_until_restart(*read: Observation, dies_after: float) -> float:
    """Return how long after its death a daemon is restarted, if the exporter was stopped before, and then read this."""
    harness = WatchdogHarness()
    harness.node = after(harness.node, look("process", at=DEATH))
    harness.clock.time += 10
    resumed, seen = harness.clock.time, sorted(read, key=lambda each: each.at)
    died_at = resumed + dies_after
    for step in range(200):
        at = harness.clock.time = resumed + step / 4
        new = [replace(each, at=each.at + resumed) for each in seen if each.at + resumed <= at]
        seen = seen[len(new) :]
        death = dies(at) if at == died_at else ()
        harness.node = after(harness.node, *new, *death, *((look("log", at=at),) if at > died_at else ()))
        harness.act()
        if harness.done:
            return at - died_at
    raise AssertionError("no restart")


def test_restarts_soon_after_all_sources_were_read_since_the_exporter_was_stopped() -> None:
    """A source that was not read, or only before the stop, and a daemon that was not queried cost more time."""
    read = (look("process", at=0.5), servers(SERVER, at=0.5))
    assert seconds_until_restart(*read, dies_after=3.0) <= 1.5
    assert seconds_until_restart(*read, dies_after=0.5) <= READ_SECONDS + 1.5
    for missing in (read[:1], read[1:], (replace(read[0], seconds=3.0), read[1])):
        assert SETTLE_SECONDS - 5.0 <= seconds_until_restart(*missing, dies_after=3.0) <= SETTLE_SECONDS


# What happens while the exporter is stopped (SIGSTOP, a frozen cgroup, no CPU time) becomes known when it goes on.

STOPS: Mapping[str, Callable[[float], tuple[Observation, ...]]] = {
    "quit": quits,
    "quit without its log": lambda at: (exited(CONTROL, at=at), replace(left(at, behind=False), quit_traces=True)),
    "unit stop": lambda at: (exited(CONTROL, at=at), left(at), unit("inactive", at=at)),
    "slow unit stop": lambda at: (exited(CONTROL, at=at), left(at), unit("deactivating", at=at)),
    "new daemon": lambda at: (exited(CONTROL, at=at), *returns(at)),
    "new daemon in its place": returns,
    "hang that ended": lambda at: (suspended(at=at, state="S"), servers(SERVER, at=at)),
    "hang that ended, with a query under way": lambda at: (suspended(at=at, state="S"), silence(at=at)),
    "death": dies,
}


def after_stop(what: str, seconds: float, chance: Random) -> WatchdogHarness:
    """Stop the exporter for some seconds, meanwhile let this happen, and let the exporter go on for a minute.

    Its sources report it in any order, within a second. The state of a unit is read each second.
    """
    harness = WatchdogHarness(unit=UNIT if "unit" in what else None)
    if "unit" in what:
        harness.node = after(harness.node, unit("active", at=DEATH - 5))
    if "hang" in what:
        harness.node = after(harness.node, *hangs(DEATH - 85))
        harness.evaluate(news=True)
    harness.clock.time += seconds
    began = harness.clock.time
    seen: list[Observation] = [replace(each, at=began + chance.uniform(0.0, 0.9)) for each in STOPS[what](began)]
    seen += [look(name, at=began + 1 + second) for name in ("log", "control", "process") for second in range(60)]
    seen += [servers(SERVER, at=began + 4)] if "hang" in what else []
    if "unit" in what:
        seen += [unit("inactive", at=began + chance.uniform(1.0, 2.0) + second) for second in range(60)]
    seen.sort(key=lambda each: each.at)
    for _ in range(240):
        new = [each for each in seen if each.at <= harness.clock.time]
        seen = seen[len(new) :]
        harness.node = after(harness.node, *new)
        harness.act()
        harness.clock.time += 0.25
    return harness


@pytest.mark.parametrize("what", [name for name in STOPS if name != "death"])
def test_restarts_no_daemon_that_was_stopped_or_replaced_while_the_exporter_was_stopped(what: str) -> None:
    chance = Random(1)
    wrong = [after_stop(what, chance.uniform(STOPPED_SECONDS, 120.0), chance).done for _ in range(20)]
    assert not any(wrong)


def test_restarts_a_daemon_that_died_while_the_exporter_was_stopped() -> None:
    chance = Random(1)
    assert all(len(after_stop("death", seconds, chance).done) == 1 for seconds in (5.0, 30.0, 300.0))
