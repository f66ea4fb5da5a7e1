"""The demo's faults: a wild pointer and a client killed at work take turns, and a victim holds up recovery.

What is written, and in which order, is as measured (R580): whom the log and the Xid name is anybody who had work.
"""

from collections.abc import Iterable, Iterator, Sequence

from exporter.demo.cast import Cast, Process
from exporter.demo.daemon import Fault, SimulatedDaemon, context
from exporter.demo.gpus import bus_id
from exporter.model.observation import GpuEvent, KernelRecord, Observation, ProcessExit

EVERY_SECONDS = 600.0
LINGERS_SECONDS = 60.0
EXITS_SECONDS = 0.03
REFUSED = 3

FEWEST = 3

CRITICAL_XID, ILLEGAL_ADDRESS = 8, 31
WILD_POINTER = "GPCCLIENT_T1_0 faulted @ 0x7f00_00000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE"
LOST_INSTRUCTIONS = "GPCCLIENT_GCC faulted @ 0x7f18_7b754000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"

Crowd = tuple[SimulatedDaemon, Sequence[Process]]
"""Clients that share a GPU, and whose they are."""


class Faults:
    """When the next one is due, and what comes of those that there were."""

    def __init__(self, cast: Cast, first_at: float) -> None:
        self._cast = cast
        self._due_at = first_at
        self._struck = 0

    def strike(self, at: float, daemons: Iterable[SimulatedDaemon]) -> Iterator[Observation]:
        """One that is due strikes where enough share a GPU: the culprit, a victim that exits, and one that lingers."""
        if at < self._due_at:
            return
        crowds = [_sharing(daemon) for daemon in daemons if daemon.fault is None]
        crowds = [crowd for crowd in crowds if len(crowd[1]) >= FEWEST]
        if not crowds:
            return
        crowd = self._cast.chance.choice(crowds)
        self._due_at += EVERY_SECONDS
        self._struck += 1
        yield from self._killed(at, *crowd) if self._struck % 2 else self._wild_pointer(at, *crowd)

    def go_on(self, daemon: SimulatedDaemon, fault: Fault, at: float) -> Iterator[Observation]:
        """Newcomers are turned away until the last victim has gone; then the server is well again."""
        if fault.refused < REFUSED and self._cast.happens(10):
            fault.refused += 1
            newcomer = context(self._cast.pid(), 0)
            yield daemon.server_says(at, f"Server teardown in progress. Refusing to accept new client {newcomer}")
            yield daemon.server_says(at, f"Failed to accept client {newcomer} with status 807")
        if not fault.victims & daemon.clients.keys():
            daemon.fault = None
            for device in fault.devices:
                yield daemon.server_says(at, f"Destroy server context on device {device} (NVIDIA H200)")

    def _wild_pointer(self, at: float, daemon: SimulatedDaemon, here: Sequence[Process]) -> Iterator[Observation]:
        """Whoever did it, somebody who was at work is named, and another one in the log."""
        named, blamed = self._cast.chance.sample(here, 2)
        yield from _xid(at - 0.1, named, WILD_POINTER)
        yield from _block(at - 0.05, daemon, here, blamed)

    def _killed(self, at: float, daemon: SimulatedDaemon, here: Sequence[Process]) -> Iterator[Observation]:
        """The newest one is killed with a kernel in flight, which then cannot fetch its instructions."""
        *others, culprit = here
        yield from daemon.parts_with(at - 0.2, culprit, cut_off=True)
        yield ProcessExit(at=at - 0.19, pid=culprit.pid, start_ticks=culprit.start_ticks, wait_status=9)
        yield from _xid(at - 0.1, others[0], LOST_INSTRUCTIONS)
        yield from _block(at - 0.08, daemon, others, others[-1])
        yield daemon.server_says(at, f"Client process {culprit.pid} disconnected")


def _sharing(daemon: SimulatedDaemon) -> Crowd:
    """The clients of the GPU that has most of them, the newest last."""
    by_gpu = ([each for each in daemon.clients.values() if each.gpu == gpu] for gpu in daemon.gpus)
    return daemon, max(by_gpu, key=len)


def _xid(at: float, named: Process, failed: str) -> Iterator[Observation]:
    """The kernel's log tells of an illegal address, and so does NVML."""
    text = (
        f"NVRM: Xid (PCI:{bus_id(named.gpu)}): {ILLEGAL_ADDRESS}, pid={named.pid}, name={named.owner.command}, "
        f"channel 0x0000001d, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC1 {failed}"
    )
    yield KernelRecord(at=at, record=f"4,{int(at)},{int(at * 1e6)},c;{text}")
    yield GpuEvent(at=at, type=CRITICAL_XID, xid=ILLEGAL_ADDRESS, gpu=named.gpu)


def _block(at: float, daemon: SimulatedDaemon, victims: Sequence[Process], blamed: Process) -> Iterator[Observation]:
    """The server tells of it. All but the first of those whom it hit exit at once when they get the error."""
    device = daemon.gpus.index(blamed.gpu)
    yield daemon.server_says(at, f"Client {{PID: {blamed.pid}, Context: 1}} encountered a fatal GPU error.")
    yield daemon.server_says(at, "Server is handling a fatal GPU error.")
    for each in victims:
        yield daemon.server_says(at, f"Client {context(each.pid, 1)} on device {device} to be torn down")
    for each in victims:
        yield daemon.server_says(at, f"All clients belonging to error trigging process {each.pid} will be torn down")
        yield daemon.server_says(
            at, f"Client {context(each.pid, 1)} on the error-trigging process {each.pid} to be torn down"
        )
    yield daemon.server_says(at, "The following devices will be reset:")
    yield daemon.server_says(at, str(device))
    yield daemon.server_says(at, "The following client process have a sticky error set:")
    yield from (daemon.server_says(at, str(each.pid)) for each in victims)
    daemon.fault = Fault((device,), frozenset(each.pid for each in victims))
    lingering, *others = victims
    lingering.leaves_at = at + LINGERS_SECONDS
    for each in others:
        yield from daemon.parts_with(at + EXITS_SECONDS, each)
