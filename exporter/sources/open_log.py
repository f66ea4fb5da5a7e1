"""An open log file, read in whole lines, and how many of them a log may have read in a second.

The daemon never reopens its logs (measured, R580): after a truncation it appends from 0.
"""

import os
from dataclasses import dataclass

from exporter.clock import Clock

CHUNK = 1 << 14
"""How many bytes are read, and searched, at a time: other threads wait for a search."""

LONGEST_LINE = 1 << 16

BURST_SECONDS = 10.0
"""For how many seconds a budget that is not used is saved up."""


class Budget:
    """So many of something a second, with what was saved up in the last `BURST_SECONDS`."""

    def __init__(self, clock: Clock, a_second: float, least: int) -> None:
        """`least` is what can be saved up even where the share is small."""
        self._clock = clock
        self._whole, self._least = a_second, least
        self._rate = a_second
        self._saved = self._most
        self._at = clock.monotonic()

    def share(self, part: float) -> None:
        """Allow this part of the whole, 0 to 1, from now on."""
        self._saved = float(self.left)
        self._rate = self._whole * part
        self._saved = min(self._saved, self._most)

    @property
    def left(self) -> int:
        """How many may be used now."""
        now = self._clock.monotonic()
        self._saved = min(self._most, self._saved + self._rate * (now - self._at))
        self._at = now
        return int(self._saved)

    def spend(self, count: int) -> None:
        """Use so many."""
        self._saved = max(0.0, self._saved - count)

    @property
    def _most(self) -> float:
        return max(float(self._least), self._rate * BURST_SECONDS)


@dataclass(slots=True)
class OpenLog:
    """A log file that is open, and how far it was read."""

    descriptor: int
    identity: tuple[int, int]
    offset: int
    size: int
    grew_at: float
    torn: bytes = b""
    skipping: bool = False
    watch: int | None = None
    untold: int = 0

    @property
    def unread(self) -> int:
        """How many bytes were not read yet, when the file was last measured."""
        return self.size - self.offset

    def measure(self) -> int:
        """Read the file's size. Where the file was truncated, it is read from its beginning.

        Return how many lines were lost thereby. That cannot be known: 1 where something is known to have been unread.
        """
        size, before = os.fstat(self.descriptor).st_size, self.size
        unread = self.offset < before or (self.torn != b"" and not self.skipping)
        self.size = size
        if size >= before:
            return 0
        self.offset, self.torn, self.skipping = 0, b"", False
        return int(unread)

    def jump(self, offset: int) -> None:
        """Go on from this offset, or from the first whole line behind it."""
        self.offset, self.torn = offset, b""
        self.skipping = not at_line_start(self.descriptor, offset)

    def next_lines(self) -> bytes | None:
        """Return the next whole lines without the last one's end; None where this chunk completes no line."""
        chunk = os.pread(self.descriptor, CHUNK, self.offset)
        self.offset += len(chunk)
        self.size = max(self.offset, self.size if chunk else 0)
        whole, end, self.torn = (self.torn + chunk).rpartition(b"\n")
        if end and (self.skipping or (whole.find(b"\n", 0, LONGEST_LINE + 1) < 0 and len(whole) > LONGEST_LINE)):
            self.skipping = False
            _, end, whole = whole.partition(b"\n")
        if len(self.torn) > LONGEST_LINE:
            self.torn, self.skipping = b"", True
        return whole if end else None


def at_line_start(descriptor: int, offset: int) -> bool:
    """Whether a line begins at this offset."""
    return offset == 0 or os.pread(descriptor, 1, offset - 1) == b"\n"
