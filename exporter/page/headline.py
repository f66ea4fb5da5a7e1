"""The headline: whether the node is well, in one sentence, and if it is not, what to do next."""

from dataclasses import dataclass

from exporter.page.sight import Sight
from exporter.telling.headline import presence
from exporter.telling.level import Level
from exporter.telling.moment import lasting
from exporter.telling.remedy import ManualStep
from exporter.telling.troubles import Trouble, troubles
from exporter.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """`sentence` is what matters most; `also` are the other things that do."""

    level: Level
    word: str
    sentence: str
    next: str
    commands: tuple[str, ...]
    steps: tuple[ManualStep, ...]
    also: tuple[Trouble, ...]


def headline(sight: Sight) -> Headline:
    """What a person reads first. Where the exporter itself stands still, nothing else that it knows is current."""
    still = () if sight.stood_still is None else (_standing_still(sight.stood_still),)
    first, *others = still or troubles(sight.node, sight.at, sight.orders) or (_well(sight),)
    return Headline(
        level=first.level,
        word=_begun(first.level.words),
        sentence=f"{_begun(first.what)}.",
        next=first.next,
        commands=first.commands,
        steps=first.steps,
        also=tuple(others),
    )


def _standing_still(seconds: float) -> Trouble:
    return Trouble(
        level=Level.GRAVE,
        what=f"the exporter has stood still for {lasting(seconds)}, so that nothing below is current",
        next="restart it",
        commands=("systemctl restart cuda-mps-exporter",),
    )


def _well(sight: Sight) -> Trouble:
    there = any(View(sight.node).daemons())
    what = presence(sight.node) if there else "no MPS control daemon runs here, and none is expected"
    return Trouble(level=Level.WELL, what=what, next="")


def _begun(text: str) -> str:
    return text[0].upper() + text[1:]
