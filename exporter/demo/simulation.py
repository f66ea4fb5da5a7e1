"""The simulated node, second by second, and the failures that the demo injects.

Log lines, Xids and their order are as measured on R580. The log and the Xid name any client that had work in flight.
"""

import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from exporter.clock import Clock
from exporter.collectors.thread import Reading
from exporter.config.checks import checked, duration, shown
from exporter.demo.gpus import (
    BYPASSING,
    CONTEXT_BYTES,
    GIBIBYTE,
    GPUS,
    SERVING,
    STREAMING,
    TRAINERS,
    SimulatedProcess,
    kernel_reading,
    let_work,
    pci_address,
    probe_readings,
)
from exporter.demo.scenario import CLIENTS_LIMIT, Scenario, SimulatedDaemon, context
from exporter.errors import ConfigError
from exporter.model import observation as kinds
from exporter.model.action import Action, ActionKind
from exporter.model.event import Event
from exporter.model.kernels import KernelReading
from exporter.model.node import CollectorName, Node
from exporter.model.reason import Reason, ReasonCode
from exporter.model.values import made_of
from exporter.policy import CHANCE
from exporter.reducer import reduce
from exporter.watchdog.context import Policy
from exporter.watchdog.evaluation import evaluate

FLAG = "--at"

CRITICAL_XID, ILLEGAL_ADDRESS, UNCONTAINED = 8, 31, 95
WILD_POINTER = "GPCCLIENT_T1_0 faulted @ 0x%04x_%08x. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE"
FIRST_RANGE, RANGE_BYTES, DISTANCE_OF_CLIENTS = 0x7E00_0000_0000, 12 * GIBIBYTE, 64 * GIBIBYTE
"""Address ranges of the simulated clients: where the first begins, their size, and how far they are from each other."""
UNKNOWN_EVERY, NULL_POINTER = 4, 0x18
"""One illegal address of so many is in no client's ranges: of 369 in trials, 84 named no client (docs/hardware.md)."""
LOST_INSTRUCTIONS = "GPCCLIENT_GCC faulted @ 0x7f18_7b754000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"


# Faults


def _fault(scenario: Scenario, at: float, seconds: float) -> Iterator[kinds.Observation]:
    """Affect all clients that share two GPUs. One of them stays for `seconds`, and recovery waits for it.

    The cause is by turns a client that is killed with a kernel in flight, and an illegal address: mostly 1 GiB beyond a
    range of the cause, else a null pointer.
    """
    daemon = scenario.training
    if daemon.pid is None or daemon.fault is not None:
        return
    yield from _connect_enough(scenario, at)
    scenario.faults += 1
    clients = everyone = _sharing(daemon)
    if killed := scenario.faults % 2:
        *clients, cause = clients
        named = blamed = next(client for client in clients if set(client.gpus) & set(cause.gpus))
        gpu, error = next(gpu for gpu in named.gpus if gpu in cause.gpus), LOST_INSTRUCTIONS
        yield from daemon.disconnect(at - 0.2, cause, killed=True)
        yield cause.exit(at - 0.19, wait_status=9)
    else:
        named, *_, blamed = clients
        number = scenario.faults // 2
        address = FIRST_RANGE + DISTANCE_OF_CLIENTS * (number % len(clients)) + RANGE_BYTES + GIBIBYTE
        if number % UNKNOWN_EVERY == 2:
            address = NULL_POINTER
        gpu, error = named.gpus[0], WILD_POINTER % divmod(address, 1 << 32)
        yield from _address_ranges(clients, at - 0.2)
    process = f"pid={named.pid}, name={named.workload.command}"
    text = f"{process}, channel 0x0000001d, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC1 {error}"
    yield from _xid(at - 0.1, gpu, ILLEGAL_ADDRESS, text)
    if not killed:
        yield from _address_ranges(clients, at - 0.06)
    yield from _fault_block(at - (0.08 if killed else 0.05), daemon, clients, blamed, seconds)
    yield kernel_reading(at, everyone, at_fault=True)
    if killed:
        yield daemon.server_log(at, f"Client process {cause.pid} disconnected")


def _address_ranges(clients: Sequence[SimulatedProcess], at: float) -> Iterator[kinds.Observation]:
    for number, client in enumerate(clients):
        start = FIRST_RANGE + number * DISTANCE_OF_CLIENTS
        reserved = ((start, start + RANGE_BYTES),)
        yield kinds.AddressRanges(at=at, pid=client.pid, start_ticks=client.pid, gpu=reserved, host=())


def _fault_block(
    at: float, daemon: SimulatedDaemon, affected: Sequence[SimulatedProcess], blamed: SimulatedProcess, seconds: float
) -> Iterator[kinds.Observation]:
    """Log the fault. All affected clients but the first exit at once."""
    fatal = "fatal GPU error."
    lines = [f"Client {{PID: {blamed.pid}, Context: 1}} encountered a {fatal}", f"Server is handling a {fatal}"]
    for client in affected:
        for number, gpu in enumerate(client.gpus, start=1):
            lines.append(f"Client {context(client.pid, number)} on device {daemon.gpus.index(gpu)} to be torn down")
    for client in affected:
        lines.append(f"All clients belonging to error trigging process {client.pid} will be torn down")
        lines.append(f"Client {context(client.pid, 1)} on the error-trigging process {client.pid} to be torn down")
    lines += ["The following devices will be reset:", *map(str, range(len(daemon.groups[0])))]
    lines += ["The following client process have a sticky error set:", *(str(client.pid) for client in affected)]
    yield from (daemon.server_log(at, line) for line in lines)
    daemon.fault, daemon.refused = frozenset(client.pid for client in affected), 0
    affected[0].ends_at = at + seconds
    for client in affected[1:]:
        yield from daemon.disconnect(at + 0.03, client)


def _contained_fault(scenario: Scenario, at: float, seconds: float) -> Iterator[kinds.Observation]:
    """Let an assertion on the device fail. It ends one client alone."""
    daemon = scenario.training
    if daemon.pid is not None and daemon.fault is None:
        yield from _connect_enough(scenario, at)
        *_, newest = daemon.clients.values()
        yield from daemon.disconnect(at, newest, why="Worker is in reset.")


def _hardware_xid(scenario: Scenario, at: float, seconds: float) -> Iterator[kinds.Observation]:
    """Let a GPU's memory fail, so that it needs a reset, until an operator runs `resume`."""
    daemon = scenario.inference
    text = "pid='<unknown>', name=<unknown>, Uncontained: LTC TAG (0x2,0x0). Physical Address: 0x17a2c0e00"
    yield from _xid(at, daemon.gpus[0], UNCONTAINED, text)
    scenario.later(at + seconds, lambda at: [kinds.Resumed(at=at, daemon=daemon.name)])


def _xid(at: float, gpu: str, number: int, text: str) -> Iterator[kinds.Observation]:
    message = f"NVRM: Xid (PCI:{pci_address(gpu)}): {number}, {text}"
    yield kinds.KernelRecord(at=at, record=f"4,{int(at)},{int(at * 1e6)},c;{message}")
    yield kinds.GpuEvent(at=at, type=CRITICAL_XID, xid=number, gpu=gpu)


def _connect_enough(scenario: Scenario, at: float) -> Iterator[kinds.Observation]:
    """Connect clients until four share the first group of GPUs, one of them on all of its GPUs."""
    daemon, chance = scenario.training, scenario.chance
    group = daemon.groups[0]
    shared = any(client.gpus == group for client in daemon.clients.values())
    while not shared or len(_sharing(daemon)) < 4:
        gpus = (chance.choice(group),) if shared else group
        shared = True
        yield from daemon.connect(at - 1, chance.new_process(chance.choice(daemon.workloads), gpus, at + 600))


def _sharing(daemon: SimulatedDaemon) -> list[SimulatedProcess]:
    """Return the clients on the first group of GPUs, the newest last."""
    return [client for client in daemon.clients.values() if set(client.gpus) <= set(daemon.groups[0])]


# Outages


def _daemon_restarts(scenario: Scenario, at: float, seconds: float) -> Iterator[kinds.Observation]:
    """Restart a daemon in half a second, between two scrapes."""
    if scenario.training.pid is not None:
        yield from scenario.training.die(at - 0.6)
        yield from scenario.training.start(at - 0.1)


def _daemon_dies(scenario: Scenario, at: float, seconds: float) -> Iterator[kinds.Observation]:
    """End a daemon until an operator starts it. One of its clients returns without MPS."""
    daemon = scenario.training
    if daemon.pid is not None:
        yield from daemon.die(at)
        yield from _bypass(scenario, at, seconds)
        scenario.later(at + seconds, lambda at: daemon.start(at) if daemon.pid is None else ())


def _daemon_keeps_dying(scenario: Scenario, at: float, seconds: float) -> Iterator[kinds.Observation]:
    """End a daemon after each start, until an operator fixes it, starts it and runs `resume`."""
    daemon = scenario.notebooks
    daemon.keeps_dying_until = at + seconds
    if daemon.pid is not None:
        yield from daemon.die(at)
    scenario.later(at + seconds, lambda at: [kinds.Resumed(at=at, daemon=daemon.name)])
    scenario.later(at + seconds, lambda at: daemon.start(at) if daemon.pid is None else ())


def _daemon_hangs(scenario: Scenario, at: float, seconds: float) -> Iterator[kinds.Observation]:
    scenario.training.hangs = True
    scenario.later(at + seconds, scenario.training.answer_again)
    yield from ()


def _session_held(scenario: Scenario, at: float, seconds: float) -> Iterator[kinds.Observation]:
    """Leave a session with a daemon open, which excludes all others."""
    daemon = scenario.inference
    daemon.holder = scenario.chance.new_process(daemon.workloads[0], (), at + seconds)
    yield daemon.holder.reading(at)
    scenario.later(at + seconds, daemon.answer_again)


def _servers_crash(scenario: Scenario, at: float, seconds: float) -> Iterator[kinds.Observation]:
    """End a daemon's server and its clients, and each later server before it is ready."""
    daemon = scenario.notebooks
    daemon.servers_crash_until = at + seconds
    if daemon.server is not None:
        yield daemon.log(at, f"Server {daemon.server} exited with status 1")
    daemon.server = daemon.fault = None
    daemon.clients.clear()


def _nvml_fails(scenario: Scenario, at: float, seconds: float) -> Iterator[kinds.Observation]:
    scenario.nvml_fails_until = at + seconds
    yield from ()


# Overload


def _server_full(scenario: Scenario, at: float, seconds: float) -> Iterator[kinds.Observation]:
    """Start one worker more than the server accepts."""
    daemon = scenario.inference
    if not daemon.answers:
        return
    while len(daemon.clients) < CLIENTS_LIMIT:
        yield from daemon.connect(at, scenario.chance.new_process(SERVING[1], daemon.gpus[:1], at + seconds))
    for client in daemon.clients.values():
        client.ends_at = at + seconds
    yield from daemon.refuse_client(at)


def _user_waits(scenario: Scenario, at: float, seconds: float) -> Iterator[kinds.Observation]:
    """Queue another user's clients until the clients of the present user have ended."""
    daemon = scenario.inference
    if not daemon.answers:
        return
    yield from _connect_one(daemon, at, seconds)
    queued = [scenario.chance.new_process(TRAINERS[2], (), at + seconds) for _ in range(2)]
    for process in queued:
        yield process.reading(at)
        user = f"NEW CLIENT {process.pid} from user {process.workload.uid}"
        yield daemon.log(at, f"{user}: Server is not ready, push client to pending list")
    threads = f"{len(daemon.clients)} active worker threads"
    yield daemon.log(at, f"Server {daemon.server} has {threads}. Server will not shutdown.")
    scenario.later(at + seconds, lambda at: [process.exit(at) for process in queued])


def _bypass(scenario: Scenario, at: float, seconds: float) -> Iterator[kinds.Observation]:
    """Start a process without MPS on a GPU of a daemon."""
    gpu = scenario.training.gpus[0]
    process = scenario.chance.new_process(BYPASSING, (gpu,), at + seconds)
    if process.used_bytes <= scenario.free_bytes(gpu):
        scenario.bypassing[process.pid] = process
        yield process.reading(at)


def _memory_full(scenario: Scenario, at: float, seconds: float) -> Iterator[kinds.Observation]:
    """Let one client allocate nearly all free memory of a GPU, beside another workload that stays as long."""
    daemon, gpu = scenario.training, scenario.training.gpus[-1]
    if not daemon.answers or daemon.fault is not None:
        return
    others = [client for client in daemon.clients.values() if gpu in client.gpus and client.workload != TRAINERS[0]]
    if not others:
        yield from daemon.connect(at, scenario.chance.new_process(TRAINERS[1], (gpu,), at + seconds))
    # The client's workload needs more than half of the memory.
    for client in others[1:]:
        yield from daemon.disconnect(at, client)
    for client in daemon.clients.values():
        client.ends_at = max(client.ends_at, at + seconds) if gpu in client.gpus else client.ends_at
    used = scenario.free_bytes(gpu) - 3 * GIBIBYTE
    if used > CONTEXT_BYTES:
        pid = scenario.chance.new_pid()
        yield from daemon.connect(at, SimulatedProcess(pid, TRAINERS[0], (gpu,), used, at + seconds))


def _noisy_neighbour(scenario: Scenario, at: float, seconds: float) -> Iterator[kinds.Observation]:
    """Let a client stream memory beside others, which stay as long."""
    daemon = scenario.inference
    if daemon.answers and daemon.fault is None:
        for client in daemon.clients.values():
            client.ends_at = max(client.ends_at, at + seconds)
        yield from daemon.connect(at, scenario.chance.new_process(STREAMING, daemon.gpus[:1], at + seconds))


def _limits_drift(scenario: Scenario, at: float, seconds: float) -> Iterator[kinds.Observation]:
    """Give clients the whole GPU, until an operator reverts it, or the watchdog if it may act."""
    daemon = scenario.training
    if daemon.answers and daemon.fault is None:
        yield from _connect_one(daemon, at, seconds)
        yield from daemon.set_threads(at, 100.0)
        scenario.later(at + seconds, partial(daemon.set_threads, percentage=daemon.default_threads))


def _unknown_line(scenario: Scenario, at: float, seconds: float) -> Iterator[kinds.Observation]:
    if scenario.training.pid is not None:
        yield scenario.training.log(at, "Rebalancing worker lanes after topology change")


def _connect_one(daemon: SimulatedDaemon, at: float, seconds: float) -> Iterator[kinds.Observation]:
    """Connect a client if the daemon has none, so that it has a server."""
    if not daemon.clients:
        yield from daemon.connect(at, daemon.chance.new_process(daemon.workloads[-1], daemon.gpus[:1], at + seconds))


class Failure(NamedTuple):
    """A failure, its default duration in `--at` (0: it is over at once), and when the scenario has it.

    The default duration is long enough for `alert`, the alert that the failure raises. The scenario injects it `first`
    seconds after the start, and then `every` so many seconds, for `seconds`.
    """

    inject: Callable[[Scenario, float, float], Iterator[kinds.Observation]]
    alert: str | None = None
    lasts: float = 0.0
    first: float = 0.0
    every: float | None = None
    seconds: float = 0.0
    needs: str = ""

    @property
    def condition(self) -> str:
        """What the failure raises, and what that needs, in a few words."""
        return f"{self.alert or 'no alert'}{self.needs}"


FAILURES: Mapping[str, Failure] = {
    # inject, alert, lasts, first, every, seconds
    "fault": Failure(_fault, "CudaMpsFault", 0, -270, 1200),
    "fault-held": Failure(_fault, "CudaMpsServerFault", 300, -570, 600, 60),
    "contained-fault": Failure(_contained_fault, None, 0, -400, 700),
    "hardware-xid": Failure(_hardware_xid, "CudaMpsQuarantined", 600, -870, 3000, 90),
    "daemon-restarts": Failure(_daemon_restarts, "CudaMpsDaemonDied", 0, -450, 1660),
    "daemon-dies": Failure(_daemon_dies, "CudaMpsDaemonDown", 300, -150, 1500, 45),
    "daemon-keeps-dying": Failure(_daemon_keeps_dying, "CudaMpsDaemonDown", 300, -30, 2400, 180),
    "daemon-hangs": Failure(_daemon_hangs, "CudaMpsDaemonUnresponsive", 300, 520, 1700, 60),
    "session-held": Failure(_session_held, "CudaMpsDaemonHeld", 1200, 12, 400, 40),
    "servers-crash": Failure(_servers_crash, "CudaMpsServerCrashLoop", 300, -620, 2600, 30),
    "server-full": Failure(_server_full, "CudaMpsClientsRefused", 600, -330, 1300, 120),
    "user-waits": Failure(_user_waits, "CudaMpsClientsWaiting", 1200, 2, 800, 90),
    "limits-drift": Failure(_limits_drift, "CudaMpsLimitsDrifted", 1200, -20, 900, 120),
    "bypass": Failure(_bypass, "CudaMpsProcessBypassing", 1200, -10, 300, 90),
    "memory-full": Failure(_memory_full, "CudaMpsWorkloadFillsMemory", 1200, -800, 2000, 120),
    "noisy-neighbour": Failure(
        _noisy_neighbour, "CudaMpsClientStarved", 1500, -60, 1900, 300, ", needs --attribution=bpf"
    ),
    "unknown-line": Failure(_unknown_line, None, 0, -650, 950),
    "nvml-fails": Failure(_nvml_fails, "CudaMpsExporterCannotCollect", 1200),
}
"""By their names in `--at`. An hour has all but the last, and the first minute has most."""


class PlannedFailure(NamedTuple):
    """A failure, its time after the start of the demo, and its duration; both in seconds."""

    after: float
    failure: str
    seconds: float = 0.0


def parse_planned(text: str) -> PlannedFailure:
    """Parse the value of `--at`: WHEN:WHAT, or WHEN:WHAT:DURATION. Raise ConfigError if it is invalid."""
    when, _, what = text.partition(":")
    name, colon, length = what.partition(":")
    if name not in FAILURES:
        example, known = "30s:daemon-dies", ", ".join(FAILURES)
        raise ConfigError(f"{FLAG}: invalid value {shown(text)}: expected WHEN:WHAT, such as {example}; WHAT: {known}")
    lasts = FAILURES[name].lasts
    if colon and not lasts:
        raise ConfigError(f"{FLAG}: invalid value {shown(text)}: {name} is over at once and has no duration")
    after = checked(FLAG, duration, when)
    return PlannedFailure(after=after, failure=name, seconds=checked(FLAG, duration, length) if colon else lasts)


PAST_SECONDS, CALM_SECONDS = 900.0, 300.0
"""How much of the past is simulated before the demo starts; the latter if it is calm."""

FREQUENT = (CollectorName.LOGS, CollectorName.PROCESS)
SLOW = (CollectorName.CONTROL, CollectorName.KERNEL, CollectorName.NVML_EVENTS)
SLOW_SECONDS, KERNELS_SECONDS = 5, 10
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

    def seconds(self) -> Iterator[Sequence[kinds.Observation]]:
        """Yield the same, second by second."""
        while self._at < self._clock.now():
            second = self._second(self._at)
            yield tuple(each for each in second if self._probes or not isinstance(each, KernelReading))
            self._at += 1.0

    def _second(self, at: float) -> Iterator[kinds.Observation]:
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
            yield kinds.SourceReading(at=at, name=CollectorName.NVML, seconds=0.004, problem=problem)
        let_work(at, scenario.processes)
        if self._probes:
            yield from probe_readings(at, () if problem else GPUS, scenario.processes)
            if int(at) % KERNELS_SECONDS == 0:
                yield kernel_reading(at, scenario.processes)
            yield kinds.SourceReading(at=at, name=CollectorName.LIBCUDA_PROBES, seconds=0.1, problem=problem)
        for source in (*FREQUENT, *SLOW) if slow else FREQUENT:
            yield kinds.SourceReading(at=at, name=source, seconds=0.002)

    def _act(self, at: float) -> Iterator[kinds.Observation]:
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
            yield made_of(kinds.ActionDone, action, at=at, seconds=ACTION_SECONDS)


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
