"""What the watchdog decides for a daemon: an action, or to wait, with the reason."""

from dataclasses import dataclass

from exporter.model.action import ActionKind, ActionReason, ActionStep
from exporter.model.reason import Reason
from exporter.model.watch import Rung, WatchState


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """What is to be done now. `answers` is the one death, hang or fault that it answers: it is done once for each.

    `rung` is how far up the ladder of remedies for a fault that is.
    """

    kind: ActionKind
    reason: ActionReason
    steps: tuple[ActionStep, ...]
    answers: str
    rung: Rung | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing is to be done, not yet, or not by the watchdog. Without a `reason` there is nothing to report.

    `until` is when the action may come that `need` identifies.
    """

    reason: Reason | None
    state: WatchState = WatchState.IDLE
    need: str | None = None
    until: float | None = None


Resolve = Deed | Wait | None
"""None: there is nothing to be resolved."""
