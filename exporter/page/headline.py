"""The headline: whether the node is well, in one sentence, and if it is not, what to do next."""

from dataclasses import dataclass

from exporter.model.daemon import DaemonState
from exporter.page.level import Level
from exporter.page.sight import Sight
from exporter.page.troubles import Trouble, troubles
from exporter.telling.short import counted
from exporter.view import View

_WORDS = {
    Level.WELL: "Well",
    Level.UNKNOWN: "Not known yet",
    Level.CARE: "Needs a look",
    Level.GRAVE: "Not well",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """`sentence` is what matters most; `also` are the other things that do."""

    level: Level
    word: str
    sentence: str
    next: str
    commands: tuple[str, ...]
    also: tuple[Trouble, ...]


def headline(sight: Sight) -> Headline:
    """What a person reads first."""
    found = troubles(sight)
    if not found:
        return Headline(level=Level.WELL, word=_WORDS[Level.WELL], sentence=_calm(sight), next="", commands=(), also=())
    first, *others = found
    return Headline(
        level=first.level,
        word=_WORDS[first.level],
        sentence=f"{first.what[0].upper()}{first.what[1:]}.",
        next=first.next,
        commands=first.commands,
        also=tuple(others),
    )


def _calm(sight: Sight) -> str:
    daemons = list(View(sight.node).daemons())
    if not daemons:
        return "No MPS control daemon runs here, and none is expected."
    up = sum(daemon.state is DaemonState.UP for daemon in daemons)
    clients, gpus = sum(len(daemon.clients) for daemon in daemons), len(sight.node.gpus)
    return f"{counted(up, 'daemon')} up, {counted(clients, 'client')} on {counted(gpus, 'GPU')}."
