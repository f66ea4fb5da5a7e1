"""What the watchdog was told: its rules, and what it may do for which daemon. The configuration makes them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from exporter.model.daemon import Daemon
from exporter.model.limits import Limits
from exporter.model.settings import Mode, Rules
from exporter.model.watch import Block, Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Mandate:
    """What the configuration says of one daemon: how it is restarted, and which limits are to hold there.

    `unit` is restarted, or else `command` is run. `mode` is None where it is the general one.
    """

    mode: Mode | None = None
    unit: str | None = None
    command: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """All that the watchdog was told; `mandates` are by the name of the daemon.

    `program` asks daemons, and starts those for which nothing else is configured. If `state_lost`, nobody knows what
    was remembered of a daemon that is met for the first time. `locks` is what keeps this exporter from acting for a
    daemon, None if it holds the daemon's lock; without `locks`, none is needed, as in a replay.
    """

    mode: Mode = Mode.OBSERVE
    rules: Rules = field(default_factory=Rules)
    mandates: Mapping[str, Mandate] = field(default_factory=dict)
    program: str = "nvidia-cuda-mps-control"
    state_lost: bool = False
    locks: Mapping[str, Block | None] | None = None

    def mandate_of(self, daemon: Daemon) -> Mandate:
        """What may be done for a daemon. Where the configuration does not say how, the unit that names it does."""
        mandate = self.mandates.get(daemon.name, Mandate())
        return mandate if mandate.unit or mandate.command else replace(mandate, unit=daemon.declared.unit)

    def mode_of(self, daemon: Daemon) -> Mode:
        """Return whether the watchdog may act: as configured, if no other exporter can act for the daemon."""
        return Mode.OBSERVE if self.block_of(daemon) is not None else self.configured_mode_of(daemon)

    def configured_mode_of(self, daemon: Daemon) -> Mode:
        """Return whether the configuration lets the watchdog act: only for daemons that are expected."""
        if not daemon.declared.expected:
            return Mode.OBSERVE
        return self.mandate_of(daemon).mode or self.mode

    def block_of(self, daemon: Daemon) -> Block | None:
        """Return why this exporter does not hold the daemon's lock; None if it does."""
        return None if self.locks is None else self.locks.get(daemon.name, Block.NO_LOCK)


def blocks(orders: Orders, daemon: Daemon, watch: Watch) -> tuple[Block, ...]:
    """Return why the watchdog does not act where the configuration says `act`; empty if it may act."""
    if orders.configured_mode_of(daemon) is not Mode.ACT:
        return ()
    held_by = orders.block_of(daemon)
    lost = Block.STATE_LOST if watch.lost_at is not None else None
    foreign = Block.FOREIGN_DIRECTORY if daemon.runtime.foreign_owner is not None else None
    return tuple(each for each in (held_by, lost, foreign) if each is not None)
