"""How the node is, at a glance: whether it is well, who is there, and what is the matter."""

from collections.abc import Sequence

from exporter.model.daemon import DaemonState
from exporter.model.node import Node
from exporter.report.finding import Finding
from exporter.report.problem import Severity
from exporter.report.status_view import StatusView
from exporter.telling.line import Line, Piece, Tone, faint, said
from exporter.telling.short import counted
from exporter.telling.watchdog_text import modes
from exporter.view import View

MOST_FINDINGS = 8

_TONES = {
    Severity.WELL: Tone.WELL,
    Severity.UNKNOWN: Tone.DOUBTFUL,
    Severity.WARNING: Tone.DOUBTFUL,
    Severity.CRITICAL: Tone.BAD,
}


def headline(view: StatusView) -> Sequence[Line]:
    """Return one line on the node, and one for each problem below it."""
    node, found = view.node, view.findings
    watchdog = [] if view.orders is None else [modes(node, view.orders)]
    present = "; ".join((presence(node), *_past(node), *watchdog))
    first = said(Piece(_word(view.severity), _TONES[view.severity]), f": {present}", indent=2)
    more = len(found) - MOST_FINDINGS
    return [first, *map(_line, found[:MOST_FINDINGS]), *([said(faint(f"  and {more} more"))] if more > 0 else [])]


def presence(node: Node) -> str:
    """Who is there, in numbers."""
    gpus = [counted(len(node.gpus), "GPU")] if node.gpus else []
    return ", ".join((daemons_and_clients(node), *gpus))


def daemons_and_clients(node: Node) -> str:
    """How many there are: `1 of 2 daemons up, 3 clients`."""
    daemons = list(View(node).daemons())
    up = sum(daemon.state is DaemonState.UP for daemon in daemons)
    return f"{up} of {len(daemons)} daemons up, {counted(sum(len(each.clients) for each in daemons), 'client')}"


def _word(worst: Severity) -> str:
    """Loud where it must be, also for who sees no colours."""
    return worst.words.upper() if worst is Severity.CRITICAL else worst.words


def _past(node: Node) -> Sequence[str]:
    over = sum(not incident.open for incident in node.incidents.values())
    return [f"{counted(over, 'fault')} in the last hour"] if over else []


def _line(finding: Finding) -> Line:
    return said("  ", Piece(finding.text, _TONES[finding.severity]))
