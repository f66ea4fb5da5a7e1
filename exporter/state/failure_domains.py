"""Failure domains: clients that one fault would end together."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.observation import GpuReading, GpuUuid
from exporter.state.devices import gpus_by_ordinal, physical_gpus, serves_gpu, usable_gpus

Gpus = frozenset[GpuUuid]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureDomain:
    """Clients of one server that one fault would end together, and their GPUs."""

    clients: frozenset[int]
    gpus: Gpus
    upper_bound: bool = False
    """Whether some of them may survive."""


def failure_domains(node: Node, daemon: Daemon) -> Mapping[int, tuple[FailureDomain, ...]]:
    """Return the failure domains by server. A client without complete information about its GPUs has none."""
    # NVML must list the processes of all GPUs that clients of the daemon may use.
    readings = (reading for reading in usable_gpus(node).values() if serves_gpu(node, daemon, reading))
    complete = len(gpus_by_ordinal(node, daemon)) == 1 or all(
        reading.compute_processes is not None and not reading.mig_mode for reading in readings
    )
    by_server: dict[int, dict[int, Gpus]] = {server: {} for server in daemon.servers}
    for pid, gpus in gpus_of_clients(node, daemon, daemon.clients).items():
        if complete or _logged(daemon, pid):
            by_server.setdefault(daemon.clients[pid].server, {})[pid] = gpus
    # From driver R610 on, clients in other partitions survive some faults (guide, release 615). Whether MLOPart devices
    # isolate faults is not documented.
    partial = daemon.has_static_partitions or daemon.has_mlopart_devices
    return {server: tuple(_domains(clients, upper_bound=partial)) for server, clients in by_server.items()}


def gpus_of_clients(node: Node, daemon: Daemon, pids: Collection[int]) -> Mapping[int, Gpus]:
    """Return the GPUs of clients by the log and by NVML, else the only GPU that the daemon has."""
    usable = usable_gpus(node)
    divided = node.gpus.keys() - usable.keys()
    found = {pid: physical_gpus(node, daemon, _logged(daemon, pid)) - divided for pid in pids}
    for uuid, reading in usable.items():
        for pid in found.keys() & _processes_with_context(reading):
            found[pid].add(uuid)
    every = frozenset(gpus_by_ordinal(node, daemon).values())
    default = every if len(every) == 1 else frozenset()
    return {pid: frozenset(gpus) or default for pid, gpus in found.items() if gpus or default}


def _logged(daemon: Daemon, pid: int) -> Gpus:
    known = daemon.clients.get(pid) or daemon.connections.disconnects.get(pid)
    return frozenset() if known is None else known.gpus


def _processes_with_context(reading: GpuReading) -> set[int]:
    """Return the processes that have a context on this GPU.

    Before its first context, a client is in the MPS list of every GPU, with no memory (measured, R580). Under MIG, the
    lists are of all instances together (nvml.h), and a client uses one.
    """
    if reading.mig_mode:
        return set()
    of_mps = {process.pid for process in reading.mps_processes or () if process.used_bytes}
    return of_mps | {process.pid for process in reading.compute_processes or ()}


def _domains(clients: Mapping[int, Gpus], *, upper_bound: bool) -> Iterable[FailureDomain]:
    """Group clients that have a GPU in common, directly or through other clients."""
    groups: list[Gpus] = []
    for gpus in dict.fromkeys(clients.values()):
        overlapping = [each for each in groups if each & gpus]
        groups = [*(each for each in groups if not each & gpus), gpus.union(*overlapping)]
    members: dict[Gpus, set[int]] = {group: set() for group in groups}
    group_of = {gpu: group for group in groups for gpu in group}
    for pid, gpus in clients.items():
        members[group_of[next(iter(gpus))]].add(pid)
    return (
        FailureDomain(clients=frozenset(pids), gpus=gpus, upper_bound=upper_bound) for gpus, pids in members.items()
    )
