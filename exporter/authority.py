"""What the watchdog may do now: the configuration's orders, without what a lock or a lost state keeps it from."""

from collections.abc import Mapping
from dataclasses import replace

import structlog

from exporter.clock import Clock
from exporter.config import Config
from exporter.config.reload import orders_of
from exporter.core.watchdog import state_loss
from exporter.core.watchdog.orders import Orders
from exporter.history import Keeper
from exporter.model.node import Node
from exporter.model.settings import Mode
from exporter.sources.act_locks import ActLocks, Locks


class Authority:
    """Makes the orders anew when a lock is taken or refused, or when the state can be read. For one thread."""

    def __init__(self, config: Config, clock: Clock, *, locks: ActLocks | None, keeper: Keeper | None) -> None:
        """Without `locks` none are needed, and without a `keeper` there is no state, as in a demo."""
        self._config = config
        self._clock = clock
        self._locks = locks
        self._keeper = keeper
        self._found: Locks = {}
        self._state_lost = keeper is not None and not keeper.knows_watches
        self._log = structlog.get_logger()
        self.orders = self._ordered()
        """The orders as they are now: replaced as a whole."""

    def begin(self, node: Node) -> Orders:
        """Try to take the locks of the daemons that are known, and wait a moment for that."""
        if self._locks is not None:
            self._locks.open(self._wanted(node))
            self._take_in(self._locks.found)
        return self.orders

    def configure(self, config: Config) -> Orders:
        """Go by this configuration from now on."""
        self._config = config
        self.orders = self._ordered()
        return self.orders

    def renewed(self, node: Node) -> Node:
        """Take in what the locks and the state have come to. Return the node with what the state remembers."""
        if self._locks is not None:
            self._locks.want(self._wanted(node))
            self._take_in(self._locks.found)
        found = None if self._keeper is None else self._keeper.regained()
        if found is None:
            return node
        self._state_lost = not found.whole
        self.orders = self._ordered()
        self._log.info("watchdog_state_regained", whole=found.whole)
        return state_loss.regained(node, found.watches, self._clock.now(), whole=found.whole)

    def _ordered(self) -> Orders:
        locks = None if self._locks is None else self._found
        return replace(orders_of(self._config), state_lost=self._state_lost, locks=locks)

    def _wanted(self, node: Node) -> Mapping[str, str]:
        """Return the pipe directories of the daemons for which this exporter is to act."""
        daemons = node.daemons.values()
        return {each.name: each.pipe_directory for each in daemons if self.orders.configured_mode_of(each) is Mode.ACT}

    def _take_in(self, found: Locks) -> None:
        before, self._found = self._found, found
        if found is before:
            return
        for daemon, block in found.items():
            if block is None and before.get(daemon) is not None:
                self._log.info("watchdog_may_act", daemon=daemon)
            elif block is not None and block is not before.get(daemon):
                self._log.warning("watchdog_may_not_act", daemon=daemon, reason=block.value)
        self.orders = self._ordered()
