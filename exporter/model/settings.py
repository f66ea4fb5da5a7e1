"""What the configuration tells the core: how often to look, when the watchdog acts, and who pays.

Every command reads the configuration. So this module imports nothing that takes long to import.
"""

from dataclasses import dataclass
from enum import StrEnum


class Mode(StrEnum):
    """What the watchdog may do: tell what it would do, or do it."""

    OBSERVE = "observe"
    ACT = "act"


class FaultRemedy(StrEnum):
    """How far to go against a fault that does not end, each with all before it."""

    NONE = "none"
    KILL_CLIENTS = "kill_clients"
    SHUT_DOWN_SERVER = "shut_down_server"
    RESTART_DAEMON = "restart_daemon"


class Accounting(StrEnum):
    """Who pays for a process: the most telling owner, or one of a kind; its user, where it has none of that kind."""

    WORKLOAD = "workload"
    USER = "user"
    UNIT = "unit"
    CONTAINER = "container"
    POD = "pod"
    SLURM_JOB = "slurm_job"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """How often to look, in seconds: at a daemon's liveness, lists and limits, and NVML; how often when in doubt.

    `changed` is how soon again at limits that a command may have changed, where some are to hold.
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
        """Whether a doubt is young enough to ask sooner; one that asking did not settle, it will not settle later."""
        return doubted_since is not None and at - doubted_since <= self.doubted_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """When to act, in seconds, and how often.

    A daemon that hangs is restarted no sooner than `hung_after`. At most `restarts` in a `window`, then the breaker
    opens. The first restart comes at once; after one that did not last, `backoff` is waited for, twice as long after
    each further one, up to `longest_backoff`, with up to a quarter more by chance. A restart has helped where the
    daemon answers within `verify`. systemd has `systemd` to restart a unit by itself. A fault may last `fault`; then
    `fault_remedy` says how far to go, and `step` how long to wait for each step's effect. A server that hangs is ended
    only where `end_hung_servers` says so.
    """

    hung_after: float = 90.0
    restarts: int = 5
    window: float = 900.0
    backoff: float = 2.0
    longest_backoff: float = 300.0
    verify: float = 30.0
    systemd: float = 30.0
    fault: float = 60.0
    fault_remedy: FaultRemedy = FaultRemedy.NONE
    step: float = 10.0
    end_hung_servers: bool = False
