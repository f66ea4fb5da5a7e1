"""One collection of everything, for `status` without a service and for `doctor`."""

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from exporter.app import Assembly
from exporter.clock import Clock, SystemClock
from exporter.collectors.control_client import ControlClient
from exporter.collectors.daemon_directory import DaemonDirectory
from exporter.collectors.logs import DaemonLogs, read_tail
from exporter.collectors.pipe_dir import DaemonLocation
from exporter.collectors.processes import Processes
from exporter.collectors.systemd import Journal
from exporter.collectors.thread import Inbox, Reading, collect_each
from exporter.config.settings import Config
from exporter.model.node import CollectorName, Node
from exporter.model.observation import SourceReading
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import PollIntervals
from exporter.parse.control_reply import list_servers
from exporter.recording import header_of
from exporter.reducer import reduce
from exporter.state import poll_schedule
from exporter.state.gpus import BYPASSING_AFTER_SECONDS
from exporter.state.lifecycle import HELD_AFTER_SECONDS, SECOND_PROBE_SECONDS
from exporter.state.log_files import with_log_tail, without_reused_pids
from exporter.state.processes import unnamed_pods

MAX_ROUNDS = 4
"""Rounds of queries to a daemon. Each reply can lead to another query: servers, their states, their clients."""

DISCOVERY_ROUNDS = 2
"""`Discovery` reports a daemon without a pid file only if it finds the daemon twice."""

MOST_SECONDS = 20.0
"""After this time no collection begins, so that several that hang do not add up. What was not collected is reported."""


class OneShot:
    """Runs collectors one after the other, and reduces what they return into `node`."""

    def __init__(self, node: Node, clock: Clock, *, deadline: float, wait: Callable[[float], object]) -> None:
        """Abandon a collection after `deadline` seconds; `wait` sleeps."""
        self.node = node
        self._clock = clock
        self._deadline = deadline
        self._ends = clock.monotonic() + MOST_SECONDS
        self._wait = wait
        self._probed: set[str] = set()
        """The daemons that gave no answer, and were asked again after a while."""
        self.directories: Mapping[str, DaemonDirectory] = {}

    def collect(self, name: str, collect: Callable[[], Reading], daemon: str | None = None) -> None:
        """Run one collector. `daemon` is the daemon that it is for, if each daemon has one."""
        self.collect_each(name, {daemon or "": collect})

    def collect_each(self, name: str, collectors: Mapping[str, Callable[[], Reading]]) -> None:
        """Run the collectors of these daemons at the same time."""
        began = self._clock.monotonic()
        if self.seconds_left > 0:
            readings = collect_each(min(self._deadline, self.seconds_left), collectors)
        else:
            readings = dict.fromkeys(collectors, Reading(problem=Reason(ReasonCode.NOT_TRIED, seconds=MOST_SECONDS)))
        for daemon, reading in readings.items():
            collected = SourceReading(
                at=self._clock.now(),
                name=name,
                seconds=self._clock.monotonic() - began,
                problem=reading.problem,
                daemon=daemon or None,
            )
            for observation in (*reading.observations, collected):
                self.node, _ = reduce(self.node, observation)

    @property
    def seconds_left(self) -> float:
        """How long collections may still begin."""
        return self._ends - self._clock.monotonic()

    def collect_processes(self, processes: Processes) -> None:
        """Read the pipe directories, and the processes that the node refers to."""
        wanted = poll_schedule.readings_wanted(self.node)
        for directory in self.directories.values():
            directory.wanted = wanted
        self.collect_each(
            CollectorName.PIPE_DIRECTORY, {name: directory.collect for name, directory in self.directories.items()}
        )
        processes.watch(poll_schedule.processes_wanted(self.node), wanted.states, poll_schedule.start_ticks(self.node))
        self.collect(CollectorName.PROCESS, processes.collect)

    def query_all(self, clients: Sequence[ControlClient], processes: Processes) -> None:
        """Query the daemons until no reply leads to another query."""
        for client in clients:
            for _ in range(MAX_ROUNDS):
                self.collect_processes(processes)
                commands = poll_schedule.commands(self.node, client.daemon, PollIntervals())
                if commands:
                    self.query(client, commands)
        # One query without a reply, or one refusal, proves nothing. A second one does.
        silent = [
            client
            for client, commands in ((client, self.node.daemons[client.daemon].commands) for client in clients)
            if client.daemon not in self._probed
            and not (commands.unanswered_since is None and commands.refused_since is None)
        ]
        if silent:
            self._probed.update(client.daemon for client in silent)
            self._wait(max(SECOND_PROBE_SECONDS, HELD_AFTER_SECONDS))
            for client in silent:
                self.query(client, (poll_schedule.probe(self.node.daemons[client.daemon]),))
            self.collect_processes(processes)

    def query(self, client: ControlClient, commands: tuple[str, ...]) -> None:
        """Query one daemon."""
        client.request_from(self.node.daemons[client.daemon], commands)
        self.collect(CollectorName.CONTROL, client.collect, client.daemon)

    def read_log_tails(self, locations: Mapping[str, DaemonLocation], journal: Journal | None) -> None:
        """Read the last lines of the logs: what they report happened before this collection."""
        tails: dict[str, list[tuple[str, str]]] = {}

        def read(name: str) -> Reading:
            unit = self.node.daemons[name].runtime.journal
            if unit is None or journal is None:
                tails[name] = list(read_tail(locations[name]))
                return Reading()
            state, lines = journal.journal_of(name, unit).tail()
            tails[name] = [(state.file, line) for line in lines]
            return Reading((state,), state.problem)

        self.collect_each(CollectorName.LOGS, {name: partial(read, name) for name in locations})
        for name, lines in tails.items():
            self.node = with_log_tail(self.node, name, lines)


def collect_once(config: Config) -> Node:
    """Collect once with the collectors that the configuration requires."""
    clock, wait = SystemClock(), threading.Event().wait
    with contextlib.closing(Assembly(config, clock, Inbox(), process_wait=0.0)) as assembly:
        one_shot = OneShot(header_of(config).node(), clock, deadline=assembly.control_deadline, wait=wait)
        if assembly.discovery is not None:
            for _ in range(DISCOVERY_ROUNDS):
                one_shot.collect(CollectorName.DISCOVERY, assembly.discovery.collect)
            one_shot.collect(CollectorName.UNITS, assembly.units.collect)
        locations = assembly.locations.locate(one_shot.node.daemons)
        one_shot.directories = {name: assembly.directory(each) for name, each in assembly.locations.all.items()}
        clients = [assembly.control_client(location) for location in locations.values()]
        logs = {name: DaemonLogs(location, clock) for name, location in locations.items() if location.logs}
        one_shot.collect_each(CollectorName.LOGS, {name: each.collect for name, each in logs.items()})
        one_shot.collect_processes(assembly.processes)
        one_shot.query_all(clients, assembly.processes)
        one_shot.collect(CollectorName.NVML, assembly.collect_gpus)
        # The limits that daemons are asked for depend on the GPUs.
        one_shot.query_all(clients, assembly.processes)
        one_shot.read_log_tails(locations, assembly.journal)
        one_shot.collect_processes(assembly.processes)
        one_shot.node = without_reused_pids(one_shot.node)
        assembly.pods.watch(unnamed_pods(one_shot.node))
        for observation in assembly.pods.collect().observations:
            one_shot.node, _ = reduce(one_shot.node, observation)
        one_shot.collect(CollectorName.POD_RESOURCES, assembly.pod_resources.collect)
        # A process bypasses MPS if a later list of clients does not contain it either.
        bypassing = any(gpu.bypassing_processes for gpu in one_shot.node.gpus.values())
        if bypassing and one_shot.seconds_left > BYPASSING_AFTER_SECONDS:
            for client in clients:
                daemon = one_shot.node.daemons[client.daemon]
                if daemon.supported:
                    one_shot.query(client, (list_servers(daemon.runtime.protocol),))
            wait(BYPASSING_AFTER_SECONDS)
            one_shot.collect(CollectorName.NVML, assembly.collect_gpus)
        return one_shot.node
