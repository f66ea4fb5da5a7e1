"""Kernels at a fault: what each affected client had in flight at the first sign, and what it launched last."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from exporter.model.incident import Incident
from exporter.model.kernels import ClientKernels, FaultKernels, KernelReading, LaunchedKernel
from exporter.model.launches import WorkReading, began_ns
from exporter.model.node import Node
from exporter.model.observation import ProcessReading
from exporter.model.values import replace
from exporter.state.processes import workload_of

SECOND_NS = 1_000_000_000

REMEMBERED_NS = 10 * SECOND_NS
MAX_READINGS = 6
"""How long, and how many, readings after a fault are remembered: longer than evidence is accepted."""

SUCCESS_NS = 10_000_000
"""With GPU core dumps, the synchronisation of the cause returns success, up to 1 ms before the first sign is logged."""

MOST_NAMES = 4
MOST_LAUNCHES = 8
"""How many names of kernels in flight, and how many last launches, are known for a client. A graph has the names of its
nodes."""

MOST_CLIENTS, MOST_WITH_LAST = 16, 3
"""For how many clients, the likeliest causes first, kernels in flight remain, and last launches. A thousand incidents
are stored."""


def with_reading(node: Node, reading: KernelReading) -> Node:
    """Add a reading of the kernels."""
    recent = tuple(each for each in node.fault_kernels if reading.boot_ns - each.boot_ns <= REMEMBERED_NS)
    if reading.at_fault:  # Of many, the first and the last one: the first one after a fault counts.
        recent = (*recent[: MAX_READINGS - 1], reading)
    return replace(node, kernels=reading, fault_kernels=recent)


def first_sign_ns(reading: WorkReading | KernelReading, incident: Incident) -> int:
    """Return when the first sign of a fault occurred, in nanoseconds of CLOCK_BOOTTIME."""
    return reading.boot_ns - round((reading.at - incident.started_at) * SECOND_NS)


class SeenKernels(NamedTuple):
    """The kernels of a `process` in the first `reading` after the first sign of a fault, which was at `fault_ns`."""

    process: ProcessReading
    client: ClientKernels
    reading: KernelReading
    fault_ns: int

    @property
    def attached(self) -> bool:
        """Whether the probes on launches were attached at the fault. Without them, synchronisations are missed."""
        until = self.reading.launches_until_ns
        return self.reading.launches_since_ns <= self.fault_ns and (until == 0 or until >= self.fault_ns)

    @property
    def was_in_flight(self) -> bool:
        """Whether a kernel was in flight since its launch, and all synchronisations since then are known."""
        since = self.reading.launches_since_ns
        flights = (each for each in self.client.last if each.in_flight_at(self.fault_ns))
        return self.attached and any(each.since_ns >= since for each in flights)


def processes_at(node: Node, pids: Iterable[int], fault_ns: int) -> Iterable[tuple[ProcessReading, bool]]:
    """Yield each process, and whether it runs. A process that began after the fault only has the same PID."""
    for pid in pids:
        death, process = node.deaths.get(pid), node.processes.get(pid)
        if process is not None and began_ns(process.start_ticks) < fault_ns:
            yield process, not process.ended
        elif death is not None and death.process is not None and began_ns(death.process.start_ticks) < fault_ns:
            yield death.process, False


def _candidates(incident: Incident) -> Iterable[int]:
    return (*incident.affected, *incident.clues.unlisted, *(each.pid for each in incident.clues.early_disconnects))


def seen_kernels(node: Node, incident: Incident) -> Mapping[int, SeenKernels]:
    """Return the kernels of each candidate, by PID, from the first reading after the first sign that has it."""
    found: dict[int, SeenKernels] = {}
    for reading in node.fault_kernels:
        fault_ns = first_sign_ns(reading, incident)
        clients = {each.pid: each for each in reading.clients if each.first_ns <= fault_ns < reading.boot_ns}
        for process, _ in processes_at(node, _candidates(incident), fault_ns):
            client = clients.get(process.pid)
            if client is not None and client.first_ns >= began_ns(process.start_ticks):
                found.setdefault(process.pid, SeenKernels(process, client, reading, fault_ns))
    return found


def fault_kernels(node: Node, incident: Incident, seen: Mapping[int, SeenKernels]) -> tuple[FaultKernels, ...]:
    """Return what is known of each candidate. What was known before stays if nothing newer is known."""
    known = {each.pid: each for each in incident.clues.kernels}
    for pid, each in seen.items():
        if pid not in known or known[pid].fault_ns != each.fault_ns:
            known[pid] = _kernels_of(node, incident, each)
    return tuple(known[pid] for pid in _candidates(incident) if pid in known)


def settled_kernels(incident: Incident) -> tuple[FaultKernels, ...]:
    """Return those that remain when the evidence is complete: of suspects, then of others with kernels in flight."""
    ranks = {suspect.client.pid: rank for rank, suspect in enumerate(incident.suspects)}
    found = sorted(incident.clues.kernels, key=lambda each: (ranks.get(each.pid, len(ranks)), not each.in_flight))
    others = (replace(each, last=()) for each in found[MOST_WITH_LAST:MOST_CLIENTS])
    return (*found[:MOST_WITH_LAST], *others)


def _kernels_of(node: Node, incident: Incident, seen: SeenKernels) -> FaultKernels:
    """Return the kernels of a client.

    A kernel that never completed before is likelier to have failed than one that did so often. Of others, it is the one
    that came into flight last.
    """
    process, client, reading, fault_ns = seen
    in_flight, remaining = list[LaunchedKernel](), MOST_NAMES
    earlier_ns = SUCCESS_NS if incident.core_dumps else 0
    found = [each for each in client.last if each.in_flight_at(fault_ns, earlier_ns)]
    for kernel in sorted(found, key=lambda each: (each.completed, -each.since_ns)):
        if remaining > 0:
            in_flight.append(replace(kernel, nodes=kernel.nodes[:remaining]))
            remaining -= max(1, len(kernel.nodes))
    exporter_ns = reading.boot_ns - (reading.at - (node.began_at or 0.0)) * SECOND_NS
    kernels = FaultKernels(
        pid=process.pid,
        fault_ns=fault_ns,
        in_flight=tuple(in_flight),
        in_flight_count=len(found),
        last=tuple(replace(each, nodes=each.nodes[:MOST_NAMES]) for each in client.last[:MOST_LAUNCHES]),
        launches_since_ns=reading.launches_since_ns,
        launches_until_ns=reading.launches_until_ns,
        names_lost=client.names_lost,
        began_before_exporter=began_ns(process.start_ticks) < exporter_ns,
    )
    return replace(kernels, earlier_faults=_earlier_faults(node, incident, process, kernels.names))


def _earlier_faults(node: Node, incident: Incident, process: ProcessReading, names: frozenset[str]) -> Counter[str]:
    """Return in how many earlier faults the workload had a kernel of each name in flight."""
    workload, counts = workload_of(process), Counter[str]()
    for other in node.incidents.values():
        if workload is not None and other.detected_at < incident.detected_at:
            same = (each for each in other.clues.kernels if other.details_of(each.pid).workload == workload)
            counts.update({name for each in same for name in each.names & names})
    return counts
