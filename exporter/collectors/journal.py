"""Journals of units whose daemon runs in the foreground."""

import os
import threading
from collections.abc import Mapping

from exporter.clock import Clock
from exporter.collectors.child import Child
from exporter.collectors.thread import Reading
from exporter.model.observation import LogFile, LogGap, LogLine, Observation
from exporter.model.problem import Problem, ProblemCode, command_failed, joined, not_started, timed_out
from exporter.parse.systemd import JOURNAL_FIELDS, SUPPRESSED_MESSAGE_ID, JournalEntry, parse_journal_entry

FILE = "stdout"
"""The name of such a log, which is not a file."""
RETRY_SECONDS = 5.0
DEADLINE_SECONDS = 10.0
"""How long `journalctl` may take to find the end of the journal."""

_FORMAT = ("--system", "--no-pager", "--output=json", f"--output-fields={','.join(JOURNAL_FIELDS)}")
_DROPS = ("_TRANSPORT=driver", f"MESSAGE_ID={SUPPRESSED_MESSAGE_ID}")
_NO_JOURNAL = "No journal files"


class UnitJournal:
    """The journal of one unit and daemon, read from its end at the first collection."""

    def __init__(self, daemon: str, unit: str, clock: Clock, *, executable: str, path: str) -> None:
        self.unit = unit
        self._daemon = daemon
        self._clock = clock
        self._journalctl = (executable, *_FORMAT)
        self._command = f"{executable} --unit={unit}"
        self._matches = (f"_SYSTEMD_UNIT={unit}", "_TRANSPORT=stdout", "+", *_DROPS)
        self._environment = {"PATH": path, "LC_ALL": "C"}
        self._child: Child | None = None
        self._started = self._due = float("-inf")
        self._following = False
        self._end_found = False
        self._cursor: str | None = None
        self._unfinished: str | None = None
        self._problem: Problem | None = None
        self._told: tuple[Problem | None] | None = None

    def collect(self) -> Reading:
        """Return the new lines, without waiting."""
        seen: list[Observation] = []
        if self._child is None and self._clock.monotonic() >= self._due:
            self._start(*self._matches_from_end())
        if self._child is not None and not self._following:
            self._find_end(self._child)
        if self._child is not None and self._following:
            seen = self._hear(self._child)
        if (self._following or self._problem is not None) and self._told != (self._problem,):
            self._told = (self._problem,)
            seen.insert(0, LogFile(at=self._clock.now(), daemon=self._daemon, file=FILE, problem=self._problem))
        return Reading(tuple(seen), self._problem)

    def close(self) -> None:
        """Stop following."""
        if self._child is not None:
            self._child.close()
            self._child = None
        self._following = False

    def _matches_from_end(self) -> tuple[str, ...]:
        return ("--lines=1", *self._matches)

    def _matches_from_cursor(self) -> tuple[str, ...]:
        """Start at the last entry that was read: it comes again, so no entry after it can be missed."""
        start = () if self._cursor is None else (f"--cursor={self._cursor}",)
        return ("--follow", "--no-tail", *start, *self._matches)

    def _start(self, *arguments: str) -> None:
        self._started = self._clock.monotonic()
        try:
            self._child = Child((*self._journalctl, *arguments), self._environment)
        except (OSError, ValueError) as error:
            self._fail(not_started(self._journalctl[0], error))

    def _fail(self, problem: Problem) -> None:
        self.close()
        self._due = self._clock.monotonic() + RETRY_SECONDS
        self._problem = problem

    def _find_end(self, child: Child) -> None:
        """Find where to begin. After a failure, this also shows whether the journal can be read again."""
        ended = child.ended
        lines, _ = child.lines()
        entries = [entry for line in lines if (entry := parse_journal_entry(line)) is not None]
        if entries and not self._end_found:
            self._cursor = entries[-1].cursor
        if ended is None:
            if self._clock.monotonic() - self._started > DEADLINE_SECONDS:
                self._fail(timed_out(self._command, DEADLINE_SECONDS))
        elif ended != 0 or child.error_line.startswith(_NO_JOURNAL):
            self._fail(self._reason(ended, child.error_line))
        else:
            child.close()
            self._child, self._end_found = None, True
            self._start(*self._matches_from_cursor())
            if self._child is not None:
                self._following, self._problem = True, None

    def _hear(self, child: Child) -> list[Observation]:
        ended = child.ended
        lines, lost = child.lines()
        seen: list[Observation] = []
        for entry in map(parse_journal_entry, lines):
            if entry is None:
                lost += 1
            elif entry.cursor != self._cursor:
                self._cursor = entry.cursor
                whole, parts = self._whole(entry)
                lost += parts + entry.lines_dropped_of(self.unit)
                seen.extend(LogLine(at=self._clock.now(), daemon=self._daemon, file=FILE, line=line) for line in whole)
        if lost:
            seen.append(LogGap(at=self._clock.now(), daemon=self._daemon, file=FILE, lines=lost))
        if ended is not None:
            self._fail(self._reason(ended, child.error_line))
        return seen

    def _whole(self, entry: JournalEntry) -> tuple[list[str], int]:
        """Return the line of an entry, or how many lines are lost. The rest of a cut line is not a new line."""
        if not entry.is_mps_output_of(self.unit):
            return [], 0
        goes_on = entry.stream is not None and entry.stream == self._unfinished
        if entry.unfinished:
            self._unfinished = entry.stream
        elif goes_on:
            self._unfinished = None
        if goes_on:
            return [], 0
        return ([], 1) if entry.unfinished or entry.message is None else ([entry.message], 0)

    def _reason(self, ended: int, stderr: str) -> Problem:
        if "permission" in stderr:
            return Problem(code=ProblemCode.PERMISSION_DENIED, subject=f"journal:{self.unit}", detail=stderr)
        if stderr.startswith(_NO_JOURNAL):
            return Problem(code=ProblemCode.NOT_FOUND, subject=f"journal:{self.unit}", detail=stderr)
        return command_failed(self._command, ended, stderr)


class Journal:
    """The journals of all foreground daemons' units."""

    def __init__(self, clock: Clock, *, executable: str = "journalctl", path: str = os.defpath) -> None:
        """`path` is where `executable` is looked for."""
        self._clock = clock
        self._executable = executable
        self._path = path
        self._wanted: Mapping[str, str] = {}
        self._journals: dict[str, UnitJournal] = {}
        self._lock = threading.Lock()
        self._closed = False

    def follow(self, units: Mapping[str, str]) -> None:
        """Set which daemon's log is in which unit's journal, from the next collection on. Any thread may call this."""
        self._wanted = dict(units)

    @property
    def awaits_look(self) -> bool:
        """Whether journals must be added or removed."""
        return self._wanted.keys() != self._journals.keys()

    def collect(self) -> Reading:
        """Return all new lines."""
        with self._lock:
            if self._closed:
                return Reading()
            left = self._reconcile(self._wanted)
            readings = [journal.collect() for journal in self._journals.values()]
        seen = [*left, *(observation for reading in readings for observation in reading.observations)]
        return Reading(tuple(seen), joined(each.problem for each in readings), idle=not readings)

    def close(self) -> None:
        """Stop following, and end all children. Any thread may call this."""
        with self._lock:
            self._closed = True
            for journal in self._journals.values():
                journal.close()
            self._journals.clear()

    def _reconcile(self, wanted: Mapping[str, str]) -> list[LogFile]:
        left: list[LogFile] = []
        for daemon, journal in list(self._journals.items()):
            if wanted.get(daemon) != journal.unit:
                journal.close()
                del self._journals[daemon]
                problem = Problem(code=ProblemCode.NOT_FOLLOWED, subject=journal.unit)
                left.append(LogFile(at=self._clock.now(), daemon=daemon, file=FILE, problem=problem))
        for daemon, unit in wanted.items():
            if daemon not in self._journals:
                self._journals[daemon] = UnitJournal(
                    daemon, unit, self._clock, executable=self._executable, path=self._path
                )
        return left
