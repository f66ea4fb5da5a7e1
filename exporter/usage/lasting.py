"""What lasts, with events of its beginning and its end: a filled GPU, starved clients, and a failure of NVML.

It is examined after each collection of NVML. So each GPU and each client has few events, whatever the clients do.
"""

from collections.abc import Iterable, Mapping

from exporter.model.event import Event, EventName
from exporter.model.identity import Workload
from exporter.model.node import CollectorName, Node
from exporter.model.observation import GpuUuid
from exporter.model.reason import ReasonCode
from exporter.model.values import replace
from exporter.state.gpus import used_bytes
from exporter.usage.accounting import memory_by_workload, workloads
from exporter.usage.contention import starved

FULL_RATIO = 0.95
"""The used part of a GPU's memory above which it counts as full."""

LARGE_RATIO = 0.5
"""The part of a full GPU's memory above which a workload fills it."""

_ENDS = {
    EventName.NVML_FAILED: EventName.NVML_RECOVERED,
    EventName.MEMORY_FILLED: EventName.MEMORY_FREED,
    EventName.CLIENT_STARVED: EventName.CLIENT_NOT_STARVED,
}


def filled_gpus(node: Node) -> Mapping[GpuUuid, tuple[Workload, int]]:
    """Return the GPUs with little free memory, each with the one of several workloads that has most, and its bytes.

    The alert CudaMpsWorkloadFillsMemory has the same limits.
    """
    found = {}
    for uuid, held in memory_by_workload(node).items():
        used, total = node.gpus[uuid].reading.memory_used_bytes, node.gpus[uuid].reading.memory_total_bytes
        if used is not None and total and used / total > FULL_RATIO and len(held) > 1:
            workload = max(held, key=lambda each: held[each])
            if held[workload] / total > LARGE_RATIO:
                found[uuid] = workload, held[workload]
    return found


def examined(node: Node) -> tuple[Node, tuple[Event, ...]]:
    """Return the node after a collection of NVML, with the events of what has begun or ended since the last one.

    While NVML fails, it is unknown what else ends, and what is paused does not fail.
    """
    source, name = node.sources[CollectorName.NVML], EventName.NVML_FAILED
    codes = {each.code for problem in source.problems.values() for each in problem.each} - {ReasonCode.GPU_LOST}
    if ReasonCode.PAUSED in codes:
        return node, ()
    now = dict(node.lasting) if codes else dict(_present(node))
    if codes and source.last_success is not None:
        now[name, None, None] = Event(at=source.failing_since or node.at, event=name, reason=source.last.problem)
    ended = (each for key, each in node.lasting.items() if key not in now)
    events = [replace(each, at=node.at, event=_ENDS[each.event], reason=None) for each in ended]
    events += [each for key, each in now.items() if key not in node.lasting]
    return replace(node, lasting={key: node.lasting.get(key, each) for key, each in now.items()}), tuple(events)


def _present(node: Node) -> Iterable[tuple[tuple[EventName, GpuUuid | None, int | None], Event]]:
    """Yield the GPUs that a workload fills, each with the workload's largest client, and the starved clients.

    Each has the daemon of the client. So a flood of such events takes only the daemon's share of the history.
    """
    daemons = {pid: name for name, daemon in node.daemons.items() for pid in daemon.clients}
    owners = workloads(node)
    for uuid, (workload, _) in filled_gpus(node).items():
        held, name = used_bytes(node.gpus[uuid].reading), EventName.MEMORY_FILLED
        pid = max((pid for pid in owners if owners[pid] == workload), key=lambda pid: held.get(pid, 0))
        yield (name, uuid, None), Event(at=node.at, event=name, daemon=daemons[pid], gpu=uuid, pid=pid)
    for uuid, state in node.contention.items():
        for pid in starved(state, node.at):
            name = EventName.CLIENT_STARVED
            yield (name, uuid, pid), Event(at=node.at, event=name, daemon=daemons.get(pid), gpu=uuid, pid=pid)
