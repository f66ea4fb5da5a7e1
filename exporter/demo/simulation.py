"""The simulated node, second by second."""

import random
from collections.abc import Iterator

from exporter.clock import Clock
from exporter.demo import gpus, life
from exporter.demo.cast import Cast, Process
from exporter.demo.daemon import SimulatedDaemon
from exporter.demo.faults import EVERY_SECONDS, Faults
from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.observation import Observation, SourceReading
from exporter.sources.reading import Reading

PAST_SECONDS = 900
"""How much of the story has been told when the demo begins."""

FIRST_FAULT_SECONDS = PAST_SECONDS + 30 - EVERY_SECONDS
"""Into the story: so that there was one when the demo begins, and there is the next one soon after."""

SOURCES = ("log", "process", "control", "kernel", "nvml_events")


class Simulation:
    """Moves the node on by a second at a time, up to the clock's present."""

    def __init__(self, seed: int, clock: Clock) -> None:
        self._cast = Cast(random.Random(seed))
        self._clock = clock
        self._at = float(int(clock.now())) - PAST_SECONDS
        self._daemons = (
            SimulatedDaemon("/run/nvidia/mps/training/pipe", gpus.GPUS[:2]),
            SimulatedDaemon("/run/nvidia/mps/inference/pipe", gpus.GPUS[2:]),
        )
        self._faults = Faults(self._cast, self._at + FIRST_FAULT_SECONDS)
        self._bypassing: dict[int, Process] = {}

    def node(self) -> Node:
        """The node before anything is seen."""
        return Node(
            daemons={
                each.name: Daemon(
                    name=each.name,
                    pipe_directory=each.name,
                    log_directory=each.name.replace("/pipe", "/log"),
                    expected=True,
                )
                for each in self._daemons
            }
        )

    def look(self) -> Reading:
        """All that has happened since the last look."""
        seen: list[Observation] = []
        while self._at < self._clock.now():
            seen.extend(self._second())
            self._at += 1.0
        return Reading(tuple(seen))

    def _second(self) -> Iterator[Observation]:
        yield from self._faults.strike(self._at, self._daemons)
        for daemon in self._daemons:
            yield from self._live(daemon)
        yield from self._strangers()
        yield from self._nvml()
        yield from (SourceReading(at=self._at, name=source, seconds=0.002) for source in SOURCES)

    def _live(self, daemon: SimulatedDaemon) -> Iterator[Observation]:
        if daemon.pid is None:
            if daemon.returns_at is None or self._at >= daemon.returns_at:
                yield from life.start(daemon, self._at, self._cast.pid())
            return
        yield from life.departures(daemon, self._at)
        if daemon.fault is not None:
            yield from self._faults.go_on(daemon, daemon.fault, self._at)
        elif len(daemon.clients) < life.MOST_CLIENTS and self._cast.happens(20):
            yield from self._connect(daemon)
        elif self._cast.happens(900):
            yield from self._die(daemon)
        if daemon.pid is not None and int(self._at) % life.ASKED_EVERY == 0:
            yield from life.ask(daemon, self._at)

    def _connect(self, daemon: SimulatedDaemon) -> Iterator[Observation]:
        chance = self._cast.chance
        client = self._cast.process(chance.choice(daemon.gpus), self._at + chance.uniform(60, 900))
        if self._used_bytes(client.gpu) + client.used_bytes <= gpus.GPU_BYTES:
            yield from life.connect(daemon, self._at, client, self._cast)

    def _die(self, daemon: SimulatedDaemon) -> Iterator[Observation]:
        """A daemon dies; one of its clients comes back without MPS, and says nothing."""
        returns_at = self._at + self._cast.chance.uniform(30, 90)
        yield from life.die(daemon, self._at, returns_at)
        self._bypass(daemon.gpus[0], returns_at)

    def _strangers(self) -> Iterator[Observation]:
        for stranger in [each for each in self._bypassing.values() if self._at >= each.leaves_at]:
            del self._bypassing[stranger.pid]
        if not self._bypassing and self._cast.happens(120):
            chance = self._cast.chance
            self._bypass(chance.choice(gpus.GPUS), self._at + chance.uniform(30, 120))
        yield from (each.read(self._at) for each in self._bypassing.values())

    def _bypass(self, gpu: str, leaves_at: float) -> None:
        stranger = self._cast.process(gpu, leaves_at)
        self._bypassing[stranger.pid] = stranger

    def _nvml(self) -> Iterator[Observation]:
        servers = {gpu: daemon.server for daemon in self._daemons for gpu in daemon.gpus}
        yield from gpus.readings(self._at, servers, self._clients(), self._bypassing.values())
        yield SourceReading(at=self._at, name="nvml", seconds=0.004)

    def _clients(self) -> list[Process]:
        return [client for daemon in self._daemons for client in daemon.clients.values()]

    def _used_bytes(self, gpu: str) -> int:
        return sum(each.used_bytes for each in (*self._clients(), *self._bypassing.values()) if each.gpu == gpu)
