"""Staleness: since when a value may be out of date, because two sources disagree or only one reports it."""

from collections.abc import Iterable

from exporter.model.daemon import ClaimKind, Daemon
from exporter.model.gpu import Gpu
from exporter.model.node import Node
from exporter.model.server import Server
from exporter.parse.control_reply import list_clients
from exporter.state import gpus

XID_SECONDS = 0.5
"""After an Xid, the log may take this long to report a fault. It takes 0.1 s at most (measured, R580), unless it is
blocked or a user removes lines. Then the daemon is queried."""

NVML_SECONDS = 3.0
"""After a client connects, NVML may take this long to show it. Then the daemon is queried."""


def servers_stale_since(node: Node, daemon: Daemon) -> Iterable[float | None]:
    """Yield since when the list of servers may be out of date.

    No list was read yet, a server is missing, the log has a claim, or NVML shows processes that no list contains.
    """
    listed_at = daemon.connections.listed_at
    if listed_at is None:
        yield daemon.lifecycle.state_since
    yield from (server.missing_since for server in daemon.servers.values())
    yield from claimed_since(daemon, ClaimKind.SERVER_START, ClaimKind.SERVER_EXIT, ClaimKind.DAEMON_EXIT)
    if daemon.log_followed or listed_at is None:
        return
    bypassing = (each.first_seen for gpu in node.gpus.values() for each in gpu.bypassing_processes.values())
    yield from (since for since in (*bypassing, *_unknown_since(node)) if since > listed_at)


def clients_stale_since(node: Node, daemon: Daemon, server: Server) -> Iterable[float | None]:
    """Yield since when the list of a server's clients may be out of date.

    NVML shows other clients than the list, a list or a claim awaits confirmation, or clients may confirm a FAULT.
    """
    queried = daemon.commands.asked_at.get(list_clients(daemon.runtime.protocol, server.pid), float("-inf"))
    clients = {client.pid: client for client in daemon.clients.values() if client.server == server.pid}
    if server.fault_suspected_at is not None and server.fault_suspected_at > queried:
        yield server.fault_suspected_at
    yield from (client.missing_since for client in clients.values())
    yield from (since for since in claimed_since(daemon, ClaimKind.CLIENT_DISCONNECT) if since > queried)
    yield from (since for since in claimed_since(daemon, ClaimKind.CLIENT_CONNECT) if node.at - since >= NVML_SECONDS)
    for gpu in node.gpus.values():
        yield from (left_at for pid, left_at in gpu.mps_left.items() if pid in clients and left_at > queried)
    yield from _unknown_since(node)


def gpu_stale_since(node: Node, gpu: Gpu) -> Iterable[float]:
    """Yield since when the reading of a GPU may be out of date.

    A process may bypass MPS, clients connected or disconnected, or servers are known that the reading could not use.
    """
    read_at = gpu.reading.at
    yield from (each.first_seen for each in gpu.bypassing_processes.values() if not each.confirmed)
    for daemon in node.daemons.values():
        connections = daemon.connections
        changes = [
            *(client.connected_at for client in daemon.clients.values()),
            *connections.disconnected_at.values(),
            *claimed_since(daemon, ClaimKind.CLIENT_DISCONNECT),
        ]
        if not gpu.bypassing_known and connections.listed_at is not None:
            changes.append(connections.listed_at)
        yield from (at for at in changes if at > read_at)


def xids_since(node: Node, daemon: Daemon) -> Iterable[float]:
    """Yield the times of Xids on the daemon's GPUs after which the log should have reported a fault by now."""
    for xid in node.xids.recent:
        known = node.gpus.get(xid.gpu or "")
        is_served = known is None or gpus.uses_gpu(node, daemon, known.reading.gpu)
        if is_served and node.at - xid.at >= XID_SECONDS:
            yield xid.at


def claimed_since(daemon: Daemon, *kinds: ClaimKind) -> Iterable[float]:
    """Yield the times of claims of these kinds that are not confirmed yet."""
    return (each.at for each in daemon.log.claims.values() if each.kind in kinds)


def _unknown_since(node: Node) -> Iterable[float]:
    """Yield since when NVML shows MPS clients that no daemon reports."""
    known = {pid for daemon in node.daemons.values() for pid in (*daemon.clients, *daemon.connections.disconnected_at)}
    for gpu in node.gpus.values():
        yield from (since for pid, since in gpu.mps_since.items() if pid not in known)


def latest(times: Iterable[float | None]) -> float | None:
    """Return the latest of the times; None if there is none."""
    return max((time for time in times if time is not None), default=None)
