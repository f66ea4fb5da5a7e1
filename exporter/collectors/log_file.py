"""One log file: followed from where it left off, within a budget of lines."""

import errno
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from exporter.clock import Clock
from exporter.collectors.file_changes import FileChanges
from exporter.collectors.pipe_dir import DaemonLocation, open_file
from exporter.collectors.thread import Reading
from exporter.model.observation import LogFile, LogGap, LogLine, LogUnrecognized, Observation
from exporter.model.problem import Problem, of_error
from exporter.parse.log_line import filter_lines, last_critical_lines, numbers_in_line, pids_in_line

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


MOST_LINES_A_LOOK = 250
MOST_BYTES_A_LOOK = 1 << 17
"""Of one log. The rest is read by the next looks, which come soon."""

LINES_A_SECOND = 500
LEAST_LINES = 250
"""How many lines that a rule may know are read from one log, and so many grave ones more. Both are for one daemon
alone, and are shared by all daemons of its kind; however many they are, `LEAST_LINES` can be read at once."""

UNKNOWN_A_SECOND = 20
LEAST_UNKNOWN = 20
"""How many other lines are read as they are, so that a recording has them. All others are counted only."""

MOST_UNREAD = 1 << 20
"""If more bytes are unread, only the last `MOST_BYTES_A_LOOK` are read, and of the others only grave lines."""

SKIMMED_A_SECOND = 6 << 20
LEAST_SKIMMED = 4 << 20
"""How many bytes of one log are searched for grave lines. Those before them are not looked at."""

PLACE_SECONDS = 0.5
"""How often it is seen whether another file has taken a log's place; what is open is read at every look."""

SIZE_STEP = 1 << 20
"""By how much a log must grow, or shrink, before its size is told again."""

STILL_SECONDS = 300.0
MOST_OPEN = 4
MOST_UNTOLD = 3
"""How often in a row a file may have grown without being told of, before it is looked at as if it were not watched."""
MOST_REMEMBERED = 16


@dataclass(slots=True)
class _Taken:
    """What one look takes from a log: lines, how many no rule knows, and how many are known to be lost."""

    lines: list[bytes] = field(default_factory=list)
    grave: list[bytes] = field(default_factory=list)
    unrecognized: int = 0
    lost: int = 0


class LogFollower:
    """Follows one log file by its place, through truncation, rename and absence."""

    def __init__(
        self,
        location: DaemonLocation,
        file: str,
        clock: Clock,
        changes: FileChanges | None = None,
        changed: Callable[[], object] = lambda: None,
    ) -> None:
        """`changes` calls `changed` when an open file was written to."""
        self._changes = changes
        self._changed = changed
        self._location = location
        self.file = file
        self._clock = clock
        self._logs: list[OpenLog] = []
        self._absent = False
        self._was_absent = False
        self._left_off: dict[tuple[int, int], int] = {}
        self._problem: Problem | None = None
        self._told: tuple[Problem | None, int, int] | None = None
        self._find_at = float("-inf")
        self._known = Budget(clock, LINES_A_SECOND, LEAST_LINES)
        self._grave = Budget(clock, LINES_A_SECOND, LEAST_LINES)
        self._unknown = Budget(clock, UNKNOWN_A_SECOND, LEAST_UNKNOWN)
        self._skimmed = Budget(clock, SKIMMED_A_SECOND, LEAST_SKIMMED)

    def share(self, part: float) -> None:
        """Read no more than this part of what may be read of the logs of all daemons of this kind."""
        for budget in (self._known, self._grave, self._unknown, self._skimmed):
            budget.share(part)

    def set_location(self, location: DaemonLocation) -> None:
        """The daemon's place is now this. Files that are open stay so, even where their directory has gone."""
        self._location = location

    @property
    def behind(self) -> bool:
        """Whether something was left unread by the last look."""
        return any(log.unread for log in self._logs)

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

    def collect(self) -> Reading:
        """The lines that are new, within the budget; in a flood, the newest and the grave ones.

        A file that is not there is no failure: a daemon may not have begun to write.
        """
        problem = self._find_if_due()
        taken = _Taken(lost=sum(log.measure() for log in self._logs))
        for log in self._logs:
            self._read(log, taken)
        at, daemon = self._clock.now(), self._location.name
        seen: list[Observation] = []
        size, unread = sum(log.size for log in self._logs), sum(log.unread for log in self._logs)
        news = (problem, size // SIZE_STEP, unread.bit_length())
        if news != self._told:
            self._told = news
            told = (size, unread) if self._logs else (None, None)
            seen.append(LogFile(at=at, daemon=daemon, file=self.file, problem=problem, size=told[0], unread=told[1]))
        lines = [line.decode(errors="replace") for line in self._within_budget(taken)]
        if taken.lost:
            seen.append(LogGap(at=at, daemon=daemon, file=self.file, lines=taken.lost))
        if taken.unrecognized:
            seen.append(LogUnrecognized(at=at, daemon=daemon, file=self.file, lines=taken.unrecognized))
        seen += (
            LogLine(at=at, daemon=daemon, file=self.file, line=line, pids=spoken)
            for line, spoken in zip(lines, self._pids(lines), strict=True)
        )
        return Reading(tuple(seen), None if problem is not None and self._absent else problem, more=self.behind)

    def close(self) -> None:
        """Let go of all files."""
        for log in self._logs:
            self._close(log)
        self._logs.clear()

    def _close(self, log: OpenLog) -> None:
        if self._changes is not None and log.watch is not None:
            self._changes.forget(log.watch, self._changed)
        os.close(log.descriptor)

    def _check_watch(self, log: OpenLog) -> None:
        """A file has grown. If changes are never told of where it is (NFS, FUSE), look at it often again."""
        if self._changes is None or log.watch is None:
            return
        log.untold = 0 if self._changes.was_told(log.watch, self._changed) else log.untold + 1
        if log.untold >= MOST_UNTOLD:
            self._changes.forget(log.watch, self._changed)
            log.watch = None

    def _pids(self, lines: list[str]) -> list[Mapping[int, int] | None]:
        """Whom each line speaks of, in this namespace's PIDs, where its daemon's are others."""
        namespace = self._location.namespace
        if namespace is None or not lines:
            return [None] * len(lines)
        namespace.meet({number for line in lines for number in pids_in_line(line)})
        return [namespace.outer(numbers_in_line(line)) for line in lines]

    def _find_if_due(self) -> Problem | None:
        now = self._clock.monotonic()
        if now >= self._find_at or not self._logs:
            self._find_at = now + PLACE_SECONDS
            self._problem = self._find()
        return self._problem

    def _find(self) -> Problem | None:
        """Open the file in its place unless it is open. One that was there from the first is read from its end."""
        self._absent = False
        try:
            with self._location.log.opened() as directory:
                found = os.stat(self.file, dir_fd=directory, follow_symlinks=False)
                if (found.st_dev, found.st_ino) not in [log.identity for log in self._logs]:
                    self._open(directory, from_end=not self._logs and not self._was_absent)
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                self._absent = self._was_absent = True
            return of_error(f"{self._location.log}/{self.file}", error)
        finally:
            self._let_go_of_still_ones()
        return None

    def _open(self, directory: int, *, from_end: bool) -> None:
        descriptor = open_file(directory, self.file)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            raise OSError(errno.EMEDIUMTYPE, "not a regular file")
        identity = (found.st_dev, found.st_ino)
        offset = found.st_size if from_end else self._left_off.pop(identity, 0)
        log = OpenLog(descriptor, identity, offset, offset, self._clock.monotonic())
        log.watch = None if self._changes is None else self._changes.watch(descriptor, self._changed)
        log.skipping = from_end and not at_line_start(descriptor, offset)
        self._logs.append(log)

    def _let_go_of_still_ones(self) -> None:
        """Of files that are no longer at the path, keep those that still grow; they may hold disk space otherwise."""
        now = self._clock.monotonic()
        for log in self._logs[:-1]:
            if now - log.grew_at > STILL_SECONDS or len(self._logs) > MOST_OPEN:
                self._let_go(log)

    def _let_go(self, log: OpenLog) -> None:
        """Close a file, but remember how far it was read, should it be put back."""
        self._close(log)
        self._logs.remove(log)
        self._left_off[log.identity] = log.offset - len(log.torn)
        for oldest in list(self._left_off)[:-MOST_REMEMBERED]:
            del self._left_off[oldest]

    def _read(self, log: OpenLog, taken: _Taken) -> None:
        """Take the new lines of one file, or the first of them; those after them are still to be read."""
        if not log.unread:
            return
        self._check_watch(log)
        log.grew_at = self._clock.monotonic()
        if log.unread > MOST_UNREAD:
            self._skim(log, taken)
        ends = log.offset + MOST_BYTES_A_LOOK
        while log.unread and log.offset < ends and not self._is_enough(taken):
            lines = log.next_lines()
            if lines is not None:
                sifted = filter_lines(lines, self._unknown.left)
                taken.lines += sifted.lines
                taken.unrecognized += sifted.left
                self._unknown.spend(sifted.unknown)

    def _skim(self, log: OpenLog, taken: _Taken) -> None:
        """Take the grave lines, the newest if they are too many, of all but the end of a file."""
        ends = log.size - MOST_BYTES_A_LOOK
        begins = max(log.offset, ends - self._skimmed.left)
        if begins > log.offset:
            log.jump(begins)
            taken.lost += 1
        self._skimmed.spend(ends - begins)
        while log.offset < ends and log.unread:
            lines = log.next_lines()
            if lines is not None:
                grave = [*taken.grave, *last_critical_lines(lines, MOST_LINES_A_LOOK)]
                taken.lost += 1 + lines.count(b"\n") + len(taken.grave)
                taken.grave = grave[-MOST_LINES_A_LOOK:]
                taken.lost -= len(taken.grave)

    def _is_enough(self, taken: _Taken) -> bool:
        """Whether the rest can wait for the next look. If it is too much for the budget, it cannot: the end counts."""
        return MOST_LINES_A_LOOK <= len(taken.lines) <= self._known.left

    def _within_budget(self, taken: _Taken) -> list[bytes]:
        """Return the lines that may be observed: all, or the newest, and before them the newest of the grave ones."""
        lines = [*taken.grave, *taken.lines]
        newest, most_grave = lines[max(0, len(lines) - self._known.left) :], self._grave.left
        older = lines[: len(lines) - len(newest)]
        grave = last_critical_lines(b"\n".join(older), most_grave) if older else []
        taken.lost += len(older) - len(grave)
        self._known.spend(len(newest))
        self._grave.spend(len(grave))
        return [*grave, *newest]
