"""The watchdog's state of a daemon: diagnosis, actions, restarts, limits."""

from collections.abc import Mapping
from dataclasses import field, replace
from enum import StrEnum

from exporter.model.action import ActionCause, ActionKind, ActionReason, ActionResult
from exporter.model.daemon import Daemon, DaemonState
from exporter.model.identity import ProcessIdentity, identity_of
from exporter.model.observation import DaemonProcess
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import Limits
from exporter.model.values import frozen, frozen_positional, updated


class Condition(StrEnum):
    """Condition of a control daemon: the gravest one that applies."""

    WELL = "well"
    STARTING = "starting"
    UNKNOWN = "unknown"  # The indications do not suffice: one alone proves nothing.
    DOWN = "down"  # The daemon does not run, and ended without a `quit`.
    STOPPED = "stopped"  # An operator stopped the daemon.
    NEVER_STARTED = "never_started"  # The daemon is expected, and nothing shows that it ever ran.
    UNRESPONSIVE = "unresponsive"  # The daemon runs and answers no command.
    SUSPENDED = "suspended"  # A signal (SIGSTOP) or a debugger stopped the daemon, and it answers no command.
    STUCK_IN_DRIVER = "stuck_in_driver"
    """The daemon or one of its servers is in uninterruptible sleep and cannot be killed."""
    SERVER_SUSPENDED = "server_suspended"
    """A signal or a debugger stopped a server. The daemon works, and hangs when it next queries that server."""
    SERVER_UNRESPONSIVE = "server_unresponsive"
    """The daemon answers no command because it waits for one of its servers."""
    PROGRAM_UNRESPONSIVE = "program_unresponsive"
    """The control program gets no answer, but the daemon answers the exporter's own connections."""
    HELD = "held"  # The open session of another program blocks the daemon.
    FAULT = "fault"  # A server is in FAULT.
    CRASH_LOOP = "crash_loop"  # The servers exit before they are ready.


HARMLESS = (Condition.WELL, Condition.STARTING, Condition.UNKNOWN)  # Conditions that need no action.


@frozen
class Diagnosis:
    """Condition of a daemon, since when, and its indications.

    `process` is the process that holds the session, is suspended, hangs or sleeps. `server` and `incident` belong to a
    fault, `server` also to a server that hangs.
    """

    condition: Condition
    since: float
    indications: tuple[Reason, ...] = ()
    process: ProcessIdentity | None = None
    server: int | None = None
    incident: str | None = None


@frozen
class LimitDrift:
    """A limit that differs from the wanted one.

    `since` is None if the limit was set before the daemon was queried. The command that sets it was sent `tries` times,
    last at `tried_at`, without effect. `ineffective` means that this was reported.
    """

    since: float | None = None
    tries: int = 0
    tried_at: float | None = None
    ineffective: bool = False


@frozen
class LimitEnforcement:
    """Whether a daemon's limits are in force.

    `process` is the control daemon that has the limits. `restoring` means that it replaced another one, and not all
    limits have been in force since. `defaults` are its last known default limits. `drifts` are by the command that sets
    the limit. `unlimited_since` is by server: since when clients have connected without their limits. In each of
    `limited_servers`, all limits have been in force. `in_force` means that all limits are.
    """

    process: ProcessIdentity | None = None
    restoring: bool = False
    defaults: Limits = field(default_factory=Limits)
    drifts: Mapping[str, LimitDrift] = field(default_factory=dict)
    unlimited_since: Mapping[int, float] = field(default_factory=dict)
    limited_servers: tuple[int, ...] = ()
    in_force: bool = False


class WatchdogPhase(StrEnum):
    """What the watchdog does for a daemon."""

    IDLE = "idle"
    ACTING = "acting"
    BACKOFF = "backoff"
    QUARANTINED = "quarantined"
    CIRCUIT_OPEN = "circuit_open"
    DEFERRED_TO_SYSTEMD = "deferred_to_systemd"
    STATE_LOST = "state_lost"
    """The stored state could not be read or written. The watchdog restarts nothing until an operator's `resume`."""


class BlockReason(StrEnum):
    """Why the watchdog does not act for a daemon although the configuration permits it."""

    ANOTHER_EXPORTER = "another_exporter"  # Another exporter on this machine acts for the daemon.
    NO_LOCK = "no_lock"  # The lock that prevents two exporters from acting for one daemon cannot be taken.
    STATE_LOST = "state_lost"  # The phase of the same name.
    FOREIGN_DIRECTORY = "foreign_directory"  # The pipe directory belongs to a user who must not run the daemon.


@frozen
class ActionCount(ActionCause):
    """How often an action was taken for this reason and with this result."""

    result: ActionResult
    count: int


@frozen
class OngoingAction(ActionCause):
    """An action that runs, or ended at `done_at` and is not verified yet.

    `before` is the daemon's process before the action: after a restart, another one must answer. `problem` is why a
    step failed, and `evidence` the directory with the files that were saved.
    """

    began_at: float
    done_at: float | None = None
    before: ProcessIdentity | None = None
    problem: Reason | None = None
    evidence: str | None = None


@frozen
class LastAction(ActionCause):
    """The watchdog's last action. If it is not `begun`, it was only planned, in `observe` mode."""

    begun: bool


@frozen
class EscalationStep:
    """The last action against a fault, and when it began or ended.

    `forced` means that the server was shut down although it had clients.
    """

    incident: str
    kind: ActionKind
    at: float
    forced: bool = False


@frozen
class Quarantine:
    """A GPU needs this action because of this Xid: a reset or a reboot. A restart of MPS would not fix it."""

    at: float
    xid: int
    gpu: str
    action: str


@frozen
class WatchdogState:
    """What the watchdog remembers of a daemon. It outlives the exporter.

    `restarts` are the times of all restarts within the budget's window, also of those by systemd. `failures` counts the
    restarts that failed since the daemon was last well for a whole window. `not_before` is the time of the next
    restart for the problem `backoff_for`. The circuit breaker is open if `circuit_opened_at` is not None. Since
    `state_lost_at`, the stored state could not be read or written. `resumed_at` is the time of an operator's last
    `resume`. `stopped_at` is when an operator stopped the daemon, until it runs again.

    `limits` were in force last, and `wanted_limits` must be in force. `bypassed` counts the clients that connected to a
    server before its limits were set. `last_planned` identifies the last action, so that it is taken once; like
    `backoff_for`, it is only compared. `reason` is why the watchdog waits, and `last_action` what it did: the earlier
    one of the two is None. `problem` is why the last action failed, until one succeeds or the daemon is well.

    `process` is the daemon's last process. `children` are its servers, if /proc has shown that this process was their
    parent: a server that outlives it prevents the next daemon from starting. `unit_restarts` is the number of restarts
    by systemd that were counted.
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

    def settled(self) -> "WatchdogState":
        """Return the state once a problem is over: without what was planned, awaited or done because of it."""
        watch = updated(self, backoff_for=None, not_before=None, last_planned=None)
        return updated(watch, reason=None, last_action=None, problem=None)

    @property
    def restart_runs(self) -> bool:
        """Whether the steps of a restart run."""
        acting = self.acting
        return acting is not None and acting.kind is ActionKind.RESTART and acting.done_at is None

    def restarts_process(self, process: DaemonProcess | None) -> bool:
        """Return whether the watchdog is ending this process of the daemon, to start another one."""
        acting, pid = self.acting, 0 if process is None else process.pid or 0
        if self.problem == Reason(ReasonCode.PROCESS_NOT_ENDED, pid=pid):
            return True  # Its SIGKILL waits until the driver lets the process end.
        if acting is None or acting.kind is not ActionKind.RESTART or acting.reason is ActionReason.DOWN:
            return False
        return acting.before == identity_of(process)


@frozen_positional
class RecoveredState:
    """Watchdog states that could be read only after the start. `whole` means that none is lost."""

    watches: Mapping[str, WatchdogState]
    whole: bool


def with_stop_remembered(daemon: Daemon, watch: WatchdogState | None) -> Daemon:
    """Return the daemon as stopped if an operator had stopped it and it was not observed since."""
    if watch is None or watch.stopped_at is None or daemon.state is not None:
        return daemon
    lifecycle = replace(daemon.lifecycle, state_since=watch.stopped_at, ever_ran=True)
    return replace(daemon, state=DaemonState.STOPPED, lifecycle=lifecycle)
