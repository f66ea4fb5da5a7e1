"""The simulated node, second by second."""

import queue
from collections.abc import Iterator, Sequence
from functools import partial

from exporter.clock import Clock
from exporter.collectors.thread import Reading
from exporter.demo.failures import FAILURES, PlannedFailure
from exporter.demo.gpus import GPUS, let_work, probe_readings
from exporter.demo.scenario import Scenario
from exporter.dry_run import CHANCE
from exporter.model.action import Action, ActionKind
from exporter.model.event import Event
from exporter.model.node import CollectorName, Node
from exporter.model.observation import ActionDone, Observation, SourceReading
from exporter.model.reason import Reason, ReasonCode
from exporter.reducer import reduce
from exporter.watchdog.context import Policy
from exporter.watchdog.evaluation import evaluate

PAST_SECONDS, CALM_SECONDS = 900.0, 300.0
"""How much of the past is simulated before the demo starts; the latter if it is calm."""

FREQUENT = (CollectorName.LOGS, CollectorName.PROCESS)
SLOW = (CollectorName.CONTROL, CollectorName.KERNEL, CollectorName.NVML_EVENTS, CollectorName.POD_RESOURCES)
SLOW_SECONDS = 5
ACTION_SECONDS = 0.4

NVML_FAILED = Reason(ReasonCode.DRIVER_NOT_LOADED, detail="Driver Not Loaded (simulated)")


class Simulation:
    """Advances the node by seconds, up to the present time of the clock."""

    def __init__(
        self, seed: int, clock: Clock, *, calm: bool = False, past: float = PAST_SECONDS, probes: bool = False
    ) -> None:
        """Start `past` seconds ago. If it is `calm`, only planned failures are injected.

        With `probes`, the exporter also reads the launches of the processes, as with `--attribution=bpf`.
        """
        self._scenario = Scenario(seed)
        self._clock = clock
        self._starts_at = float(int(clock.now()))
        self._at = self._starts_at - past
        self._calm = calm
        self._probes = probes
        self._started: queue.SimpleQueue[Action] = queue.SimpleQueue()

    def plan(self, failures: Sequence[PlannedFailure]) -> None:
        """Inject these failures. Their times count from the last simulated second."""
        for planned in failures:
            inject = partial(FAILURES[planned.failure].inject, self._scenario)
            self._scenario.later(self._at + planned.after, partial(inject, seconds=planned.seconds))

    def do(self, action: Action, _node: Node) -> None:
        """Accept an action of the watchdog, from its thread."""
        self._started.put(action)

    def break_off(self) -> None:
        """Do nothing: no action outlives the simulation."""

    def collect(self) -> Reading:
        """Return all observations since the last collection."""
        return Reading(tuple(observation for second in self.seconds() for observation in second))

    def seconds(self) -> Iterator[Sequence[Observation]]:
        """Yield the same, second by second."""
        while self._at < self._clock.now():
            yield tuple(self._second(self._at))
            self._at += 1.0

    def _second(self, at: float) -> Iterator[Observation]:
        scenario, slow = self._scenario, int(at) % SLOW_SECONDS == 0
        yield from self._act(at)
        yield from scenario.due(at)
        after = at - self._starts_at
        for failure in () if self._calm else FAILURES.values():
            if failure.every is not None and after >= failure.first and (after - failure.first) % failure.every < 1:
                yield from failure.inject(scenario, at, failure.seconds)
        for daemon in scenario.daemons:
            yield from daemon.second(at, scenario.free_bytes)
        for process in [process for process in scenario.bypassing.values() if at >= process.ends_at]:
            del scenario.bypassing[process.pid]
            yield process.exit(at)
        problem = NVML_FAILED if at < scenario.nvml_fails_until else None
        if slow:
            if problem is None:
                yield from scenario.nvml_readings(at)
            yield SourceReading(at=at, name=CollectorName.NVML, seconds=0.004, problem=problem)
            yield scenario.pod_resources(at)
        let_work(at, scenario.processes)
        if self._probes:
            yield from probe_readings(at, () if problem else GPUS, scenario.processes)
            yield SourceReading(at=at, name=CollectorName.LIBCUDA_PROBES, seconds=0.1, problem=problem)
        for source in (*FREQUENT, *SLOW) if slow else FREQUENT:
            yield SourceReading(at=at, name=source, seconds=0.002)

    def _act(self, at: float) -> Iterator[Observation]:
        """Run the actions that the watchdog has started."""
        while not self._started.empty():
            action = self._started.get()
            [daemon] = (daemon for daemon in self._scenario.daemons if daemon.name == action.daemon)
            if action.kind is ActionKind.RESTART:
                if daemon.pid is not None:
                    yield from daemon.die(at)
                yield from daemon.start(at)
            if action.kind is ActionKind.SET_LIMITS and daemon.answers:
                daemon.threads = daemon.default_threads
                yield from daemon.query(at)
            yield ActionDone(at=at, daemon=daemon.name, kind=action.kind, reason=action.reason, seconds=ACTION_SECONDS)


def advance(node: Node, simulation: Simulation, policy: Policy) -> Iterator[tuple[Node, tuple[Event, ...]]]:
    """Reduce and evaluate each second up to the present. Yield the node after it, and its events."""
    for second in simulation.seconds():
        events: list[Event] = []
        for observation in second:
            node, new = reduce(node, observation)
            events.extend(new)
        node, evaluated, actions = evaluate(node, policy, at=node.at, chance=CHANCE)
        for action in actions:
            simulation.do(action, node)
        yield node, (*events, *evaluated)
