"""Clients that their daemon cannot name: it calls each of them 0, and lists that once (measured, R580).

So it is where they are in PID namespaces that it does not see, as when it runs in a pod of its own without `hostPID`.
NVML shows them by their PIDs here, without their server: they are met where only one on that GPU has such clients.
"""

from exporter.core import clients, devices
from exporter.core.servers import with_server
from exporter.core.step import Step, chain, for_each, quiet
from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.observation import GpuReading
from exporter.model.replace import replace
from exporter.model.server import Client, DepartureReason, Server


def told(daemon: Daemon, server: int, nameless: bool) -> Daemon:
    """The daemon, or its server, speaks of clients without a name, or of none."""
    known = daemon.servers.get(server)
    if known is None or known.nameless is nameless:
        return daemon
    return with_server(daemon, replace(known, nameless=nameless))


def server_on(node: Node, reading: GpuReading) -> tuple[Daemon, Server] | None:
    """The one server on this GPU that has such clients; None where there are several, or the GPU was not read."""
    if reading.problem is not None or reading.mig_mode or reading.mps_processes is None:
        return None
    found = [
        (daemon, server)
        for daemon in node.daemons.values()
        for server in daemon.servers.values()
        if server.nameless and devices.served(daemon, reading)
    ]
    return found[0] if len(found) == 1 else None


def shown(node: Node, daemon: Daemon, server: int, reading: GpuReading) -> Step:
    """NVML shows clients on a GPU: those that no daemon names are this server's, and leave when no GPU has them."""
    if server not in daemon.servers:
        return quiet(daemon)
    known = {pid for each in node.daemons.values() for pid in (*each.clients, *each.connections.departed)}
    arrived = [each.pid for each in reading.mps_processes or () if each.pid not in known]
    left = [
        client.pid
        for client in daemon.clients.values()
        if client.server == server and _is_nvmls_word(client) and not _is_shown(node, client.pid)
    ]
    return chain(
        for_each(daemon, arrived, lambda daemon, pid: clients.connect(daemon, reading.at, server, pid)),
        lambda daemon: for_each(
            daemon, left, lambda daemon, pid: clients.disconnect(daemon, reading.at, pid, DepartureReason.EXIT)
        ),
    )


def _is_nvmls_word(client: Client) -> bool:
    """Whether neither the log nor a list has named it."""
    return not client.contexts and client.listed_at is None


def _is_shown(node: Node, pid: int) -> bool:
    return any(pid in gpu.mps_since for gpu in node.gpus.values())
