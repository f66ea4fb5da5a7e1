"""Families of the watchdog: of expected daemons only, and absent if no watchdog runs."""

from collections.abc import Callable, Mapping
from itertools import product
from typing import NamedTuple

from exporter.metrics.family import Choice, Items, Labels, Rows, Samples, Scope, family, group, info
from exporter.model.action import AGAINST_FAULTS, ActionKind, ActionReason, ActionResult
from exporter.model.daemon import Daemon
from exporter.model.settings import Mode
from exporter.model.watchdog import BlockReason, Condition, WatchdogPhase, WatchdogState
from exporter.parse.xid_catalogue import REBOOT, RESET
from exporter.view import View
from exporter.watchdog import restart_budget
from exporter.watchdog.context import Policy, block_reasons

_OUTCOME = (Choice("reason", ActionReason), Choice("result", ActionResult))

_BY_WATCHDOG = (ActionResult.SUCCEEDED, ActionResult.FAILED, ActionResult.OBSERVED)

_COUNTED_FROM_ZERO = (
    *product((ActionKind.RESTART,), (ActionReason.CRASHED, ActionReason.HUNG), ActionResult),
    *product((ActionKind.RESTART, *AGAINST_FAULTS), (ActionReason.FAULT,), _BY_WATCHDOG),
    *product((ActionKind.END_SERVER,), (ActionReason.HUNG,), _BY_WATCHDOG),
    *product((ActionKind.SET_LIMITS,), (ActionReason.LIMITS_LOST, ActionReason.LIMITS_DRIFTED), _BY_WATCHDOG[:2]),
)
"""What has a 0 before it first happens, because the first increase would be missed otherwise."""


class _Watched(NamedTuple):
    """An expected daemon, the watchdog's state of it, and the watchdog's configuration."""

    daemon: Daemon
    watch: WatchdogState
    policy: Policy
    at: float


def _watched(view: View) -> Items[_Watched]:
    if view.policy is not None:
        for daemon in view.daemons():
            if daemon.declared.expected:
                watch = view.node.watches.get(daemon.name, WatchdogState())
                yield (daemon.name,), _Watched(daemon, watch, view.policy, view.node.at)


_WATCHED: Scope[_Watched] = Scope(("daemon",), _watched)
_WATCH: Scope[WatchdogState] = Scope(
    ("daemon",), lambda view: ((labels, each.watch) for labels, each in _watched(view))
)


def _blocked(each: _Watched) -> Mapping[str, bool]:
    if each.policy.configured_mode_of(each.daemon) is not Mode.ACT:
        return {}
    found = block_reasons(each.policy, each.daemon, each.watch)
    return {reason: reason in found for reason in BlockReason}


def _culprits(view: View) -> Rows:
    found = ((labels, watch.diagnosis) for labels, watch in _WATCH.items(view))
    return ((*labels, each.condition, each.process.pid) for labels, each in found if each and each.process)


def _actions(shown: Callable[[ActionKind], Labels | None]) -> Callable[[View], Samples]:
    """Count actions by reason and result. `shown` returns the labels of a kind of action, None if it is not shown."""

    def samples(view: View) -> Samples:
        for labels, watch in _WATCH.items(view):
            action_counts: Mapping[tuple[ActionKind, str, ActionResult], int] = {
                **dict.fromkeys(_COUNTED_FROM_ZERO, 0),
                **{(each.kind, each.reason, each.result): each.count for each in watch.action_counts},
            }
            for (kind, reason, result), count in sorted(action_counts.items()):
                by_kind = shown(kind)
                if by_kind is not None:
                    yield (*labels, *by_kind, reason, result), count

    return samples


def _quarantined(view: View) -> Samples:
    for labels, watch in _WATCH.items(view):
        found = watch.quarantine
        if found is not None:
            yield (*labels, found.gpu, str(found.xid), found.action), found.at + view.clock_step


WATCHDOG = group(
    "The watchdog",
    "daemons with suspended restarts",
    'cuda_mps_watchdog_state{state=~"circuit_open|quarantined|state_lost"} == 1',
    _WATCHED.state("cuda_mps_watchdog_mode", Choice("mode", Mode), lambda each: each.policy.mode_of(each.daemon)),
    "Watchdog mode of the daemon; exactly one mode is 1. In observe, it only reports what it would do.",
    _WATCHED.values("cuda_mps_watchdog_blocked", Choice("reason", BlockReason), _blocked),
    "Whether this reason prevents the watchdog from acting, although the configured mode is act.",
    _WATCH.state("cuda_mps_watchdog_state", Choice("state", WatchdogPhase), lambda each: each.phase),
    "Watchdog state of the daemon; exactly one state is 1. An operator's resume ends quarantined, state_lost and "
    "circuit_open, which also ends if the daemon is healthy for long.",
    _WATCH.state(
        "cuda_mps_watchdog_diagnosis",
        Choice("diagnosis", Condition),
        lambda each: Condition.UNKNOWN if each.diagnosis is None else each.diagnosis.condition,
    ),
    "Diagnosis of the daemon from several sources; exactly one diagnosis is 1.",
    info("cuda_mps_watchdog_culprit_info", ("daemon", Choice("diagnosis", Condition), "pid"), _culprits),
    "Process that the diagnosis names, always 1: it has the control session open, is suspended, or hangs.",
    family(
        "cuda_mps_watchdog_restarts_total",
        ("daemon", *_OUTCOME),
        _actions(lambda kind: () if kind is ActionKind.RESTART else None),
    ),
    "Restarts of the daemon: by the watchdog, by systemd, or observed (the watchdog would have restarted it).",
    family(
        "cuda_mps_watchdog_actions_total",
        ("daemon", Choice("action", (*AGAINST_FAULTS, ActionKind.END_SERVER, ActionKind.SET_LIMITS)), *_OUTCOME),
        _actions(lambda kind: None if kind is ActionKind.RESTART else (kind,)),
    ),
    "Other actions of the watchdog for the daemon, or observed ones (the watchdog would have acted).",
    _WATCHED.value(
        "cuda_mps_watchdog_restarts_left",
        lambda each: restart_budget.restarts_left(each.watch, each.policy.thresholds, each.at),
    ),
    "Restarts of the daemon that the budget still allows; 0 while the circuit is open.",
    _WATCH.time(
        "cuda_mps_watchdog_next_restart_timestamp_seconds",
        lambda each: each.not_before if each.phase is WatchdogPhase.BACKOFF else None,
    ),
    "Earliest Unix time of the next restart. Present only during a backoff.",
    _WATCH.time("cuda_mps_watchdog_last_restart_timestamp_seconds", lambda each: each.last_restart_at),
    "Unix time of the daemon's last restart.",
    _WATCH.time("cuda_mps_watchdog_circuit_opened_timestamp_seconds", lambda each: each.circuit_opened_at),
    "Unix time at which the circuit breaker opened. Present only while it is open.",
    family(
        "cuda_mps_watchdog_quarantined_timestamp_seconds",
        ("daemon", "gpu", "xid", Choice("action", (RESET, REBOOT))),
        _quarantined,
    ),
    "Unix time at which the quarantine began, with the action that NVIDIA advises. Present only during a quarantine.",
)
