"""How the node is, at a glance: whether it is well, who is there, and what is not well."""

from collections.abc import Sequence

from exporter.core.watchdog.orders import Orders
from exporter.model.daemon import DaemonState
from exporter.model.node import Node
from exporter.telling.line import Line, bad, doubtful, faint, said, well
from exporter.telling.plights import Plight, plights
from exporter.telling.watchdog_text import modes
from exporter.view import View

MOST_PLIGHTS = 8


def headline(node: Node, orders: Orders | None = None) -> Sequence[Line]:
    """One line, and one for each plight below it; `orders` are the watchdog's, None where there is none."""
    found = plights(node)
    verdict = bad("NOT WELL") if any(each.grave for each in found) else well("well")
    watchdog = [] if orders is None else [modes(node, orders)]
    first = said(verdict, f": {'; '.join((presence(node), *_past(node), *watchdog))}", indent=2)
    more = len(found) - MOST_PLIGHTS
    return [first, *map(_line, found[:MOST_PLIGHTS]), *([said(faint(f"  and {more} more"))] if more > 0 else [])]


def presence(node: Node) -> str:
    """Who is there, in numbers."""
    daemons = list(View(node).daemons())
    up = sum(daemon.state is DaemonState.UP for daemon in daemons)
    clients = sum(len(daemon.clients) for daemon in daemons)
    present = f"{up} of {len(daemons)} daemons up, {clients} client{'' if clients == 1 else 's'}"
    return f"{present}, {len(node.gpus)} GPU{'' if len(node.gpus) == 1 else 's'}" if node.gpus else present


def _past(node: Node) -> Sequence[str]:
    over = sum(not incident.open for incident in node.incidents.values())
    return [f"{over} fault{'' if over == 1 else 's'} in the last hour"] if over else []


def _line(plight: Plight) -> Line:
    return said("  ", (bad if plight.grave else doubtful)(plight.words))
