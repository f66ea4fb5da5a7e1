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


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One client on one GPU. None: not known; of `memory_limit`, that there is none either.

    `threads` is which part of the SMs it may use, 0 to 1, as its server has it: a client may have asked for less, and
    tells nobody. `memory_limit` is how much memory it may have, and `memory` how much it has, in bytes. `watched` is
    whether its work can be seen from outside, None where nobody looks.
    """

    daemon: DaemonName
    client: Client
    threads: float | None = None
    memory_limit: int | None = None
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
            limits = _memory_limits(node, daemon)
            for pid, gpus in places(node, daemon, daemon.clients).items():
                for uuid in gpus & found.keys():
                    split = splits.get(uuid)
                    client = daemon.clients[pid]
                    found[uuid].append(
                        Holding(
                            daemon=daemon.name,
                            client=client,
                            threads=_threads(node, daemon, client),
                            memory_limit=limits.get((client.server, uuid)),
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
    """What its server allows it, or less, where it was seen to allow itself no more."""
    if node.work is not None and node.work.sms and client.pid in node.work.narrowed:
        return node.work.narrowed[client.pid] / node.work.sms
    server = daemon.servers.get(client.server)
    percentage = None if server is None else server.active_thread_percentage
    return None if percentage is None else percentage / 100


def _memory_limits(node: Node, daemon: Daemon) -> Mapping[tuple[int, GpuUuid], int]:
    """The limit of each server's clients on each GPU."""
    gpus = by_its_ordinals(node, daemon)
    return {
        (server.pid, gpus[device]): limit
        for server in daemon.servers.values()
        for device, limit in server.pinned_memory_limits.items()
        if device in gpus
    }


def _eldest_first(holding: Holding) -> tuple[float, int]:
    return holding.client.connected_at, holding.client.pid
