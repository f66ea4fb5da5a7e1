"""The demo's faults: a client killed at work and a wild pointer take turns, and a victim may hold up recovery.

What is written, and in which order, is as measured (R580): whom the log and the Xid name is anybody who had work.
"""

from collections.abc import Iterator, Sequence

from exporter.demo import life
from exporter.demo.cast import Cast, Process
from exporter.demo.daemon import Fault, SimulatedDaemon, context, contexts
from exporter.demo.gpus import bus_id
from exporter.demo.questions import ask
from exporter.demo.scene import Scene
from exporter.model.action import Resumed
from exporter.model.observation import GpuEvent, KernelRecord, Observation, ProcessExit

EXITS_SECONDS = 0.03
REFUSED = 3

FEWEST = 4
"""Clients that a fault hits, the one that did it among them."""

STAYS_SECONDS = 600.0
"""How long those stay who come so that there are enough."""

CRITICAL_XID, ILLEGAL_ADDRESS, UNCONTAINED = 8, 31, 95
WILD_POINTER = "GPCCLIENT_T1_0 faulted @ 0x7f00_00000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE"
LOST_INSTRUCTIONS = "GPCCLIENT_GCC faulted @ 0x7f18_7b754000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"


def strike(scene: Scene, at: float, seconds: float) -> Iterator[Observation]:
    """A fatal fault among those who share two GPUs: all fall. One victim lives on for so many seconds."""
    daemon = scene.training
    if daemon.pid is None or daemon.fault is not None:
        return
    yield from _gathered(scene, daemon, at)
    scene.faults += 1
    how = _killed if scene.faults % 2 else _wild_pointer
    yield from how(at, daemon, _joined(daemon), seconds)


def go_on(cast: Cast, daemon: SimulatedDaemon, at: float) -> Iterator[Observation]:
    """Newcomers are turned away until the last victim has gone; then the server is well again.

    The daemon is asked then, as the exporter does when a log line tells of a recovery.
    """
    fault = daemon.fault
    if fault is None:
        return
    if fault.refused < REFUSED and cast.happens(10):
        fault.refused += 1
        newcomer = context(cast.pid(), 0)
        yield daemon.server_says(at, f"Server teardown in progress. Refusing to accept new client {newcomer}")
        yield daemon.server_says(at, f"Failed to accept client {newcomer} with status 807")
    if not fault.victims & daemon.clients.keys():
        daemon.fault = None
        for device in fault.devices:
            yield daemon.server_says(at, f"Destroy server context on device {device} (NVIDIA H200)")
        yield from ask(daemon, at)


def contain(scene: Scene, at: float, _seconds: float) -> Iterator[Observation]:
    """A client fails an assertion on the device, and falls alone."""
    daemon = scene.training
    if daemon.pid is None or daemon.fault is not None:
        return
    yield from _gathered(scene, daemon, at)
    *_, newest = daemon.clients.values()
    yield from daemon.parts_with(at, newest, why="Worker is in reset.")


def fail_memory(scene: Scene, at: float, seconds: float) -> Iterator[Observation]:
    """The memory of a GPU fails, and asks for a reset: until somebody has seen to that, and says `resume`."""
    daemon = scene.inference
    (gpu,) = (each for each in scene.gpus if each.uuid in daemon.gpus)
    gpu.uncorrected += 1
    text = "pid='<unknown>', name=<unknown>, Uncontained: LTC TAG (0x2,0x0). Physical Address: 0x17a2c0e00"
    yield from _xid(at, gpu.uuid, UNCONTAINED, text)
    scene.later(at + seconds, lambda at: _seen_to(daemon, at))


def _seen_to(daemon: SimulatedDaemon, at: float) -> Iterator[Observation]:
    yield Resumed(at=at, daemon=daemon.name)


def _gathered(scene: Scene, daemon: SimulatedDaemon, at: float) -> Iterator[Observation]:
    """There are enough clients on the joined GPUs, one of them on all of these."""
    team = daemon.teams[0]
    if not any(client.gpus == team for client in daemon.clients.values()):
        yield from _comes(scene, daemon, team, at)
    while len(_joined(daemon)) < FEWEST:
        yield from _comes(scene, daemon, (scene.cast.chance.choice(team),), at)


def _comes(scene: Scene, daemon: SimulatedDaemon, gpus: tuple[str, ...], at: float) -> Iterator[Observation]:
    owner = scene.cast.chance.choice(daemon.owners)
    client = scene.cast.process(owner, gpus, at + STAYS_SECONDS)
    yield from life.connect(daemon, at - 1, client, scene.cast)


def _joined(daemon: SimulatedDaemon) -> Sequence[Process]:
    """The clients of the GPUs that one of them joins, the newest last."""
    return [each for each in daemon.clients.values() if set(each.gpus) <= set(daemon.teams[0])]


def _killed(at: float, daemon: SimulatedDaemon, here: Sequence[Process], seconds: float) -> Iterator[Observation]:
    """The newest one is killed with a kernel in flight, which then cannot fetch its instructions."""
    *others, culprit = here
    named = next(each for each in others if set(each.gpus) & set(culprit.gpus))
    gpu = next(gpu for gpu in named.gpus if gpu in culprit.gpus)
    yield from daemon.parts_with(at - 0.2, culprit, cut_off=True)
    yield ProcessExit(at=at - 0.19, pid=culprit.pid, start_ticks=culprit.start_ticks, wait_status=9)
    yield from _illegal_address(at - 0.1, gpu, named, LOST_INSTRUCTIONS)
    yield from _block(at - 0.08, daemon, others, named, seconds)
    yield daemon.server_says(at, f"Client process {culprit.pid} disconnected")


def _wild_pointer(at: float, daemon: SimulatedDaemon, here: Sequence[Process], seconds: float) -> Iterator[Observation]:
    """Whoever did it, somebody who was at work is named, and another one in the log."""
    named, *_, blamed = here
    yield from _illegal_address(at - 0.1, named.gpus[0], named, WILD_POINTER)
    yield from _block(at - 0.05, daemon, here, blamed, seconds)


def _illegal_address(at: float, gpu: str, named: Process, failed: str) -> Iterator[Observation]:
    text = (
        f"pid={named.pid}, name={named.owner.command}, "
        f"channel 0x0000001d, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC1 {failed}"
    )
    yield from _xid(at, gpu, ILLEGAL_ADDRESS, text)


def _xid(at: float, gpu: str, number: int, text: str) -> Iterator[Observation]:
    """The kernel's log tells of it, and so does NVML."""
    message = f"NVRM: Xid (PCI:{bus_id(gpu)}): {number}, {text}"
    yield KernelRecord(at=at, record=f"4,{int(at)},{int(at * 1e6)},c;{message}")
    yield GpuEvent(at=at, type=CRITICAL_XID, xid=number, gpu=gpu)


def _block(
    at: float, daemon: SimulatedDaemon, victims: Sequence[Process], blamed: Process, seconds: float
) -> Iterator[Observation]:
    """The server tells of it. All but the first of those whom it hit exit at once when they get the error."""
    devices = tuple(map(daemon.gpus.index, daemon.teams[0]))
    yield daemon.server_says(at, f"Client {{PID: {blamed.pid}, Context: 1}} encountered a fatal GPU error.")
    yield daemon.server_says(at, "Server is handling a fatal GPU error.")
    for each in victims:
        for number, gpu in contexts(each).items():
            on = daemon.gpus.index(gpu)
            yield daemon.server_says(at, f"Client {context(each.pid, number)} on device {on} to be torn down")
    for each in victims:
        yield daemon.server_says(at, f"All clients belonging to error trigging process {each.pid} will be torn down")
        yield daemon.server_says(
            at, f"Client {context(each.pid, 1)} on the error-trigging process {each.pid} to be torn down"
        )
    yield daemon.server_says(at, "The following devices will be reset:")
    yield from (daemon.server_says(at, str(device)) for device in devices)
    yield daemon.server_says(at, "The following client process have a sticky error set:")
    yield from (daemon.server_says(at, str(each.pid)) for each in victims)
    daemon.fault = Fault(devices, frozenset(each.pid for each in victims))
    first, *others = victims
    first.leaves_at = at + seconds
    for each in others:
        yield from daemon.parts_with(at + EXITS_SECONDS, each)
