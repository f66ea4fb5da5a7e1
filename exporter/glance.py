"""One look at everything, for `status`: the same sources and the same core as the service, once."""

from collections.abc import Callable, Iterable

from exporter.clock import Clock
from exporter.core import agenda
from exporter.core.agenda import Rhythm
from exporter.core.fold import fold
from exporter.core.gpus import BYPASSING_AFTER_SECONDS, NVML
from exporter.model.node import Node
from exporter.model.observation import SourceReading
from exporter.sources.control import ControlClient
from exporter.sources.processes import Processes
from exporter.sources.reading import Reading

MOST_ROUNDS = 4
"""Rounds of questions, each of which may lead to the next: which servers, in what state, with which clients."""


class Glance:
    """Looks with each source in turn, and takes in what it sees."""

    def __init__(self, node: Node, clock: Clock) -> None:
        self.node = node
        self._clock = clock

    def look(self, name: str, look: Callable[[], Reading]) -> None:
        """Look with one source."""
        began = self._clock.monotonic()
        reading = look()
        told = SourceReading(
            at=self._clock.now(),
            name=name,
            seconds=self._clock.monotonic() - began,
            problem=reading.problem,
        )
        for seen in (*reading.observations, told):
            self.node, _ = fold(self.node, seen)

    def ask(self, clients: Iterable[ControlClient]) -> None:
        """Ask the control daemons, as long as an answer raises a question."""
        for client in clients:
            for _ in range(MOST_ROUNDS):
                commands = agenda.commands(self.node, client.daemon, Rhythm())
                if commands:
                    client.want(commands)
                    self.look("control", client.look)

    def watch(self, processes: Processes) -> None:
        """Read who everybody is."""
        processes.watch(agenda.watched(self.node))
        self.look("process", processes.look)

    def look_at_strangers(self, look: Callable[[], Reading], wait: Callable[[float], object]) -> None:
        """Where a process may bypass MPS, a second look tells."""
        if any(gpu.strangers for gpu in self.node.gpus.values()):
            wait(BYPASSING_AFTER_SECONDS)
            self.look(NVML, look)
