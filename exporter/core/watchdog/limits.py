"""Limits that should be in force, and are put in force."""

from exporter.model.action import Action
from exporter.model.daemon import Daemon
from exporter.model.event import Event
from exporter.model.limits import Limits
from exporter.model.node import Node
from exporter.model.watch import Mode, Watch


def wanted(configured: Limits, watch: Watch) -> Limits:
    """Those that should hold."""
    del watch
    return configured


def enforce(
    node: Node, daemon: Daemon, watch: Watch, wanted: Limits, mode: Mode, at: float
) -> tuple[Watch, tuple[Event, ...], Action | None]:
    """Put them in force."""
    del node, daemon, wanted, mode, at
    return watch, (), None
