"""Every recording of real life, watched over by a watchdog that acts: it restarts what died, and nothing else."""

import io
from collections.abc import Iterator
from itertools import groupby

import pytest

from exporter.model.action import Action, ActionKind
from exporter.model.event import Event, EventName
from exporter.model.observation import ActionDone
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import AllowedAction, Mode, Thresholds
from exporter.recording import Recording
from exporter.reducer import reduce
from exporter.watchdog.context import DaemonPolicy, Policy
from exporter.watchdog.evaluation import evaluate
from tests.builders import RECORDINGS, Recorded, look

DIED = {"control_killed", "control_in_foreground", "limits_from_environment"}
"""In these recordings, a signal ends the control daemon."""

COMMAND = ("nvidia-cuda-mps-control", "-d")


def watched(recorded: Recorded, rules: Thresholds, mode: Mode = Mode.ACT) -> Iterator[Action | Event]:
    """Return the actions and events of a recording, with results that are reported without any effect."""
    node = Recording(io.StringIO(recorded.text)).header.node()
    policy = Policy(
        mode=mode, thresholds=rules, daemon_policies={name: DaemonPolicy(command=COMMAND) for name in node.daemons}
    )
    last = look("log", at=recorded.observations[-1].at + 2)
    for at, batch in groupby((*recorded.observations, last), key=lambda seen: seen.at):
        for seen in batch:
            node, _ = reduce(node, seen)
        node, events, actions = evaluate(node, policy, at=at, chance=0.5)
        yield from events
        for action in actions:
            yield action
            done = ActionDone(at=at, daemon=action.daemon, kind=action.kind, reason=action.reason, seconds=0.1)
            node, _ = reduce(node, done)


def harsh(reported: list[Action | Event]) -> list[tuple[ActionKind, str]]:
    """What ends or starts something."""
    actions = [each for each in reported if isinstance(each, Action)]
    return [(each.kind, each.reason) for each in actions if each.kind is not ActionKind.SET_LIMITS]


def test_restarts_each_crashed_daemon_once(subtests: pytest.Subtests) -> None:
    """Even where it may go to the end against a fault: those that were recorded healed, or had not lasted."""
    for recorded in RECORDINGS:
        with subtests.test(recorded=recorded):
            expected = [(ActionKind.RESTART, "crashed")] if recorded.name in DIED else []
            rules = Thresholds(allow=frozenset(AllowedAction))
            assert harsh(list(watched(recorded, rules))) == expected


def test_reports_each_planned_restart_once(subtests: pytest.Subtests) -> None:
    for recorded in RECORDINGS:
        with subtests.test(recorded=recorded):
            reported = list(watched(recorded, Thresholds(), Mode.OBSERVE))
            assert not [each for each in reported if isinstance(each, Action)]
            would = [
                each for each in reported if isinstance(each, Event) and each.event is EventName.WATCHDOG_WOULD_ACT
            ]
            assert [each.reason for each in would] == (["crashed"] if recorded.name in DIED else [])


def test_reports_a_restart_that_succeeded() -> None:
    (killed,) = (each for each in RECORDINGS if each.name == "control_killed")
    events = [each for each in watched(killed, Thresholds()) if isinstance(each, Event)]
    assert [(each.event.value, each.state or each.result) for each in events] == [
        ("daemon_diagnosed", "crashed"),
        ("watchdog_acts", None),
        ("daemon_diagnosed", "well"),
        ("watchdog_acted", "succeeded"),
    ]
    assert events[0].indications == (Reason(ReasonCode.NO_DAEMON_FOUND), Reason(ReasonCode.LOG_ENDS_WITHOUT_QUIT))
