"""One daemon's matter, as it comes before the judge: what is known of it, and what may be done."""

from dataclasses import dataclass

from exporter.core.watchdog.orders import Mandate
from exporter.model.daemon import Daemon
from exporter.model.diagnosis import Condition
from exporter.model.event import Event
from exporter.model.node import Node
from exporter.model.settings import Mode, Rules
from exporter.model.watch import Watch
from exporter.model.witnesses import UnitState

Told = tuple[Watch, tuple[Event, ...]]
"""The shape of every judgement here: the watch as it now is, and the events that made it so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matter:
    """A daemon that is expected, `at` a time in seconds since the epoch; `chance`, 0 to 1, is for the jitter."""

    node: Node
    daemon: Daemon
    watch: Watch
    mandate: Mandate
    mode: Mode
    rules: Rules
    at: float
    chance: float

    @property
    def condition(self) -> Condition:
        """What is the matter with it."""
        return Condition.UNKNOWN if self.watch.diagnosis is None else self.watch.diagnosis.condition

    @property
    def unit(self) -> UnitState | None:
        """What systemd last told of the unit that is to be restarted."""
        return None if self.mandate.unit is None else self.node.units.get(self.mandate.unit)

    @property
    def ran_in_unit(self) -> bool:
        """Whether the daemon was that unit's, as far as is known: else nothing follows from how the unit is."""
        return self.daemon.runtime.unit is None or self.daemon.runtime.unit == self.mandate.unit

    @property
    def lives(self) -> bool:
        """Whether the daemon is sound: it answers, or what is not asked runs."""
        return self.daemon.answers or (not self.daemon.supported and self.daemon.runtime.process is not None)
