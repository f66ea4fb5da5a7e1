"""Kernels that clients launch, read from the libcuda probes: what runs, and what was in flight at a fault.

Points in time are in nanoseconds of CLOCK_BOOTTIME.
"""

from collections.abc import Mapping
from dataclasses import field

from exporter.model.values import frozen

Size = tuple[int, int, int]
"""The dimensions of a grid or block: x, y, z."""


@frozen
class KernelName:
    """The name of a kernel: `raw` as the program has it, mangled, and `short` for people. A workload chose both."""

    raw: str
    short: str


@frozen
class Kernel:
    """What identifies a kernel or a graph: see LaunchedKernel."""

    name: KernelName | None = None
    nodes: tuple[KernelName, ...] = ()
    is_graph: bool = False

    @property
    def names(self) -> tuple[KernelName, ...]:
        """Its name, or the names of its nodes; empty if they are unknown."""
        return self.nodes if self.name is None else (self.name,)


@frozen
class LaunchedKernel(Kernel):
    """A kernel, or a graph, that a process launched, with its last launch.

    `name` is None if it is unknown, or a graph. `nodes` are at most four known kernels of a graph.
    `launches` counts all that the probes saw; `completed` are those before it last came into flight. It was in flight
    from `since_ns` on, until a synchronisation at `until_ns` returned (0: it still was). `last_ns` is the last launch.
    `stream` is 1 for the default stream.
    """

    launches: int = 0
    completed: int = 0
    since_ns: int = 0
    until_ns: int = 0
    last_ns: int = 0
    stream: int = 0
    grid: Size = (0, 0, 0)
    block: Size = (0, 0, 0)

    def in_flight_at(self, ns: int, earlier_ns: int = 0) -> bool:
        """Return whether it was in flight then, or may have been: the GPU may have completed it before.

        A synchronisation that returned at most `earlier_ns` before does not count.
        """
        return 0 < self.since_ns <= ns and (self.until_ns == 0 or ns <= self.until_ns + earlier_ns)


@frozen
class KernelUse(Kernel):
    """A kernel or graph of a client, as it ran in the last minute.

    `launches_per_second` counts while the probes were attached. `flight_ratio` is the part of the client's time with
    work in flight in which this kernel was in flight; several can be at once. `width` is the median number of SMs that
    it occupies.
    """

    launches_per_second: float = 0.0
    flight_ratio: float = 0.0
    width: int = 0


@frozen
class ClientKernels:
    """The kernels of a process: those that were longest in flight in the last minute, and the last launched ones.

    `first_ns` is its first call that the probes saw. `streams` is the most streams with work at once. `last` is read
    only after a fault, the last launch first. `names_lost` counts lost names and other messages, and launches that were
    not recorded because there were too many processes.
    """

    pid: int
    first_ns: int
    streams: int = 0
    most: tuple[KernelUse, ...] = ()
    last: tuple[LaunchedKernel, ...] = ()
    names_lost: int = 0


@frozen
class KernelReading:
    """What runs on the GPUs. `boot_ns` is `at` by CLOCK_BOOTTIME.

    `at_fault` is whether `last` was read. `launches_until_ns` is when the probes on launches were detached; 0: they are
    attached. `launches_since_ns` is when they were attached last.
    """

    at: float
    boot_ns: int
    clients: tuple[ClientKernels, ...] = ()
    at_fault: bool = False
    launches_since_ns: int = 0
    launches_until_ns: int = 0


@frozen
class FaultKernels:
    """The kernels of a client when a fault began at `fault_ns`.

    `in_flight` are the likeliest ones of the `in_flight_count` kernels that were in flight then, or may have been, the
    likeliest first. `last` are the last launches, the last one first, also after `fault_ns`. `launches_since_ns`,
    `launches_until_ns` and `names_lost` are those of the reading. Names that a client got before the exporter began are
    unknown. `earlier_faults` counts, by the raw name of a kernel in flight, the earlier faults in which a client of the
    same workload had it in flight, too.
    """

    pid: int
    fault_ns: int
    in_flight: tuple[LaunchedKernel, ...]
    in_flight_count: int
    last: tuple[LaunchedKernel, ...]
    launches_since_ns: int = 0
    launches_until_ns: int = 0
    names_lost: int = 0
    began_before_exporter: bool = False
    earlier_faults: Mapping[str, int] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        """The raw names of the kernels in flight."""
        return frozenset(name.raw for kernel in self.in_flight for name in kernel.names)
