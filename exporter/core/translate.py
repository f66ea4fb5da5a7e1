"""From the PIDs of a daemon's namespace to those of this one, in which all else here is spoken.

A number that is not known is no process of this namespace that happens to have it. It is told as its negative: a PID
that is nobody's here, yet counts, and can be asked for again. What is no PID anywhere becomes 0.
"""

from collections.abc import Mapping
from typing import Any

from exporter.model.replace import replace
from exporter.parse.log_line import PID_FIELDS, LogEntry

Pids = Mapping[int, int] | None
"""PIDs here by PIDs there; None where there is here."""


def outer(number: int, pids: Pids) -> int:
    """One PID."""
    if number <= 0:
        return 0
    return number if pids is None else pids.get(number, -number)


def translated(entry: LogEntry, pids: Pids) -> LogEntry:
    """A line of a log: its writer, and whom it speaks of."""
    fields = {name: number for name in PID_FIELDS if (number := getattr(entry.message, name, None)) is not None}
    if pids is None and all(number > 0 for number in fields.values()):
        return entry
    message: Any = entry.message
    message = replace(message, **{name: outer(number, pids) for name, number in fields.items()})
    return replace(entry, pid=outer(entry.pid, pids), message=message)
