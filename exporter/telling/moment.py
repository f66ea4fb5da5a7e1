"""How a moment, and how long something took, is written: in UTC for programs, in their own time for people."""

import time
from collections.abc import Callable


def utc(at: float) -> str:
    """A moment in ISO 8601, to the millisecond: `2026-11-21T13:05:03.147Z`."""
    seconds, milliseconds = divmod(round(at * 1000), 1000)
    return _written(seconds, time.gmtime, f"%Y-%m-%dT%H:%M:%S.{milliseconds:03}Z")


def local(at: float) -> str:
    """A moment as the clock on the wall has it, where this program runs: `2026-11-21 14:05:03`."""
    return _written(int(at), time.localtime, "%Y-%m-%d %H:%M:%S")


def when(at: float, now: float) -> str:
    """A moment as one speaks of it on the same day, `14:05:03`; else with its date, `2026-11-21 14:05`."""
    told, today = local(at), local(now)
    return told[len("2026-11-21 ") :] if told.split()[0] == today.split()[0] else told.rpartition(":")[0] or told


def lasting(seconds: float) -> str:
    """How long something took, in words: `17 ms`, `0.1 s`, `42 s`, `3 min 2 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 0.1:
        return f"{max(0, round(seconds * 1000))} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{left} s"
    hours, minutes = divmod(minutes, 60)
    if hours == 0:
        return f"{minutes} min {left} s"
    days, hours = divmod(hours, 24)
    return f"{hours} h {minutes} min" if days == 0 else f"{days} d {hours} h"


def _written(seconds: int, calendar: Callable[[float], time.struct_time], form: str) -> str:
    try:
        return time.strftime(form, calendar(seconds))
    except (OverflowError, OSError, ValueError):
        return "in no year that a calendar has"
