"""Counts of actions by kind, reason and result."""

from exporter.model.action import ActionKind, ActionReason, ActionResult
from exporter.model.replace import replace
from exporter.model.watch import Tally, Watch


def counted(watch: Watch, kind: ActionKind, reason: ActionReason, result: ActionResult, by: int = 1) -> Watch:
    """One more of its kind."""
    new = Tally(kind=kind, reason=reason, result=result, count=by)
    if not any(_alike(each, new) for each in watch.tallies):
        return replace(watch, tallies=(*watch.tallies, new))
    tallies = (replace(each, count=each.count + by) if _alike(each, new) else each for each in watch.tallies)
    return replace(watch, tallies=tuple(tallies))


def _alike(one: Tally, other: Tally) -> bool:
    return (one.kind, one.reason, one.result) == (other.kind, other.reason, other.result)
