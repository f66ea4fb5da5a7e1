"""What the watchdog knows of a control daemon: its diagnosis, what was done for it, and what may still be."""

from dataclasses import dataclass, field
from enum import StrEnum

from exporter.model.action import ActionKind, ActionResult
from exporter.model.diagnosis import Diagnosis
from exporter.model.enforcing import Enforcing
from exporter.model.identity import ProcessIdentity
from exporter.model.limits import Limits


class Mode(StrEnum):
    """What the watchdog may do: tell what it would do, or do it."""

    OBSERVE = "observe"
    ACT = "act"


class WatchState(StrEnum):
    """What the watchdog is at, for a daemon."""

    IDLE = "idle"
    ACTING = "acting"
    BACKOFF = "backoff"
    QUARANTINED = "quarantined"
    CIRCUIT_OPEN = "circuit_open"
    DEFERRED_TO_SYSTEMD = "deferred_to_systemd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How often an action was taken, for this reason and with this result."""

    kind: ActionKind
    reason: str
    result: ActionResult
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acting:
    """An action that is under way, or whose effect is yet to be seen (`done_at` is not None).

    `before` is the process that the control daemon was: the one that answers afterwards must be another.
    """

    kind: ActionKind
    reason: str
    began_at: float
    done_at: float | None = None
    before: ProcessIdentity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """How far the ladder of remedies for a fault was climbed: the last action, and when it was taken."""

    incident: str
    kind: ActionKind
    at: float


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

    `restarts` are when it was restarted, within the budget's window; `failures` how many in a row did not help, or
    not for long; `not_before` is when the next may come. `opened_at` is when the circuit breaker opened, None:
    closed. `released_at` is when an operator last said `resume`. `stopped_at` is when an operator stopped the
    daemon, as long as it is. `well_since` is since when it has been well. `limits` are those that held before, as
    last observed, `wanted` those that should hold now, `enforcing` how they stand. `bypassed` counts the clients that
    were on a server before its limits were. `intention` is what was last said that would be done, so that it is said
    once. `said` is the last of it in words, for a person.
    """

    state: WatchState = WatchState.IDLE
    diagnosis: Diagnosis | None = None
    restarts: tuple[float, ...] = ()
    failures: int = 0
    not_before: float | None = None
    opened_at: float | None = None
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
    intention: str | None = None
    said: str | None = None
