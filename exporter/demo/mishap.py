"""What can befall the simulated node of `demo`, and when it is to."""

from dataclasses import dataclass
from enum import StrEnum

from exporter.config.values import DURATION, shown
from exporter.errors import ConfigError

FLAG = "--at"
MINUTES = 60.0


class Mishap(StrEnum):
    """What can befall it, by the words of `--at`."""

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
"""What lasts, and how long where nobody says so; everything else is over at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One of them, so many seconds after the demo begins, and how long it lasts."""

    after: float
    mishap: Mishap
    seconds: float = 0.0


def planned(text: str) -> Planned:
    """What `--at` says: WHEN:WHAT, or WHEN:WHAT:HOW_LONG."""
    when, _, what = text.partition(":")
    name, colon, how_long = what.partition(":")
    if name not in set(Mishap):
        example, known = f"30s:{Mishap.DAEMON_DIES}", ", ".join(Mishap)
        raise ConfigError(f"{FLAG}: {shown(text)} is not WHEN:WHAT, as in {example}; WHAT is one of {known}")
    mishap = Mishap(name)
    if colon and mishap not in LASTING:
        raise ConfigError(f"{FLAG}: {shown(text)} cannot last: {mishap} is over at once")
    return Planned(
        after=DURATION.of_text(FLAG, when),
        mishap=mishap,
        seconds=DURATION.of_text(FLAG, how_long) if colon else LASTING.get(mishap, 0.0),
    )
