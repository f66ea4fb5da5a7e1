"""The text of /proc/PID/status (proc(5)); the kernel escapes the name in it, so that no line can be forged."""

import re

_EFFECTIVE = re.compile(r"^CapEff:\t([0-9a-f]{1,32})$", re.MULTILINE)
_NAMESPACED = re.compile(r"^NSpid:((?:\t[0-9]{1,10})+)$", re.MULTILINE)


def pids(text: str) -> tuple[int, ...]:
    """The process's PID in each PID namespace that it is in, the reader's first, its own last; empty where untold."""
    found = _NAMESPACED.search(text)
    return tuple(map(int, found[1].split())) if found else ()


def effective_capabilities(text: str) -> int:
    """The capabilities that the process has now, a bit each (capabilities(7)); 0 where untold."""
    found = _EFFECTIVE.search(text)
    return int(found[1], 16) if found else 0
