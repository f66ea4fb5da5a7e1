"""Something that is the matter."""

from collections.abc import Iterable
from dataclasses import dataclass

from exporter.model.daemon import Daemon
from exporter.model.observation import DaemonName, GpuUuid
from exporter.telling.level import Level, level_of, state_word
from exporter.telling.remedy import ManualStep

MOST_COMMANDS = 4
"""So many are shown of those that one trouble needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Something that is the matter: `next` is what to do, or that nothing need be done; `commands` do it.

    If that takes several steps, `steps` has all of them in order. For one that `fails`, `status` ends with exit code 1.
    `daemon` and `gpu` are those of which it is told. `word` is what their card shows as their state.
    """

    level: Level
    what: str
    next: str
    commands: tuple[str, ...] = ()
    steps: tuple[ManualStep, ...] = ()
    fails: bool = True
    daemon: DaemonName | None = None
    gpu: GpuUuid | None = None
    word: str = ""


def standing(daemon: Daemon, found: Iterable[Trouble]) -> tuple[Level, str]:
    """Return how a daemon is, in one word: its own state, or the gravest of what was found if that is graver."""
    level, word = level_of(daemon), state_word(daemon)
    for each in found:
        if each.daemon == daemon.name and each.level.rank > level.rank:
            level, word = each.level, each.word or word
    return level, word
