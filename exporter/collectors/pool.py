"""All collector threads, the permanent ones and three for each known daemon, and the locations of all daemons."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar

from exporter.collectors.control_client import ControlClient
from exporter.collectors.daemon_directory import DirectoryCollector
from exporter.collectors.discovery import Discovery
from exporter.collectors.logs import LogCollector
from exporter.collectors.pipe_dir import CONTROL_LOG, FILES, SERVER_LOG, STDOUT, DaemonLocation, on_host
from exporter.collectors.systemd import Journal
from exporter.collectors.thread import CollectorThread, close
from exporter.logger import logger
from exporter.model.daemon import Daemon
from exporter.model.node import Node, expected_daemons
from exporter.model.observation import Observation, Wanted
from exporter.model.values import frozen_positional

# -- Locations of the daemons ------------------------------------------------------------------------------------------

Daemons = Mapping[str, Daemon]
Locations = Mapping[str, DaemonLocation]


class LocationRegistry:
    """Combines the locations of named daemons, which are on this host, with those that discovery found."""

    def __init__(self, *, discovery: Discovery | None, journal: Journal | None) -> None:
        self._discovery = discovery
        self._journal = journal
        self._locations: Locations = {}
        self.all: Locations = {}
        """Also those of daemons in the directory of another one, which must be examined again."""

    def locate(self, daemons: Daemons) -> Locations:
        """Return the locations of these daemons, and set them for the collector of journals.

        A daemon that logs to the journal has no log files in its location. A discovered daemon that is no longer
        found has no location once its end has been explained.
        """
        named = {
            name: on_host(name, Path(daemon.pipe_directory), Path(daemon.log_directory))
            for name, daemon in daemons.items()
            if not daemon.discovered
        }
        # A daemon is unfinished if it runs, or if its log may still explain its end.
        unfinished = {
            name
            for name, daemon in daemons.items()
            if daemon.runtime.process is not None or daemon.lifecycle.unexplained_end_at is not None
        }
        located = {name: location for name, location in self._locations.items() if name in unfinished} | named
        if self._discovery is not None:
            self._discovery.named = named
            for name, location in self._discovery.locations.items():
                if name in named and named[name].pipe == location.pipe:
                    # Discovery can only guess the log directory.
                    located[name] = replace(location, log=named[name].log)
                elif name in daemons:
                    located[name] = location
        journals = {} if self._journal is None else {name: daemon.runtime.journal for name, daemon in daemons.items()}
        units = {name: unit for name, unit in journals.items() if unit is not None}
        # If a directory has two names, the first one has the daemon: prefer the one that was configured.
        self.all = {
            name: replace(
                located[name],
                logs=() if name in units else log_files(daemons[name]),
                expected=daemons[name].declared.expected,
                owner=daemons[name].declared.owner,
            )
            for name in (*named, *located)
        }
        self._locations = {
            name: location for name, location in self.all.items() if daemons[name].runtime.same_as is None
        }
        if self._journal is not None:
            self._journal.follow(units)
        return self._locations


def log_files(daemon: Daemon) -> tuple[str, ...]:
    """Return a daemon's log files in reading order, as paths below its log directory.

    A server may have one of its own, in a directory with its name.
    """
    if daemon.runtime.foreground:
        return () if daemon.runtime.log_is_lost else (STDOUT,)
    if not daemon.dialect.named_servers:
        return FILES
    names = sorted(server.name for server in daemon.servers.values() if server.name is not None)
    return (*(f"{name}/{SERVER_LOG}" for name in names), CONTROL_LOG)


# -- Collectors --------------------------------------------------------------------------------------------------------

MOST_LINGERING = 64
"""How many stopped threads may still hang. If more do, only the threads of expected daemons are started: a user can
start daemons with ever new names, in directories that hang."""


@frozen_positional
class ControlPoller:
    """The control client of one daemon, and its thread."""

    client: ControlClient
    thread: CollectorThread

    def set_location(self, location: DaemonLocation, _share: float) -> None:
        """Set where the daemon is, from the next command on."""
        self.client.location = location

    def request(self, commands: tuple[str, ...], daemon: Daemon) -> None:
        """Send these commands as soon as possible."""
        self.client.request_from(daemon, commands)
        self.thread.trigger()

    def stop(self) -> None:
        """Send nothing more."""
        self.client.close()
        self.thread.stop()


Kind = TypeVar("Kind", ControlPoller, LogCollector, DirectoryCollector)


class _DaemonCollectors(Generic[Kind]):
    """The collectors of one kind, each in its own thread, so that one that hangs stops no other."""

    def __init__(self, make: Callable[[DaemonLocation], Kind] | None, missing_event: str) -> None:
        """`missing_event` is logged for a daemon without a collector. Without `make`, no daemon has one."""
        self._make: Callable[[DaemonLocation], Kind] | None = make
        self._missing_event = missing_event
        self._missing: set[str] = set()
        self._stopped: list[Kind] = []
        self.by_daemon: dict[str, Kind] = {}

    def update(self, locations: Locations, expected: Collection[str]) -> None:
        self._stopped = [collector for collector in self._stopped if collector.thread.alive]
        for name in self.by_daemon.keys() - locations.keys():
            collector = self.by_daemon.pop(name)
            collector.stop()
            self._stopped.append(collector)
        self._missing &= locations.keys()
        counts = Counter(name in expected for name in locations)
        for name, location in locations.items():
            share = 1 / counts[name in expected]
            if name in self.by_daemon:
                self.by_daemon[name].set_location(location, share)
            elif name not in expected and len(self._stopped) >= MOST_LINGERING:
                self._log_missing(name, f"{MOST_LINGERING} threads of other daemons hang")
            elif self._make is not None:
                collector = self._make(location)
                collector.set_location(location, share)
                try:
                    collector.thread.start()
                except RuntimeError as error:
                    # The system permits no more threads. The next update tries again.
                    collector.stop()
                    self._log_missing(name, str(error))
                else:
                    self._missing.discard(name)
                    self.by_daemon[name] = collector

    def stop(self) -> None:
        for collector in self.by_daemon.values():
            collector.stop()

    def _log_missing(self, name: str, reason: str) -> None:
        if name not in self._missing:
            logger().warning(self._missing_event, daemon=name, reason=reason)
        self._missing.add(name)


class CollectorPool:
    """Starts and stops the collector threads, and sets what they collect. Only one thread may use it."""

    def __init__(
        self,
        threads: Sequence[CollectorThread],
        *,
        locate: Callable[[Daemons], Locations] = lambda _daemons: {},
        poller: Callable[[DaemonLocation], ControlPoller] | None = None,
        collector: Callable[[DaemonLocation], LogCollector] | None = None,
        directory: Callable[[DaemonLocation], DirectoryCollector] | None = None,
        directories: Callable[[], Locations] = dict,
        watch: Callable[[Node], None] = lambda _node: None,
        nvml: CollectorThread | None = None,
    ) -> None:
        """`threads` are the permanent ones; `nvml` is one of them, which collects when triggered.

        `locate` returns the daemons' locations, and `directories` those with a directory to read. `poller`, `collector`
        and `directory` create the control poller, the log collector and the directory collector of a daemon. `watch`
        sets what the permanent collectors watch.
        """
        self.nvml = nvml
        self._threads = threads
        self._locate = locate
        self._watch = watch
        self._pollers = _DaemonCollectors(poller, "daemon_not_asked")
        self._log_collectors = _DaemonCollectors(collector, "daemon_log_not_followed")
        self._directory_locations = directories
        self._directories = _DaemonCollectors(directory, "daemon_directory_not_read")

    def start(self) -> None:
        """Start the permanent threads."""
        for thread in self._threads:
            thread.start()

    def trigger_all(self, *, report: bool = False) -> None:
        """Have each thread that reads by itself collect now, those with a long period too; `report` no news too."""
        for thread in self._all():
            if thread.period is not None or thread in self._threads:
                thread.trigger(report=report)

    def close(self, timeout: float) -> None:
        """Stop all threads, within `timeout` seconds."""
        self._pollers.stop()
        self._log_collectors.stop()
        self._directories.stop()
        close(tuple(self._all()), timeout)

    def update(self, node: Node) -> None:
        """Watch what the node has now: start the threads of new daemons, and stop those of daemons that are gone."""
        self._watch(node)
        locations, expected = self._locate(node.daemons), expected_daemons(node)
        self._pollers.update(locations, expected)
        logged = {name: location for name, location in locations.items() if location.logs}
        self._log_collectors.update(logged, expected)
        self._directories.update(self._directory_locations(), expected)

    def idle_pollers(self) -> Sequence[tuple[str, ControlPoller]]:
        """Return each daemon without a query under way, with its poller."""
        return [(name, poller) for name, poller in self._pollers.by_daemon.items() if not poller.thread.busy]

    def want(self, wanted: Wanted) -> None:
        """Set what the directories' collectors read."""
        for collector in self._directories.by_daemon.values():
            collector.want(wanted)

    def explain_ends(self, daemons: Iterable[str]) -> None:
        """Read the directories of these daemons, and their logs to the ends, and report that even without news."""
        for name in daemons:
            if name in self._directories.by_daemon:
                self._directories.by_daemon[name].thread.trigger()
            if name in self._log_collectors.by_daemon:
                self._log_collectors.by_daemon[name].thread.trigger(report=True)

    def readings(self, *, excused: bool = False) -> Iterator[Observation]:
        """Yield collections without news, and exceeded deadlines. If `excused`, these begin now, after a standstill."""
        for thread in self._all():
            if excused:
                thread.excuse()
            yield from thread.uneventful()
            yield from filter(None, (thread.timeout_report(),))

    def _all(self) -> Iterator[CollectorThread]:
        yield from self._threads
        for collectors in (self._pollers, self._log_collectors, self._directories):
            yield from (collector.thread for collector in collectors.by_daemon.values())
