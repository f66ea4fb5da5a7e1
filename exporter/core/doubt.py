"""Since when something has been in doubt: two sources disagree, or one alone says something grave."""

from collections.abc import Iterable

from exporter.model.daemon import Daemon
from exporter.model.gpu import Gpu
from exporter.model.node import Node
from exporter.model.server import Server
from exporter.parse.control_reply import LIST_CLIENTS


def servers_doubted_since(node: Node, daemon: Daemon) -> Iterable[float | None]:
    """Since when it has been in doubt which servers there are.

    None were listed yet, one is missing, or NVML shows processes that may be a server, or clients of one, that is new.
    """
    if daemon.listed_at is None:
        yield daemon.state_since
    yield from (server.missing_since for server in daemon.servers.values())
    if daemon.log_followed or daemon.listed_at is None:
        return
    for gpu in node.gpus.values():
        yield from (each.first_seen for each in gpu.strangers.values() if each.first_seen > daemon.listed_at)
    yield from (since for since in _unknown_since(node) if since > daemon.listed_at)


def clients_doubted_since(node: Node, daemon: Daemon, server: Server) -> Iterable[float | None]:
    """Since when NVML has shown clients that nobody told of, or not shown one, or a list has awaited confirmation."""
    asked = daemon.asked.get(f"{LIST_CLIENTS} {server.pid}", float("-inf"))
    clients = {client.pid: client for client in daemon.clients.values() if client.server == server.pid}
    yield from (client.missing_since for client in clients.values())
    for gpu in node.gpus.values():
        yield from (left_at for pid, left_at in gpu.mps_left.items() if pid in clients and left_at > asked)
    yield from _unknown_since(node)


def _unknown_since(node: Node) -> Iterable[float]:
    """Since when each PID that no daemon is known to serve has been in NVML's MPS list."""
    known = {pid for daemon in node.daemons.values() for pid in (*daemon.clients, *daemon.departed)}
    for gpu in node.gpus.values():
        yield from (since for pid, since in gpu.mps_since.items() if pid not in known)


def latest(times: Iterable[float | None]) -> float | None:
    """The youngest doubt; None where there is none."""
    return max((time for time in times if time is not None), default=None)


def gpu_doubted_since(node: Node, gpu: Gpu) -> Iterable[float]:
    """Since when a process may bypass MPS, clients have come or gone, or servers are known that were not judged by."""
    read_at = gpu.reading.at
    yield from (stranger.first_seen for stranger in gpu.strangers.values() if not stranger.told)
    for daemon in node.daemons.values():
        if not gpu.judged and daemon.listed_at is not None and daemon.listed_at > read_at:
            yield daemon.listed_at
        yield from (client.connected_at for client in daemon.clients.values() if client.connected_at > read_at)
        yield from (left_at for left_at in daemon.departed.values() if left_at > read_at)
