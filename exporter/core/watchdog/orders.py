"""What the watchdog was told: its rules, and what it may do for which daemon. The configuration makes them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from exporter.model.daemon import Daemon
from exporter.model.limits import Limits
from exporter.model.watch import Mode


class FaultRemedy(StrEnum):
    """How far to go against a fault that does not end, each with all before it."""

    NONE = "none"
    KILL_CLIENTS = "kill_clients"
    SHUT_DOWN_SERVER = "shut_down_server"
    RESTART_DAEMON = "restart_daemon"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Mandate:
    """What the configuration says of one daemon: how it is restarted, and which limits are to hold there.

    `unit` is restarted, or else `command` is run, with `environment`. `mode` is None where it is the general one.
    """

    mode: Mode | None = None
    unit: str | None = None
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """All that the watchdog was told; `mandates` are by the name of the daemon.

    `program` asks daemons, and starts those for which nothing else is configured.
    """

    mode: Mode = Mode.OBSERVE
    rules: Rules = field(default_factory=Rules)
    mandates: Mapping[str, Mandate] = field(default_factory=dict)
    program: str = "nvidia-cuda-mps-control"

    def mandate_of(self, daemon: Daemon) -> Mandate:
        """What may be done for a daemon. Where the configuration does not say how, the unit that names it does."""
        mandate = self.mandates.get(daemon.name, Mandate())
        return mandate if mandate.unit or mandate.command else replace(mandate, unit=daemon.named_unit)

    def mode_of(self, daemon: Daemon) -> Mode:
        """Whether the watchdog may act: only for daemons that are expected."""
        if not daemon.expected:
            return Mode.OBSERVE
        return self.mandate_of(daemon).mode or self.mode
