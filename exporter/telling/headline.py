"""How the node is, at a glance: whether it is well, who is there, and what is the matter."""

from collections.abc import Sequence

from exporter.core.watchdog.orders import Orders
from exporter.model.daemon import DaemonState
from exporter.model.node import Node
from exporter.telling.level import Level
from exporter.telling.line import Line, Piece, Tone, faint, said
from exporter.telling.short import counted
from exporter.telling.troubles import Trouble, troubles
from exporter.telling.watchdog_text import modes
from exporter.view import View

MOST_TROUBLES = 8

_TONES = {Level.WELL: Tone.WELL, Level.UNKNOWN: Tone.DOUBTFUL, Level.CARE: Tone.DOUBTFUL, Level.GRAVE: Tone.BAD}


def headline(node: Node, orders: Orders | None = None) -> Sequence[Line]:
    """One line, and one for each trouble below it; `orders` are the watchdog's, None where there is none."""
    found = troubles(node, node.at, orders)
    worst = found[0].level if found else Level.WELL
    watchdog = [] if orders is None else [modes(node, orders)]
    present = "; ".join((presence(node), *_past(node), *watchdog))
    first = said(Piece(_word(worst), _TONES[worst]), f": {present}", indent=2)
    more = len(found) - MOST_TROUBLES
    return [first, *map(_line, found[:MOST_TROUBLES]), *([said(faint(f"  and {more} more"))] if more > 0 else [])]


def presence(node: Node) -> str:
    """Who is there, in numbers."""
    gpus = [counted(len(node.gpus), "GPU")] if node.gpus else []
    return ", ".join((daemons_and_clients(node), *gpus))


def daemons_and_clients(node: Node) -> str:
    """How many there are: `1 of 2 daemons up, 3 clients`."""
    daemons = list(View(node).daemons())
    up = sum(daemon.state is DaemonState.UP for daemon in daemons)
    return f"{up} of {len(daemons)} daemons up, {counted(sum(len(each.clients) for each in daemons), 'client')}"


def _word(worst: Level) -> str:
    """Loud where it must be, also for who sees no colours."""
    return worst.words.upper() if worst is Level.GRAVE else worst.words


def _past(node: Node) -> Sequence[str]:
    over = sum(not incident.open for incident in node.incidents.values())
    return [f"{counted(over, 'fault')} in the last hour"] if over else []


def _line(trouble: Trouble) -> Line:
    return said("  ", Piece(trouble.what, _TONES[trouble.level]))
