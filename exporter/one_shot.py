"""One collection of everything, for `status` without a service."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping

from exporter.app import Assembly
from exporter.clock import Clock, SystemClock
from exporter.collectors.control import ControlClient
from exporter.collectors.discovery import Discovery
from exporter.collectors.logs import DaemonLogs
from exporter.collectors.processes import Pods, Processes
from exporter.collectors.thread import Inbox, Reading, collect_all_within, collect_within
from exporter.collectors.units import Units
from exporter.config.settings import Config
from exporter.model.identity import identity_of
from exporter.model.node import Node
from exporter.model.observation import SourceReading
from exporter.model.settings import PollIntervals
from exporter.parse.control_reply import LIST_SERVERS
from exporter.recording_header import header_of
from exporter.state import poll_schedule
from exporter.state.control_replies import CONTROL
from exporter.state.gpus import BYPASSING_AFTER_SECONDS, NVML
from exporter.state.lifecycle import HELD_AFTER_SECONDS, SECOND_PROBE_SECONDS
from exporter.state.processes import nameless_pods
from exporter.state.reducer import LOGS, reduce

MOST_ROUNDS = 4
"""Rounds of questions, each of which may lead to the next: which servers, in what state, with which clients."""


LOOKS_TO_FIND = 2
"""A daemon that no pid file names is found by the second look (`Finder`)."""


class OneShot:
    """Looks with each source in turn, and takes in what it sees."""

    def __init__(self, node: Node, clock: Clock, *, deadline: float, wait: Callable[[float], object]) -> None:
        """A look that takes longer than `deadline` seconds is given up; `wait` sleeps."""
        self.node = node
        self._clock = clock
        self._deadline = deadline
        self._wait = wait

    def collect(self, name: str, collect: Callable[[], Reading], daemon: str | None = None) -> None:
        """Look with one source; `daemon` is the one that it is for, where each has its own."""
        began = self._clock.monotonic()
        self._take(name, collect_within(self._deadline, collect), began, daemon)

    def collect_each(self, name: str, collects: Mapping[str, Callable[[], Reading]]) -> None:
        """Look at all these daemons at the same time, with a source that each has for itself."""
        began = self._clock.monotonic()
        for daemon, reading in collect_all_within(self._deadline, collects, self._clock.monotonic).items():
            self._take(name, reading, began, daemon)

    def _take(self, name: str, reading: Reading, began: float, daemon: str | None) -> None:
        told = SourceReading(
            at=self._clock.now(),
            name=name,
            seconds=self._clock.monotonic() - began,
            problem=reading.problem,
            daemon=daemon,
        )
        for seen in (*reading.observations, told):
            self.node, _ = reduce(self.node, seen)

    def find(self, discovery: Discovery | None, units: Units) -> None:
        """Find the daemons: those that run, and those that should."""
        if discovery is not None:
            for _ in range(LOOKS_TO_FIND):
                self.collect("finder", discovery.collect)
            self.collect("units", units.collect)

    def ask(self, clients: Iterable[ControlClient], processes: Processes) -> None:
        """Ask the control daemons, as long as an answer raises a question; of servers that were stopped, none."""
        for client in clients:
            for _ in range(MOST_ROUNDS):
                self._hear_witnesses(processes)
                commands = poll_schedule.commands(self.node, client.daemon, PollIntervals())
                if commands:
                    self._ask(client, commands)
            self._make_sure(client, processes)

    def _make_sure(self, client: ControlClient, processes: Processes) -> None:
        """One silence, or refusal, is no verdict; a second one, a little later, is."""
        daemon = self.node.daemons[client.daemon]
        if daemon.commands.unanswered_since is not None or daemon.commands.refused_since is not None:
            self._wait(max(SECOND_PROBE_SECONDS, HELD_AFTER_SECONDS))
            self._ask(client, (LIST_SERVERS,))
            self._hear_witnesses(processes)

    def _hear_witnesses(self, processes: Processes) -> None:
        processes.witnesses.want(poll_schedule.witnesses_wanted(self.node))
        self.collect("process", processes.collect)

    def _ask(self, client: ControlClient, commands: tuple[str, ...]) -> None:
        daemon = self.node.daemons[client.daemon]
        client.request(commands, process=identity_of(daemon.runtime.process), servers=daemon.servers)
        self.collect(CONTROL, client.collect, client.daemon)

    def watch(self, processes: Processes, pods: Pods | None) -> None:
        """Read who everybody is, and what their pods are called."""
        processes.watch(poll_schedule.watched(self.node))
        self.collect("process", processes.collect)
        if pods is None:
            return
        pods.watch(nameless_pods(self.node))
        for seen in pods.collect().observations:
            self.node, _ = reduce(self.node, seen)

    def look_at_strangers(self, collect: Callable[[], Reading], clients: Iterable[ControlClient]) -> None:
        """Where a process may bypass MPS, a second look tells, and a list that is younger than the first."""
        if any(gpu.strangers for gpu in self.node.gpus.values()):
            for client in clients:
                self._ask(client, (LIST_SERVERS,))
            self._wait(BYPASSING_AFTER_SECONDS)
            self.collect(NVML, collect)


def collect_once(config: Config) -> Node:
    """Look once with the sources that the configuration asks for."""
    clock = SystemClock()
    with contextlib.closing(Assembly(config, clock, Inbox(), process_wait=0.0)) as assembly:
        glance = OneShot(header_of(config).node(), clock, deadline=assembly.ask_deadline, wait=threading.Event().wait)
        glance.find(assembly.discovery, assembly.units)
        locations = assembly.location_registry.locate(glance.node.daemons)
        control = [assembly.control_client(location) for location in locations.values()]
        logs = {name: DaemonLogs(location, clock) for name, location in locations.items() if location.logs}
        glance.collect_each(LOGS, {name: each.collect for name, each in logs.items()})
        glance.watch(assembly.processes, assembly.pods)
        glance.ask(control, assembly.processes)
        glance.collect(NVML, assembly.collect_gpus)
        # Of whose limits to ask is known only when the GPUs are.
        glance.ask(control, assembly.processes)
        glance.watch(assembly.processes, assembly.pods)
        glance.look_at_strangers(assembly.collect_gpus, control)
        return glance.node
