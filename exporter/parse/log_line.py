"""Lines of control.log and server.log, of every wording since 2013.

A line that no rule knows is `Unrecognized`, which is counted and never a fault. Every rule must match the whole
message, so that text quoted inside another line cannot pass for a line of its own.
"""

import re
from dataclasses import dataclass

from exporter.parse import daemon_lines, echoed_lines, server_lines
from exporter.parse.log_message import Message, Unrecognized

DAEMON_ROLE = "Control"


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A line: who wrote it (role and PID), and what it says.

    The stamp, local time without a zone, is good for the order of lines in a file and for the time between them.
    """

    role: str
    pid: int
    message: Message
    stamp: str = ""

    @property
    def by_daemon(self) -> bool:
        """Whether the control daemon wrote it, not a server."""
        return self.role == DAEMON_ROLE


_LINE = re.compile(
    r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) ([A-Za-z][A-Za-z ]{0,30}?) +(\d{1,10})\] ?(.*)", re.DOTALL
)
_OLD_PREFIX = re.compile(r"(?:Volta MPS Server|Volta MPS|MPS Server): ")
_OF_A_SERVER = (*server_lines.RULES, *daemon_lines.RULES, *echoed_lines.RULES)
_OF_A_DAEMON = (*daemon_lines.RULES, *echoed_lines.RULES, *server_lines.RULES)
"""All rules, for old lines are not always written by whom one would think; those that are likely to fit come first."""
ALL_RULES = _OF_A_SERVER


def parse_line(line: str) -> LogEntry | None:
    """Read one line; None where it has not even the form of a log line."""
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    stamp, role, pid, text = found.groups()
    return LogEntry(role, int(pid), parse_message(text, by_daemon=role == DAEMON_ROLE), stamp)


def seconds_between(earlier: str, later: str) -> float:
    """The time between two stamps, in seconds; a change of the date counts as one midnight."""
    midnight = 0 if earlier[:10] == later[:10] else 86400
    return round(_seconds_of_day(later) - _seconds_of_day(earlier) + midnight, 3)


def _seconds_of_day(stamp: str) -> float:
    return int(stamp[11:13]) * 3600 + int(stamp[14:16]) * 60 + float(stamp[17:23])


def parse_message(text: str, *, by_daemon: bool = False) -> Message:
    """Read what stands behind a line's stamp."""
    text = _OLD_PREFIX.sub("", text, count=1) if ": " in text[:20] else text
    for pattern, build in _OF_A_DAEMON if by_daemon else _OF_A_SERVER:
        found = pattern.fullmatch(text)
        if found is not None:
            return build(found.groups())
    return Unrecognized()
