"""What the watchdog knows of a control daemon: its diagnosis, what was done for it, and what may still be."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from exporter.model.action import ActionKind, ActionReason, ActionResult
from exporter.model.daemon import Daemon, DaemonState
from exporter.model.diagnosis import Diagnosis
from exporter.model.enforcing import Enforcing
from exporter.model.identity import ProcessIdentity
from exporter.model.limits import Limits
from exporter.model.observation import DaemonProcess
from exporter.model.reason import Reason


class WatchState(StrEnum):
    """What the watchdog is at, for a daemon."""

    IDLE = "idle"
    ACTING = "acting"
    BACKOFF = "backoff"
    QUARANTINED = "quarantined"
    CIRCUIT_OPEN = "circuit_open"
    DEFERRED_TO_SYSTEMD = "deferred_to_systemd"
    STATE_LOST = "state_lost"
    """What it knew of the daemon could not be read or written: it restarts nothing until an operator says `resume`."""


class Block(StrEnum):
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
class Tally:
    """How often an action was taken, for this reason and with this result."""

    kind: ActionKind
    reason: ActionReason
    result: ActionResult
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acting:
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
class Rung:
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
class Watch:
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

    state: WatchState = WatchState.IDLE
    diagnosis: Diagnosis | None = None
    restarts: tuple[float, ...] = ()
    failures: int = 0
    not_before: float | None = None
    opened_at: float | None = None
    lost_at: float | None = None
    released_at: float | None = None
    quarantine: Quarantine | None = None
    acting: Acting | None = None
    rung: Rung | None = None
    stopped_at: float | None = None
    well_since: float | None = None
    last_restart_at: float | None = None
    limits: Limits | None = None
    wanted: Limits | None = None
    enforcing: Enforcing = field(default_factory=Enforcing)
    bypassed: int = 0
    tallies: tuple[Tally, ...] = ()
    need: str | None = None
    intention: str | None = None
    reason: Reason | None = None
    last_action: LastAction | None = None
    problem: Reason | None = None
    process: DaemonProcess | None = None
    children: tuple[ProcessIdentity, ...] = ()
    unit_restarts: int | None = None


@dataclass(frozen=True, slots=True)
class Regained:
    """The watches of a state that could be read only some time after the start; `whole` is whether none is lost."""

    watches: Mapping[str, Watch]
    whole: bool


def begun(daemon: Daemon, watch: Watch | None) -> Daemon:
    """A daemon of which nothing was seen yet: one that an operator had stopped is so until it is seen to live."""
    if watch is None or watch.stopped_at is None or daemon.state is not None:
        return daemon
    return replace(
        daemon, state=DaemonState.STOPPED, lifecycle=replace(daemon.lifecycle, state_since=watch.stopped_at, seen=True)
    )
