"""A file of the format ELF, as whoever reads it by bits sees it."""

from collections.abc import Callable

Read = Callable[[int, int], bytes]
"""Reads so many bytes of the file from an offset on: fewer where it ends."""


class ElfError(ValueError):
    """Why a file cannot be used, as what it is not or has not: "it is no ELF file"."""


_LARGEST = 1 << 40


class ElfFile:
    """The file's bytes: what it has not is an error, wherever it points to."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def part(self, offset: int, size: int) -> bytes:
        """So many, and no fewer."""
        found = self.upto(offset, size)
        if len(found) < size:
            raise ElfError("it is cut short, or points beyond its end")
        return found

    def upto(self, offset: int, size: int) -> bytes:
        """So many, or what there is."""
        return self._read(offset, size) if offset + size <= _LARGEST else b""

    def number(self, offset: int, size: int = 4) -> int:
        """An unsigned number."""
        return int.from_bytes(self.part(offset, size), "little")
