"""What the watchdog would have done in a recording: reported among the rest, and changing nothing of it."""

import json
from collections.abc import Iterable

import pytest

from exporter import dry_run as dry_run_module
from exporter.cli import main
from exporter.dry_run import ACTION_SECONDS, START, dry_run, policy_for
from exporter.model.action import Action, ActionKind, ActionReason, RunCommand
from exporter.model.event import Event, EventName
from exporter.model.node import Node
from exporter.model.observation import ActionDone, Observation
from exporter.model.settings import Mode, Thresholds
from exporter.recording import Header, RecordedDaemon
from exporter.reducer import reduce
from exporter.watchdog.context import DaemonPolicy, Policy
from exporter.watchdog.evaluation import Evaluation
from tests.builders import AT, DAEMON, Recorded, node, scenario, servers

KILLED = scenario("control_killed")


class Judge:
    """Acts at its first judgement from a moment on, and remembers when it was asked."""

    def __init__(self, acts_at: float = AT) -> None:
        self.acts_at = acts_at
        self.asked: list[tuple[float, float]] = []
        self.acted = False

    def __call__(self, node: Node, policy: Policy, *, at: float, chance: float) -> Evaluation:
        """Report one action."""
        self.asked.append((at, chance))
        if self.acted or at < self.acts_at:
            return node, (), ()
        self.acted = True
        steps = (RunCommand(arguments=policy.daemon_policies[DAEMON].command),)
        action = Action(daemon=DAEMON, kind=ActionKind.RESTART, reason=ActionReason.CRASHED, steps=steps)
        return node, (Event(at=at, event=EventName.WATCHDOG_ACTS, daemon=DAEMON, action=action.kind),), (action,)


@pytest.fixture
def folded(monkeypatch: pytest.MonkeyPatch) -> list[Observation]:
    """What was taken in."""
    taken: list[Observation] = []
    monkeypatch.setattr(dry_run_module, "reduce", lambda node, seen: (taken.append(seen), reduce(node, seen))[1])
    return taken


def judged_by(evaluate: Judge, monkeypatch: pytest.MonkeyPatch, *seen: Observation) -> list[Event]:
    monkeypatch.setattr(dry_run_module, "evaluate", evaluate)
    policy = policy_for(node(), Mode.ACT, Thresholds())
    return [event for _, events in dry_run(node(), seen, policy) for event in events]


def test_evaluates_after_each_observation_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate = Judge(acts_at=AT + 99)
    judged_by(evaluate, monkeypatch, servers(at=AT), servers(at=AT + 1))
    assert evaluate.asked == [(AT, 0.5), (AT + 1, 0.5), (AT + 1, 0.5)]


def test_yields_the_events_of_the_watchdog_among_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    reported = judged_by(Judge(), monkeypatch, servers(at=AT), servers(513, at=AT + 1))
    assert [each.event for each in reported] == [EventName.DAEMON_UP, EventName.WATCHDOG_ACTS, EventName.SERVER_STARTED]


def test_an_action_ends_a_moment_later(monkeypatch: pytest.MonkeyPatch, folded: list[Observation]) -> None:
    at_once, then = servers(at=AT + ACTION_SECONDS / 2), servers(at=AT + 5)
    judged_by(Judge(), monkeypatch, servers(), at_once, then)
    done = ActionDone(
        at=AT + ACTION_SECONDS,
        daemon=DAEMON,
        kind=ActionKind.RESTART,
        reason=ActionReason.CRASHED,
        seconds=ACTION_SECONDS,
    )
    assert folded == [servers(), at_once, done, then]


def test_assumes_a_start_command_for_a_daemon_without_a_unit() -> None:
    by_unit = RecordedDaemon(name="a", pipe_directory="/a", log_directory="/a", unit="a.service")
    by_hand = RecordedDaemon(name="b", pipe_directory="/b", log_directory="/b")
    recorded = Header(daemons=(by_unit, by_hand)).node()
    policy = policy_for(recorded, Mode.OBSERVE, Thresholds(restarts=2))
    assert policy == Policy(
        thresholds=Thresholds(restarts=2), daemon_policies={"a": DaemonPolicy(), "b": DaemonPolicy(command=START)}
    )
    assert policy.daemon_policy_of(recorded.daemons["a"]).unit == "a.service"


# -- the command ------------------------------------------------------------------------------------------------------

OF_THE_WATCHDOG = ("daemon_diagnosed", "watchdog_", "circuit_", "daemon_quarantined", "daemon_released", "limits_")


def replayed(recorded: Recorded, capsys: pytest.CaptureFixture[str], *flags: str) -> list[str]:
    assert main(["replay", *flags, str(recorded.path)]) == 0
    return capsys.readouterr().out.splitlines()


def of_the_rest(lines: Iterable[str]) -> list[str]:
    return [line for line in lines if not json.loads(line)["event"].startswith(OF_THE_WATCHDOG)]


@pytest.mark.parametrize("recorded", [KILLED, scenario("quit_with_clients")], ids=repr)
@pytest.mark.parametrize("mode", Mode)
def test_reports_the_same_events_as_without_the_watchdog(
    recorded: Recorded, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rehearsed = replayed(recorded, capsys, "--events", "--watchdog", mode)
    plainly = replayed(recorded, capsys, "--events")
    assert of_the_rest(rehearsed) == of_the_rest(plainly) == plainly


def test_metrics_have_watchdog_families_only_in_a_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert any("cuda_mps_watchdog_mode" in line for line in replayed(KILLED, capsys, "--metrics", "--watchdog=act"))
    assert not any("cuda_mps_watchdog" in line for line in replayed(KILLED, capsys, "--metrics"))
