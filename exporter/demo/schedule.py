"""When failures are injected: those of the scenario, and those of `demo --at`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from exporter.config.values import DURATION, shown
from exporter.errors import ConfigError

FLAG = "--at"
MINUTES = 60.0


class Failure(StrEnum):
    """A failure, by its name in `--at`."""

    FAULT = "fault"
    FAULT_HELD = "fault-held"
    CONTAINED_FAULT = "contained-fault"
    HARDWARE_XID = "hardware-xid"
    DAEMON_RESTARTS = "daemon-restarts"
    DAEMON_DIES = "daemon-dies"
    DAEMON_KEEPS_DYING = "daemon-keeps-dying"
    DAEMON_HANGS = "daemon-hangs"
    SESSION_HELD = "session-held"
    SERVERS_CRASH = "servers-crash"
    SERVER_FULL = "server-full"
    USER_WAITS = "user-waits"
    LIMITS_DRIFT = "limits-drift"
    BYPASS = "bypass"
    MEMORY_FULL = "memory-full"
    UNKNOWN_LINE = "unknown-line"
    NVML_FAILS = "nvml-fails"


LASTING = {
    Failure.FAULT_HELD: 5 * MINUTES,
    Failure.HARDWARE_XID: 10 * MINUTES,
    Failure.DAEMON_DIES: 5 * MINUTES,
    Failure.DAEMON_KEEPS_DYING: 5 * MINUTES,
    Failure.DAEMON_HANGS: 5 * MINUTES,
    Failure.SESSION_HELD: 5 * MINUTES,
    Failure.SERVERS_CRASH: 5 * MINUTES,
    Failure.SERVER_FULL: 10 * MINUTES,
    Failure.USER_WAITS: 10 * MINUTES,
    Failure.LIMITS_DRIFT: 10 * MINUTES,
    Failure.BYPASS: 10 * MINUTES,
    Failure.MEMORY_FULL: 10 * MINUTES,
    Failure.NVML_FAILS: 10 * MINUTES,
}
"""Default durations of the failures that last. All others are over at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFailure:
    """A failure, its time after the start of the demo, and its duration; both in seconds."""

    after: float
    failure: Failure
    seconds: float = 0.0


def parse_planned(text: str) -> PlannedFailure:
    """Parse the value of `--at`: WHEN:WHAT, or WHEN:WHAT:DURATION. Raise ConfigError if it is invalid."""
    when, _, what = text.partition(":")
    name, colon, duration = what.partition(":")
    if name not in set(Failure):
        example, known = f"30s:{Failure.DAEMON_DIES}", ", ".join(Failure)
        raise ConfigError(f"{FLAG}: invalid value {shown(text)}: expected WHEN:WHAT, such as {example}; WHAT: {known}")
    failure = Failure(name)
    if colon and failure not in LASTING:
        raise ConfigError(f"{FLAG}: invalid value {shown(text)}: {failure} is over at once and has no duration")
    return PlannedFailure(
        after=DURATION.of_text(FLAG, when),
        failure=failure,
        seconds=DURATION.of_text(FLAG, duration) if colon else LASTING.get(failure, 0.0),
    )


@dataclass(frozen=True, slots=True)
class Recurring:
    """A failure that is injected `first` seconds after the start, which may be negative, and then periodically."""

    first: float
    every: float
    failure: Failure
    seconds: float = 0.0


RECURRING = (
    Recurring(-870, 3000, Failure.HARDWARE_XID, 90),
    Recurring(-800, 2000, Failure.MEMORY_FULL, 120),
    Recurring(-650, 950, Failure.UNKNOWN_LINE),
    Recurring(-620, 2600, Failure.SERVERS_CRASH, 30),
    Recurring(-570, 600, Failure.FAULT_HELD, 60),
    Recurring(-450, 1660, Failure.DAEMON_RESTARTS),
    Recurring(-400, 700, Failure.CONTAINED_FAULT),
    Recurring(-330, 1300, Failure.SERVER_FULL, 120),
    Recurring(-270, 1200, Failure.FAULT),
    Recurring(-150, 1500, Failure.DAEMON_DIES, 45),
    Recurring(-20, 900, Failure.LIMITS_DRIFT, 120),
    Recurring(-10, 300, Failure.BYPASS, 90),
    Recurring(2, 800, Failure.USER_WAITS, 90),
    Recurring(-30, 2400, Failure.DAEMON_KEEPS_DYING, 180),
    Recurring(12, 400, Failure.SESSION_HELD, 40),
    Recurring(520, 1700, Failure.DAEMON_HANGS, 60),
)
"""The failures of the scenario. An hour has each of them, and the first minute has most."""


class FailureSchedule:
    """Knows which failures are due."""

    def __init__(self, starts_at: float, recurring: Sequence[Recurring]) -> None:
        self._starts_at = starts_at
        self._recurring = recurring
        self._planned: list[tuple[float, PlannedFailure]] = []

    def add(self, at: float, plan: Sequence[PlannedFailure]) -> None:
        """Plan failures. Their times count from `at`."""
        self._planned += [(at + each.after, each) for each in plan]

    def due(self, at: float) -> Iterator[tuple[Failure, float]]:
        """Yield the failures that start in this second, with their durations in seconds."""
        after = at - self._starts_at
        for each in self._recurring:
            if after >= each.first and (after - each.first) % each.every < 1:
                yield each.failure, each.seconds
        for when, planned in self._planned:
            if 0 <= at - when < 1:
                yield planned.failure, planned.seconds
