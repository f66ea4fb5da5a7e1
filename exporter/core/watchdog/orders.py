"""What the watchdog was told: its rules, and what it may do for which daemon. The configuration makes them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from exporter.model.daemon import Daemon
from exporter.model.limits import Limits
from exporter.model.settings import Mode, Rules


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
