"""Which numbers in what a daemon writes are PIDs."""

import re

from exporter.parse.log_line import parse_line

PID_FIELDS = ("pid", "server")
"""A log message's fields of these names; all its other numbers count or name something else."""

_NUMBER = re.compile(r"[0-9]{1,10}")
_STAMP = re.compile(r"\[\S{10} \S{12} ")


def pids_of_line(line: str) -> tuple[int, ...]:
    """The PIDs of which a line of a log certainly speaks: its writer's, and those in what it says."""
    entry = parse_line(line)
    if entry is None:
        return ()
    named = (getattr(entry.message, name, None) for name in PID_FIELDS)
    return entry.pid, *(number for number in named if number is not None and number > 0)


def numbers_of_line(line: str) -> tuple[int, ...]:
    """All numbers in a line but those of its time, each of which may be a PID."""
    return numbers(_STAMP.sub("", line, count=1))


def numbers(text: str) -> tuple[int, ...]:
    """All whole numbers in a text."""
    return tuple(dict.fromkeys(map(int, _NUMBER.findall(text))))
