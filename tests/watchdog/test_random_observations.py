"""For any observations in any order: no restart over budget, no unaffected process ended, each action reported."""

import io
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from random import Random

import pytest

from exporter.model.action import Action, ActionKind, EndProcess
from exporter.model.event import Event, EventName
from exporter.model.identity import ProcessIdentity
from exporter.model.node import Node
from exporter.model.observation import ActionDone, Observation, Resumed
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import AllowedAction, Mode, Thresholds
from exporter.model.values import build, plain
from exporter.model.watchdog import WatchdogState
from exporter.recording import Recording
from exporter.reducer import reduce
from exporter.watchdog.context import DaemonPolicy, Policy
from exporter.watchdog.evaluation import evaluate
from tests.builders import (
    CONTROL,
    DAEMON,
    RECORDINGS,
    SERVER,
    Recorded,
    daemon_process,
    exited,
    look,
    no_daemon,
    node,
    process,
    refusal,
)
from tests.watchdog.test_fault_remedies import OTHER, VICTIM, strikes
from tests.watchdog.watched_daemon import (
    BY_COMMAND,
    BY_UNIT,
    NEXT,
    alive,
    dies,
    hangs,
    holder,
    left,
    quits,
    returns,
    silences,
    suspended,
    unit,
)

PHRASES: tuple[Callable[[float], Iterable[Observation]], ...] = (
    lambda at: alive(VICTIM, OTHER, at=at),
    lambda at: alive(OTHER, at=at),
    lambda at: returns(at, CONTROL),
    returns,
    lambda at: dies(at, CONTROL),
    lambda at: dies(at, NEXT),
    lambda at: (daemon_process(CONTROL, at=at), *hangs(at)),
    silences,
    quits,
    lambda at: (no_daemon(at=at), left(at)),
    lambda at: (suspended(SERVER, at=at), look("log", at=at + 2)),
    lambda at: (refusal(at=at), holder(at + 1), refusal(at=at + 3)),
    lambda at: strikes(VICTIM, at=at),
    lambda at: strikes(VICTIM, OTHER, at=at),
    lambda at: (exited(VICTIM, at=at), look("log", at=at + 15)),
    lambda at: (process(VICTIM, at=at, ticks=7),),
    lambda at: (unit("active", at=at),),
    lambda at: (unit("active", at=at, restarts=2),),
    lambda at: (unit("failed", at=at, result="signal"),),
    lambda at: (unit("inactive", at=at),),
    lambda at: (look("log", at=at),),
    lambda at: (Resumed(at=at, daemon=DAEMON),),
)
"""What may happen to a daemon, in a few observations each."""

GAPS = (0.0, 0.6, 3.0, 12.0, 70.0, 95.0, 1000.0)
MANDATES = (BY_COMMAND, BY_COMMAND, BY_UNIT, DaemonPolicy())
MODES = (Mode.ACT, Mode.ACT, Mode.ACT, Mode.OBSERVE)
UNHEARD = Reason(ReasonCode.NO_RESULT)
OUTCOMES = (None, None, None, Reason(ReasonCode.PROGRAM_FAILED, command="start", exit_code=1), UNHEARD)
LIVES, PHRASES_EACH = 50, 30


def life(chance: Random) -> list[Observation]:
    """A daemon that is well, and what comes then, each phrase some time after the one before."""
    seen = list(alive(VICTIM, OTHER))
    for _ in range(PHRASES_EACH):
        at = max(each.at for each in seen) + chance.choice(GAPS)
        seen.extend(chance.choice(PHRASES)(at))
    return seen


AGAINST_FAULTS = {
    ActionKind.KILL_CLIENTS: AllowedAction.KILL_CLIENTS,
    ActionKind.SHUT_DOWN_SERVER: AllowedAction.SHUT_DOWN_SERVER,
    ActionKind.RESTART: AllowedAction.RESTART_DAEMON,
}


def rules(chance: Random) -> Thresholds:
    """Some that are strict, some that are hasty."""
    return Thresholds(
        hung_after=chance.choice((0.5, 90.0)),
        restarts=chance.randint(0, 3),
        window=chance.choice((60.0, 900.0)),
        fault=chance.choice((0.0, 5.0)),
        step=chance.choice((0.0, 5.0)),
        allow=frozenset(each for each in AllowedAction if chance.random() < 0.5),
    )


class Onlooker:
    """Knows who is who, and holds every decision against it."""

    def __init__(self, rules: Thresholds) -> None:
        self._rules = rules
        self._ours: dict[str, set[ProcessIdentity]] = defaultdict(set)
        self._restarts: dict[str, list[float]] = defaultdict(list)

    def sees(self, node: Node) -> None:
        """The signalled processes are MPS' own, and the state can be stored."""
        for name, daemon in node.daemons.items():
            process = daemon.runtime.process
            if process is not None and process.pid is not None and process.start_ticks is not None:
                self._ours[name].add(ProcessIdentity(pid=process.pid, start_ticks=process.start_ticks))
            known = (node.processes[pid] for pid in daemon.servers if pid in node.processes)
            children = (each for each in known if each.parent in self._ours[name])
            self._ours[name].update(ProcessIdentity(pid=each.pid, start_ticks=each.start_ticks) for each in children)
        for watch in node.watches.values():
            assert build(WatchdogState, plain(watch)) == watch

    def hears(self, seen: Observation) -> None:
        """An operator gives back the budget."""
        if isinstance(seen, Resumed):
            self._restarts[seen.daemon].clear()

    def judges(self, before: Node, action: Action, at: float) -> None:
        """An action must be permitted, and must affect only the right processes."""
        daemon, watch = before.daemons[action.daemon], before.watches.get(action.daemon, WatchdogState())
        assert watch.quarantine is None
        match action.kind:
            case ActionKind.RESTART:
                restarts = self._restarts[action.daemon]
                restarts.append(at)
                assert sum(at - each < self._rules.window for each in restarts) <= self._rules.restarts
                assert not daemon.answers or action.reason == "fault"
                self._ends(action, self._ours[action.daemon])
            case ActionKind.END_SERVER:
                assert AllowedAction.END_HUNG_SERVER in self._rules.allow
                self._ends(action, self._ours[action.daemon])
            case ActionKind.KILL_CLIENTS:
                hit = {pid for each in before.incidents.values() if each.open for pid in each.affected}
                here = (before.processes[pid] for pid in hit if pid in before.processes)
                self._ends(action, {ProcessIdentity(pid=each.pid, start_ticks=each.start_ticks) for each in here})
        if action.reason == "fault":
            assert AGAINST_FAULTS[action.kind] in self._rules.allow

    def _ends(self, action: Action, allowed: Iterable[ProcessIdentity]) -> None:
        assert {step.identity for step in action.steps if isinstance(step, EndProcess)} <= set(allowed)


def reported_actions(events: Iterable[Event]) -> list[tuple[str | None, str | None, Reason | str | None]]:
    return [(each.daemon, each.action, each.reason) for each in events if each.event is EventName.WATCHDOG_ACTS]


def test_random_observations_lead_only_to_permitted_actions(subtests: pytest.Subtests) -> None:
    for seed in range(LIVES):
        with subtests.test(seed=seed):
            chance = Random(seed)
            policy = Policy(
                mode=chance.choice(MODES), thresholds=rules(chance), daemon_policies={DAEMON: chance.choice(MANDATES)}
            )
            outcome = chance.choice(OUTCOMES)
            present, onlooker = node(), Onlooker(policy.thresholds)
            for each in life(chance):
                present, _ = reduce(present, each)
                onlooker.hears(each)
                onlooker.sees(present)
                before = present
                present, events, actions = evaluate(before, policy, at=present.at, chance=0.5)
                assert reported_actions(events) == [(action.daemon, action.kind, action.reason) for action in actions]
                assert policy.mode is Mode.ACT or not actions
                for action in actions:
                    acting = before.watches.get(action.daemon, WatchdogState()).acting
                    assert acting is None or acting != present.watches[action.daemon].acting
                    onlooker.judges(before, action, present.at)
                    if outcome != UNHEARD:
                        done = ActionDone(
                            at=present.at,
                            daemon=action.daemon,
                            kind=action.kind,
                            reason=action.reason,
                            seconds=0.1,
                            problem=outcome,
                        )
                        present, _ = reduce(present, done)


# Recordings of real life, watched over by a watchdog that acts: it restarts what died, and nothing else.


DIED = {"control_killed", "control_in_foreground", "limits_from_environment"}
"""In these recordings, a signal ends the control daemon."""

SOME = [each for number, each in enumerate(RECORDINGS) if number % 5 == 0 or each.name in DIED]

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


def test_restarts_each_daemon_that_is_down_once(subtests: pytest.Subtests) -> None:
    """Even where it may go to the end against a fault: those that were recorded healed, or had not lasted."""
    for recorded in SOME:
        with subtests.test(recorded=recorded):
            expected = [(ActionKind.RESTART, "down")] if recorded.name in DIED else []
            rules = Thresholds(allow=frozenset(AllowedAction))
            assert harsh(list(watched(recorded, rules))) == expected


def test_reports_each_planned_restart_once(subtests: pytest.Subtests) -> None:
    """A watchdog that acts plans the same."""
    for recorded in SOME:
        with subtests.test(recorded=recorded):
            reported = list(watched(recorded, Thresholds(), Mode.OBSERVE))
            assert not [each for each in reported if isinstance(each, Action)]
            would = [
                each for each in reported if isinstance(each, Event) and each.event is EventName.WATCHDOG_WOULD_ACT
            ]
            assert [each.reason for each in would] == (["down"] if recorded.name in DIED else [])


def test_reports_a_restart_that_succeeded() -> None:
    (killed,) = (each for each in RECORDINGS if each.name == "control_killed")
    events = [each for each in watched(killed, Thresholds()) if isinstance(each, Event)]
    assert [(each.event.value, each.state or each.result) for each in events] == [
        ("daemon_diagnosed", "down"),
        ("watchdog_acts", None),
        ("daemon_diagnosed", "well"),
        ("watchdog_acted", "succeeded"),
    ]
    assert events[0].indications == (Reason(ReasonCode.NO_DAEMON_FOUND), Reason(ReasonCode.LOG_ENDS_WITHOUT_QUIT))
