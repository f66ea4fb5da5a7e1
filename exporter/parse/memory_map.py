"""A line of /proc/PID/maps (proc_pid_maps(5)): a file that a process has mapped, as the kernel names it.

The path is the process' choice; a line break in it is escaped by the kernel, so that a line is one mapping.
"""

import re
from dataclasses import dataclass

_LINE = re.compile(
    rb"[0-9a-f]{1,16}-[0-9a-f]{1,16} ..(x|-). [0-9a-f]{1,16} ([0-9a-f]{2,3}):([0-9a-f]{2,5}) ([0-9]{1,20}) +(/.*)",
    re.DOTALL,
)
_DELETED = " (deleted)"

FileNumbers = tuple[int, int, int]
"""Major and minor number of its device, and its inode: which file it is, in every process' maps alike."""


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A file that is mapped. What is no text in its path is surrogates; `deleted` says that it has no name any more."""

    path: str
    numbers: FileNumbers
    executable: bool
    deleted: bool


def mapped_file(line: bytes) -> MappedFile | None:
    """The file that a line is of; None where it is of none."""
    found = _LINE.fullmatch(line.rstrip(b"\n"))
    if found is None:
        return None
    executable, major, minor, inode, path = found.groups()
    text = path.decode(errors="surrogateescape")
    return MappedFile(
        path=text.removesuffix(_DELETED),
        numbers=(int(major, 16), int(minor, 16), int(inode)),
        executable=executable == b"x",
        deleted=text.endswith(_DELETED),
    )
