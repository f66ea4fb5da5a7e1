"""The text of /proc/PID/status (proc(5)); the kernel escapes the name in it, so that no line can be forged."""

import re

_NAMESPACED = re.compile(r"^NSpid:((?:\t[0-9]{1,10})+)$", re.MULTILINE)


def pids(text: str) -> tuple[int, ...]:
    """The process's PID in each PID namespace that it is in, the reader's first, its own last; empty where untold."""
    found = _NAMESPACED.search(text)
    return tuple(map(int, found[1].split())) if found else ()
