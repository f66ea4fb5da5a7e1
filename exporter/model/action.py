"""Actions of the watchdog, as steps. A step that fails ends the action."""

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from exporter.model.identity import ProcessIdentity
from exporter.model.values import frozen


class ActionKind(StrEnum):
    """What the watchdog can do for a daemon."""

    RESTART = "restart"  # Restart the control daemon.
    END_SERVER = "end_server"
    """Send SIGKILL to a server that hangs. The daemon starts another one for the next client (measured, R580)."""
    KILL_CLIENTS = "kill_clients"
    """Send SIGKILL to the clients that delay the end of a fault.

    Nothing gentler works: after `terminate_client` for such a client, the daemon answers no command until that client
    has exited (R580, 4 of 4).
    """
    SHUT_DOWN_SERVER = "shut_down_server"
    """Send `shutdown_server` for a server that stays in FAULT, and with `-f` if that has no effect."""
    SET_LIMITS = "set_limits"  # Set the limits that are not in force.


AGAINST_FAULTS = (ActionKind.KILL_CLIENTS, ActionKind.SHUT_DOWN_SERVER)  # Actions that are taken only against faults.


class ActionReason(StrEnum):
    """Why an action is taken."""

    DOWN = "down"
    HUNG = "hung"
    FAULT = "fault"
    LIMITS_LOST = "limits_lost"  # The daemon was restarted, and its limits are not in force yet.
    LIMITS_DRIFTED = "limits_drifted"
    UNKNOWN = "unknown"  # A reason that another version wrote.


class ActionResult(StrEnum):
    """Result of an action."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    OBSERVED = "observed"  # The action was not taken because of `observe` mode.
    BY_SYSTEMD = "by_systemd"  # systemd did it, by the unit's Restart=.


@frozen
class ActionCause:
    """A kind of action, and why it is taken."""

    kind: ActionKind
    reason: ActionReason


@frozen
class SaveEvidence:
    """Save what is known, before a destructive step. A failure does not end the action."""


class Role(StrEnum):
    """Role of a process in MPS."""

    DAEMON = "control daemon"
    SERVER = "server"
    CLIENT = "client"


@frozen
class EndProcess:
    """Send SIGKILL to this process if it still has this role. It is no problem if the process has ended.

    `contexts` waits until the driver has ended its contexts too: 2.9 s for 48 clients of a server (H200, R580).
    """

    identity: ProcessIdentity
    role: Role
    contexts: bool = True


@frozen
class RestartUnit:
    """Restart a unit through systemd. `only_start` leaves a unit alone that was started since."""

    unit: str
    only_start: bool = False


@frozen
class RunCommand:
    """Run the command that starts the daemon as user `uid`, with PATH and these environment variables only."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    uid: int | None = None


@frozen
class GiveCommand:
    """Send the control daemon a command as the user who started it: it obeys only that user and root (R580).

    The exit code says little. A reply that refuses the command ends the action, which fails if the command is `vital`.
    """

    command: str
    vital: bool = True


@frozen
class DeletePod:
    """Delete the pod that runs the daemon if it still has this UID. Its controller creates another one."""

    namespace: str
    name: str
    uid: str


ActionStep = SaveEvidence | EndProcess | RestartUnit | RunCommand | DeletePod | GiveCommand


@frozen
class Action(ActionCause):
    """An action for a daemon. `uid` is the user who started the daemon, if known."""

    daemon: str
    steps: tuple[ActionStep, ...]
    uid: int | None = None
