"""The simulated node, second by second."""

import queue
from collections.abc import Iterator, Sequence
from functools import partial

from exporter.clock import Clock
from exporter.collectors.thread import Reading
from exporter.demo.daemon import SimulatedDaemon
from exporter.demo.failures import FAILURES, PlannedFailure, recurring
from exporter.demo.gpus import GPUS, SimulatedProbes
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

MOST_CLIENTS = 8
"""Clients of a daemon, if no failure adds more."""

FREQUENT = (CollectorName.LOGS, CollectorName.PROCESS)
SLOW = (CollectorName.CONTROL, CollectorName.KERNEL, CollectorName.NVML_EVENTS, CollectorName.POD_RESOURCES)
SLOW_SECONDS = 5
DIES_AFTER_SECONDS = 3
ACTION_SECONDS = 0.4

NVML_FAILED = Reason(ReasonCode.DRIVER_NOT_LOADED, detail="Driver Not Loaded (simulated)")


class Simulation:
    """Advances the node by seconds, up to the present time of the clock."""

    def __init__(self, seed: int, clock: Clock, *, calm: bool = False, past: float = PAST_SECONDS) -> None:
        """Start `past` seconds ago. If it is `calm`, only planned failures are injected."""
        self._scenario = Scenario(seed)
        self._probes = SimulatedProbes()
        self._clock = clock
        self._starts_at = float(int(clock.now()))
        self._at = self._starts_at - past
        self._calm = calm
        self._started: queue.SimpleQueue[Action] = queue.SimpleQueue()

    def plan(self, failures: Sequence[PlannedFailure]) -> None:
        """Inject these failures. Their times count from the last simulated second."""
        for each in failures:
            inject = partial(FAILURES[each.failure].inject, self._scenario)
            self._scenario.later(self._at + each.after, partial(inject, seconds=each.seconds))

    def do(self, action: Action, _node: Node) -> None:
        """Accept an action of the watchdog, from its thread."""
        self._started.put(action)

    def break_off(self) -> None:
        """Do nothing: no action outlives the simulation."""

    def collect(self) -> Reading:
        """Return all observations since the last collection."""
        return Reading(tuple(seen for second in self.seconds() for seen in second))

    def seconds(self) -> Iterator[Sequence[Observation]]:
        """Yield the same, second by second."""
        while self._at < self._clock.now():
            yield tuple(self._second(self._at))
            self._at += 1.0

    def _second(self, at: float) -> Iterator[Observation]:
        scenario, slow = self._scenario, int(at) % SLOW_SECONDS == 0
        yield from self._act(at)
        yield from scenario.due(at)
        if not self._calm:
            yield from recurring(scenario, at, after=at - self._starts_at)
        for daemon in scenario.daemons:
            yield from self._daemon(daemon, at)
        for process in [each for each in scenario.bypassing.values() if at >= each.ends_at]:
            del scenario.bypassing[process.pid]
            yield process.exit(at)
        problem = NVML_FAILED if at < scenario.nvml_fails_until else None
        if slow:
            if problem is None:
                yield from scenario.nvml_readings(at)
            yield SourceReading(at=at, name=CollectorName.NVML, seconds=0.004, problem=problem)
            yield scenario.pod_resources(at)
        yield from self._probes.readings(at, () if problem else GPUS, scenario.processes)
        yield SourceReading(at=at, name=CollectorName.LIBCUDA_PROBES, seconds=0.1, problem=problem)
        for source in (*FREQUENT, *SLOW) if slow else FREQUENT:
            yield SourceReading(at=at, name=source, seconds=0.002)

    def _act(self, at: float) -> Iterator[Observation]:
        """Run the actions that the watchdog has started."""
        while not self._started.empty():
            action = self._started.get()
            daemon = next(each for each in self._scenario.daemons if each.name == action.daemon)
            if action.kind is ActionKind.RESTART:
                if daemon.pid is not None:
                    yield from daemon.die(at)
                yield from daemon.start(at)
            if action.kind is ActionKind.SET_LIMITS and daemon.answers:
                daemon.threads = daemon.default_threads
                yield from daemon.query(at)
            yield ActionDone(at=at, daemon=daemon.name, kind=action.kind, reason=action.reason, seconds=ACTION_SECONDS)

    def _daemon(self, daemon: SimulatedDaemon, at: float) -> Iterator[Observation]:
        if daemon.pid is None:
            if daemon.started == 0.0:
                yield from daemon.start(at)
            return
        if daemon.dies_after_start and at - daemon.started >= DIES_AFTER_SECONDS:
            yield from daemon.die(at)
            return
        yield from daemon.disconnect_ended(at)
        if daemon.fault is not None:
            yield from daemon.handle_fault(at)
        elif daemon.answers:
            yield from self._new_clients(daemon, at)
        yield from daemon.query_if_due(at)

    def _new_clients(self, daemon: SimulatedDaemon, at: float) -> Iterator[Observation]:
        factory = self._scenario.factory
        if at < daemon.servers_crash_until:
            if int(at) % 2:
                yield from daemon.fail_to_start_server(at)
        elif len(daemon.clients) >= daemon.clients_limit:
            if factory.happens(10):
                yield from daemon.refuse_client(at)
        elif len(daemon.clients) < MOST_CLIENTS and factory.happens(20):
            chance = factory.random
            group = chance.choice(daemon.groups)
            gpus = group if factory.happens(3) else (chance.choice(group),)
            client = factory.new_process(chance.choice(daemon.workloads), gpus, at + chance.uniform(60, 900))
            if all(client.used_bytes <= self._scenario.free_bytes(gpu) for gpu in gpus):
                yield from daemon.connect(at, client)


def advance(node: Node, simulation: Simulation, policy: Policy) -> Iterator[tuple[Node, tuple[Event, ...]]]:
    """Reduce and evaluate each second up to the present. Yield the node after it, and its events."""
    for second in simulation.seconds():
        events: list[Event] = []
        for seen in second:
            node, new = reduce(node, seen)
            events.extend(new)
        node, evaluated, actions = evaluate(node, policy, at=node.at, chance=CHANCE)
        for action in actions:
            simulation.do(action, node)
        yield node, (*events, *evaluated)
