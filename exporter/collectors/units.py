"""systemd units that run control daemons."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from exporter.clock import Clock
from exporter.collectors.child import run, uid_of
from exporter.collectors.pipe_dir import Directory, open_file
from exporter.collectors.thread import Reading
from exporter.model.daemon import NamedBy
from exporter.model.observation import DaemonFound, UnitState
from exporter.model.reason import Reason, command_failed, not_started, timed_out
from exporter.model.settings import (
    DEFAULT_LOG_DIRECTORY,
    DEFAULT_PIPE_DIRECTORY,
    LOG_DIRECTORY,
    PIPE_DIRECTORY,
    VISIBLE_DEVICES,
)
from exporter.parse.printable import is_service_name
from exporter.parse.systemd import (
    UNIT_PROPERTIES,
    UNIT_STATE_PROPERTIES,
    UnitProperties,
    parse_environment_file,
    parse_unit_properties,
    parse_unit_states,
)

_SHOW = ("show", "--all", "--no-pager", "--no-ask-password")
"""Without --all, it omits units that do not run and empty values."""

_NO_SYSTEMD = ("not been booted with systemd", "bus: No such file or directory", "bus: Host is down")


class Systemctl:
    """`systemctl show`, which any user may run."""

    def __init__(
        self, clock: Clock, *, executable: str = "systemctl", path: str = os.defpath, deadline: float = 5.0
    ) -> None:
        """`path` is the PATH to find `executable`, which must end within `deadline` seconds."""
        self._clock = clock
        self._executable = executable
        self._environment = {"PATH": path, "LC_ALL": "C"}
        self._deadline = deadline

    def show(self, properties: tuple[str, ...], *units: str) -> str | Reason | None:
        """Return these properties of these units, which may be patterns, or why not; None if systemd does not run."""
        command = (self._executable, *_SHOW, f"--property={','.join(properties)}", "--", *units)
        try:
            output = run(command, environment=self._environment, deadline=self._deadline, clock=self._clock)
        except FileNotFoundError:
            return None
        except OSError as error:
            return not_started(self._executable, error)
        if output.exit_code is None:
            return timed_out(self._executable, self._deadline)
        if output.exit_code == 0:
            return output.stdout
        if any(text in output.stderr for text in _NO_SYSTEMD):
            return None
        last_line = (output.stderr.strip().splitlines() or [""])[-1][:200]
        return command_failed(self._executable, output.exit_code, last_line)


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
        shown = self._systemctl.show(UNIT_STATE_PROPERTIES, *units)
        if isinstance(shown, str):
            return Reading(parse_unit_states(shown, units, at))
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
        shown = self._systemctl.show(UNIT_PROPERTIES, "*.service")
        if not isinstance(shown, str):
            return Reading(problem=shown)
        now = self._clock.now()
        units = parse_unit_properties(shown)
        expected = {daemon.daemon: daemon for unit in units for daemon in _daemons(unit, now)}
        missing = (daemon for name, daemon in self._reported.items() if name not in expected)
        withdrawn = [replace(daemon, at=now, expected=False) for daemon in missing]
        self._reported = expected
        return Reading((*withdrawn, *expected.values()))


def _daemons(unit: UnitProperties, at: float) -> Iterator[DaemonFound]:
    """Yield the daemon that a unit starts, unless only a shell could evaluate its pipe directory."""
    if not unit.enabled or unit.daemon_command is None:
        return
    environment = dict(unit.environment)
    # A file overrides the unit, and a later file an earlier one (systemd.exec(5)).
    for path in unit.environment_files:
        environment.update(parse_environment_file(_text(path)))

    def directory(variable: str, default: str) -> str | None:
        value = unit.assigned(variable) or environment.get(variable) or default
        return os.path.normpath(value) if value.startswith("/") and not {"$", "`", "\0"} & set(value) else None

    pipe_directory = directory(PIPE_DIRECTORY, DEFAULT_PIPE_DIRECTORY)
    if pipe_directory is not None:
        yield DaemonFound(
            at=at,
            daemon=pipe_directory,
            pipe_directory=pipe_directory,
            log_directory=directory(LOG_DIRECTORY, DEFAULT_LOG_DIRECTORY) or DEFAULT_LOG_DIRECTORY,
            expected=True,
            unit=unit.name,
            foreground=unit.daemon_in_foreground,
            stdout_in_file=unit.daemon_stdout_in_file,
            visible_devices=unit.assigned(VISIBLE_DEVICES) or environment.get(VISIBLE_DEVICES),
            by=NamedBy.UNIT,
            owner=uid_of(unit.user or "0"),
        )


def _text(path: str) -> str:
    """Return a file's text, or nothing if it cannot be read, as systemd permits it."""
    try:
        real = Path(path).resolve(strict=True)
        with Directory(real.parent).opened() as directory, open(open_file(directory, real.name), "rb") as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    except (OSError, RuntimeError):
        return ""
