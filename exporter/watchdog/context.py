"""What the watchdog decides by: policy, context of one daemon, decisions."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from exporter.model.action import ActionKind, ActionReason, ActionResult, ActionStep
from exporter.model.daemon import Daemon
from exporter.model.event import Event
from exporter.model.node import Node
from exporter.model.observation import UnitState
from exporter.model.reason import Reason
from exporter.model.settings import Limits, Mode, Thresholds
from exporter.model.values import replace
from exporter.model.watchdog import ActionCount, BlockReason, Condition, EscalationStep, WatchdogPhase, WatchdogState


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonPolicy:
    """What the configuration says of one daemon: how it is restarted, and which limits are to hold there.

    `unit` is restarted, or else `command` is run. `mode` is None where it is the general one.
    """

    mode: Mode | None = None
    unit: str | None = None
    command: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """All that the watchdog was told; `daemon_policies` are by the name of the daemon.

    `program` asks daemons, and starts those for which nothing else is configured. If `state_lost`, nobody knows what
    was remembered of a daemon that is met for the first time. `locks` is what keeps this exporter from acting for a
    daemon, None if it holds the daemon's lock; without `locks`, none is needed, as in a replay.
    """

    mode: Mode = Mode.OBSERVE
    thresholds: Thresholds = field(default_factory=Thresholds)
    daemon_policies: Mapping[str, DaemonPolicy] = field(default_factory=dict)
    program: str = "nvidia-cuda-mps-control"
    state_lost: bool = False
    locks: Mapping[str, BlockReason | None] | None = None

    def daemon_policy_of(self, daemon: Daemon) -> DaemonPolicy:
        """What may be done for a daemon. Where the configuration does not say how, the unit that names it does."""
        daemon_policy = self.daemon_policies.get(daemon.name, DaemonPolicy())
        return (
            daemon_policy
            if daemon_policy.unit or daemon_policy.command
            else replace(daemon_policy, unit=daemon.declared.unit)
        )

    def mode_of(self, daemon: Daemon) -> Mode:
        """Return whether the watchdog may act: as configured, if no other exporter can act for the daemon."""
        return Mode.OBSERVE if self.block_of(daemon) is not None else self.configured_mode_of(daemon)

    def configured_mode_of(self, daemon: Daemon) -> Mode:
        """Return whether the configuration lets the watchdog act: only for daemons that are expected."""
        if not daemon.declared.expected:
            return Mode.OBSERVE
        return self.daemon_policy_of(daemon).mode or self.mode

    def block_of(self, daemon: Daemon) -> BlockReason | None:
        """Return why this exporter does not hold the daemon's lock; None if it does."""
        return None if self.locks is None else self.locks.get(daemon.name, BlockReason.NO_LOCK)


def block_reasons(policy: Policy, daemon: Daemon, watch: WatchdogState) -> tuple[BlockReason, ...]:
    """Return why the watchdog does not act where the configuration says `act`; empty if it may act."""
    if policy.configured_mode_of(daemon) is not Mode.ACT:
        return ()
    held_by = policy.block_of(daemon)
    lost = BlockReason.STATE_LOST if watch.state_lost_at is not None else None
    foreign = BlockReason.FOREIGN_DIRECTORY if daemon.runtime.foreign_owner is not None else None
    return tuple(each for each in (held_by, lost, foreign) if each is not None)


Evaluated = tuple[WatchdogState, tuple[Event, ...]]
"""The shape of every judgement here: the watch as it now is, and the events that made it so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A daemon that is expected, `at` a time in seconds since the epoch; `chance`, 0 to 1, is for the jitter."""

    node: Node
    daemon: Daemon
    watch: WatchdogState
    daemon_policy: DaemonPolicy
    mode: Mode
    thresholds: Thresholds
    at: float
    chance: float

    @property
    def condition(self) -> Condition:
        """What is the matter with it."""
        return Condition.UNKNOWN if self.watch.diagnosis is None else self.watch.diagnosis.condition

    @property
    def unit(self) -> UnitState | None:
        """What systemd last told of the unit that is to be restarted."""
        return None if self.daemon_policy.unit is None else self.node.units.get(self.daemon_policy.unit)

    @property
    def ran_in_unit(self) -> bool:
        """Whether the daemon was that unit's, as far as is known: else nothing follows from how the unit is."""
        return self.daemon.runtime.unit is None or self.daemon.runtime.unit == self.daemon_policy.unit

    @property
    def lives(self) -> bool:
        """Whether the daemon is sound: it answers, or what is not asked runs."""
        return self.daemon.answers or (not self.daemon.supported and self.daemon.runtime.process is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAction:
    """What is to be done now. `answers` is the one death, hang or fault that it answers: it is done once for each.

    `rung` is how far up the ladder of remedies for a fault that is.
    """

    kind: ActionKind
    reason: ActionReason
    steps: tuple[ActionStep, ...]
    answers: str
    escalation: EscalationStep | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing is to be done, not yet, or not by the watchdog. Without a `reason` there is nothing to report.

    `until` is when the action may come that `need` identifies.
    """

    reason: Reason | None
    phase: WatchdogPhase = WatchdogPhase.IDLE
    backoff_for: str | None = None
    until: float | None = None


Decision = PlannedAction | Wait | None
"""None: there is nothing to be resolved."""


def with_count(
    watch: WatchdogState, kind: ActionKind, reason: ActionReason, result: ActionResult, by: int = 1
) -> WatchdogState:
    """One more of its kind."""
    new = ActionCount(kind=kind, reason=reason, result=result, count=by)
    if not any(_alike(each, new) for each in watch.action_counts):
        return replace(watch, action_counts=(*watch.action_counts, new))
    action_counts = (
        replace(each, count=each.count + by) if _alike(each, new) else each for each in watch.action_counts
    )
    return replace(watch, action_counts=tuple(action_counts))


def _alike(one: ActionCount, other: ActionCount) -> bool:
    return (one.kind, one.reason, one.result) == (other.kind, other.reason, other.result)
