"""Follows one log file, control.log or server.log, from where it left off.

The daemon never reopens them (measured, R580): after a rename it writes on into the renamed file, after a truncation
it appends from 0. So a file that was renamed is followed beside the new one, until it has been still for a while.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass

from exporter.clock import Clock
from exporter.model.observation import LogFile, LogGap, LogLine, Observation
from exporter.parse.pid_fields import numbers_of_line, pids_of_line
from exporter.sources.directory import open_file
from exporter.sources.file_changes import FileChanges
from exporter.sources.place import Place
from exporter.sources.reading import Reading

MOST_LINES_A_LOOK = 1000
MOST_BYTES_A_LOOK = 1 << 17
"""Of one log of one daemon, whatever it is full of; the rest is read at the next looks, which come soon."""

PLACE_SECONDS = 0.5
"""How often it is seen whether another file has taken a log's place; what is open is read at every look."""

SIZE_STEP = 1 << 20
"""By how much a log must grow, or shrink, before its size is told again."""

LONGEST_LINE = 1 << 16
STILL_SECONDS = 300.0
MOST_OPEN = 4
MOST_UNTOLD = 3
"""How often in a row a file may have grown without being told of, before it is looked at as if it were not watched."""
MOST_REMEMBERED = 16


@dataclass(slots=True)
class _OpenLog:
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


class LogFollower:
    """Follows one log file by its place, through truncation, rename and absence."""

    def __init__(self, place: Place, file: str, clock: Clock, changes: FileChanges | None = None) -> None:
        """`changes` tells when an open file was written to."""
        self._changes = changes
        self._place = place
        self.file = file
        self._clock = clock
        self._logs: list[_OpenLog] = []
        self._absent = False
        self._was_absent = False
        self._left_off: dict[tuple[int, int], int] = {}
        self._problem: str | None = None
        self._told: tuple[str | None, int] = ("not looked yet", 0)
        self._find_at = float("-inf")

    def move(self, place: Place) -> None:
        """The daemon's place is now this. Files that are open stay so, even where their directory has gone."""
        self._place = place

    @property
    def behind(self) -> bool:
        """Whether something was left unread by the last look."""
        return any(log.offset < log.size for log in self._logs)

    @property
    def watched(self) -> bool:
        """Whether something tells when there is more to read."""
        return bool(self._logs) and all(log.watch is not None for log in self._logs)

    @property
    def still(self) -> bool:
        """Whether a look would find nothing: all files are as they were, and it is not time to look for others."""
        return (
            bool(self._logs)
            and self._clock.monotonic() < self._find_at
            and all(os.fstat(log.descriptor).st_size == log.size == log.offset for log in self._logs)
        )

    def look(self, most: int = MOST_LINES_A_LOOK) -> Reading:
        """The lines that are new, `most` of them at most.

        A file that is not there is no failure: a daemon may not have begun to write.
        """
        problem = self._find_if_due()
        lost = sum(_cut_off(log) for log in self._logs)
        lines: list[str] = []
        for log in self._logs:
            lines.extend(self._read(log, most - len(lines)))
        at = self._clock.now()
        pids = self._pids(lines)
        seen: list[Observation] = [
            LogLine(at=at, daemon=self._place.name, file=self.file, line=line, pids=spoken)
            for line, spoken in zip(lines, pids, strict=True)
        ]
        if lost:
            seen.insert(0, LogGap(at=at, daemon=self._place.name, file=self.file, lines=lost))
        size = sum(log.size for log in self._logs)
        if (problem, size // SIZE_STEP) != self._told:
            self._told = (problem, size // SIZE_STEP)
            told = size if self._logs else None
            seen.insert(0, LogFile(at=at, daemon=self._place.name, file=self.file, problem=problem, size=told))
        return Reading(tuple(seen), None if problem is not None and self._absent else problem, more=self.behind)

    def close(self) -> None:
        """Let go of all files."""
        for log in self._logs:
            self._close(log)
        self._logs.clear()

    def _close(self, log: _OpenLog) -> None:
        if self._changes is not None and log.watch is not None:
            self._changes.forget(log.watch)
        os.close(log.descriptor)

    def _check_watch(self, log: _OpenLog) -> None:
        """A file has grown. If changes are never told of where it is (NFS, FUSE), look at it often again."""
        if self._changes is None or log.watch is None:
            return
        log.untold = 0 if self._changes.was_told(log.watch) else log.untold + 1
        if log.untold >= MOST_UNTOLD:
            self._changes.forget(log.watch)
            log.watch = None

    def _pids(self, lines: list[str]) -> list[Mapping[int, int] | None]:
        """Whom each line speaks of, in this namespace's PIDs, where its daemon's are others."""
        namespace = self._place.namespace
        if namespace is None or not lines:
            return [None] * len(lines)
        namespace.meet({number for line in lines for number in pids_of_line(line)})
        return [namespace.outer(numbers_of_line(line)) for line in lines]

    def _find_if_due(self) -> str | None:
        now = self._clock.monotonic()
        if now >= self._find_at or not self._logs:
            self._find_at = now + PLACE_SECONDS
            self._problem = self._find()
        return self._problem

    def _find(self) -> str | None:
        """Open the file in its place unless it is open. One that was there from the first is read from its end."""
        self._absent = False
        try:
            with self._place.log.opened() as directory:
                found = os.stat(self.file, dir_fd=directory, follow_symlinks=False)
                if (found.st_dev, found.st_ino) not in [log.identity for log in self._logs]:
                    self._open(directory, from_end=not self._logs and not self._was_absent)
        except FileNotFoundError:
            self._absent = self._was_absent = True
            return f"{self._place.log}/{self.file} does not exist"
        except OSError as error:
            return f"{self._place.log}/{self.file} cannot be read: {error.strerror}"
        finally:
            self._let_go_of_still_ones()
        return None

    def _open(self, directory: int, *, from_end: bool) -> None:
        descriptor = open_file(directory, self.file)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            raise OSError(0, "it is no regular file")
        identity = (found.st_dev, found.st_ino)
        offset = found.st_size if from_end else self._left_off.pop(identity, 0)
        log = _OpenLog(descriptor, identity, offset, offset, self._clock.monotonic())
        log.watch = None if self._changes is None else self._changes.watch(descriptor)
        log.skipping = from_end and not _at_line_start(descriptor, offset)
        self._logs.append(log)

    def _let_go_of_still_ones(self) -> None:
        """Of files that are no longer at the path, keep those that still grow; they may hold disk space otherwise."""
        now = self._clock.monotonic()
        for log in self._logs[:-1]:
            if now - log.grew_at > STILL_SECONDS or len(self._logs) > MOST_OPEN:
                self._let_go(log)

    def _let_go(self, log: _OpenLog) -> None:
        """Close a file, but remember how far it was read, should it be put back."""
        self._close(log)
        self._logs.remove(log)
        self._left_off[log.identity] = log.offset - len(log.torn)
        for oldest in list(self._left_off)[:-MOST_REMEMBERED]:
            del self._left_off[oldest]

    def _read(self, log: _OpenLog, most: int) -> list[str]:
        """The new lines of one file, `most` of them at most; those after them are still to be read."""
        if log.size == log.offset or most <= 0:
            return []
        self._check_watch(log)
        chunk = os.pread(log.descriptor, MOST_BYTES_A_LOOK, log.offset)
        log.offset += len(chunk)
        log.size = max(log.offset, log.size if chunk else 0)
        log.grew_at = self._clock.monotonic()
        *whole, log.torn = (log.torn + chunk).split(b"\n", most)
        if len(whole) == most:
            log.offset, log.torn = log.offset - len(log.torn), b""
        if whole and log.skipping:
            log.skipping = False
            del whole[0]
        if len(log.torn) > LONGEST_LINE:
            log.torn, log.skipping = b"", True
        return [line.decode(errors="replace") for line in whole if len(line) <= LONGEST_LINE]


def _cut_off(log: _OpenLog) -> int:
    """See how long the file is now. Where it was truncated, it is read from its beginning.

    How many lines are lost thereby cannot be known: it is one at least where something is known to have been unread.
    """
    size, before = os.fstat(log.descriptor).st_size, log.size
    unread = log.offset < before or (log.torn != b"" and not log.skipping)
    log.size = size
    if size >= before:
        return 0
    log.offset, log.torn, log.skipping = 0, b"", False
    return int(unread)


def _at_line_start(descriptor: int, offset: int) -> bool:
    return offset == 0 or os.pread(descriptor, 1, offset - 1) == b"\n"
