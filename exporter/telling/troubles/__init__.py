"""What is the matter with the node, and what to do about it: a file finds the troubles of one kind."""

from exporter.core.watchdog.orders import Orders
from exporter.model.node import Node
from exporter.telling.level import Level
from exporter.telling.troubles.blind_spots import blind_spots, contradicted_logs
from exporter.telling.troubles.daemons import daemon_troubles
from exporter.telling.troubles.faults import fault_troubles
from exporter.telling.troubles.gpus import demanded_resets, processes_beside
from exporter.telling.troubles.limits import drifted_limits, full_servers
from exporter.telling.troubles.trouble import Trouble, standing
from exporter.view import View

__all__ = ["Trouble", "standing", "troubles"]


def troubles(node: Node, at: float, orders: Orders | None = None) -> tuple[Trouble, ...]:
    """All of them at a time, the gravest first; `orders` are the watchdog's, None where there is none."""
    daemons = list(View(node).daemons())
    if not node.sources and all(daemon.state is None for daemon in daemons):
        what, then = "nothing has been seen yet", "wait some seconds"
        return (Trouble(level=Level.UNKNOWN, what=what, next=then, fails=bool(daemons)),)
    found = (
        *fault_troubles(node, at, orders),
        *daemon_troubles(node, at, orders),
        *demanded_resets(node),
        *full_servers(node),
        *processes_beside(node),
        *drifted_limits(node, at, orders),
        *blind_spots(node),
        *contradicted_logs(node, at),
    )
    return tuple(sorted(found, key=lambda each: -each.level.rank))
