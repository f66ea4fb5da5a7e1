"""What the loop writes to the log: events and problems of collectors."""

from dataclasses import dataclass

import structlog

from exporter.clock import Clock
from exporter.config.settings import LEVELS
from exporter.model.event import Event
from exporter.model.node import Node
from exporter.model.observation import SourceReading
from exporter.report.problem_text import problem_text

MOST_RECORDS = 60
PERIOD_SECONDS = 60.0
"""How many records of one kind and daemon are written in so many seconds. The others are counted in one record."""


@dataclass(slots=True)
class _Period:
    """How many records of one kind there were since `began`."""

    began: float
    count: int = 0


class EventLog:
    """Writes events, each with its severity and its codes, and problems of sources."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._log = structlog.get_logger()
        self._periods: dict[tuple[str | None, str], _Period] = {}

    def event(self, event: Event) -> None:
        """Write one record, unless there are too many like it."""
        name = event.event.value
        if event.event.traits.frequent and not event.urgent and not self._has_room(event.daemon, name):
            return
        fields = {key: value for key, value in event.as_json().items() if key != "event"}
        self._log.log(LEVELS[event.severity], name, **fields)

    def source(self, reading: SourceReading, before: Node, after: Node) -> None:
        """Write when a source begins to see less than it should, for one daemon or at all, and when it sees all."""
        known, daemon = before.sources.get(reading.name), reading.daemon or ""
        was = None if known is None else known.problems.get(daemon)
        problem = after.sources[reading.name].problems.get(daemon)
        if (problem is None) == (was is None):
            return
        name = "source_sees_again" if problem is None else "source_problem"
        if not self._has_room(reading.daemon, f"{name} {reading.name}"):
            return
        of_daemon = {} if reading.daemon is None else {"daemon": reading.daemon}
        if problem is None:
            self._log.info(name, source=reading.name, **of_daemon)
        else:
            codes = ",".join(dict.fromkeys(each.code for each in problem.each))
            text = problem_text(problem, reading.name)
            self._log.warning(name, source=reading.name, problem=codes, text=text, **of_daemon)

    def summarize(self, *, force: bool = False) -> None:
        """Write how many records were left out in each period that is over; in all of them at the end (`force`)."""
        now = self._clock.monotonic()
        over = [key for key, each in self._periods.items() if force or now - each.began >= PERIOD_SECONDS]
        for daemon, name in over:
            count = self._periods.pop((daemon, name)).count - MOST_RECORDS
            if count > 0:
                self._log.warning("records_left_out", daemon=daemon, name=name, count=count, seconds=PERIOD_SECONDS)

    def _has_room(self, daemon: str | None, name: str) -> bool:
        period = self._periods.setdefault((daemon, name), _Period(self._clock.monotonic()))
        period.count += 1
        return period.count <= MOST_RECORDS
