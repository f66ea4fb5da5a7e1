"""The text of /proc/PID/stat (proc(5)); its second field, the name, may hold anything, parentheses too."""

import re

_TICKS = re.compile(r"[0-9]{1,20}")


def start_ticks(text: str) -> int | None:
    """Field 22: when the process started, in clock ticks since boot; None where the text is not of that form."""
    _, closing, rest = text.rpartition(")")
    fields = rest.split()
    if not closing or len(fields) < 20 or not _TICKS.fullmatch(fields[19]):
        return None
    return int(fields[19])


def is_zombie(text: str) -> bool:
    """Whether the process has ended and only waits for its parent."""
    return text.rpartition(")")[2].split()[:1] in (["Z"], ["X"])
