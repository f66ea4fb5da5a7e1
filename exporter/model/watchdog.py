"""The watchdog's state of a daemon: diagnosis, actions, restarts, limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from exporter.model.action import ActionKind, ActionReason, ActionResult
from exporter.model.daemon import Daemon, DaemonState
from exporter.model.identity import ProcessIdentity
from exporter.model.observation import DaemonProcess
from exporter.model.reason import Reason
from exporter.model.settings import Limits


class Condition(StrEnum):
    """How a control daemon is. One at a time: the gravest."""

    WELL = "well"
    STARTING = "starting"
    UNKNOWN = "unknown"
    """Too little is seen: of one alone, nothing follows."""
    CRASHED = "crashed"
    """It is no more, and nobody had told it to go."""
    STOPPED = "stopped"
    """An operator told it to go."""
    NEVER_SEEN = "never_seen"
    """It is expected, and there is no trace that it ever was."""
    UNRESPONSIVE = "unresponsive"
    """It lives and answers nobody."""
    SUSPENDED = "suspended"
    """It was stopped by a signal (SIGSTOP), or by a debugger, and answers nobody."""
    STUCK_IN_DRIVER = "stuck_in_driver"
    """It, or one of its servers, sleeps and cannot be woken, nor killed."""
    SERVER_SUSPENDED = "server_suspended"
    """One of its servers was stopped by a signal; the daemon is sound, and hangs as soon as it asks that server."""
    SERVER_UNRESPONSIVE = "server_unresponsive"
    """The daemon answers nobody, as it waits for one of its servers."""
    PROGRAM_UNRESPONSIVE = "program_unresponsive"
    """The control program gets no answer, but the daemon answers the exporter's own connections."""
    HELD = "held"
    """Somebody's open session keeps all others out."""
    FAULT = "fault"
    """One of its servers is in FAULT."""
    CRASH_LOOP = "crash_loop"
    """Its servers exit before they are ready."""


HARMLESS = (Condition.WELL, Condition.STARTING, Condition.UNKNOWN)
"""Conditions that call for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A daemon's condition, since when it lasts, and what indicates it.

    `culprit` is the process that the diagnosis names: the one with the open session, or the one that is suspended,
    hangs or sleeps. `server` and `incident` belong to a fault, or to a server that hangs.
    """

    condition: Condition
    since: float
    indications: tuple[Reason, ...] = ()
    process: ProcessIdentity | None = None
    server: int | None = None
    incident: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitDrift:
    """A limit that is not as it should be. `since` is when that was seen; None: it is set before anybody has asked.

    `tries` is how often the command that sets it was given in vain, `tried_at` when it last was. `hopeless` says that
    it was told that this does not help.
    """

    since: float | None = None
    tries: int = 0
    tried_at: float | None = None
    ineffective: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitEnforcement:
    """How a daemon's limits stand.

    `process` is the control daemon that they are of, where it is known. It is `restoring` while this is another one
    than before, on which they have not all been in force yet. `seen` are its defaults as last known. `drifting` has, by
    the command that sets it, each limit that is not as it should be. `exposed` has, by server, since when its clients
    have come without their limits; `sound` are the servers that have had them all. `in_force` says that all was.
    """

    process: ProcessIdentity | None = None
    restoring: bool = False
    defaults: Limits = field(default_factory=Limits)
    drifts: Mapping[str, LimitDrift] = field(default_factory=dict)
    unlimited_since: Mapping[int, float] = field(default_factory=dict)
    limited_servers: tuple[int, ...] = ()
    in_force: bool = False


class WatchdogPhase(StrEnum):
    """What the watchdog is at, for a daemon."""

    IDLE = "idle"
    ACTING = "acting"
    BACKOFF = "backoff"
    QUARANTINED = "quarantined"
    CIRCUIT_OPEN = "circuit_open"
    DEFERRED_TO_SYSTEMD = "deferred_to_systemd"
    STATE_LOST = "state_lost"
    """What it knew of the daemon could not be read or written: it restarts nothing until an operator says `resume`."""


class BlockReason(StrEnum):
    """Why the watchdog does not act for a daemon, though the configuration says that it may."""

    ANOTHER_EXPORTER = "another_exporter"
    """Another exporter of this machine acts for the daemon."""
    NO_LOCK = "no_lock"
    """The lock that keeps two exporters from acting for one daemon cannot be taken."""
    STATE_LOST = "state_lost"
    """As the state of this name."""
    FOREIGN_DIRECTORY = "foreign_directory"
    """The daemon's pipe directory belongs to a user who must not run it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionCount:
    """How often an action was taken, for this reason and with this result."""

    kind: ActionKind
    reason: ActionReason
    result: ActionResult
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OngoingAction:
    """An action that is under way, or whose effect is yet to be seen (`done_at` is not None).

    `before` is the daemon's process before the action: the one that answers afterwards must be another. `problem` is
    why a step failed, and `evidence` the directory of files that were saved before.
    """

    kind: ActionKind
    reason: ActionReason
    began_at: float
    done_at: float | None = None
    before: ProcessIdentity | None = None
    problem: Reason | None = None
    evidence: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastAction:
    """The last action that the watchdog began. In `observe` it would have, and the action is not `begun`."""

    kind: ActionKind
    reason: ActionReason
    begun: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EscalationStep:
    """How far the ladder of remedies for a fault was climbed: the last action, and when it was taken, or done.

    `forced` is whether the server was told to go though it has clients.
    """

    incident: str
    kind: ActionKind
    at: float
    forced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """A GPU of the daemon's asks for a reset or a reboot, by this Xid: restarting MPS would mend nothing."""

    at: float
    xid: int
    gpu: str
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchdogState:
    """What is remembered of a daemon by the watchdog; it outlives the exporter.

    `restarts` are when it was restarted, within the budget's window, by whomever; `failures` how many did not help
    since it was last well for a whole window; `not_before` is when the next may come, for the `need` that was told
    last. `opened_at` is when the circuit breaker opened, None: closed. `lost_at` is when the exporter found that what
    was known of the daemon before cannot be read, or what happens cannot be written; None: it is known. `released_at`
    is when an operator last said `resume`. `stopped_at` is when an operator stopped the daemon, as long as it is.
    `well_since` is since when it has been well. `limits` are those that held before, as last observed, `wanted` those
    that should hold now, `enforcing` how they stand. `bypassed` counts the clients that were on a server before its
    limits were. `intention` identifies what was last done, or would have been, so that it is done once; like `need`, it
    is compared and never read. `reason` is why the watchdog waits, and `last_action` what it last did: the one that is
    older is None. `problem` is why the last action failed, until one succeeds or the daemon is well.

    `process` is the process that the daemon last was. `children` are its servers, as far as /proc has shown that this
    process was their parent: one that outlives it is in the way of the next daemon. `unit_restarts` is how often
    systemd had restarted its unit, as far as that is counted.
    """

    phase: WatchdogPhase = WatchdogPhase.IDLE
    diagnosis: Diagnosis | None = None
    restarts: tuple[float, ...] = ()
    failures: int = 0
    not_before: float | None = None
    circuit_opened_at: float | None = None
    state_lost_at: float | None = None
    resumed_at: float | None = None
    quarantine: Quarantine | None = None
    acting: OngoingAction | None = None
    escalation: EscalationStep | None = None
    stopped_at: float | None = None
    healthy_since: float | None = None
    last_restart_at: float | None = None
    limits: Limits | None = None
    wanted_limits: Limits | None = None
    enforcement: LimitEnforcement = field(default_factory=LimitEnforcement)
    bypassed: int = 0
    action_counts: tuple[ActionCount, ...] = ()
    backoff_for: str | None = None
    last_planned: str | None = None
    reason: Reason | None = None
    last_action: LastAction | None = None
    problem: Reason | None = None
    process: DaemonProcess | None = None
    children: tuple[ProcessIdentity, ...] = ()
    unit_restarts: int | None = None


@dataclass(frozen=True, slots=True)
class RecoveredState:
    """The watches of a state that could be read only some time after the start; `whole` is whether none is lost."""

    watches: Mapping[str, WatchdogState]
    whole: bool


def with_stop_remembered(daemon: Daemon, watch: WatchdogState | None) -> Daemon:
    """A daemon of which nothing was seen yet: one that an operator had stopped is so until it is seen to live."""
    if watch is None or watch.stopped_at is None or daemon.state is not None:
        return daemon
    return replace(
        daemon,
        state=DaemonState.STOPPED,
        lifecycle=replace(daemon.lifecycle, state_since=watch.stopped_at, ever_ran=True),
    )
