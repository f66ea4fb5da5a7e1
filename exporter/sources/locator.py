"""Where the daemons are; those who follow processes and journals are given these places."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from exporter.model.daemon import Daemon
from exporter.sources.finder import Finder
from exporter.sources.journal import Journal
from exporter.sources.place import FILES, STDOUT, Place, on_host
from exporter.sources.processes import Processes

Places = Mapping[str, Place]


class Locator:
    """Knows the places of all daemons: of those that have been named, on this host, and of those that were found."""

    def __init__(self, *, finder: Finder | None, processes: Processes, journal: Journal | None) -> None:
        self._finder = finder
        self._processes = processes
        self._journal = journal
        self._places: Places = {}

    def locate(self, daemons: Mapping[str, Daemon]) -> Places:
        """The places of these daemons; processes and journals are followed there from now on.

        A daemon whose log is in the journal has no log files in its place.

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
        units = {} if self._journal is None else _units(daemons)
        # The first of two names of one directory has the daemon: the name that somebody gave it.
        places = {name: _settled(located[name], daemons[name], name in units) for name in (*named, *located)}
        self._processes.attend(places)
        self._places = places = {name: place for name, place in places.items() if daemons[name].runtime.same_as is None}
        if self._journal is not None:
            self._journal.follow(units)
        return places


def _as_named(found: Place, named: Place | None) -> Place:
    """Where it was found; its logs are where those who name it say: what was guessed before is another daemon's log."""
    return found if named is None or found.pipe != named.pipe else replace(found, log=named.log)


def _is_unfinished(daemon: Daemon | None) -> bool:
    """Whether it is known to run, or its log may still tell how it ended, whoever has ceased to name it."""
    return daemon is not None and (daemon.runtime.process is not None or daemon.lifecycle.gone_at is not None)


def _settled(place: Place, daemon: Daemon, in_journal: bool) -> Place:
    """Return the place with the daemon's log files, and with the users who may run it."""
    files = (STDOUT,) if daemon.runtime.foreground and daemon.runtime.stdout_in_file else FILES
    return replace(
        place, logs=() if in_journal else files, expected=daemon.declared.expected, owner=daemon.declared.owner
    )


def _units(daemons: Mapping[str, Daemon]) -> Mapping[str, str]:
    """Those whose log is in the journal of the service that they are; a user's manager, `user@UID.service`, is none."""
    told = {
        name: daemon
        for name, daemon in daemons.items()
        if daemon.runtime.foreground and not daemon.runtime.stdout_in_file
    }
    served = {name: daemon.runtime.unit for name, daemon in told.items() if daemon.runtime.unit is not None}
    return {name: unit for name, unit in served.items() if unit.endswith(".service") and not unit.startswith("user@")}
