"""Limits put and kept in force."""

from exporter.model.action import Action
from exporter.model.daemon import Daemon
from exporter.model.event import Event
from exporter.model.limits import Limits
from exporter.model.node import Node
from exporter.model.watch import Mode, Watch


def enforce(
    node: Node, daemon: Daemon, watch: Watch, configured: Limits, mode: Mode, at: float
) -> tuple[Watch, tuple[Event, ...], Action | None]:
    """How a daemon's limits stand now, and what is to be done about it."""
    del node, daemon, configured, mode, at
    return watch, (), None
