"""Looks at what else tells how control daemons are: their processes, their sockets, and who holds their sessions."""

from collections.abc import Mapping

from exporter.clock import Clock
from exporter.model.observation import Observation
from exporter.model.witnesses import Wanted
from exporter.sources.control_sockets import ControlSockets
from exporter.sources.pid_files import PidFiles
from exporter.sources.place import Place
from exporter.sources.proc import Proc
from exporter.sources.process_states import ProcessStates
from exporter.sources.session_holders import SessionHolders

STATES_SECONDS = 0.4
"""How often states are looked at, at most; the looks of which these are a part come twice a second."""
SOCKETS_SECONDS = 1.0
HOLDERS_SECONDS = 2.0
"""This reads the name of every process that there is."""


class Witnesses:
    """Tells each of them when it changes, and once at first."""

    def __init__(self, proc: Proc, pid_files: PidFiles, clock: Clock) -> None:
        self._pid_files = pid_files
        self._clock = clock
        self._states = ProcessStates(proc, clock)
        self._holders = SessionHolders(proc, clock)
        self._sockets = ControlSockets(proc, clock)
        self._wanted = Wanted()
        self._looked_for = Wanted()
        self._states_due = self._holders_due = self._sockets_due = 0.0

    def want(self, wanted: Wanted) -> None:
        """Say what is wanted, from the next look on."""
        self._wanted = wanted

    def changed(self, places: Mapping[str, Place]) -> list[Observation]:
        """What is otherwise than it was. Whatever is newly wanted is looked at now."""
        wanted, before = self._wanted, self._looked_for
        self._looked_for = wanted
        now = self._clock.monotonic()
        news: list[Observation] = []
        if now >= self._states_due or wanted.states != before.states:
            self._states_due = now + STATES_SECONDS
            news.extend(self._states.changed(wanted.states))
        if now >= self._holders_due or wanted.holders != before.holders:
            self._holders_due = now + HOLDERS_SECONDS
            news.extend(self._holders.changed([places[name] for name in wanted.holders if name in places]))
        if now >= self._sockets_due or wanted.sockets != before.sockets:
            self._sockets_due = now + SOCKETS_SECONDS
            there = {name: (places[name], self._pid_files.pid(name)) for name in wanted.sockets if name in places}
            news.extend(self._sockets.changed(there))
        return news
