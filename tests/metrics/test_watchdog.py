"""Families of the watchdog. Only expected daemons have them."""

from dataclasses import replace
from itertools import product

import pytest

from exporter.metrics.catalogue import NodeCollector
from exporter.model.action import ActionKind, ActionReason, ActionResult
from exporter.model.node import Node
from exporter.model.settings import Mode, Thresholds
from exporter.model.watchdog import ActionCount, WatchdogPhase
from exporter.view import View
from exporter.watchdog.context import DaemonPolicy, Policy
from tests.builders import (
    AT,
    DAEMON,
    GPU,
    SERVER,
    at_work,
    backing_off,
    circuit_open,
    idle,
    node,
    quarantined,
    reduced,
    suspended,
    three_clients,
    watched,
)

RESTARTS, ACTIONS = "cuda_mps_watchdog_restarts_total", "cuda_mps_watchdog_actions_total"
LEFT, NEXT = "cuda_mps_watchdog_restarts_left", "cuda_mps_watchdog_next_restart_timestamp_seconds"
OPENED = "cuda_mps_watchdog_circuit_opened_timestamp_seconds"

ACTING = Policy(mode=Mode.ACT)


def shown(present: Node, policy: Policy | None = ACTING, clock_step: float = 0.0) -> dict[tuple[str, ...], float]:
    """Return the watchdog's samples by name and labels, without the label daemon."""
    view = View(present, policy=policy, clock_step=clock_step)
    return {
        (each.name, *(value for label, value in each.labels.items() if label != "daemon")): each.value
        for metric in NodeCollector(view).collect()
        if metric.name.startswith("cuda_mps_watchdog")
        for each in metric.samples
    }


def ones(present: Node, name: str, policy: Policy | None = ACTING) -> list[str]:
    """Return the states of a state set that are 1."""
    return [key[1] for key, value in shown(present, policy).items() if key[0] == name and value == 1]


def test_without_a_watchdog_and_for_a_discovered_daemon_the_families_are_absent() -> None:
    assert shown(backing_off(), policy=None) == {}
    assert shown(reduced(*at_work(), start=node(expected=False)).node) == {}


def test_the_mode_of_the_daemon_takes_precedence() -> None:
    observing = Policy(mode=Mode.ACT, daemon_policies={DAEMON: DaemonPolicy(mode=Mode.OBSERVE)})
    assert ones(idle(), "cuda_mps_watchdog_mode") == ["act"]
    assert ones(idle(), "cuda_mps_watchdog_mode", observing) == ["observe"]


def test_shows_diagnosis_and_state_which_are_unknown_and_idle_before_the_first_evaluation() -> None:
    for present, state, diagnosis in ((idle(), "idle", "unknown"), (circuit_open(), "circuit_open", "down")):
        assert ones(present, "cuda_mps_watchdog_state") == [state]
        assert ones(present, "cuda_mps_watchdog_diagnosis") == [diagnosis]


def test_shows_the_process_of_the_diagnosis() -> None:
    assert shown(suspended())["cuda_mps_watchdog_process_info", "server_suspended", str(SERVER)] == 1
    assert not [key for key in shown(circuit_open()) if key[0] == "cuda_mps_watchdog_process_info"]


def test_restart_counters_start_at_0(subtests: pytest.Subtests) -> None:
    for reason, result in product(["down", "hung"], ActionResult):
        with subtests.test(reason=reason, result=result):
            assert shown(idle())[RESTARTS, reason, result] == 0


def test_counts_restarts_and_other_actions() -> None:
    action_counts = (
        ActionCount(kind=ActionKind.RESTART, reason=ActionReason.DOWN, result=ActionResult.BY_SYSTEMD, count=3),
        ActionCount(kind=ActionKind.KILL_CLIENTS, reason=ActionReason.FAULT, result=ActionResult.OBSERVED, count=2),
        ActionCount(kind=ActionKind.SET_LIMITS, reason="new", result=ActionResult.FAILED, count=1),
    )
    found = shown(watched(three_clients(), action_counts=action_counts))
    assert {key: value for key, value in found.items() if value and key[0] in (RESTARTS, ACTIONS)} == {
        (RESTARTS, "down", "by_systemd"): 3,
        (ACTIONS, "kill_clients", "fault", "observed"): 2,
        (ACTIONS, "set_limits", "new", "failed"): 1,
    }


def test_shows_the_remaining_restarts_of_the_window_and_none_while_the_circuit_is_open() -> None:
    two = Policy(thresholds=Thresholds(restarts=2, window=100.0))
    assert shown(idle(), two)[LEFT,] == 2
    assert shown(watched(idle(), restarts=(AT - 101, AT - 100, AT - 1)), two)[LEFT,] == 1
    assert shown(watched(idle(), restarts=(AT,) * 3), two)[LEFT,] == 0, "also if the budget was reduced since"
    assert shown(circuit_open(), Policy(thresholds=Thresholds(restarts=9)))[LEFT,] == 0
    assert shown(circuit_open())[OPENED,] == AT + 6
    assert (OPENED,) not in shown(backing_off())


def test_shows_the_next_restart_during_backoff_only() -> None:
    assert shown(backing_off(), clock_step=60.0)[NEXT,] == AT + 80, "corrected by the clock step"
    idle_again = replace(backing_off().watches[DAEMON], phase=WatchdogPhase.IDLE)
    assert (NEXT,) not in shown(replace(backing_off(), watches={DAEMON: idle_again}))


def test_shows_the_last_restart() -> None:
    assert shown(backing_off())["cuda_mps_watchdog_last_restart_timestamp_seconds",] == AT + 5
    assert ("cuda_mps_watchdog_last_restart_timestamp_seconds",) not in shown(idle())


def test_shows_since_when_and_why_a_daemon_is_quarantined() -> None:
    key = ("cuda_mps_watchdog_quarantined_timestamp_seconds", GPU, "79", "RESTART_BM")
    found = {name: value for name, value in shown(quarantined(), clock_step=60.0).items() if name[0] == key[0]}

    assert found == {key: AT + 60}
    assert ones(quarantined(), "cuda_mps_watchdog_state") == ["quarantined"]
    assert not [name for name in shown(circuit_open()) if name[0] == key[0]]
