"""Input and output of the watchdog: policy, context of one daemon, decisions."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from exporter.model.action import ActionCause, ActionKind, ActionReason, ActionResult, ActionStep
from exporter.model.daemon import Daemon
from exporter.model.event import Event, EventName
from exporter.model.node import Node
from exporter.model.observation import UnitState
from exporter.model.reason import Reason
from exporter.model.settings import Limits, Mode, Thresholds
from exporter.model.values import frozen, replace
from exporter.model.watchdog import ActionCount, BlockReason, Condition, EscalationStep, WatchdogPhase, WatchdogState
from exporter.state.processes import pod_uid_of_daemon


@frozen
class DaemonPolicy:
    """What the configuration permits for one daemon: how to restart it, and its limits.

    The watchdog restarts `unit` if there is one, else it runs `command`. If `mode` is None, the general mode applies.
    """

    mode: Mode | None = None
    unit: str | None = None
    command: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)


@frozen
class Policy:
    """Policy of the watchdog; `daemon_policies` are by daemon name.

    `program` is the control program, which also starts daemons for which nothing else is configured. If `state_lost`,
    the stored states of daemons could not be read. `locks` has, by daemon, why the exporter does not hold the daemon's
    lock, or None if it does. If `locks` is None, no lock is needed, as in a replay.
    """

    mode: Mode = Mode.OBSERVE
    thresholds: Thresholds = field(default_factory=Thresholds)
    daemon_policies: Mapping[str, DaemonPolicy] = field(default_factory=dict)
    program: str = "nvidia-cuda-mps-control"
    state_lost: bool = False
    locks: Mapping[str, BlockReason | None] | None = None

    def daemon_policy_of(self, daemon: Daemon) -> DaemonPolicy:
        """Return the policy for a daemon. If it names no restart method, the daemon's own unit is restarted."""
        found = self.daemon_policies.get(daemon.name, DaemonPolicy())
        return found if found.unit or found.command else replace(found, unit=daemon.declared.unit)

    def mode_of(self, daemon: Daemon) -> Mode:
        """Return the configured mode, but `observe` if another exporter can act for the daemon."""
        return Mode.OBSERVE if self.lock_problem(daemon) is not None else self.configured_mode_of(daemon)

    def configured_mode_of(self, daemon: Daemon) -> Mode:
        """Return the configured mode. For a daemon that is not expected, it is `observe`."""
        if not daemon.declared.expected:
            return Mode.OBSERVE
        return self.daemon_policy_of(daemon).mode or self.mode

    def lock_problem(self, daemon: Daemon) -> BlockReason | None:
        """Return why this exporter does not hold the daemon's lock; None if it does."""
        return None if self.locks is None else self.locks.get(daemon.name, BlockReason.NO_LOCK)


def block_reasons(policy: Policy, daemon: Daemon, watch: WatchdogState) -> tuple[BlockReason, ...]:
    """Return why the watchdog does not act although `act` is configured; empty if it may act."""
    if policy.configured_mode_of(daemon) is not Mode.ACT:
        return ()
    lost = BlockReason.STATE_LOST if watch.state_lost_at is not None else None
    foreign = BlockReason.FOREIGN_DIRECTORY if daemon.runtime.foreign_owner is not None else None
    return tuple(each for each in (policy.lock_problem(daemon), lost, foreign) if each is not None)


Evaluated = tuple[WatchdogState, tuple[Event, ...]]  # The new state of a daemon, and the events of its changes.


@frozen
class Context:
    """An expected daemon at `at` (seconds since the epoch). `chance`, 0 to 1, is for the jitter of the backoff."""

    node: Node
    daemon: Daemon
    watch: WatchdogState
    daemon_policy: DaemonPolicy
    mode: Mode
    thresholds: Thresholds
    program: str
    at: float
    chance: float

    @property
    def condition(self) -> Condition:
        """Return the diagnosed condition."""
        return Condition.UNKNOWN if self.watch.diagnosis is None else self.watch.diagnosis.condition

    @property
    def unit(self) -> UnitState | None:
        """Return the last known state of the unit that the watchdog restarts."""
        return None if self.daemon_policy.unit is None else self.node.units.get(self.daemon_policy.unit)

    @property
    def ran_in_unit(self) -> bool:
        """Return False if the daemon ran elsewhere: then the unit's state indicates nothing."""
        return self.daemon.runtime.unit is None or self.daemon.runtime.unit == self.daemon_policy.unit

    @property
    def pod_uid(self) -> str | None:
        """Return the UID of the pod that runs, or last ran, the daemon, unless a unit or a command restarts it."""
        if self.daemon_policy.unit is not None or self.daemon_policy.command:
            return None
        return pod_uid_of_daemon(self.daemon, self.watch)

    @property
    def works(self) -> bool:
        """Return whether the daemon answers or, if its protocol is not supported, runs."""
        return self.daemon.answers or (not self.daemon.supported and self.daemon.runtime.process is not None)

    def event(self, name: EventName, **details: Any) -> Event:
        """Return an event of the daemon."""
        return Event(at=self.at, event=name, daemon=self.daemon.name, **details)


@frozen
class PlannedAction(ActionCause):
    """An action to take now. `cause` identifies the exit, hang or fault, for which the action is taken once."""

    steps: tuple[ActionStep, ...]
    cause: str
    escalation: EscalationStep | None = None


@frozen
class Wait:
    """No action now. `reason` is None if there is nothing to report.

    `until` is the time of the next restart for the problem `backoff_for`.
    """

    reason: Reason | None
    phase: WatchdogPhase = WatchdogPhase.IDLE
    backoff_for: str | None = None
    until: float | None = None


Decision = PlannedAction | Wait | None  # None: no action is needed.


def count_action(
    watch: WatchdogState, kind: ActionKind, reason: ActionReason, result: ActionResult, by: int = 1
) -> WatchdogState:
    """Return the state with the action counted."""
    counts = {(each.kind, each.reason, each.result): each.count for each in watch.action_counts}
    counts[kind, reason, result] = counts.get((kind, reason, result), 0) + by
    new = (ActionCount(kind=key[0], reason=key[1], result=key[2], count=count) for key, count in counts.items())
    return replace(watch, action_counts=tuple(new))
