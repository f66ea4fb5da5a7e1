"""Staleness: since when a value may be out of date, because two sources disagree or only one reports it."""

from collections.abc import Iterable

from exporter.model.daemon import ClaimKind, Daemon
from exporter.model.gpu import Gpu
from exporter.model.node import Node
from exporter.model.server import Server
from exporter.parse.control_reply import LIST_CLIENTS
from exporter.state import gpus

STRUCK_SECONDS = 0.5
"""How long the log has to tell of a fault after its Xid. It does so within 0.1 s (measured, R580), unless it is blocked
or a tenant takes the lines away: then the daemon is asked."""

NVML_SECONDS = 3.0
"""How long after a client's connection NVML has to show it, before the daemon is asked."""


def servers_doubted_since(node: Node, daemon: Daemon) -> Iterable[float | None]:
    """Since when it has been in doubt which servers there are.

    None were listed yet, one is missing, or NVML shows processes that may be a server, or clients of one, that is new.
    """
    if daemon.connections.listed_at is None:
        yield daemon.lifecycle.state_since
    yield from (server.missing_since for server in daemon.servers.values())
    yield from claimed_since(daemon, ClaimKind.SERVER_START, ClaimKind.SERVER_EXIT, ClaimKind.DAEMON_EXIT)
    if daemon.log_followed or daemon.connections.listed_at is None:
        return
    for gpu in node.gpus.values():
        yield from (
            each.first_seen
            for each in gpu.bypassing_processes.values()
            if each.first_seen > daemon.connections.listed_at
        )
    yield from (since for since in _unknown_since(node) if since > daemon.connections.listed_at)


def clients_doubted_since(node: Node, daemon: Daemon, server: Server) -> Iterable[float | None]:
    """Since when NVML has shown clients that nobody told of, or not shown one, or a list has awaited confirmation.

    Or since when the daemon has said FAULT: clients that it still lists confirm that.
    """
    asked = daemon.commands.asked_at.get(f"{LIST_CLIENTS} {server.pid}", float("-inf"))
    clients = {client.pid: client for client in daemon.clients.values() if client.server == server.pid}
    if server.fault_suspected_at is not None and server.fault_suspected_at > asked:
        yield server.fault_suspected_at
    yield from (client.missing_since for client in clients.values())
    yield from (since for since in claimed_since(daemon, ClaimKind.CLIENT_DISCONNECT) if since > asked)
    yield from _unconfirmed_since(node, daemon)
    for gpu in node.gpus.values():
        yield from (left_at for pid, left_at in gpu.mps_left.items() if pid in clients and left_at > asked)
    yield from _unknown_since(node)


def struck_since(node: Node, daemon: Daemon) -> Iterable[float]:
    """Return when an Xid struck a GPU of the daemon, long enough ago for the log to have told of a fault."""
    for xid in node.xids.recent:
        gpu = None if xid.gpu is None else node.gpus.get(xid.gpu)
        is_served = gpu is None or gpus.served(daemon, gpu.reading)
        if is_served and node.at - xid.at >= STRUCK_SECONDS:
            yield xid.at


def claimed_since(daemon: Daemon, *kinds: ClaimKind) -> Iterable[float]:
    """Return since when the log has claimed what no other source has confirmed yet."""
    return (each.at for each in daemon.log.claims.values() if each.kind in kinds)


def _unconfirmed_since(node: Node, daemon: Daemon) -> Iterable[float]:
    """Since when the log alone has shown a client. NVML, which is read first, confirms most of them."""
    for since in claimed_since(daemon, ClaimKind.CLIENT_CONNECT):
        if node.at - since >= NVML_SECONDS:
            yield since


def _unknown_since(node: Node) -> Iterable[float]:
    """Since when each PID that no daemon is known to serve has been in NVML's MPS list."""
    known = {pid for daemon in node.daemons.values() for pid in (*daemon.clients, *daemon.connections.disconnected_at)}
    for gpu in node.gpus.values():
        yield from (since for pid, since in gpu.mps_since.items() if pid not in known)


def latest(times: Iterable[float | None]) -> float | None:
    """The youngest doubt; None where there is none."""
    return max((time for time in times if time is not None), default=None)


def gpu_doubted_since(node: Node, gpu: Gpu) -> Iterable[float]:
    """Since when a process may bypass MPS, clients have come or gone, or servers are known that were not judged by."""
    read_at = gpu.reading.at
    yield from (stranger.first_seen for stranger in gpu.bypassing_processes.values() if not stranger.confirmed)
    for daemon in node.daemons.values():
        if (
            not gpu.bypassing_known
            and daemon.connections.listed_at is not None
            and daemon.connections.listed_at > read_at
        ):
            yield daemon.connections.listed_at
        yield from (client.connected_at for client in daemon.clients.values() if client.connected_at > read_at)
        yield from (left_at for left_at in daemon.connections.disconnected_at.values() if left_at > read_at)
        yield from (since for since in claimed_since(daemon, ClaimKind.CLIENT_DISCONNECT) if since > read_at)
