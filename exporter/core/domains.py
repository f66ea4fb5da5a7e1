"""stub"""

from dataclasses import dataclass

from exporter.model.observation import GpuUuid


@dataclass(frozen=True, slots=True)
class Domain:
    clients: frozenset[int]
    gpus: frozenset[GpuUuid]


def gpus_of(node, daemon, pid):
    client = daemon.clients.get(pid)
    found = set() if client is None else set(client.gpus)
    for uuid, gpu in node.gpus.items():
        if any(pid == p.pid for p in (*(gpu.reading.mps_processes or ()), *(gpu.reading.compute_processes or ()))):
            found.add(uuid)
    return frozenset(found) or (frozenset(node.gpus) if len(node.gpus) == 1 else None)


def domains(node, daemon):
    return {
        s: (Domain(frozenset(c.pid for c in daemon.clients.values() if c.server == s), frozenset(node.gpus)),)
        for s in daemon.servers
    }
