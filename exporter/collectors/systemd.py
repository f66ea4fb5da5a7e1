"""systemd units that run control daemons, and the journals of those that run one in the foreground."""

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from exporter.clock import Clock
from exporter.collectors.child import Child, run, uid_of
from exporter.collectors.pipe_dir import open_path
from exporter.collectors.thread import Reading
from exporter.model import settings
from exporter.model.daemon import NamedBy
from exporter.model.observation import DaemonFound, LogFile, LogGap, LogLine, Observation, UnitState
from exporter.model.reason import Reason, ReasonCode, command_failed, joined, not_started, timed_out
from exporter.model.values import frozen_positional
from exporter.parse import systemd as parse
from exporter.parse.units import is_service_name

_SHOW = ("show", "--all", "--no-pager", "--no-ask-password")
"""Without --all, it omits units that do not run and empty values."""

_NO_SYSTEMD = ("not been booted with systemd", "bus: No such file or directory", "bus: Host is down")


@frozen_positional
class Systemctl:
    """`systemctl show`, which any user may run. It is found in `path`, and must end within `deadline` seconds."""

    clock: Clock
    executable: str = "systemctl"
    path: str = os.defpath
    deadline: float = 5.0

    def show(self, properties: tuple[str, ...], *units: str) -> str | Reason | None:
        """Return these properties of these units, which may be patterns, or why not; None if systemd does not run."""
        command = (self.executable, *_SHOW, f"--property={','.join(properties)}", "--", *units)
        try:
            output = run(
                command, environment={"PATH": self.path, "LC_ALL": "C"}, deadline=self.deadline, clock=self.clock
            )
        except FileNotFoundError:
            return None
        except OSError as error:
            return not_started(self.executable, error)
        if output.exit_code is None:
            return timed_out(self.executable, self.deadline)
        if output.exit_code == 0:
            return output.stdout
        if any(text in output.stderr for text in _NO_SYSTEMD):
            return None
        last_line = (output.stderr.strip().splitlines() or [""])[-1][:200]
        return command_failed(self.executable, output.exit_code, last_line)


URGENT_SECONDS = 0.3
"""systemd detects a death a moment after the kernel reports it, and then takes its steps one by one."""
POLL_SECONDS = 2.0
WITHOUT_SYSTEMD_SECONDS = 60.0


class UnitStates:
    """The states of the watched units. Each collection is reported: the age of a state matters, even if unchanged."""

    def __init__(self, systemctl: Systemctl, clock: Clock) -> None:
        self._systemctl = systemctl
        self._clock = clock
        self._watched: frozenset[str] = frozenset()
        self._urgent: frozenset[str] = frozenset()
        self._due = float("-inf")

    def watch(self, units: frozenset[str], urgent: frozenset[str] = frozenset()) -> bool:
        """Set the units to read, and those to read often. Return whether the next collection should be now."""
        now = not units <= self._watched or not urgent <= self._urgent
        self._watched, self._urgent = units, urgent
        if now:
            self._due = float("-inf")
        return now

    def collect(self) -> Reading:
        """Read the states if it is time. If systemd does not run, there are none, which is not a failure."""
        now, units = self._clock.monotonic(), sorted(filter(is_service_name, self._watched))
        if not units or now < self._due:
            return Reading(idle=not units)
        self._due = now + (URGENT_SECONDS if self._urgent else POLL_SECONDS)
        at = self._clock.now()
        shown = self._systemctl.show(parse.UNIT_STATE_PROPERTIES, *units)
        if isinstance(shown, str):
            return Reading(parse.parse_unit_states(shown, units, at))
        if shown is not None:
            return Reading(tuple(UnitState(at=at, unit=unit, problem=shown) for unit in units), shown)
        self._due = now + WITHOUT_SYSTEMD_SECONDS
        return Reading()


_MOST_BYTES = 1 << 16


class Units:
    """The enabled units that start a control daemon."""

    def __init__(self, systemctl: Systemctl, clock: Clock) -> None:
        self._systemctl = systemctl
        self._clock = clock
        self._reported: Mapping[str, DaemonFound] = {}

    def collect(self) -> Reading:
        """Return the expected daemons, and before them those that are no longer expected."""
        shown = self._systemctl.show(parse.UNIT_PROPERTIES, "*.service")
        if not isinstance(shown, str):
            return Reading(problem=shown)
        now = self._clock.now()
        units = parse.parse_unit_properties(shown)
        expected = {daemon.daemon: daemon for unit in units for daemon in _daemons(unit, now)}
        missing = (daemon for name, daemon in self._reported.items() if name not in expected)
        withdrawn = [replace(daemon, at=now, expected=False) for daemon in missing]
        self._reported = expected
        return Reading((*withdrawn, *expected.values()))


def _daemons(unit: parse.UnitProperties, at: float) -> Iterator[DaemonFound]:
    """Yield the daemon that a unit starts, unless only a shell could evaluate its pipe directory."""
    if not unit.enabled or unit.daemon_command is None:
        return
    environment = dict(unit.environment)
    # A file overrides the unit, and a later file an earlier one (systemd.exec(5)).
    for path in unit.environment_files:
        environment.update(parse.parse_environment_file(_text(path)))

    def directory(variable: str, default: str) -> str | None:
        value = unit.assigned(variable) or environment.get(variable) or default
        return os.path.normpath(value) if value.startswith("/") and not {"$", "`", "\0"} & set(value) else None

    pipe_directory = directory(settings.PIPE_DIRECTORY, settings.DEFAULT_PIPE_DIRECTORY)
    if pipe_directory is not None:
        yield DaemonFound(
            at=at,
            daemon=pipe_directory,
            pipe_directory=pipe_directory,
            log_directory=directory(settings.LOG_DIRECTORY, settings.DEFAULT_LOG_DIRECTORY)
            or settings.DEFAULT_LOG_DIRECTORY,
            expected=True,
            unit=unit.name,
            foreground=unit.daemon_in_foreground,
            stdout_in_file=unit.daemon_stdout_in_file,
            visible_devices=unit.assigned(settings.VISIBLE_DEVICES) or environment.get(settings.VISIBLE_DEVICES),
            by=NamedBy.UNIT,
            owner=uid_of(unit.user or "0"),
        )


def _text(path: str) -> str:
    """Return a file's text, or nothing if it cannot be read, as systemd permits it."""
    descriptor = open_path(Path(path))
    if descriptor is None:
        return ""
    with open(descriptor, "rb") as file, contextlib.suppress(OSError):
        return file.read(_MOST_BYTES).decode(errors="replace")
    return ""


FILE = "stdout"  # The name of such a log. It is not a file.

RETRY_SECONDS = 5.0
TAIL_LINES = 1000
DEADLINE_SECONDS = 10.0
"""Time for `journalctl` to find the end of the journal."""

_FORMAT = ("--system", "--no-pager", "--output=json", f"--output-fields={','.join(parse.JOURNAL_FIELDS)}")
_DROPS = ("_TRANSPORT=driver", f"MESSAGE_ID={parse.SUPPRESSED_MESSAGE_ID}")
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
        self._started = self._retry_at = float("-inf")
        self._following = False
        self._end_found = False
        self._cursor: str | None = None
        self._unfinished: str | None = None
        """The stream whose last entry was an unfinished line."""
        self._problem: Reason | None = None
        self._reported: tuple[Reason | None] | None = None

    def collect(self) -> Reading:
        """Return the new lines, without waiting."""
        observations: list[Observation] = []
        if self._child is None and self._clock.monotonic() >= self._retry_at:
            self._start("--lines=1")
        if self._child is not None and not self._following:
            self._find_end(self._child)
        if self._child is not None and self._following:
            observations = self._read(self._child)
        if (self._following or self._problem is not None) and self._reported != (self._problem,):
            self._reported = (self._problem,)
            log = LogFile(at=self._clock.now(), daemon=self._daemon, file=FILE, problem=self._problem)
            observations.insert(0, log)
        return Reading(tuple(observations), self._problem)

    def close(self) -> None:
        """Stop following."""
        if self._child is not None:
            self._child.close()
            self._child = None
        self._following = False

    def tail(self) -> tuple[LogFile, list[str]]:
        """Return the last lines, and whether they could be read."""
        command = (*self._journalctl, f"--lines={TAIL_LINES}", *self._matches)
        problem, lines = None, list[str]()
        try:
            output = run(command, environment=self._environment, deadline=DEADLINE_SECONDS, clock=self._clock)
        except (OSError, ValueError) as error:
            problem = not_started(command[0], error)
        else:
            entries = filter(None, map(parse.parse_journal_entry, output.stdout.encode().splitlines()))
            lines = [entry.message for entry in entries if entry.message and entry.is_mps_output_of(self.unit)]
            if output.exit_code is None:
                problem = timed_out(self._command, DEADLINE_SECONDS)
            elif output.exit_code != 0 or output.stderr.startswith(_NO_JOURNAL):
                problem = self._failure(output.exit_code, output.stderr)
        return LogFile(at=self._clock.now(), daemon=self._daemon, file=FILE, problem=problem), lines

    def _start(self, *arguments: str) -> None:
        self._started = self._clock.monotonic()
        try:
            self._child = Child((*self._journalctl, *arguments, *self._matches), self._environment)
        except (OSError, ValueError) as error:
            self._fail(not_started(self._journalctl[0], error))

    def _fail(self, problem: Reason) -> None:
        self.close()
        self._retry_at = self._clock.monotonic() + RETRY_SECONDS
        self._problem = problem

    def _find_end(self, child: Child) -> None:
        """Find where to begin. After a failure, this also shows whether the journal can be read again."""
        exit_code = child.ended
        lines, _ = child.lines()
        entries = [entry for line in lines if (entry := parse.parse_journal_entry(line)) is not None]
        if entries and not self._end_found:
            self._cursor = entries[-1].cursor
        if exit_code is None:
            if self._clock.monotonic() - self._started > DEADLINE_SECONDS:
                self._fail(timed_out(self._command, DEADLINE_SECONDS))
        elif exit_code != 0 or child.error_line.startswith(_NO_JOURNAL):
            self._fail(self._failure(exit_code, child.error_line))
        else:
            child.close()
            self._child, self._end_found = None, True
            # journalctl returns the entry of the cursor again, so no entry after it can be missed.
            cursor = () if self._cursor is None else (f"--cursor={self._cursor}",)
            self._start("--follow", "--no-tail", *cursor)
            if self._child is not None:
                self._following, self._problem = True, None

    def _read(self, child: Child) -> list[Observation]:
        exit_code = child.ended
        lines, lost = child.lines()
        at = self._clock.now()
        observations: list[Observation] = []
        for entry in map(parse.parse_journal_entry, lines):
            if entry is None:
                lost += 1
            elif entry.cursor != self._cursor:
                self._cursor = entry.cursor
                lost += entry.lines_dropped_of(self.unit)
                if entry.is_mps_output_of(self.unit) and not self._continues_line(entry):
                    if entry.unfinished or entry.message is None:
                        lost += 1
                    else:
                        observations.append(LogLine(at=at, daemon=self._daemon, file=FILE, line=entry.message))
        if lost:
            observations.append(LogGap(at=at, daemon=self._daemon, file=FILE, lines=lost))
        if exit_code is not None:
            self._fail(self._failure(exit_code, child.error_line))
        return observations

    def _continues_line(self, entry: parse.JournalEntry) -> bool:
        """Return whether an entry is the rest of a line that journald has split."""
        continues = entry.stream is not None and entry.stream == self._unfinished
        if entry.unfinished:
            self._unfinished = entry.stream
        elif continues:
            self._unfinished = None
        return continues

    def _failure(self, exit_code: int, stderr: str) -> Reason:
        if "permission" in stderr:
            return Reason(ReasonCode.PERMISSION_DENIED, subject=f"journal:{self.unit}", detail=stderr)
        if stderr.startswith(_NO_JOURNAL):
            return Reason(ReasonCode.NOT_FOUND, subject=f"journal:{self.unit}", detail=stderr)
        return command_failed(self._command, exit_code, stderr)


class Journal:
    """The journals of the units of all foreground daemons."""

    def __init__(self, clock: Clock, *, executable: str = "journalctl", path: str = os.defpath) -> None:
        """`path` is searched for `executable`."""
        self._clock = clock
        self._executable = executable
        self._path = path
        self._units: Mapping[str, str] = {}
        self._journals: dict[str, UnitJournal] = {}
        self._lock = threading.Lock()
        self._closed = False

    def follow(self, units: Mapping[str, str]) -> None:
        """Set the unit of each daemon whose log is in the journal. Any thread may call this."""
        self._units = dict(units)

    def journal_of(self, daemon: str, unit: str) -> UnitJournal:
        """Return the journal of one unit."""
        return UnitJournal(daemon, unit, self._clock, executable=self._executable, path=self._path)

    @property
    def awaits_collection(self) -> bool:
        """Whether the next collection adds or removes a journal."""
        return self._units.keys() != self._journals.keys()

    def collect(self) -> Reading:
        """Return all new lines."""
        with self._lock:
            if self._closed:
                return Reading()
            observations: list[Observation] = []
            units = self._units
            for daemon, journal in list(self._journals.items()):
                if units.get(daemon) != journal.unit:
                    journal.close()
                    del self._journals[daemon]
                    observations.append(LogFile(at=self._clock.now(), daemon=daemon, file=FILE, followed=False))
            for daemon, unit in units.items():
                if daemon not in self._journals:
                    self._journals[daemon] = self.journal_of(daemon, unit)
            readings = [journal.collect() for journal in self._journals.values()]
        observations += (observation for reading in readings for observation in reading.observations)
        return Reading(tuple(observations), joined(reading.problem for reading in readings), idle=not readings)

    def close(self) -> None:
        """Stop following, and end all children. Any thread may call this."""
        with self._lock:
            self._closed = True
            for journal in self._journals.values():
                journal.close()
            self._journals.clear()
