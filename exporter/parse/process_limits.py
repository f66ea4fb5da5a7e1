"""The text of /proc/PID/limits (proc(5))."""

import re

_OPEN_FILES = re.compile(r"^Max open files +([0-9]{1,10}) ", re.MULTILINE)


def open_files(text: str) -> int | None:
    """How many files the process may have open now; None where that is not told, or not limited."""
    found = _OPEN_FILES.search(text)
    return int(found[1]) if found else None
