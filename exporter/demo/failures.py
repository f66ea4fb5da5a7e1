"""Failures that the demo injects: faults, outages, overload, and changes that operators make.

Log lines, Xids and their order are as measured on R580. The log and the Xid name any client that had work in flight.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from exporter.demo.daemon import ServerFault, SimulatedDaemon, context
from exporter.demo.gpus import pci_address
from exporter.demo.scenario import Scenario
from exporter.demo.schedule import Failure
from exporter.demo.workloads import BYPASSING, CONTEXT_BYTES, GIBIBYTE, SERVING, TRAINERS, SimulatedProcess
from exporter.model.action import Resumed
from exporter.model.observation import GpuEvent, KernelRecord, Observation

AFFECTED = 4
"""Fewest clients that share the GPUs of a fault, the culprit included."""

STAY_SECONDS = 600.0
"""How long the clients stay that connect for a fault."""

CRITICAL_XID, ILLEGAL_ADDRESS, UNCONTAINED = 8, 31, 95
WILD_POINTER = "GPCCLIENT_T1_0 faulted @ 0x7f00_00000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE"
LOST_INSTRUCTIONS = "GPCCLIENT_GCC faulted @ 0x7f18_7b754000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"

WAITING = 2
FREE_BYTES = 3 * GIBIBYTE


# Faults


def _fault(scenario: Scenario, at: float, seconds: float) -> Iterator[Observation]:
    """Affect all clients that share two GPUs. One of them stays for `seconds`, and recovery waits for it.

    The cause is by turns a client that is killed with a kernel in flight, and a wild pointer.
    """
    daemon = scenario.training
    if daemon.pid is None or daemon.fault is not None:
        return
    yield from _connect_enough(scenario, daemon, at)
    scenario.faults += 1
    clients = _sharing(daemon)
    if scenario.faults % 2:
        yield from _kill_newest(daemon, at, clients, seconds)
    else:
        named, *_, blamed = clients
        yield from _illegal_address(at - 0.1, named.gpus[0], named, WILD_POINTER)
        yield from _fault_block(at - 0.05, daemon, clients, blamed, seconds)


def _kill_newest(
    daemon: SimulatedDaemon, at: float, clients: Sequence[SimulatedProcess], seconds: float
) -> Iterator[Observation]:
    """Kill the newest client. Its kernel then cannot fetch its instructions."""
    *others, culprit = clients
    named = next(each for each in others if set(each.gpus) & set(culprit.gpus))
    gpu = next(gpu for gpu in named.gpus if gpu in culprit.gpus)
    yield from daemon.disconnect(at - 0.2, culprit, killed=True)
    yield culprit.exit(at - 0.19, wait_status=9)
    yield from _illegal_address(at - 0.1, gpu, named, LOST_INSTRUCTIONS)
    yield from _fault_block(at - 0.08, daemon, others, named, seconds)
    yield daemon.server_log(at, f"Client process {culprit.pid} disconnected")


def _fault_block(
    at: float, daemon: SimulatedDaemon, affected: Sequence[SimulatedProcess], blamed: SimulatedProcess, seconds: float
) -> Iterator[Observation]:
    """Log the fault. All affected clients but the first exit at once."""
    devices = tuple(map(daemon.gpus.index, daemon.groups[0]))
    lines = [
        f"Client {{PID: {blamed.pid}, Context: 1}} encountered a fatal GPU error.",
        "Server is handling a fatal GPU error.",
    ]
    for each in affected:
        for number, gpu in enumerate(each.gpus, start=1):
            on = daemon.gpus.index(gpu)
            lines.append(f"Client {context(each.pid, number)} on device {on} to be torn down")
    for each in affected:
        lines.append(f"All clients belonging to error trigging process {each.pid} will be torn down")
        lines.append(f"Client {context(each.pid, 1)} on the error-trigging process {each.pid} to be torn down")
    lines += ["The following devices will be reset:", *map(str, devices)]
    lines += ["The following client process have a sticky error set:", *(str(each.pid) for each in affected)]
    yield from (daemon.server_log(at, line) for line in lines)
    daemon.fault = ServerFault(devices, frozenset(each.pid for each in affected))
    first, *others = affected
    first.ends_at = at + seconds
    for each in others:
        yield from daemon.disconnect(at + 0.03, each)


def _contained_fault(scenario: Scenario, at: float, _seconds: float) -> Iterator[Observation]:
    """Let an assertion on the device fail. It ends one client alone."""
    daemon = scenario.training
    if daemon.pid is None or daemon.fault is not None:
        return
    yield from _connect_enough(scenario, daemon, at)
    *_, newest = daemon.clients.values()
    yield from daemon.disconnect(at, newest, reason="Worker is in reset.")


def _hardware_xid(scenario: Scenario, at: float, seconds: float) -> Iterator[Observation]:
    """Let a GPU's memory fail, so that it needs a reset, until an operator runs `resume`."""
    daemon = scenario.inference
    (gpu,) = (each for each in scenario.gpus if each.uuid in daemon.gpus)
    gpu.uncorrected += 1
    text = "pid='<unknown>', name=<unknown>, Uncontained: LTC TAG (0x2,0x0). Physical Address: 0x17a2c0e00"
    yield from _xid(at, gpu.uuid, UNCONTAINED, text)
    scenario.later(at + seconds, lambda at: [Resumed(at=at, daemon=daemon.name)])


def _illegal_address(at: float, gpu: str, named: SimulatedProcess, error: str) -> Iterator[Observation]:
    process = f"pid={named.pid}, name={named.workload.command}"
    text = f"{process}, channel 0x0000001d, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC1 {error}"
    return _xid(at, gpu, ILLEGAL_ADDRESS, text)


def _xid(at: float, gpu: str, number: int, text: str) -> Iterator[Observation]:
    """Report an Xid in the kernel log and through NVML."""
    message = f"NVRM: Xid (PCI:{pci_address(gpu)}): {number}, {text}"
    yield KernelRecord(at=at, record=f"4,{int(at)},{int(at * 1e6)},c;{message}")
    yield GpuEvent(at=at, type=CRITICAL_XID, xid=number, gpu=gpu)


def _connect_enough(scenario: Scenario, daemon: SimulatedDaemon, at: float) -> Iterator[Observation]:
    """Connect clients until enough share the first group of GPUs, one of them on all of its GPUs."""
    chance, group = scenario.factory.random, daemon.groups[0]
    shared = any(client.gpus == group for client in daemon.clients.values())
    while not shared or len(_sharing(daemon)) < AFFECTED:
        gpus = (chance.choice(group),) if shared else group
        shared = True
        client = scenario.factory.new_process(chance.choice(daemon.workloads), gpus, at + STAY_SECONDS)
        yield from daemon.connect(at - 1, client)


def _sharing(daemon: SimulatedDaemon) -> Sequence[SimulatedProcess]:
    """Return the clients on the first group of GPUs, the newest last."""
    return [each for each in daemon.clients.values() if set(each.gpus) <= set(daemon.groups[0])]


# Outages


def _daemon_restarts(scenario: Scenario, at: float, _seconds: float) -> Iterator[Observation]:
    """Restart a daemon in half a second, between two scrapes."""
    daemon = scenario.training
    if daemon.pid is not None:
        yield from daemon.die(at - 0.6)
        yield from daemon.start(at - 0.1)


def _daemon_dies(scenario: Scenario, at: float, seconds: float) -> Iterator[Observation]:
    """End a daemon until an operator starts it. One of its clients returns without MPS."""
    daemon = scenario.training
    if daemon.pid is None:
        return
    yield from daemon.die(at)
    yield from _bypass(scenario, at, seconds)
    scenario.later(at + seconds, lambda at: daemon.start(at) if daemon.pid is None else ())


def _daemon_keeps_dying(scenario: Scenario, at: float, seconds: float) -> Iterator[Observation]:
    """End a daemon after each start, until an operator fixes it and runs `resume`."""
    daemon = scenario.notebooks
    daemon.dies_after_start = True
    if daemon.pid is not None:
        yield from daemon.die(at)

    def fix(at: float) -> Iterator[Observation]:
        daemon.dies_after_start = False
        yield Resumed(at=at, daemon=daemon.name)

    scenario.later(at + seconds, fix)


def _daemon_hangs(scenario: Scenario, at: float, seconds: float) -> Iterator[Observation]:
    scenario.training.hangs = True
    scenario.later(at + seconds, scenario.training.answer_again)
    yield from ()


def _session_held(scenario: Scenario, at: float, seconds: float) -> Iterator[Observation]:
    """Leave a session with a daemon open, which excludes all others."""
    daemon = scenario.inference
    daemon.holder = scenario.factory.new_process(daemon.workloads[0], (), at + seconds)
    yield daemon.holder.reading(at)
    scenario.later(at + seconds, daemon.answer_again)


def _servers_crash(scenario: Scenario, at: float, seconds: float) -> Iterator[Observation]:
    """End a daemon's server, and each later one before it is ready."""
    scenario.notebooks.servers_crash_until = at + seconds
    yield from scenario.notebooks.lose_server(at)


def _nvml_fails(scenario: Scenario, at: float, seconds: float) -> Iterator[Observation]:
    scenario.nvml_fails_until = at + seconds
    yield from ()


# Overload


def _server_full(scenario: Scenario, at: float, seconds: float) -> Iterator[Observation]:
    """Start one worker more than the server accepts."""
    daemon = scenario.inference
    if not daemon.answers:
        return
    while len(daemon.clients) < daemon.clients_limit:
        yield from daemon.connect(at, scenario.factory.new_process(SERVING[1], daemon.gpus[:1], at + seconds))
    for client in daemon.clients.values():
        client.ends_at = at + seconds
    yield from daemon.refuse_client(at)


def _user_waits(scenario: Scenario, at: float, seconds: float) -> Iterator[Observation]:
    """Queue another user's clients until the clients of the present user have ended."""
    daemon = scenario.inference
    if not daemon.answers:
        return
    yield from _connect_one(scenario, daemon, at, seconds)
    queued = [scenario.factory.new_process(TRAINERS[2], (), at + seconds) for _ in range(WAITING)]
    for each in queued:
        yield each.reading(at)
        user = f"NEW CLIENT {each.pid} from user {each.workload.uid}"
        yield daemon.log(at, f"{user}: Server is not ready, push client to pending list")
    workers = f"Server {daemon.server} has {len(daemon.clients)} active worker threads."
    yield daemon.log(at, f"{workers} Server will not shutdown.")
    scenario.later(at + seconds, lambda at: [each.exit(at) for each in queued])


def _bypass(scenario: Scenario, at: float, seconds: float) -> Iterator[Observation]:
    """Start a process without MPS on a GPU of a daemon."""
    gpu = scenario.training.gpus[0]
    process = scenario.factory.new_process(BYPASSING, (gpu,), at + seconds)
    if process.used_bytes <= scenario.free_bytes(gpu):
        scenario.bypassing[process.pid] = process
        yield process.reading(at)


def _memory_full(scenario: Scenario, at: float, seconds: float) -> Iterator[Observation]:
    """Let one client allocate nearly all free memory of a GPU."""
    daemon, gpu = scenario.training, scenario.training.gpus[-1]
    used = scenario.free_bytes(gpu) - FREE_BYTES
    client = SimulatedProcess(scenario.factory.new_pid(), TRAINERS[0], (gpu,), used, at + seconds)
    if daemon.answers and daemon.fault is None and used > CONTEXT_BYTES:
        yield from daemon.connect(at, client)


def _limits_drift(scenario: Scenario, at: float, seconds: float) -> Iterator[Observation]:
    """Give clients the whole GPU, until an operator reverts it, or the watchdog if it may act."""
    for daemon in (scenario.training, scenario.inference):
        if daemon.answers and daemon.fault is None:
            yield from _connect_one(scenario, daemon, at, seconds)
            yield from daemon.set_active_threads(at, 100.0)
    training = scenario.training
    configured = training.limits.active_thread_percentage
    scenario.later(at + seconds, lambda at: training.set_active_threads(at, configured))


def _unknown_line(scenario: Scenario, at: float, _seconds: float) -> Iterator[Observation]:
    """Log a line that no release of MPS has."""
    if scenario.training.pid is not None:
        yield scenario.training.log(at, "Rebalancing worker lanes after topology change")


def _connect_one(scenario: Scenario, daemon: SimulatedDaemon, at: float, seconds: float) -> Iterator[Observation]:
    """Connect a client if the daemon has none, so that it has a server."""
    if not daemon.clients:
        client = scenario.factory.new_process(daemon.workloads[-1], daemon.gpus[:1], at + seconds)
        yield from daemon.connect(at, client)


INJECT: Mapping[Failure, Callable[[Scenario, float, float], Iterator[Observation]]] = {
    Failure.FAULT: _fault,
    Failure.FAULT_HELD: _fault,
    Failure.CONTAINED_FAULT: _contained_fault,
    Failure.HARDWARE_XID: _hardware_xid,
    Failure.DAEMON_RESTARTS: _daemon_restarts,
    Failure.DAEMON_DIES: _daemon_dies,
    Failure.DAEMON_KEEPS_DYING: _daemon_keeps_dying,
    Failure.DAEMON_HANGS: _daemon_hangs,
    Failure.SESSION_HELD: _session_held,
    Failure.SERVERS_CRASH: _servers_crash,
    Failure.SERVER_FULL: _server_full,
    Failure.USER_WAITS: _user_waits,
    Failure.LIMITS_DRIFT: _limits_drift,
    Failure.BYPASS: _bypass,
    Failure.MEMORY_FULL: _memory_full,
    Failure.UNKNOWN_LINE: _unknown_line,
    Failure.NVML_FAILS: _nvml_fails,
}
"""Injects each failure at a time, for a number of seconds if it lasts."""
