"""The text of /proc/PID/status (proc(5)); the kernel escapes the name in it, so that no line can be forged."""

import re

_EFFECTIVE = re.compile(r"^CapEff:\t([0-9a-f]{1,32})$", re.MULTILINE)
_UIDS = re.compile(r"^Uid:\t[0-9]+\t([0-9]{1,10})\t", re.MULTILINE)
_GROUPS = re.compile(r"^Groups:\t((?:[0-9]{1,10} )*)$", re.MULTILINE)
_GROUP = re.compile(r"^Gid:\t[0-9]+\t([0-9]{1,10})\t", re.MULTILINE)
_NAMESPACED = re.compile(r"^NSpid:((?:\t[0-9]{1,10})+)$", re.MULTILINE)


def pids(text: str) -> tuple[int, ...]:
    """The process's PID in each PID namespace that it is in, the reader's first, its own last; empty where untold."""
    found = _NAMESPACED.search(text)
    return tuple(map(int, found[1].split())) if found else ()


def effective_capabilities(text: str) -> int:
    """The capabilities that the process has now, a bit each (capabilities(7)); 0 where untold."""
    found = _EFFECTIVE.search(text)
    return int(found[1], 16) if found else 0


def effective_user(text: str) -> int | None:
    """The UID with which the process does what it does; None where untold."""
    found = _UIDS.search(text)
    return int(found[1]) if found else None


def groups(text: str) -> frozenset[int]:
    """The groups that the process is in, its own and the supplementary ones."""
    own, others = _GROUP.search(text), _GROUPS.search(text)
    return frozenset(map(int, ([own[1]] if own else []) + (others[1].split() if others else [])))
