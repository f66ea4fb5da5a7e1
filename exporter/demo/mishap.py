"""Failures of the simulated node that `demo --at` injects."""

from dataclasses import dataclass
from enum import StrEnum

from exporter.config.values import DURATION, shown
from exporter.errors import ConfigError

FLAG = "--at"
MINUTES = 60.0


class Mishap(StrEnum):
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
    Mishap.FAULT_HELD: 5 * MINUTES,
    Mishap.HARDWARE_XID: 10 * MINUTES,
    Mishap.DAEMON_DIES: 5 * MINUTES,
    Mishap.DAEMON_KEEPS_DYING: 5 * MINUTES,
    Mishap.DAEMON_HANGS: 5 * MINUTES,
    Mishap.SESSION_HELD: 5 * MINUTES,
    Mishap.SERVERS_CRASH: 5 * MINUTES,
    Mishap.SERVER_FULL: 10 * MINUTES,
    Mishap.USER_WAITS: 10 * MINUTES,
    Mishap.LIMITS_DRIFT: 10 * MINUTES,
    Mishap.BYPASS: 10 * MINUTES,
    Mishap.MEMORY_FULL: 10 * MINUTES,
    Mishap.NVML_FAILS: 10 * MINUTES,
}
"""Default durations of the failures that last. All others are over at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A failure, its time after the start of the demo, and its duration; both in seconds."""

    after: float
    mishap: Mishap
    seconds: float = 0.0


def planned(text: str) -> Planned:
    """Parse the value of `--at`: WHEN:WHAT, or WHEN:WHAT:DURATION."""
    when, _, what = text.partition(":")
    name, colon, how_long = what.partition(":")
    if name not in set(Mishap):
        example, known = f"30s:{Mishap.DAEMON_DIES}", ", ".join(Mishap)
        raise ConfigError(f"{FLAG}: invalid value {shown(text)}: expected WHEN:WHAT, such as {example}; WHAT: {known}")
    mishap = Mishap(name)
    if colon and mishap not in LASTING:
        raise ConfigError(f"{FLAG}: invalid value {shown(text)}: {mishap} is over at once and has no duration")
    return Planned(
        after=DURATION.of_text(FLAG, when),
        mishap=mishap,
        seconds=DURATION.of_text(FLAG, how_long) if colon else LASTING.get(mishap, 0.0),
    )
