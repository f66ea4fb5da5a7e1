"""Something that is the matter."""

from dataclasses import dataclass

from exporter.telling.level import Level

MOST_COMMANDS = 4
"""So many are shown of those that one trouble needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Something that is the matter: `next` is what to do, or that nothing need be done; `commands` do it.

    For one that `fails`, `status` ends with exit code 1.
    """

    level: Level
    what: str
    next: str
    commands: tuple[str, ...] = ()
    fails: bool = True
