"""systemd units that run control daemons."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace

from exporter.clock import Clock
from exporter.collectors.child import Systemctl, uid_of
from exporter.collectors.thread import Reading
from exporter.model.daemon import NamedBy
from exporter.model.observation import DaemonFound, UnitState
from exporter.model.settings import (
    DEFAULT_LOG_DIRECTORY,
    DEFAULT_PIPE_DIRECTORY,
    LOG_DIRECTORY,
    PIPE_DIRECTORY,
    VISIBLE_DEVICES,
)
from exporter.parse.systemd import (
    UNIT_PROPERTIES,
    UNIT_STATE_PROPERTIES,
    UnitProperties,
    parse_environment_file,
    parse_unit_properties,
    parse_unit_states,
)
from exporter.parse.unit_name import is_service_name

SOON_SECONDS = 0.3
"""systemd notices a death a moment after the kernel tells of it, and then takes its steps one by one."""
LOOK_SECONDS = 2.0
WITHOUT_SYSTEMD_SECONDS = 60.0


class UnitStates:
    """How each unit is that is wanted. Each look is told: how old it is matters, also where nothing has changed."""

    def __init__(
        self, clock: Clock, *, executable: str = "systemctl", path: str = os.defpath, deadline: float = 5.0
    ) -> None:
        """`path` is where `executable` is looked for; `deadline` is how long it may take to answer, in seconds."""
        self._clock = clock
        self._systemctl = Systemctl(clock, executable=executable, path=path, deadline=deadline)
        self._wanted: frozenset[str] = frozenset()
        self._pressing: frozenset[str] = frozenset()
        self._due = float("-inf")

    def watch(self, units: frozenset[str], pressing: frozenset[str] = frozenset()) -> bool:
        """Say which are wanted, and for which of them somebody waits; whether the next look should be now."""
        at_once = not units <= self._wanted or not pressing <= self._pressing
        self._wanted, self._pressing = units, pressing
        if at_once:
            self._due = float("-inf")
        return at_once

    def collect(self) -> Reading:
        """Look, if it is time. Where systemd does not run, nothing is seen; that is no failure."""
        now, units = self._clock.monotonic(), sorted(filter(is_service_name, self._wanted))
        if not units or now < self._due:
            return Reading(idle=not units)
        self._due = now + (SOON_SECONDS if self._pressing else LOOK_SECONDS)
        at = self._clock.now()
        shown = self._systemctl.show(UNIT_STATE_PROPERTIES, *units)
        if shown.text is not None:
            return Reading(parse_unit_states(shown.text, units, at))
        if shown.problem is not None:
            return Reading(tuple(UnitState(at=at, unit=unit, problem=shown.problem) for unit in units), shown.problem)
        self._due = now + WITHOUT_SYSTEMD_SECONDS
        return Reading()


_MOST_BYTES = 1 << 16


class Units:
    """The enabled units that start a control daemon."""

    def __init__(
        self, clock: Clock, *, executable: str = "systemctl", path: str = os.defpath, deadline: float = 5.0
    ) -> None:
        """`path` is where `executable` is looked for; `deadline` is how long it may take to answer, in seconds."""
        self._clock = clock
        self._systemctl = Systemctl(clock, executable=executable, path=path, deadline=deadline)
        self._told: Mapping[str, DaemonFound] = {}

    def collect(self) -> Reading:
        """The daemons to expect, and those to expect no more. Where systemd does not run, none; that is no failure."""
        shown = self._systemctl.show(UNIT_PROPERTIES, "*.service")
        if shown.text is None:
            return Reading(problem=shown.problem)
        return Reading(self._news({found.daemon: found for found in self._expected(shown.text)}))

    def _news(self, expected: Mapping[str, DaemonFound]) -> tuple[DaemonFound, ...]:
        """Those that are enabled, after those that were and are no more."""
        dropped = [found for name, found in self._told.items() if name not in expected]
        self._told = expected
        now = self._clock.now()
        return (*(replace(found, at=now, expected=False) for found in dropped), *expected.values())

    def _expected(self, shown: str) -> Iterator[DaemonFound]:
        for unit in parse_unit_properties(shown):
            if not unit.enabled or unit.daemon_command is None:
                continue
            environment = _environment(unit)
            pipe_directory = _directory(unit, environment, PIPE_DIRECTORY, DEFAULT_PIPE_DIRECTORY)
            log_directory = _directory(unit, environment, LOG_DIRECTORY, DEFAULT_LOG_DIRECTORY)
            if pipe_directory is not None:
                yield DaemonFound(
                    at=self._clock.now(),
                    daemon=pipe_directory,
                    pipe_directory=pipe_directory,
                    log_directory=log_directory or DEFAULT_LOG_DIRECTORY,
                    expected=True,
                    unit=unit.name,
                    foreground=unit.daemon_in_foreground,
                    stdout_in_file=unit.daemon_stdout_in_file,
                    visible_devices=unit.assigned(VISIBLE_DEVICES) or environment.get(VISIBLE_DEVICES),
                    by=NamedBy.UNIT,
                    owner=uid_of(unit.user or "0"),
                )


def _environment(unit: UnitProperties) -> Mapping[str, str]:
    """What the unit's files say outweighs what it says itself, the last file the most (systemd.exec(5))."""
    environment = dict(unit.environment)
    for path in unit.environment_files:
        environment.update(parse_environment_file(_text(path)))
    return environment


def _directory(unit: UnitProperties, environment: Mapping[str, str], variable: str, default: str) -> str | None:
    """Where the daemon will be; None where only a shell could tell."""
    value = unit.assigned(variable) or environment.get(variable) or default
    return os.path.normpath(value) if value.startswith("/") and not {"$", "`", "\0"} & set(value) else None


def _text(path: str) -> str:
    """A file's text; nothing where it is not there or not to be read, as the unit itself may have it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, _MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
