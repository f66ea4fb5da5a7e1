"""The locations of all daemons."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from exporter.collectors.discovery import Discovery
from exporter.collectors.journal import Journal
from exporter.collectors.pipe_dir import CONTROL_LOG, FILES, SERVER_LOG, STDOUT, DaemonLocation, on_host
from exporter.model.daemon import Daemon
from exporter.parse import protocol3

Locations = Mapping[str, DaemonLocation]


class LocationRegistry:
    """Combines the locations of named daemons, which are on this host, with those that discovery found."""

    def __init__(self, *, discovery: Discovery | None, journal: Journal | None) -> None:
        self._discovery = discovery
        self._journal = journal
        self._locations: Locations = {}
        self.all: Locations = {}
        """Also those of daemons in the directory of another one, which must be examined again."""

    def locate(self, daemons: Mapping[str, Daemon]) -> Locations:
        """Return the locations of these daemons, and set them for the collector of journals.

        A daemon that logs to the journal has no log files in its location. A discovered daemon that is no longer
        found has no location once its end has been explained.
        """
        named = {
            name: on_host(name, Path(daemon.pipe_directory), Path(daemon.log_directory))
            for name, daemon in daemons.items()
            if not daemon.discovered
        }
        located = {name: each for name, each in self._locations.items() if _is_unfinished(daemons.get(name))} | named
        if self._discovery is not None:
            self._discovery.set_named(tuple(named.values()))
            for name, found in self._discovery.locations.items():
                if name in daemons:
                    located[name] = _with_named_log(found, named.get(name))
        journals = {} if self._journal is None else {name: each.runtime.journal for name, each in daemons.items()}
        units = {name: unit for name, unit in journals.items() if unit is not None}
        # If a directory has two names, the first one has the daemon: prefer the one that was configured.
        locations = {
            name: _with_policy(located[name], daemons[name], in_journal=name in units) for name in (*named, *located)
        }
        self.all = locations
        self._locations = {name: each for name, each in locations.items() if daemons[name].runtime.same_as is None}
        if self._journal is not None:
            self._journal.follow(units)
        return self._locations


def _with_named_log(found: DaemonLocation, named: DaemonLocation | None) -> DaemonLocation:
    """Return where a daemon was found, with the configured log directory: discovery can only guess it."""
    return found if named is None or found.pipe != named.pipe else replace(found, log=named.log)


def _is_unfinished(daemon: Daemon | None) -> bool:
    """Return whether a daemon runs, or its log may still explain its end."""
    return daemon is not None and (
        daemon.runtime.process is not None or daemon.lifecycle.unexplained_end_at is not None
    )


def _with_policy(location: DaemonLocation, daemon: Daemon, *, in_journal: bool) -> DaemonLocation:
    """Return the location with the daemon's log files, and with the user who may run it."""
    files = log_files(daemon)
    declared = daemon.declared
    return replace(location, logs=() if in_journal else files, expected=declared.expected, owner=declared.owner)


def log_files(daemon: Daemon) -> tuple[str, ...]:
    """Return a daemon's log files in reading order, as paths below its log directory.

    With protocol 3, each server has one, in a directory with its name (guide, release 615).
    """
    if daemon.runtime.foreground:
        return () if daemon.runtime.log_is_lost else (STDOUT,)
    if daemon.runtime.protocol != protocol3.PROTOCOL:
        return FILES
    names = sorted(server.name for server in daemon.servers.values() if server.name is not None)
    return (*(f"{name}/{SERVER_LOG}" for name in names if protocol3.is_server_name(name)), CONTROL_LOG)
