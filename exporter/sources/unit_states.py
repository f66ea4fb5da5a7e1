"""Tells how the systemd units are that run control daemons: closely when one has just ended, else seldom or not."""

import os

from exporter.clock import Clock
from exporter.model.witnesses import UnitState
from exporter.parse.systemd import UNIT_STATE_PROPERTIES, is_service_name, parse_unit_states
from exporter.sources.eye import Reading
from exporter.sources.systemctl import Systemctl

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

    def want(self, units: frozenset[str], pressing: frozenset[str] = frozenset()) -> bool:
        """Say which are wanted, and for which of them somebody waits; whether the next look should be now."""
        at_once = not units <= self._wanted or not pressing <= self._pressing
        self._wanted, self._pressing = units, pressing
        if at_once:
            self._due = float("-inf")
        return at_once

    def look(self) -> Reading:
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
