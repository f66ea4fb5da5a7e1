"""Failure domains: clients that one fault would kill together."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.observation import GpuReading, GpuUuid
from exporter.state.gpus import by_its_ordinals, served

Gpus = frozenset[GpuUuid]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureDomain:
    """Clients of one server that fall together, and the GPUs on which they are."""

    clients: frozenset[int]
    gpus: Gpus


def failure_domains(node: Node, daemon: Daemon) -> Mapping[int, tuple[FailureDomain, ...]]:
    """The domains by server. A client of which it is not known on which GPUs it is, on all of them, has none."""
    whole = _whole(node, daemon)
    by_server: dict[int, dict[int, Gpus]] = {server: {} for server in daemon.servers}
    for pid, gpus in places(node, daemon, daemon.clients).items():
        if whole or _logged(daemon, pid):
            by_server.setdefault(daemon.clients[pid].server, {})[pid] = gpus
    return {server: tuple(_domains(placed)) for server, placed in by_server.items()}


def places(node: Node, daemon: Daemon, pids: Collection[int]) -> Mapping[int, Gpus]:
    """On which GPUs these are: as the log told, and as NVML sees them; else on the only one that the daemon has."""
    found = {pid: set(_logged(daemon, pid)) for pid in pids}
    for uuid, gpu in node.gpus.items():
        for pid in found.keys() & _holders(gpu.reading):
            found[pid].add(uuid)
    every = frozenset(by_its_ordinals(node, daemon).values())
    otherwise = every if len(every) == 1 else frozenset()
    return {pid: frozenset(gpus) or otherwise for pid, gpus in found.items() if gpus or otherwise}


def _whole(node: Node, daemon: Daemon) -> bool:
    """Whether it is told of all GPUs on which this daemon's clients may be who is there."""
    if len(by_its_ordinals(node, daemon)) == 1:
        return True
    readings = (gpu.reading for gpu in node.gpus.values() if served(daemon, gpu.reading))
    return all(reading.compute_processes is not None and not reading.mig_mode for reading in readings)


def _logged(daemon: Daemon, pid: int) -> Gpus:
    known = daemon.clients.get(pid) or daemon.connections.disconnects.get(pid)
    return frozenset() if known is None else known.gpus


def _holders(reading: GpuReading) -> set[int]:
    """The processes that have a context on this GPU.

    Until it has made its first one, a client is in the MPS list of every GPU, with no memory (measured, R580). Under
    MIG, what the lists say is of all instances together (nvml.h), and a client is on one.
    """
    if reading.mig_mode:
        return set()
    begun = {process.pid for process in reading.mps_processes or () if process.used_bytes}
    return begun | {process.pid for process in reading.compute_processes or ()}


def _domains(placed: Mapping[int, Gpus]) -> Iterable[FailureDomain]:
    members: dict[Gpus, set[int]] = {joined: set() for joined in _joined(dict.fromkeys(placed.values()))}
    whole = {gpu: joined for joined in members for gpu in joined}
    for pid, gpus in placed.items():
        members[whole[next(iter(gpus))]].add(pid)
    return (FailureDomain(clients=frozenset(pids), gpus=gpus) for gpus, pids in members.items())


def _joined(groups: Iterable[Gpus]) -> Collection[Gpus]:
    """The groups, those that have a GPU in common made one; there are no more of them than GPUs."""
    joined: list[Gpus] = []
    for group in groups:
        apart = [each for each in joined if not each & group]
        joined = [*apart, group.union(*(each for each in joined if each & group))]
    return joined
