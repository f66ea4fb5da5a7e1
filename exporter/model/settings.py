"""Settings that the core reads: poll intervals, and when the watchdog acts.

Every command reads the configuration. So this module imports nothing that takes long to import.
"""

from dataclasses import dataclass
from enum import StrEnum


class Mode(StrEnum):
    """Mode of the watchdog: report what it would do, or do it."""

    OBSERVE = "observe"
    ACT = "act"


class AllowedAction(StrEnum):
    """An action that ends processes of clients. The watchdog takes it only if the configuration lists it.

    The first three are the steps against a fault that does not end, in this order.
    """

    KILL_CLIENTS = "kill_clients"
    SHUT_DOWN_SERVER = "shut_down_server"
    RESTART_DAEMON = "restart_daemon"
    END_HUNG_SERVER = "end_hung_server"


@dataclass(frozen=True, slots=True, kw_only=True)
class PollIntervals:
    """Intervals in seconds at which the exporter polls a daemon and NVML.

    The later ones apply for a while after a change or a contradiction. `changed` applies to enforced limits that a
    command may have changed.
    """

    liveness: float = 30.0
    lists: float = 300.0
    limits: float = 3600.0
    nvml: float = 10.0
    doubt: float = 2.0
    changed: float = 0.25
    begin: float = 0.5
    fault: float = 5.0
    doubted_for: float = 10.0

    def fresh(self, at: float, doubted_since: float | None) -> bool:
        """Return whether a doubt is recent enough to poll sooner. If polling did not resolve it, it never will."""
        return doubted_since is not None and at - doubted_since <= self.doubted_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """When the watchdog acts, in seconds, how often, and which actions that end clients it may take.

    The watchdog restarts a daemon that hangs for `hung_after`. After `restarts` within `window`, the circuit breaker
    opens. The first restart comes at once. After one that did not last, the watchdog waits `backoff`, then twice as
    long each time, up to `longest_backoff`, plus up to a quarter by chance. A restart succeeds if the daemon answers
    within `verify`. systemd has `systemd` to restart a unit itself. A fault may last `fault`; then the watchdog takes
    the listed steps, `step` apart.
    """

    hung_after: float = 90.0
    restarts: int = 5
    window: float = 900.0
    backoff: float = 2.0
    longest_backoff: float = 300.0
    verify: float = 30.0
    systemd: float = 30.0
    fault: float = 60.0
    step: float = 10.0
    allow: frozenset[AllowedAction] = frozenset()
