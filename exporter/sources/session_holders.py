"""Finds who keeps a session with a control daemon open, and so keeps all others out (measured, R580).

It is a process of NVIDIA's program that was not started to serve; one whose command was refused has ended at once.
"""

from collections.abc import Iterable, Mapping

from exporter.clock import Clock
from exporter.model.witnesses import SessionHolder
from exporter.sources.control_daemons import ControlDaemon, ControlDaemons
from exporter.sources.directory import Identity
from exporter.sources.place import Place
from exporter.sources.proc import Proc

MOST_SESSIONS = 64
"""How many are looked at, the eldest first: anybody may start as many as they like."""


class SessionHolders:
    """Who holds each daemon's session, as it was last told."""

    def __init__(self, proc: Proc, clock: Clock) -> None:
        self._proc = proc
        self._programs = ControlDaemons(proc)
        self._clock = clock
        self._told: dict[str, SessionHolder] = {}

    def changed(self, places: Iterable[Place]) -> list[SessionHolder]:
        """Those of these places that are others than at the last look, or new."""
        wanted = {place.name: place.pipe.identity() for place in places}
        sessions = self._sessions() if wanted else {}
        now = {name: self._held_by(name, None if pipe is None else sessions.get(pipe)) for name, pipe in wanted.items()}
        news = [held for name, held in now.items() if name not in self._told or _who(self._told[name]) != _who(held)]
        self._told = now
        return news

    def _sessions(self) -> Mapping[Identity, ControlDaemon]:
        """The eldest session in each pipe directory that is not one of our own."""
        found: dict[Identity, ControlDaemon] = {}
        for each in self._programs.sessions()[:MOST_SESSIONS]:
            pipe = self._programs.pipe_of(each)
            if pipe is not None and pipe not in found and not self._proc.descends_from_us(each.pid):
                found[pipe] = each
        return found

    def _held_by(self, daemon: str, session: ControlDaemon | None) -> SessionHolder:
        at = self._clock.now()
        if session is None:
            return SessionHolder(at=at, daemon=daemon)
        facts = session.facts
        return SessionHolder(
            at=at,
            daemon=daemon,
            pid=facts.pid,
            start_ticks=facts.start_ticks,
            started=facts.started,
            uid=facts.uid,
            user=facts.user,
        )


def _who(held: SessionHolder) -> tuple[int | None, int | None]:
    return held.pid, held.start_ticks
