"""Lines of control.log and server.log: the parser, and a fast filter for floods of lines.

A line that matches no rule is `Unrecognized`. It is counted, and is never a fault.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain, islice
from typing import Any, NamedTuple

from exporter.model.values import frozen_positional, replace
from exporter.parse.control_reply import numbers_in_text
from exporter.parse.log_message import DAEMON_RULES, ECHO_RULES, SERVER_RULES, Message, Unrecognized

DAEMON_ROLE = "Control"

PID_FIELDS = ("pid", "server")  # The fields of messages that are PIDs. All other numbers count or name something else.

_LINE = re.compile(
    r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) ([A-Za-z][A-Za-z ]{0,30}?) +(\d{1,10})\] ?(.*)", re.DOTALL
)
_STAMP = re.compile(r"\[\S{10} \S{12} ")
_OLD_PREFIX = re.compile(r"(?:Volta MPS Server|Volta MPS|MPS Server): ")
ALL_RULES = (*SERVER_RULES, *DAEMON_RULES, *ECHO_RULES)


@frozen_positional
class LogEntry:
    """A line: role and PID of its writer, and its message. `stamp`: local time, no zone, for order and distances."""

    role: str
    pid: int
    message: Message
    stamp: str = ""

    @property
    def by_daemon(self) -> bool:
        """Whether the control daemon wrote the line, not a server."""
        return self.role == DAEMON_ROLE


def parse_log_line(line: str) -> LogEntry | None:
    """Parse one line; None if it does not have the form of a log line."""
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    stamp, role, pid, text = found.groups()
    return LogEntry(role, int(pid), parse_log_message(text, by_daemon=role == DAEMON_ROLE), stamp)


@cache
def _rules(*, by_daemon: bool) -> Sequence[tuple[re.Pattern[str], Callable[[tuple[str, ...]], Message]]]:
    """Compile the rules of a role at its first line: this takes as long as a tenth of all imports.

    All rules apply to both roles: old versions wrote some lines under the other role. The likely ones are first.
    """
    rules = (*DAEMON_RULES, *ECHO_RULES, *SERVER_RULES) if by_daemon else ALL_RULES
    return [(re.compile(pattern, re.IGNORECASE), build) for pattern, build in rules]


def parse_log_message(text: str, *, by_daemon: bool = False) -> Message:
    """Parse the text that follows the timestamp, role and PID of a line."""
    text = _OLD_PREFIX.sub("", text, count=1) if ": " in text[:20] else text
    for pattern, build in _rules(by_daemon=by_daemon):
        found = pattern.fullmatch(text)
        if found is not None:
            return build(found.groups())
    return Unrecognized()


def seconds_between(earlier: str, later: str) -> float:
    """Return the time between two stamps. A change of the date counts as one midnight."""
    first, second = (int(each[11:13]) * 3600 + int(each[14:16]) * 60 + float(each[17:23]) for each in (earlier, later))
    return round(second - first + (0 if earlier[:10] == later[:10] else 86400), 3)


def pids_in_line(line: str) -> tuple[int, ...]:
    """Return the PIDs that a line certainly has: its writer's, and those of its message."""
    entry = parse_log_line(line)
    if entry is None:
        return ()
    named = (getattr(entry.message, name, None) for name in PID_FIELDS)
    return entry.pid, *(number for number in named if number is not None and number > 0)


def numbers_in_line(line: str) -> tuple[int, ...]:
    """Return all numbers of a line except those of its timestamp. Each may be a PID."""
    return numbers_in_text(_STAMP.sub("", line, count=1))


# -- Filter over bytes ---------------------------------------------------------------------------------------------

_HEADER = re.compile(
    rb"\n\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} [A-Za-z][A-Za-z ]{0,61}+(?<= )\d{1,10}\] ?"
    rb"(?:Volta MPS Server: |Volta MPS: |MPS Server: )?([^\n]*)"
)
_CRITICAL_WORDS = (
    b"fatal gpu error", b"torn down", b"the following", b"exiting", b"server context", b"starting", b"ready",
    b"started", b"shut", b"teardown", b"exited with", b"exit with", b"quit", b"ui closed", b"privilege",
)  # fmt: skip
"""Words of lines that report a fault, or the start or end of a daemon or server, in lower case."""

_ROUTINE = re.compile(
    rb"\[[^]]*\] ?(?:Volta MPS Server: |Volta MPS: |MPS Server: )?(?:Received new client request|Creating worker thread"
    rb"|Worker created|Server failed to rece|Client \{PID: \d+, Context ID: 0\} connected|Accepting connection"
    rb"|User did not send valid credentials)",
    re.IGNORECASE,
)
"""Lines without news that each client causes: 11 of the 18 lines of a client that connects and exits (R580)."""

_LIST_ITEM = re.compile(rb"\n\[.{23} (?!Control )[A-Za-z][A-Za-z ]{0,61}+\d+\] ?\d{1,10}(?=\n|\Z)")
"""An item of a server's list: a device or a client of a fault."""


@cache
def _any_rule() -> re.Pattern[bytes]:
    """Return one pattern over bytes for all rules. A character may have 4 bytes, so upper bounds are 4 times."""
    wider = (
        re.sub(r"\{(\d+),(\d+)\}", lambda bound: f"{{{bound[1]},{4 * int(bound[2])}}}", pattern)
        for pattern in dict.fromkeys(pattern for pattern, _ in ALL_RULES)
    )
    return re.compile("|".join(f"(?:{pattern})" for pattern in wider).encode(), re.IGNORECASE)


class FilteredLines(NamedTuple):
    """The selected lines, how many of them match no rule, and how many more such lines there are."""

    lines: list[bytes]
    unknown: int
    left: int


def filter_lines(lines: bytes, unknown: int = 0) -> FilteredLines:
    """Select the lines that a rule may match, and the first `unknown` others, in their order. The rest is only counted.

    `lines` are whole lines, without the end of the last one. The filter does not decode them. It selects every line
    that `parse_log_line` recognizes, if its fields are ASCII as in all measured logs. It may select others too.
    """
    text = b"\n" + lines
    selected: list[bytes] = []
    known = begin = left = 0
    any_rule = _any_rule()
    for found in _HEADER.finditer(text):
        if any_rule.fullmatch(found[1]):
            others = _first_lines(text[begin : found.start()], unknown - (len(selected) - known))
            selected += (*others, text[found.start() + 1 : found.end()])
            left += text.count(b"\n", begin, found.start()) - len(others)
            known, begin = known + 1, found.end()
    others = _first_lines(text[begin:], unknown - (len(selected) - known))
    selected += others
    return FilteredLines(selected, len(selected) - known, left + text.count(b"\n", begin) - len(others))


def without_routine_lines(lines: list[bytes]) -> list[bytes]:
    """Return the lines that have news."""
    return [line for line in lines if not _ROUTINE.match(line)]


def last_critical_lines(lines: bytes, limit: int) -> list[bytes]:
    """Return the last `limit` critical lines: of faults, starts and ends. Others cost less than in `filter_lines`."""
    text = b"\n" + lines
    lower = text.lower()
    begins = {found.start() for found in _LIST_ITEM.finditer(text)}
    for word in _CRITICAL_WORDS:
        found = lower.find(word)
        while found >= 0:
            begins.add(lower.rfind(b"\n", 0, found))
            found = lower.find(word, _line_end(lower, found))
    last_first = (filter_lines(text[at + 1 : _line_end(text, at + 1)]).lines for at in sorted(begins, reverse=True))
    return list(islice(chain.from_iterable(last_first), limit))[::-1]


def _line_end(text: bytes, begin: int) -> int:
    end = text.find(b"\n", begin)
    return len(text) if end < 0 else end


def _first_lines(text: bytes, limit: int) -> list[bytes]:
    """Return the first `limit` lines. A line break precedes each."""
    return text.split(b"\n", limit + 1)[1 : limit + 1] if text and limit > 0 else []


# -- PID namespaces

Pids = Mapping[int, int] | None  # PIDs of this namespace by PIDs of the daemon's namespace; None if both are the same


def translate_pid(pid: int, pids: Pids) -> int:
    """Return a PID of this namespace; 0 for a hidden PID; a negative number for one that cannot be translated."""
    if pid <= 0:
        return 0
    return pid if pids is None else pids.get(pid, -pid)


def translate_entry(entry: LogEntry, pids: Pids) -> LogEntry:
    """Return a log entry with PIDs of this namespace."""
    fields = {name: number for name in PID_FIELDS if (number := getattr(entry.message, name, None)) is not None}
    if pids is None and all(number > 0 for number in fields.values()):
        return entry
    message: Any = entry.message
    message = dataclasses.replace(message, **{name: translate_pid(number, pids) for name, number in fields.items()})
    return replace(entry, pid=translate_pid(entry.pid, pids), message=message)
