"""The logs of one daemon, in a thread of its own. Each is followed through growth, truncation and replacement."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from exporter.clock import Clock
from exporter.collectors.file_changes import FileChanges
from exporter.collectors.pipe_dir import DaemonLocation, end_of_file, open_file
from exporter.collectors.thread import CollectorThread, Reading
from exporter.model.observation import LogFile, LogGap, LogLine, LogUnrecognized, Observation
from exporter.model.reason import Reason, ReasonCode, joined, of_error
from exporter.parse.log_line import (
    filter_lines,
    last_critical_lines,
    numbers_in_line,
    pids_in_line,
    without_routine_lines,
)

CHUNK = 1 << 14  # Bytes per read and search. A search holds the interpreter lock, so other threads wait for it.
MAX_LINE = 1 << 16

MAX_LINES = 250
MAX_BYTES = 1 << 17
"""Limits of one collection from one log. The next collections, which follow soon, read the rest."""

BURST_SECONDS = 10.0  # an unused budget accumulates for this time

LINES_PER_SECOND = 500
MIN_LINES = 250
"""Budget of lines that a rule may match, and again as many critical lines. All daemons of one kind share it. The
second number is available at once, even if the share is small."""

UNKNOWN_PER_SECOND = 20
MIN_UNKNOWN = 20
"""Budget of other lines that are observed, so that a recording has examples. All others are only counted."""

MAX_UNREAD = 1 << 20
"""If more bytes are unread, only the last `MAX_BYTES` are read, and only critical lines of the others."""

SKIM_BYTES_PER_SECOND = 6 << 20
MIN_SKIM_BYTES = 4 << 20
"""Budget of bytes that are searched for critical lines. Older bytes are skipped."""

PATH_CHECK_SECONDS = 0.5  # How often the path is checked for another file. Open files are read in every collection.
SIZE_STEP = 1 << 20  # the size is reported again if it crosses a multiple of this

REPLACED_SECONDS = 300.0
"""A file that is no longer at the path is closed if it does not grow for this time: it may hold disk space."""
MAX_OPEN = 4
MAX_OFFSETS = 16
"""Offsets of closed files that are remembered, in case a file returns to the path."""

MAX_MISSED = 3  # a file that has grown this often in a row without a notification is read as often as an unwatched one


class Budget:
    """A number of units per second. Unused units accumulate for `BURST_SECONDS`."""

    def __init__(self, clock: Clock, rate: float, minimum: int) -> None:
        """At least `minimum` units can accumulate, even if the share of `rate` is small."""
        self._clock = clock
        self._full_rate = self._rate = rate
        self._minimum = minimum
        self._available = self._maximum
        self._at = clock.monotonic()

    def share(self, part: float) -> None:
        """Limit the rate to this part, 0 to 1, of the full rate."""
        self._available = float(self.available)
        self._rate = self._full_rate * part
        self._available = min(self._available, self._maximum)

    @property
    def available(self) -> int:
        """The units that can be spent now."""
        now = self._clock.monotonic()
        self._available = min(self._maximum, self._available + self._rate * (now - self._at))
        self._at = now
        return int(self._available)

    def spend(self, count: int) -> None:
        """Remove units, at most those that are available."""
        self._available = max(0.0, self._available - count)

    @property
    def _maximum(self) -> float:
        return max(float(self._minimum), self._rate * BURST_SECONDS)


@dataclass(slots=True)
class OpenLog:
    """An open log file and the position in it."""

    descriptor: int
    identity: tuple[int, int]
    offset: int
    size: int
    grew_at: float
    partial: bytes = b""
    """The beginning of a line that has no end yet."""
    skipping: bool = False  # whether the rest of the current line is ignored
    watch: int | None = None
    missed: int = 0
    """How often in a row the file grew without a notification."""

    @property
    def unread(self) -> int:
        """The unread bytes at the last measurement."""
        return self.size - self.offset

    def measure(self) -> int:
        """Update the size. After a truncation, start at the beginning, and return 1 if some unread lines were lost."""
        size, before = os.fstat(self.descriptor).st_size, self.size
        self.size = size
        if size >= before:
            return 0
        unread = self.offset < before or (self.partial != b"" and not self.skipping)
        self.offset, self.partial, self.skipping = 0, b"", False
        return int(unread)

    def jump(self, offset: int) -> None:
        """Continue at this offset, or at the first line that begins after it."""
        self.offset, self.partial = offset, b""
        self.skipping = offset > 0 and os.pread(self.descriptor, 1, offset - 1) != b"\n"

    def next_lines(self) -> bytes | None:
        """Read the next chunk. Return its whole lines without the end of the last one, or None if it ends no line."""
        chunk = os.pread(self.descriptor, CHUNK, self.offset)
        self.offset += len(chunk)
        self.size = max(self.offset, self.size if chunk else 0)
        whole, end, self.partial = (self.partial + chunk).rpartition(b"\n")
        if end and (self.skipping or (whole.find(b"\n", 0, MAX_LINE + 1) < 0 and len(whole) > MAX_LINE)):
            self.skipping = False
            _, end, whole = whole.partition(b"\n")
        if len(self.partial) > MAX_LINE:
            self.partial, self.skipping = b"", True
        return whole if end else None


@dataclass(slots=True)
class _Selection:
    lines: list[bytes] = field(default_factory=list)
    critical: list[bytes] = field(default_factory=list)
    """Critical lines that are older than `lines`."""
    unrecognized: int = 0
    lost: int = 0


TAIL_BYTES = 1 << 16


def read_tail(location: DaemonLocation) -> Iterator[tuple[str, str]]:
    """Yield the last lines of each log at this location, with the names of the files. Raises OSError."""
    with contextlib.suppress(FileNotFoundError), location.log.opened() as directory:
        for name in location.logs:
            try:
                text = end_of_file(directory, name, TAIL_BYTES).decode(errors="replace")
            except FileNotFoundError:
                continue
            yield from ((name, line) for line in text.split("\n"))


@dataclass(eq=False)
class LogFollower:
    """Follows the log file at one path. `changes` calls `changed` if an open file was written."""

    location: DaemonLocation  # Where the daemon is. If it moves, open files stay open.
    file: str
    clock: Clock
    changes: FileChanges | None = None
    changed: Callable[[], object] = lambda: None

    def __post_init__(self) -> None:
        self._logs: list[OpenLog] = []
        self._was_absent = False
        self._offsets: dict[tuple[int, int], int] = {}
        self._problem: Reason | None = None
        self._reported: tuple[Reason | None, int, int] | None = None
        self._path_check_due = float("-inf")
        self._known = Budget(self.clock, LINES_PER_SECOND, MIN_LINES)
        self._critical = Budget(self.clock, LINES_PER_SECOND, MIN_LINES)
        self._unknown = Budget(self.clock, UNKNOWN_PER_SECOND, MIN_UNKNOWN)
        self._skim = Budget(self.clock, SKIM_BYTES_PER_SECOND, MIN_SKIM_BYTES)

    def share(self, part: float) -> None:
        """Use only this part of the budgets, which all daemons of one kind share."""
        for budget in (self._known, self._critical, self._unknown, self._skim):
            budget.share(part)

    @property
    def watched(self) -> bool:
        """Whether a notification comes when there is more to read."""
        return bool(self._logs) and all(log.watch is not None for log in self._logs)

    @property
    def unchanged(self) -> bool:
        """Whether all files are as they were, and the path need not be checked yet."""
        return (
            bool(self._logs)
            and self.clock.monotonic() < self._path_check_due
            and all(os.fstat(log.descriptor).st_size == log.size == log.offset for log in self._logs)
        )

    def collect(self) -> Reading:
        """Return the new lines within the budgets: in a flood, the newest and critical ones. A file may be missing."""
        now = self.clock.monotonic()
        if now >= self._path_check_due or not self._logs:
            self._path_check_due = now + PATH_CHECK_SECONDS
            self._problem = self._check_path()
        selection = _Selection(lost=sum(log.measure() for log in self._logs))
        for log in self._logs:
            self._read(log, selection)
        at, daemon, file = self.clock.now(), self.location.name, self.file
        observations: list[Observation] = []
        size, unread = sum(log.size for log in self._logs), sum(log.unread for log in self._logs)
        state = (self._problem, size // SIZE_STEP, unread.bit_length())
        if state != self._reported:
            self._reported = state
            sizes = (size, unread) if self._logs else (None, None)
            observations.append(
                LogFile(at=at, daemon=daemon, file=file, problem=self._problem, size=sizes[0], unread=sizes[1])
            )
        lines = [line.decode(errors="replace") for line in self._within_budget(selection)]
        namespace = self.location.namespace
        if namespace is not None and lines:
            namespace.update({number for line in lines for number in pids_in_line(line)})
        if selection.lost:
            observations.append(LogGap(at=at, daemon=daemon, file=file, lines=selection.lost))
        if selection.unrecognized:
            observations.append(LogUnrecognized(at=at, daemon=daemon, file=file, lines=selection.unrecognized))
        observations += (
            LogLine(
                at=at,
                daemon=daemon,
                file=file,
                line=line,
                pids=None if namespace is None else namespace.outer(numbers_in_line(line)),
            )
            for line in lines
        )
        return Reading(tuple(observations), None if _is_absent(self._problem) else self._problem, more=unread > 0)

    def close(self) -> None:
        """Close all files."""
        for log in self._logs:
            self._close(log)
        self._logs.clear()

    def _close(self, log: OpenLog) -> None:
        if self.changes is not None and log.watch is not None:
            self.changes.forget(log.watch, self.changed)
        os.close(log.descriptor)

    def _check_path(self) -> Reason | None:
        """Open the file at the path unless it is open. The first file is read from its end if it existed from start."""
        problem = None
        try:
            with self.location.log.opened() as directory:
                found = os.stat(self.file, dir_fd=directory, follow_symlinks=False)
                if (found.st_dev, found.st_ino) not in [log.identity for log in self._logs]:
                    self._open(directory, from_end=not self._logs and not self._was_absent)
        except OSError as error:
            problem = of_error(f"{self.location.log}/{self.file}", error)
        self._was_absent |= _is_absent(problem)
        now = self.clock.monotonic()
        for log in self._logs[:-1]:
            if now - log.grew_at > REPLACED_SECONDS or len(self._logs) > MAX_OPEN:
                self._close(log)
                self._logs.remove(log)
                self._offsets[log.identity] = log.offset - len(log.partial)
        for oldest in list(self._offsets)[:-MAX_OFFSETS]:
            del self._offsets[oldest]
        return problem

    def _open(self, directory: int, *, from_end: bool) -> None:
        descriptor = open_file(directory, self.file)
        found = os.fstat(descriptor)
        identity = (found.st_dev, found.st_ino)
        offset = found.st_size if from_end else self._offsets.pop(identity, 0)
        log = OpenLog(descriptor, identity, offset, offset, self.clock.monotonic())
        log.watch = None if self.changes is None else self.changes.watch(descriptor, self.changed)
        if from_end:
            log.jump(offset)
        self._logs.append(log)

    def _read(self, log: OpenLog, selection: _Selection) -> None:
        """Select from the unread lines of one file. Some may stay unread until the next collection."""
        if not log.unread:
            return
        if self.changes is not None and log.watch is not None:
            # A file that grows without any notification (NFS, FUSE) is not watched any more.
            log.missed = 0 if self.changes.was_notified(log.watch, self.changed) else log.missed + 1
            if log.missed >= MAX_MISSED:
                self.changes.forget(log.watch, self.changed)
                log.watch = None
        log.grew_at = self.clock.monotonic()
        if log.unread > MAX_UNREAD:
            self._skim_lines(log, selection)
        end = log.offset + MAX_BYTES
        # The rest waits for the next collection only if the budget covers it. If not, the newest lines are needed.
        while log.unread and log.offset < end and not MAX_LINES <= len(selection.lines) <= self._known.available:
            lines = log.next_lines()
            if lines is not None:
                filtered = filter_lines(lines, self._unknown.available)
                selection.lines += filtered.lines
                selection.unrecognized += filtered.left
                self._unknown.spend(filtered.unknown)

    def _skim_lines(self, log: OpenLog, selection: _Selection) -> None:
        end = log.size - MAX_BYTES
        begin = max(log.offset, end - self._skim.available)
        if begin > log.offset:
            log.jump(begin)
            selection.lost += 1
        self._skim.spend(end - begin)
        while log.offset < end and log.unread:
            lines = log.next_lines()
            if lines is not None:
                critical = [*selection.critical, *last_critical_lines(lines, MAX_LINES)]
                selection.lost += 1 + lines.count(b"\n") + len(selection.critical)
                selection.critical = critical[-MAX_LINES:]
                selection.lost -= len(selection.critical)

    def _within_budget(self, selection: _Selection) -> list[bytes]:
        lines = [*selection.critical, *selection.lines]
        if len(lines) > self._known.available:
            # Without them, the connections of twice as many clients are read. The last line shows if a command hangs.
            selection.lost += len(lines)
            lines = [*without_routine_lines(lines[:-1]), lines[-1]]
            selection.lost -= len(lines)
        newest, max_critical = lines[max(0, len(lines) - self._known.available) :], self._critical.available
        older = lines[: len(lines) - len(newest)]
        critical = last_critical_lines(b"\n".join(older), max_critical) if older else []
        selection.lost += len(older) - len(critical)
        self._known.spend(len(newest))
        self._critical.spend(len(critical))
        return [*critical, *newest]


def _is_absent(problem: Reason | None) -> bool:
    return problem is not None and problem.code is ReasonCode.NOT_FOUND


# -- One log -----------------------------------------------------------------------------------------------------------

PERIOD = 0.15  # if a log has no notifications, a new line is observed within this time and `PAUSE`
IDLE_PERIOD = 1.0  # how often the path of a watched log is checked for another file
PAUSE = 0.08  # least time between two collections of one daemon's logs
REPORT_INTERVAL = 5.0  # how often the collector reports that nothing is new


@dataclass(eq=False)
class DaemonLogs:
    """The log files of one daemon. `changes` calls `changed` from another thread if an open file was written."""

    location: DaemonLocation
    clock: Clock
    changes: FileChanges | None = None
    changed: Callable[[], object] = lambda: None

    def __post_init__(self) -> None:
        self.part = 1.0
        """The part of the budgets, which all daemons of one kind share. Any thread may set this and the location."""
        self._followed: DaemonLocation | None = None
        self._applied_part = 1.0
        self._followers: tuple[LogFollower, ...] = ()
        self._problem: Reason | None = None

    def collect(self) -> Reading:
        """Return all new lines. Usually there are none, which takes a few system calls."""
        unfollowed: tuple[LogFile, ...] = ()
        if self.location is not self._followed:
            unfollowed = self._follow(self.location)
        elif all(follower.unchanged for follower in self._followers):
            return Reading(problem=self._problem, idle=self._idle)
        if self.part != self._applied_part:
            self._applied_part = self.part
            for follower in self._followers:
                follower.share(self._applied_part)
        readings = [follower.collect() for follower in self._followers]
        observations = (*unfollowed, *(observation for reading in readings for observation in reading.observations))
        self._problem = joined(reading.problem for reading in readings)
        return Reading(observations, self._problem, more=any(reading.more for reading in readings), idle=self._idle)

    def close(self) -> None:
        """Close all files. Call this in the thread that collects."""
        for follower in self._followers:
            follower.close()
        self._followers = ()

    @property
    def _idle(self) -> bool:
        return bool(self._followers) and all(follower.watched for follower in self._followers)

    def _follow(self, location: DaemonLocation) -> tuple[LogFile, ...]:
        """Follow the logs at this location. Return those that are no longer followed."""
        known = {follower.file: follower for follower in self._followers}
        self._followers = tuple(
            known.pop(file) if file in known else LogFollower(location, file, self.clock, self.changes, self.changed)
            for file in location.logs
        )
        for follower in self._followers:
            follower.location = location
            follower.share(self.part)
        self._applied_part = self.part
        for follower in known.values():
            follower.close()
        self._followed = location
        return tuple(_not_followed(location.name, file, self.clock.now()) for file in known)


class LogCollector:
    """The logs of one daemon with the thread that follows them, which reports a collection that exceeds `deadline`."""

    def __init__(
        self, name: str, location: DaemonLocation, *, clock: Clock, changes: FileChanges | None, **others: Any
    ) -> None:
        """`name` is that of the collector. The `others` are fields of the thread."""
        self.logs = logs = DaemonLogs(location, clock, changes, changed=lambda: self.thread.trigger())
        self.thread = CollectorThread(
            name,
            logs.collect,
            period=PERIOD,
            clock=clock,
            report_interval=REPORT_INTERVAL,
            idle_period=IDLE_PERIOD,
            pause=PAUSE,
            at_end=logs.close,
            daemon=location.name,
            **others,
        )

    def set_location(self, location: DaemonLocation, part: float) -> None:
        """Follow the daemon to this location, with this part of the budgets of all daemons of its kind."""
        self.logs.part = part
        if location != self.logs.location:
            self.logs.location = location
            self.thread.trigger()

    def stop(self) -> None:
        """Stop following the logs. If a collection hangs, its thread closes the files when the collection ends."""
        was_alive, location = self.thread.alive, self.logs.location
        self.thread.stop()
        if was_alive:
            at = self.thread.clock.now()
            self.thread.inbox.put(tuple(_not_followed(location.name, file, at) for file in location.logs))


def _not_followed(daemon: str, file: str, at: float) -> LogFile:
    return LogFile(at=at, daemon=daemon, file=file, followed=False)
