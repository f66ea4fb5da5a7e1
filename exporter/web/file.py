"""A file as it was read, and what tells it from its next version."""

import os
from dataclasses import dataclass
from pathlib import Path

LARGEST = 1 << 20

Version = tuple[int, int, int, int]
"""Inode, size, and the times of the last changes of content and inode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """What was in a file, and which version of it that was."""

    path: Path
    content: bytes
    version: Version


def read_file(path: Path) -> File:
    """Read a whole file; OSError if it cannot be read, or is larger than any that belongs to a web configuration."""
    with path.open("rb") as stream:
        version = _version(os.fstat(stream.fileno()))
        content = stream.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise OSError(0, f"larger than {LARGEST} bytes")
    return File(path=path, content=content, version=version)


def present_version(path: Path) -> Version | None:
    """The version that is there now; None if there is none."""
    try:
        return _version(path.stat())
    except OSError:
        return None


def _version(status: os.stat_result) -> Version:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
