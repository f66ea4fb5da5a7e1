"""Where the daemons are, and the telling of it to all who follow them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from exporter.model.daemon import Daemon
from exporter.sources.finder import Finder
from exporter.sources.journal import Journal
from exporter.sources.logs import DaemonLogs
from exporter.sources.place import STDOUT, Place, on_host
from exporter.sources.processes import Processes

Places = Mapping[str, Place]


class Locator:
    """Knows the places of all daemons: of those that have been named, on this host, and of those that were found."""

    def __init__(
        self, *, finder: Finder | None, processes: Processes, logs: DaemonLogs, journal: Journal | None
    ) -> None:
        self._finder = finder
        self._processes = processes
        self._logs = logs
        self._journal = journal
        self._places: Places = {}

    def locate(self, daemons: Mapping[str, Daemon]) -> Places:
        """The places of these daemons; processes, logs and journals are followed there from now on.

        One that was discovered, and is no more to be found, is nowhere once its end has been explained.
        """
        named = {
            name: on_host(name, Path(daemon.pipe_directory), Path(daemon.log_directory))
            for name, daemon in daemons.items()
            if not daemon.discovered
        }
        found: Places = {}
        if self._finder is not None:
            self._finder.give(tuple(named.values()))
            found = {name: place for name, place in self._finder.places.items() if name in daemons}
            found = {name: _as_named(place, named.get(name)) for name, place in found.items()}
        unfinished = {name: place for name, place in self._places.items() if _is_unfinished(daemons.get(name))}
        located = {**unfinished, **named, **found}
        self._places = places = {name: _with_logs(place, daemons[name]) for name, place in located.items()}
        self._processes.attend(places)
        units = {} if self._journal is None else _units(daemons)
        if self._journal is not None:
            self._journal.follow(units)
        self._logs.follow({name: place for name, place in places.items() if name not in units})
        return places


def _as_named(found: Place, named: Place | None) -> Place:
    """Where it was found; its logs are where those who name it say: what was guessed before is another daemon's log."""
    return found if named is None or found.pipe != named.pipe else replace(found, log=named.log)


def _is_unfinished(daemon: Daemon | None) -> bool:
    """Whether it is known to run, or its log may still tell how it ended, whoever has ceased to name it."""
    return daemon is not None and (daemon.process is not None or daemon.gone_at is not None)


def _with_logs(place: Place, daemon: Daemon) -> Place:
    return replace(place, logs=(STDOUT,)) if daemon.foreground and daemon.stdout_kept else place


def _units(daemons: Mapping[str, Daemon]) -> Mapping[str, str]:
    """Those whose log is in the journal of the service that they are; a user's manager, `user@UID.service`, is none."""
    told = {name: daemon for name, daemon in daemons.items() if daemon.foreground and not daemon.stdout_kept}
    served = {name: daemon.unit for name, daemon in told.items() if daemon.unit is not None}
    return {name: unit for name, unit in served.items() if unit.endswith(".service") and not unit.startswith("user@")}
