"""Actions of the watchdog, as steps. A step that fails ends the action."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from exporter.model.identity import ProcessIdentity


class ActionKind(StrEnum):
    """What can be done for a daemon."""

    RESTART = "restart"
    """Bring the control daemon back."""
    END_SERVER = "end_server"
    """SIGKILL for a server that hangs; the daemon starts another when a client comes (measured, R580)."""
    KILL_CLIENTS = "kill_clients"
    """SIGKILL for those who hold up the end of a fault.

    Nothing gentler does: after `terminate_client` for one of them, the daemon answers nobody until that client has
    gone (R580, 4 of 4).
    """
    SHUT_DOWN_SERVER = "shut_down_server"
    """`shutdown_server` for a server that stays in FAULT, with `-f` where that does not do."""
    SET_LIMITS = "set_limits"
    """Put the limits in force that should be."""


AGAINST_FAULTS = (ActionKind.KILL_CLIENTS, ActionKind.SHUT_DOWN_SERVER)
"""What is done against a fault alone."""


class ActionReason(StrEnum):
    """Why an action is taken."""

    CRASHED = "crashed"
    HUNG = "hung"
    FAULT = "fault"
    LIMITS_LOST = "limits_lost"
    """The daemon was restarted, and its limits are not in force yet."""
    LIMITS_DRIFTED = "limits_drifted"
    UNKNOWN = "unknown"
    """A reason that another version wrote."""


class ActionResult(StrEnum):
    """What became of an action."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    OBSERVED = "observed"
    """It would have been done, but the watchdog only observes."""
    BY_SYSTEMD = "by_systemd"
    """The unit's own Restart= did it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveEvidence:
    """Write down what is known, before anything is destroyed. That it fails ends no action."""


class Role(StrEnum):
    """What a process is to MPS."""

    DAEMON = "control daemon"
    SERVER = "server"
    CLIENT = "client"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndProcess:
    """Send SIGKILL to this process, if it still has this role. A process that has ended is no problem."""

    identity: ProcessIdentity
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartUnit:
    """Have systemd restart a unit; or `only_start` it, so that one which somebody else has started by then stays."""

    unit: str
    only_start: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCommand:
    """Run the command that starts the daemon, with these variables and no others of ours but PATH, as its user."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    uid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveCommand:
    """Give the control daemon a command, as the user who started it: nobody else's are obeyed, but root's (R580).

    The exit code says little: a reply that says no fails the step, unless the action can do without (not `vital`).
    """

    command: str
    vital: bool = True


ActionStep = SaveEvidence | EndProcess | RestartUnit | RunCommand | GiveCommand


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing to be done for a daemon, step by step. `uid` is the user who started it, where that is known."""

    daemon: str
    kind: ActionKind
    reason: ActionReason
    steps: tuple[ActionStep, ...]
    uid: int | None = None
