"""Which numbers are PIDs, in what a daemon writes and in what it is told."""

import re
from collections.abc import Callable, Mapping

from exporter.parse.control_reply import LIST_CLIENTS, SERVER_STATUS
from exporter.parse.log_line import parse_line

PID_FIELDS = ("pid", "server")
"""A log message's fields of these names; all its other numbers count or name something else."""

PID_ARGUMENTS: Mapping[str, int] = {
    SERVER_STATUS: 1,
    LIST_CLIENTS: 1,
    "get_active_thread_percentage": 1,
    "get_device_pinned_mem_limit": 1,
    "set_active_thread_percentage": 1,
    "set_device_pinned_mem_limit": 1,
    "shutdown_server": 1,
    "terminate_client": 2,
}
"""How many of a command's first words are PIDs."""

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


def command_of(command: str, inner: Callable[[int], int | None]) -> str:
    """A command with other PIDs; whoever has none is 0, which is nobody."""
    verb, *words = command.split()
    pids = PID_ARGUMENTS.get(verb, 0)
    told = (str(inner(int(word)) or 0) if word.removeprefix("-").isdecimal() else word for word in words[:pids])
    return " ".join((verb, *told, *words[pids:]))
