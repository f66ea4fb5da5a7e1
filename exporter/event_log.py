"""What the cycle writes to the exporter's own log: events and problems of sources, some of them in a bounded number."""

from dataclasses import dataclass

import structlog

from exporter.clock import Clock
from exporter.config.settings import LEVELS
from exporter.model.action import ActionResult
from exporter.model.diagnosis import Condition
from exporter.model.event import Event, EventName
from exporter.model.node import Node
from exporter.model.observation import SourceReading
from exporter.telling.problem_text import problem_text

MOST_RECORDS = 60
PERIOD_SECONDS = 60.0
"""How many records of one kind and daemon are written in so many seconds. The others are counted in one record."""

_LOUD = {
    EventName.FAULT: "error",
    EventName.DAEMON_LOST: "error",
    EventName.FAULT_CHANGED: "warning",
    EventName.FAULT_RECOVERED: "warning",
    EventName.SERVER_CRASH_LOOP: "warning",
    EventName.CLIENT_FAULT_CONTAINED: "warning",
    EventName.CIRCUIT_OPENED: "error",
    EventName.DAEMON_QUARANTINED: "error",
    EventName.DAEMON_DIAGNOSED: "warning",
    EventName.WATCHDOG_ACTS: "warning",
    EventName.WATCHDOG_ACTED: "warning",
    EventName.LIMITS_DRIFTED: "warning",
    EventName.LIMITS_BYPASSED: "warning",
    EventName.LOG_CONTRADICTED: "warning",
    EventName.LOG_BLOCKED: "warning",
}

_MANY = frozenset(
    {
        EventName.SERVER_STARTED,
        EventName.SERVER_EXITED,
        EventName.SERVER_STATE,
        EventName.CLIENT_CONNECTED,
        EventName.CLIENT_DISCONNECTED,
        EventName.CLIENT_REFUSED,
        EventName.CLIENT_WAITING,
        EventName.CLIENT_FAULT_CONTAINED,
        EventName.PROCESS_BYPASSING,
        EventName.GPU_XID,
    }
)
"""Events that lines of a log can cause in any number. A grave one is written all the same."""


@dataclass(slots=True)
class _Period:
    """How many records of one kind there were since `began`."""

    began: float
    count: int = 0


class EventLog:
    """Writes events and problems of sources, each as loud as it should wake somebody."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._log = structlog.get_logger()
        self._periods: dict[tuple[str | None, str], _Period] = {}

    def event(self, event: Event) -> None:
        """Write one record, unless there are too many like it."""
        name = event.event.value
        if event.event in _MANY and not event.grave and not self._has_room(event.daemon, name):
            return
        fields = {key: value for key, value in event.as_json().items() if key != "event"}
        self._log.log(LEVELS[_loudness(event)], name, **fields)

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


def _loudness(event: Event) -> str:
    """That nothing is the matter wakes nobody, nor that what was done has helped."""
    fine = (Condition.WELL, Condition.STARTING, Condition.UNKNOWN)
    recovered = event.event is EventName.DAEMON_DIAGNOSED and event.state in fine
    failed = event.problem is not None or event.result == ActionResult.FAILED
    helped = event.event is EventName.WATCHDOG_ACTED and not failed
    return "info" if recovered or helped else _LOUD.get(event.event, "info")
