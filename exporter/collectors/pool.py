"""All collector threads: the permanent ones, and two for each known daemon."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import structlog

from exporter.collectors.control import ControlClient
from exporter.collectors.logs import LogCollector
from exporter.collectors.pipe_dir import DaemonLocation
from exporter.collectors.thread import CollectorThread, close
from exporter.model.daemon import Daemon
from exporter.model.identity import identity_of
from exporter.model.node import Node, expected_daemons
from exporter.model.observation import SourceReading

MOST_LINGERING = 64
"""How many threads may still hang that were for daemons which are gone. If more do, only the threads of expected
daemons are started: a user may make daemons with ever new names, in directories that hang."""

Daemons = Mapping[str, Daemon]
Locations = Mapping[str, DaemonLocation]


@dataclass(frozen=True, slots=True)
class ControlPoller:
    """What asks one control daemon, and the eye in which it does."""

    client: ControlClient
    thread: CollectorThread

    def set_location(self, location: DaemonLocation, _part: float) -> None:
        """The daemon is there now."""
        self.client.set_location(location)

    def ask(self, commands: tuple[str, ...], daemon: Daemon) -> None:
        """Have these commands given to the daemon, as soon as may be."""
        self.client.request(commands, process=identity_of(daemon.runtime.process), servers=daemon.servers)
        self.thread.trigger()

    def stop(self) -> None:
        """Ask no more."""
        self.client.close()
        self.thread.stop()


class _OfADaemon(Protocol):
    """What has an eye for one daemon."""

    @property
    def thread(self) -> CollectorThread:
        """Its eye."""

    def set_location(self, location: DaemonLocation, part: float) -> None:
        """The daemon is there now. This is its part of what may be read of all daemons of its kind."""

    def stop(self) -> None:
        """Begin no further look."""


Kind = TypeVar("Kind", bound=_OfADaemon)


class _Pool(Generic[Kind]):
    """An eye for each daemon, so that one that hangs stops nothing for the others. To be used by one thread."""

    def __init__(self, make: Callable[[DaemonLocation], Kind], without: str) -> None:
        """`make` makes what has the eye. `without` is the event that tells that a daemon has none."""
        self._make = make
        self._without = without
        self._log = structlog.get_logger()
        self._lingering: list[Kind] = []
        self._missing: set[str] = set()
        self._open = False
        self.all: dict[str, Kind] = {}

    def open(self) -> None:
        """Begin to look."""
        self._open = True
        waiting, self.all = self.all, {}
        self.all.update((name, each) for name, each in waiting.items() if self._begins(name, each))

    def update(self, locations: Locations, expected: Collection[str]) -> None:
        """Look after the daemons in these places, and no more after others."""
        self._lingering = [each for each in self._lingering if each.thread.alive]
        for name in [name for name in self.all if name not in locations]:
            gone = self.all.pop(name)
            gone.stop()
            self._lingering.append(gone)
        self._missing &= locations.keys()
        kinds = Counter(name in expected for name in locations)
        for name, location in locations.items():
            known = self.all.get(name)
            if known is None and len(self._lingering) >= MOST_LINGERING and name not in expected:
                self._is_missing(name, f"{MOST_LINGERING} threads hang that were for others")
                continue
            each = known or self._make(location)
            if known is not None or self._begins(name, each):
                self.all[name] = each
                each.set_location(location, 1 / kinds[name in expected])

    def threads(self) -> Iterator[CollectorThread]:
        """The eyes of all daemons."""
        return (each.thread for each in self.all.values())

    def stop(self) -> None:
        """Begin no further look."""
        for each in self.all.values():
            each.stop()

    def _begins(self, name: str, each: Kind) -> bool:
        """Whether there is a thread for this daemon from now on; if not, it is tried again."""
        try:
            if self._open:
                each.thread.open()
        except RuntimeError as error:
            each.stop()
            self._is_missing(name, str(error))
            return False
        self._missing.discard(name)
        return True

    def _is_missing(self, name: str, reason: str) -> None:
        if name not in self._missing:
            self._log.warning(self._without, daemon=name, reason=reason)
        self._missing.add(name)


class CollectorPool:
    """Opens and closes eyes, and tells them where to look. To be used by one thread."""

    def __init__(
        self,
        threads: Sequence[CollectorThread],
        *,
        locate: Callable[[Daemons], Locations] | None = None,
        poller: Callable[[DaemonLocation], ControlPoller] | None = None,
        collector: Callable[[DaemonLocation], LogCollector] | None = None,
        watch: Callable[[Node], None] = lambda _node: None,
        nvml: CollectorThread | None = None,
    ) -> None:
        """`locate` says where the daemons are, and tells those who follow them; `asker` makes what asks one.

        `collector` makes what follows the logs of one; one whose place has none is not followed.
        `direct` tells the sources what of the node they should watch. `nvml` is one of the `eyes`: the one that looks
        when it is told to.
        """
        self.nvml = nvml
        self._threads = threads
        self._locate = locate
        self._watch = watch
        self._pollers = None if poller is None else _Pool(poller, "daemon_not_asked")
        self._collectors = None if collector is None else _Pool(collector, "daemon_log_not_followed")

    def open(self) -> None:
        """Begin to look."""
        for thread in self._threads:
            thread.open()
        for pool in self._pools:
            pool.open()

    def trigger_all(self) -> None:
        """Have every eye that is always there look at once, also those that seldom do."""
        for thread in self._threads:
            thread.trigger()

    def close(self, timeout: float) -> None:
        """Stop looking, within `timeout` seconds."""
        for pool in self._pools:
            pool.stop()
        close(tuple(self._all()), timeout)

    def update(self, node: Node) -> None:
        """Go by what is known now: look after each daemon that is new, and no more after those that have gone."""
        self._watch(node)
        if self._locate is None:
            return
        locations = self._locate(node.daemons)
        expected = expected_daemons(node)
        if self._pollers is not None:
            self._pollers.update(locations, expected)
        if self._collectors is not None:
            self._collectors.update({name: location for name, location in locations.items() if location.logs}, expected)

    def idle(self) -> Sequence[tuple[str, ControlPoller]]:
        """Who has no question under way, by the daemon's name."""
        pollers = {} if self._pollers is None else self._pollers.all
        return [(name, poller) for name, poller in pollers.items() if not poller.thread.busy]

    def read_logs(self, daemons: Iterable[str]) -> None:
        """Have the logs of these daemons read to their ends, which is told of even if nothing is new."""
        collectors = {} if self._collectors is None else self._collectors.all
        for name in daemons:
            if name in collectors:
                collectors[name].thread.trigger(report=True)

    def uneventful(self) -> Iterable[SourceReading]:
        """Which looks since the last call have found nothing new, as far as they are told of."""
        return [reading for thread in self._all() if (reading := thread.uneventful()) is not None]

    def timeout_reports(self) -> Iterable[SourceReading]:
        """Which looks have outlasted their deadlines."""
        for thread in self._all():
            timeout_report = thread.timeout_report()
            if timeout_report is not None:
                yield timeout_report

    @property
    def _pools(self) -> Sequence[_Pool[ControlPoller] | _Pool[LogCollector]]:
        return [pool for pool in (self._pollers, self._collectors) if pool is not None]

    def _all(self) -> Iterable[CollectorThread]:
        return (*self._threads, *(thread for pool in self._pools for thread in pool.threads()))
