"""The text of /proc/net/unix: one socket a line, `Num: RefCount Protocol Flags Type St Inode Path` (proc(5)).

A path may hold anything, line breaks too: who binds one can add a line, and take none away.
"""

from collections.abc import Iterator

_LISTENS = "00010000"
"""SO_ACCEPTCON: it takes connections."""


def listening(text: str) -> Iterator[str]:
    """The paths of the sockets that take connections; an abstract one's begins with @."""
    for line in text.split("\n"):
        if _LISTENS not in line:
            continue
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and fields[3] == _LISTENS:
            yield fields[7]
