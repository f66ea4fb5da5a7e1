"""The locations of all daemons, and how a child process reaches them."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from exporter.collectors.discovery import Discovery
from exporter.collectors.journal import Journal
from exporter.collectors.pid_files import PID_FILE, SOCKET
from exporter.collectors.pipe_dir import FILES, STDOUT, DaemonLocation, Identity, on_host
from exporter.collectors.processes import Processes
from exporter.model.daemon import Daemon

_LINKED = ("control", SOCKET, "control_lock", "log")


@dataclass(frozen=True, slots=True)
class Way:
    """What to tell a child, and to hand over to it; `identity` is None where the directory is not there."""

    pipe_directory: str
    descriptors: tuple[int, ...] = ()
    identity: Identity | None = None


class Approach:
    """The way to one place. Raises nothing: where there is none, the child will say so."""

    def __init__(self, location: DaemonLocation, runtime_directory: Path | None = None) -> None:
        """Directories of links are made in `runtime_directory`, or among the temporary files."""
        self._location = location
        self._runtime_directory = runtime_directory

    @contextlib.contextmanager
    def opened(self) -> Iterator[Way]:
        """The way, open as long as a child goes it."""
        with contextlib.ExitStack() as held:
            yield self._way(held)

    def _way(self, held: contextlib.ExitStack) -> Way:
        pipe, process = self._location.pipe, self._location.process
        try:
            descriptor = held.enter_context(pipe.opened())
            found = os.fstat(descriptor)
        except OSError:
            return Way(str(pipe))
        identity = found.st_dev, found.st_ino
        if self._location.namespace is not None and process is not None:
            with contextlib.suppress(OSError):
                return Way(self._linked(descriptor, process[0], held), (descriptor,), identity)
        if pipe.root is None:
            return Way(str(pipe), (), identity)
        return Way(_from_child(descriptor), (descriptor,), identity)

    def _linked(self, descriptor: int, pid: int, held: contextlib.ExitStack) -> str:
        made = tempfile.TemporaryDirectory(prefix="way-", dir=self._runtime_directory, ignore_cleanup_errors=True)
        directory = Path(held.enter_context(made))
        directory.chmod(0o711)
        for name in _LINKED:
            (directory / name).symlink_to(f"{_from_child(descriptor)}/{name}")
        (directory / PID_FILE).write_text(f"{pid}\n")
        return str(directory)


def _from_child(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


Locations = Mapping[str, DaemonLocation]


class LocationRegistry:
    """Knows the places of all daemons: of those that have been named, on this host, and of those that were found."""

    def __init__(self, *, discovery: Discovery | None, processes: Processes, journal: Journal | None) -> None:
        self._discovery = discovery
        self._processes = processes
        self._journal = journal
        self._locations: Locations = {}

    def locate(self, daemons: Mapping[str, Daemon]) -> Locations:
        """The places of these daemons; processes and journals are followed there from now on.

        A daemon whose log is in the journal has no log files in its place.

        One that was discovered, and is no more to be found, is nowhere once its end has been explained.
        """
        named = {
            name: on_host(name, Path(daemon.pipe_directory), Path(daemon.log_directory))
            for name, daemon in daemons.items()
            if not daemon.discovered
        }
        found: Locations = {}
        if self._discovery is not None:
            self._discovery.set_named(tuple(named.values()))
            found = {name: location for name, location in self._discovery.locations.items() if name in daemons}
            found = {name: _as_named(location, named.get(name)) for name, location in found.items()}
        unfinished = {name: location for name, location in self._locations.items() if _is_unfinished(daemons.get(name))}
        located = {**unfinished, **named, **found}
        units = {} if self._journal is None else _units(daemons)
        # The first of two names of one directory has the daemon: the name that somebody gave it.
        locations = {name: _settled(located[name], daemons[name], name in units) for name in (*named, *located)}
        self._processes.set_locations(locations)
        self._locations = locations = {
            name: location for name, location in locations.items() if daemons[name].runtime.same_as is None
        }
        if self._journal is not None:
            self._journal.follow(units)
        return locations


def _as_named(found: DaemonLocation, named: DaemonLocation | None) -> DaemonLocation:
    """Where it was found; its logs are where those who name it say: what was guessed before is another daemon's log."""
    return found if named is None or found.pipe != named.pipe else replace(found, log=named.log)


def _is_unfinished(daemon: Daemon | None) -> bool:
    """Whether it is known to run, or its log may still tell how it ended, whoever has ceased to name it."""
    return daemon is not None and (
        daemon.runtime.process is not None or daemon.lifecycle.unexplained_end_at is not None
    )


def _settled(location: DaemonLocation, daemon: Daemon, in_journal: bool) -> DaemonLocation:
    """Return the place with the daemon's log files, and with the users who may run it."""
    files = (STDOUT,) if daemon.runtime.foreground and daemon.runtime.stdout_in_file else FILES
    return replace(
        location, logs=() if in_journal else files, expected=daemon.declared.expected, owner=daemon.declared.owner
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
