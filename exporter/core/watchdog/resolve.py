"""What the watchdog resolves to do for a daemon: a deed, or to wait, and why."""

from dataclasses import dataclass

from exporter.model.action import ActionKind, ActionStep
from exporter.model.watch import Rung, WatchState


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """What is to be done now. `answers` is the one death, hang or fault that it answers: it is done once for each.

    `rung` is how far up the ladder of remedies for a fault that is.
    """

    kind: ActionKind
    reason: str
    steps: tuple[ActionStep, ...]
    answers: str
    rung: Rung | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing is to be done, or not yet, or not by us: `why` is for a person; None says it of nothing worth a word.

    `until` is when the time has come for what `need` names.
    """

    why: str | None
    state: WatchState = WatchState.IDLE
    need: str | None = None
    until: float | None = None


Resolve = Deed | Wait | None
"""None: there is nothing to be resolved."""
