"""What each client has of a GPU: what it may use, and what it does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exporter.core.attribution.minute import fresh_splits
from exporter.core.devices import by_its_ordinals
from exporter.core.domains import places
from exporter.core.identity import used_bytes
from exporter.core.work import work_now
from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.observation import DaemonName, GpuUuid
from exporter.model.server import Client
from exporter.model.split import Share
from exporter.model.variables import VISIBLE_DEVICES
from exporter.parse.mps_variables import client_memory_limits, client_thread_percentage


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One client on one GPU. None: not known.

    A limit is the smaller of its server's and the one in its own environment. `threads` is the part of the SMs that it
    may use, 0 to 1. `memory_limit` is how much memory it may have, and `memory` how much it has, in bytes. A
    `memory_limit` of None means no limit if `memory_limit_known`. `watched` is whether its work can be seen from
    outside, None where nobody looks.
    """

    daemon: DaemonName
    client: Client
    threads: float | None = None
    memory_limit: int | None = None
    memory_limit_known: bool = False
    memory: int | None = None
    used: Share | None = None
    watched: bool | None = None


def holdings(node: Node) -> Mapping[GpuUuid, Sequence[Holding]]:
    """Those on each GPU that has any, the eldest clients first. Under MIG, nobody tells on which instance one is."""
    found: dict[GpuUuid, list[Holding]] = {uuid: [] for uuid in _whole_gpus(node)}
    held = {uuid: used_bytes(node.gpus[uuid].reading) for uuid in found}
    splits = fresh_splits(node)
    watched = _watched(node)
    for daemon in node.daemons.values():
        if daemon.told_of(node.at):
            ordinals = by_its_ordinals(node, daemon)
            for pid, gpus in places(node, daemon, daemon.clients).items():
                for uuid in gpus & found.keys():
                    split = splits.get(uuid)
                    client = daemon.clients[pid]
                    limit_known, limit = _memory_limit(node, daemon, client, uuid, ordinals)
                    found[uuid].append(
                        Holding(
                            daemon=daemon.name,
                            client=client,
                            threads=_threads(node, daemon, client),
                            memory_limit=limit,
                            memory_limit_known=limit_known,
                            memory=held[uuid].get(pid),
                            used=None if split is None else split.shares.get(pid),
                            watched=None if watched is None else pid in watched,
                        )
                    )
    return {uuid: sorted(here, key=_eldest_first) for uuid, here in found.items() if here}


def _watched(node: Node) -> frozenset[int] | None:
    work = work_now(node)
    return None if work is None else frozenset(work.watched)


def _whole_gpus(node: Node) -> Sequence[GpuUuid]:
    return [uuid for uuid, gpu in node.gpus.items() if not gpu.reading.mig_mode]


def _threads(node: Node, daemon: Daemon, client: Client) -> float | None:
    """Return the part of the SMs that a client may use; None where its server's limit or its own is not known."""
    server = daemon.servers.get(client.server)
    allowed = None if server is None else server.active_thread_percentage
    variables = _environment(node, client)
    own = None if variables is None else client_thread_percentage(variables)
    return None if allowed is None or own is None else min(allowed, own) / 100


def _memory_limit(
    node: Node, daemon: Daemon, client: Client, uuid: GpuUuid, ordinals: Mapping[int, GpuUuid]
) -> tuple[bool, int | None]:
    """Return whether a client's memory limit on a GPU is known, and the limit."""
    server, variables = daemon.servers.get(client.server), _environment(node, client)
    own = None if variables is None else client_memory_limits(variables)
    if server is None or server.active_thread_percentage is None or variables is None or own is None:
        return False, None
    limits = {str(device): limit for device, limit in server.pinned_memory_limits.items()}
    # A client that chooses among several GPUs may count them in its own way.
    reordered = own and VISIBLE_DEVICES in variables and len(ordinals) > 1
    if reordered or ((limits or own) and not ordinals):
        return False, None
    devices = {str(ordinal): gpu for ordinal, gpu in ordinals.items()}
    here = [limit for device, limit in (*limits.items(), *own.items()) if devices.get(device, device) == uuid]
    return True, min(here, default=None)


def _environment(node: Node, client: Client) -> Mapping[str, str] | None:
    process = node.processes.get(client.pid)
    return None if process is None else process.environment


def _eldest_first(holding: Holding) -> tuple[float, int]:
    return holding.client.connected_at, holding.client.pid
