"""The log records of the main loop: events and problems of collectors."""

from dataclasses import dataclass

import structlog

from exporter.clock import Clock
from exporter.config.settings import LEVELS
from exporter.model.event import Event
from exporter.model.node import Node
from exporter.model.observation import SourceReading
from exporter.report.reasons import reason_text

MAX_RECORDS = 60
PERIOD_SECONDS = 60.0
"""Records of one kind and daemon that are written in one period. The others are counted in one record."""


@dataclass(slots=True)
class _Period:
    """The number of records of one kind since `began`."""

    began: float
    count: int = 0


class EventLog:
    """Logs events with their severities and codes, and problems of collectors."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._log = structlog.get_logger()
        self._periods: dict[tuple[str | None, str], _Period] = {}

    def event(self, event: Event) -> None:
        """Log an event, unless it is frequent and there are too many records like it."""
        name = event.event.value
        if event.event.traits.frequent and not event.urgent and not self._permits(event.daemon, name):
            return
        fields = {key: value for key, value in event.as_json().items() if key != "event"}
        self._log.log(LEVELS[event.severity], name, **fields)

    def source(self, reading: SourceReading, before: Node, after: Node) -> None:
        """Log that a collector begins or ceases to have a problem, with one daemon or in general."""
        known, daemon = before.sources.get(reading.name), reading.daemon or ""
        previous = None if known is None else known.problems.get(daemon)
        problem = after.sources[reading.name].problems.get(daemon)
        if (problem is None) == (previous is None):
            return
        name = "source_recovered" if problem is None else "source_problem"
        if not self._permits(reading.daemon, f"{name} {reading.name}"):
            return
        fields = {} if reading.daemon is None else {"daemon": reading.daemon}
        if problem is None:
            self._log.info(name, source=reading.name, **fields)
        else:
            codes = ",".join(dict.fromkeys(each.code for each in problem.each))
            text = reason_text(problem, reading.name)
            self._log.warning(name, source=reading.name, problem=codes, text=text, **fields)

    def summarize(self, *, force: bool = False) -> None:
        """Log how many records were left out in each period that has ended, or in all periods (`force`)."""
        now = self._clock.monotonic()
        ended = [key for key, each in self._periods.items() if force or now - each.began >= PERIOD_SECONDS]
        for daemon, name in ended:
            count = self._periods.pop((daemon, name)).count - MAX_RECORDS
            if count > 0:
                self._log.warning("records_left_out", daemon=daemon, name=name, count=count, seconds=PERIOD_SECONDS)

    def _permits(self, daemon: str | None, name: str) -> bool:
        """Count a record, and return whether it is written."""
        period = self._periods.setdefault((daemon, name), _Period(self._clock.monotonic()))
        period.count += 1
        return period.count <= MAX_RECORDS
