"""Families about MPS servers."""

from collections import Counter

from exporter.core.client_slots import clients_limit
from exporter.metrics.family import Samples, gauge
from exporter.model.server import ServerState
from exporter.view import View


def _state(view: View) -> Samples:
    for daemon, server in view.servers():
        if server.state is not None:
            yield from (((daemon.name, str(server.pid), state), server.state is state) for state in ServerState)


def _info(view: View) -> Samples:
    for daemon, server in view.servers():
        process = view.node.processes.get(server.pid)
        uid = server.uid if server.uid is not None or process is None else process.uid
        user = process.user if process is not None and process.uid == uid else None
        yield (daemon.name, str(server.pid), "" if uid is None else str(uid), user or ""), 1


def _clients(view: View) -> Samples:
    """Where the daemon cannot name them, and nobody else does, how many they are is not known."""
    for daemon in view.daemons():
        connected = Counter(client.server for client in daemon.clients.values())
        yield from (
            ((daemon.name, str(server.pid)), connected[server.pid])
            for server in daemon.servers.values()
            if connected[server.pid] or not server.nameless
        )


def _limit(view: View) -> Samples:
    for daemon, server in view.servers():
        limit = clients_limit(view.node, daemon, server)
        if limit is not None:
            yield (daemon.name, str(server.pid)), limit


FAMILIES = (
    gauge(
        "cuda_mps_server_state",
        ("daemon", "server", "state"),
        "State of the MPS server; exactly one is 1. In fault it turns all new clients away.",
        _state,
    ),
    gauge(
        "cuda_mps_server_info",
        ("daemon", "server", "uid", "user"),
        "The MPS server; uid and user are those it serves.",
        _info,
    ),
    gauge("cuda_mps_server_clients", ("daemon", "server"), "Clients connected to the server.", _clients),
    gauge(
        "cuda_mps_server_clients_limit",
        ("daemon", "server"),
        "Maximum number of clients of the server: as configured, else as its log states, else as NVIDIA documents for "
        "the GPUs and the MPS version. Absent where none of these is known.",
        _limit,
    ),
)
