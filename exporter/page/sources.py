"""The exporter's own eyes: what each last saw, and how long ago."""

from collections.abc import Iterable
from dataclasses import dataclass

from exporter.model.node import Source
from exporter.model.problem import LOG_BLOCKED
from exporter.page.sight import Sight
from exporter.parse.printable import printable
from exporter.telling.level import Level
from exporter.telling.moment import lasting
from exporter.telling.problem_text import log_text, source_text
from exporter.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """An eye, or a log file that is to be followed. `age` is how old what it last saw is."""

    name: str
    level: Level
    state: str
    age: str
    took: str


def sources(sight: Sight) -> tuple[SourceRow, ...]:
    """The eyes by name, then the log files that cannot be followed."""
    eyes = (_row(sight, name, source) for name, source in sorted(sight.node.sources.items()))
    return (*eyes, *_logs(sight))


def _row(sight: Sight, name: str, source: Source) -> SourceRow:
    seen_at = source.last_success
    return SourceRow(
        name=printable(name),
        level=Level.CARE if source.problems else Level.WELL,
        state=source_text(name, source) if source.problems else "sees",
        age="never" if seen_at is None else f"{lasting(sight.at - seen_at)} ago",
        took=lasting(source.last.seconds),
    )


def _logs(sight: Sight) -> Iterable[SourceRow]:
    for daemon in View(sight.node).daemons():
        for file, known in sorted(daemon.log_problems.items()):
            problem = LOG_BLOCKED if known is None and daemon.logged.blocked_since is not None else known
            if problem is not None:
                name = f"{printable(file)} of {printable(daemon.name)}"
                yield SourceRow(name=name, level=Level.CARE, state=log_text(file, problem), age="", took="")
