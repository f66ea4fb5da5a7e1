"""The simulated node, second by second."""

import random
from collections.abc import Iterator, Sequence

from exporter.clock import Clock
from exporter.core.work import DOORS
from exporter.demo import faults, gpus, life, throngs
from exporter.demo.calendar import STORY, Calendar
from exporter.demo.daemon import SimulatedDaemon
from exporter.demo.doors import SimulatedDoors
from exporter.demo.gpus import GPUS
from exporter.demo.hands import SimulatedHands
from exporter.demo.mishap import Planned
from exporter.demo.node import beginning
from exporter.demo.questions import questions
from exporter.demo.scene import opening
from exporter.model.node import Node
from exporter.model.observation import Observation, SourceReading
from exporter.model.problem import Problem, ProblemCode
from exporter.sources.eye import Reading

PAST_SECONDS, CALM_SECONDS = 900.0, 300.0
"""How much of the story has been told when the demo begins; of a calm one there is less to tell."""

QUICK, SLOW = ("log", "process"), ("control", "kernel", "nvml_events")
SLOW_SECONDS = 5
FRAIL_SECONDS = 3

NVML_GONE = Problem(code=ProblemCode.DRIVER_NOT_LOADED, detail="Driver Not Loaded (simulated)")


class Simulation:
    """Moves the node on by a second at a time, up to the clock's present."""

    def __init__(
        self,
        seed: int,
        clock: Clock,
        *,
        calm: bool = False,
        past: float = PAST_SECONDS,
    ) -> None:
        """The story begins `past` seconds ago.

        Where it is `calm`, clients come and go, and nothing befalls the node but what it is to expect.
        """
        self._scene = opening(random.Random(seed))
        self._doors = SimulatedDoors()
        self._clock = clock
        self.hands = SimulatedHands()
        begins = float(int(clock.now()))
        self._at = begins - past
        self._calendar = Calendar(begins, () if calm else STORY)

    def node(self) -> Node:
        """The node before anything is seen."""
        return beginning()

    def expect(self, plan: Sequence[Planned]) -> None:
        """Have this befall the node, from the present of its story on."""
        self._calendar.expect(self._at, plan)

    def look(self) -> Reading:
        """All that has happened since the last look."""
        return Reading(tuple(seen for second in self.seconds() for seen in second))

    def seconds(self) -> Iterator[Sequence[Observation]]:
        """The same, second by second."""
        while self._at < self._clock.now():
            yield tuple(self._second(self._at))
            self._at += 1.0

    def _second(self, at: float) -> Iterator[Observation]:
        scene = self._scene
        yield from self.hands.carry_out(scene.daemons, scene.cast, at)
        yield from scene.due(at)
        yield from self._calendar.due(scene, at)
        for daemon in scene.daemons:
            yield from self._live(daemon, at)
        yield from throngs.leave(scene, at)
        yield from self._nvml(at)
        yield from self._seen_at_the_doors(at)
        looked = QUICK if int(at) % SLOW_SECONDS else (*QUICK, *SLOW)
        yield from (SourceReading(at=at, name=source, seconds=0.002) for source in looked)

    def _live(self, daemon: SimulatedDaemon, at: float) -> Iterator[Observation]:
        if daemon.pid is None:
            if daemon.started == 0.0:
                yield from life.start(daemon, at, self._scene.cast.pid())
            return
        if daemon.frail and at - daemon.started >= FRAIL_SECONDS:
            yield from life.die(daemon, at)
            return
        yield from life.departures(daemon, at)
        if daemon.fault is not None:
            yield from faults.go_on(self._scene.cast, daemon, at)
        elif daemon.askable:
            yield from self._arrivals(daemon, at)
        yield from questions(daemon, at)

    def _arrivals(self, daemon: SimulatedDaemon, at: float) -> Iterator[Observation]:
        cast = self._scene.cast
        if daemon.barren:
            if int(at) % 2:
                yield from life.fail_to_serve(daemon, at, cast.pid())
        elif len(daemon.clients) >= daemon.places:
            if cast.happens(10):
                yield from life.turn_away(daemon, at, cast.pid())
        elif len(daemon.clients) < life.MOST_CLIENTS and cast.happens(20):
            yield from self._connect(daemon, at)

    def _connect(self, daemon: SimulatedDaemon, at: float) -> Iterator[Observation]:
        cast = self._scene.cast
        team = cast.chance.choice(daemon.teams)
        wanted = team if cast.happens(3) else (cast.chance.choice(team),)
        client = cast.process(cast.chance.choice(daemon.owners), wanted, at + cast.chance.uniform(60, 900))
        if all(client.used_bytes <= self._scene.free_bytes(gpu) for gpu in client.gpus):
            yield from life.connect(daemon, at, client, cast)

    def _seen_at_the_doors(self, at: float) -> Iterator[Observation]:
        scene = self._scene
        there = (*scene.clients, *scene.strangers.values())
        yield from self._doors.readings(at, () if scene.blind else GPUS, there)
        yield SourceReading(at=at, name=DOORS, seconds=0.1, problem=NVML_GONE if scene.blind else None)

    def _nvml(self, at: float) -> Iterator[Observation]:
        scene = self._scene
        if int(at) % SLOW_SECONDS:
            return
        if scene.blind:
            yield SourceReading(at=at, name="nvml", seconds=0.004, problem=NVML_GONE)
            return
        servers = {gpu: daemon.server for daemon in scene.daemons for gpu in daemon.gpus}
        chance, strangers = scene.cast.chance, scene.strangers.values()
        yield from gpus.readings(at, chance, scene.gpus, servers, scene.clients, strangers)
        yield from (each.read(at) for each in strangers)
        yield SourceReading(at=at, name="nvml", seconds=0.004)
