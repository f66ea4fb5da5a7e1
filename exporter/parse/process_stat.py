"""The text of /proc/PID/stat (proc(5)); its second field, the name, may hold anything, parentheses too."""

import re

_NUMBER = re.compile(r"[0-9]{1,20}")

_SIGNALED = 0x400
"""PF_SIGNALED (include/linux/sched.h): a signal ended it."""


def start_ticks(text: str) -> int | None:
    """Field 22: when the process started, in clock ticks since boot; None where the text is not of that form."""
    return _field(text, 22)


def state(text: str) -> str | None:
    """Field 3: how the process stands with the scheduler; None where the text is not of that form."""
    _, closing, rest = text.rpartition(") ")
    return rest[0] if closing and rest[:1].isalpha() and rest[1:2] == " " else None


def is_zombie(text: str) -> bool:
    """Whether the process has ended and only waits for its parent."""
    return state(text) in ("Z", "X")


def parent(text: str) -> int | None:
    """Field 4: the PID of the process's parent, 0 where that is of another namespace."""
    return _field(text, 4)


def children_page_faults(text: str) -> int | None:
    """Field 11: the minor page faults of its ended children. Each child adds to it, even one that lives for 1 ms."""
    return _field(text, 11)


def wait_status(text: str) -> int | None:
    """Field 52 of the remains of a process: how it ended, as from waitpid(2).

    It is 0 too for whoever may not know; where a signal ended it (field 9), 0 is not how.
    """
    status, flags = _field(text, 52), _field(text, 9)
    if status is None or flags is None or not is_zombie(text):
        return None
    return status if status or not flags & _SIGNALED else None


def environment(text: str) -> tuple[int, int] | None:
    """Fields 50 and 51: between which addresses its environment lies; None for whoever may not know."""
    start, end = _field(text, 50), _field(text, 51)
    return (start, end) if start and end and start < end else None


def _field(text: str, number: int) -> int | None:
    """A field behind the name, as proc(5) numbers them."""
    _, closing, rest = text.rpartition(")")
    fields = rest.split()
    if not closing or len(fields) <= number - 3 or not _NUMBER.fullmatch(fields[number - 3]):
        return None
    return int(fields[number - 3])
