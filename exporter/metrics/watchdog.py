"""Families about the watchdog. They are of daemons that are expected, and there only where it runs."""

from collections.abc import Callable, Iterable, Mapping
from itertools import product

from exporter.core.watchdog import budget
from exporter.core.watchdog.orders import Orders, blocks
from exporter.core.watchdog.owner import CRASHED
from exporter.core.watchdog.restarting import FAULT, HUNG
from exporter.metrics.family import Samples, counter, gauge
from exporter.model.action import AGAINST_FAULTS, ActionKind, ActionResult
from exporter.model.daemon import Daemon
from exporter.model.diagnosis import Condition
from exporter.model.settings import Mode
from exporter.model.watch import Block, Watch, WatchState
from exporter.view import View

Counts = Mapping[tuple[ActionKind, str, ActionResult], int]

_OURS = (ActionResult.SUCCEEDED, ActionResult.FAILED, ActionResult.OBSERVED)

_KNOWN: Counts = dict.fromkeys(
    (
        *product((ActionKind.RESTART,), (CRASHED, HUNG), ActionResult),
        *product((ActionKind.RESTART, *AGAINST_FAULTS), (FAULT,), _OURS),
        *product((ActionKind.END_SERVER,), (HUNG,), _OURS),
        *product((ActionKind.SET_LIMITS,), ("limits_lost", "limits_drifted"), _OURS[:2]),
    ),
    0,
)
"""What is counted from 0 on, before it first happens: an increase from nothing is none."""


def _watched(view: View) -> Iterable[tuple[Daemon, Watch, Orders]]:
    if view.orders is not None:
        for daemon in view.daemons():
            if daemon.expected:
                yield daemon, view.node.watches.get(daemon.name, Watch()), view.orders


def _mode(view: View) -> Samples:
    for daemon, _, orders in _watched(view):
        yield from (((daemon.name, mode), orders.mode_of(daemon) is mode) for mode in Mode)


def _state(view: View) -> Samples:
    for daemon, watch, _ in _watched(view):
        yield from (((daemon.name, state), watch.state is state) for state in WatchState)


def _diagnosis(view: View) -> Samples:
    for daemon, watch, _ in _watched(view):
        found = Condition.UNKNOWN if watch.diagnosis is None else watch.diagnosis.condition
        yield from (((daemon.name, condition), found is condition) for condition in Condition)


def _culprit(view: View) -> Samples:
    for daemon, watch, _ in _watched(view):
        if watch.diagnosis is not None and watch.diagnosis.culprit is not None:
            yield (daemon.name, watch.diagnosis.condition, str(watch.diagnosis.culprit.pid)), 1


def _restarts(view: View) -> Samples:
    for daemon, watch, _ in _watched(view):
        counts = _counts(watch)
        yield from (
            ((daemon.name, reason, result), counts[kind, reason, result])
            for kind, reason, result in sorted(counts)
            if kind is ActionKind.RESTART
        )


def _actions(view: View) -> Samples:
    for daemon, watch, _ in _watched(view):
        counts = _counts(watch)
        yield from (
            ((daemon.name, kind, reason, result), counts[kind, reason, result])
            for kind, reason, result in sorted(counts)
            if kind is not ActionKind.RESTART
        )


def _counts(watch: Watch) -> Counts:
    return {**_KNOWN, **{(each.kind, each.reason, each.result): each.count for each in watch.tallies}}


def _restarts_left(view: View) -> Samples:
    for daemon, watch, orders in _watched(view):
        yield (daemon.name,), budget.left(watch, orders.rules, view.node.at)


def _moment(of: Callable[[Watch], float | None]) -> Callable[[View], Samples]:
    def samples(view: View) -> Samples:
        for daemon, watch, _ in _watched(view):
            at = of(watch)
            if at is not None:
                yield (daemon.name,), at + view.clock_step

    return samples


def _blocked(view: View) -> Samples:
    for daemon, watch, orders in _watched(view):
        if orders.configured_mode_of(daemon) is Mode.ACT:
            found = blocks(orders, daemon, watch)
            yield from (((daemon.name, reason), reason in found) for reason in Block)


def _quarantined(view: View) -> Samples:
    for daemon, watch, _ in _watched(view):
        found = watch.quarantine
        if found is not None:
            yield (daemon.name, found.gpu, str(found.xid), found.action), found.at + view.clock_step


FAMILIES = (
    gauge(
        "cuda_mps_watchdog_mode",
        ("daemon", "mode"),
        "Whether the watchdog only tells what it would do for the daemon, or does it; exactly one is 1.",
        _mode,
    ),
    gauge(
        "cuda_mps_watchdog_blocked",
        ("daemon", "reason"),
        "Whether this keeps the watchdog from acting for the daemon, though the configuration says act: another "
        "exporter of the machine acts for it, its lock cannot be taken, the watchdog's state could not be read or "
        "written, or its pipe directory belongs to a user who must not run it.",
        _blocked,
    ),
    gauge(
        "cuda_mps_watchdog_state",
        ("daemon", "state"),
        "What the watchdog is at, for the daemon; exactly one is 1. With the circuit open nothing is restarted until "
        "somebody says resume, or the daemon has been well for long; a quarantine lasts until somebody says resume.",
        _state,
    ),
    gauge(
        "cuda_mps_watchdog_diagnosis",
        ("daemon", "diagnosis"),
        "What is the matter with the daemon, as several witnesses tell; exactly one is 1.",
        _diagnosis,
    ),
    gauge(
        "cuda_mps_watchdog_culprit_info",
        ("daemon", "diagnosis", "pid"),
        "The process that the diagnosis names: who holds the session, or was stopped, hangs, or cannot be woken.",
        _culprit,
    ),
    counter(
        "cuda_mps_watchdog_restarts_total",
        ("daemon", "reason", "result"),
        "Restarts of the daemon: by the watchdog, by systemd, or observed: those that there would have been.",
        _restarts,
    ),
    counter(
        "cuda_mps_watchdog_actions_total",
        ("daemon", "action", "reason", "result"),
        "What else the watchdog has done for the daemon, or would have done (observed).",
        _actions,
    ),
    gauge(
        "cuda_mps_watchdog_restarts_left",
        ("daemon",),
        "Restarts of the daemon that the budget has left; none while the circuit is open.",
        _restarts_left,
    ),
    gauge(
        "cuda_mps_watchdog_next_restart_timestamp_seconds",
        ("daemon",),
        "When the daemon may be restarted next, in seconds since the epoch; there only while that is waited for.",
        _moment(lambda watch: watch.not_before if watch.state is WatchState.BACKOFF else None),
    ),
    gauge(
        "cuda_mps_watchdog_last_restart_timestamp_seconds",
        ("daemon",),
        "When the daemon was last restarted, in seconds since the epoch.",
        _moment(lambda watch: watch.last_restart_at),
    ),
    gauge(
        "cuda_mps_watchdog_circuit_opened_timestamp_seconds",
        ("daemon",),
        "When the circuit breaker opened, in seconds since the epoch; there only while it is open.",
        _moment(lambda watch: watch.opened_at),
    ),
    gauge(
        "cuda_mps_watchdog_quarantined_timestamp_seconds",
        ("daemon", "gpu", "xid", "action"),
        "Time since which the daemon has been in quarantine, in seconds since the epoch, by the GPU, the Xid and what "
        "NVIDIA advises for it. There is a sample only during a quarantine.",
        _quarantined,
    ),
)
