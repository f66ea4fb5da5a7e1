"""Whether a log is reliable about a fault: any user can add lines to it and remove lines from it (measured, R580)."""

import math

from exporter.model.daemon import ClaimKind, Daemon
from exporter.model.incident import Incident, IncidentXid
from exporter.model.node import Node
from exporter.state import devices
from exporter.state.processes import shown_at
from exporter.state.servers import last_known

LOG_UNRELIABLE_SECONDS = 600.0
"""For this time after another source contradicted the log, its lines are not enough to suspect a client."""


def existed(node: Node, daemon: Daemon, pid: int) -> bool:
    """Return whether a source other than the log, which any user can write, showed the client or its end."""
    return pid in node.deaths or _was_listed(node, daemon, pid)


def _was_listed(node: Node, daemon: Daemon, pid: int, before: float = math.inf) -> bool:
    """Return whether NVML or the daemon has listed the client `before` a time, or it has left NVML's list."""
    client, gpus = last_known(daemon, pid), node.gpus.values()
    times = (None if client is None else client.listed_at, *(gpu.mps_since.get(pid) for gpu in gpus))
    return any(at is not None and at < before for at in times) or any(pid in gpu.mps_left for gpu in gpus)


def is_log_unreliable(node: Node, daemon: Daemon, incident: Incident) -> bool:
    """Return whether other sources contradict the log, lines about clients are missing, or the fault may be forged.

    What an earlier run of the exporter knew of the fault is lost, but not what it concluded.
    """
    restored = node.began_at is not None and incident.detected_at < node.began_at
    if incident.clues.log_unreliable if restored else _may_be_forged(node, daemon, incident):
        return True
    # A second block that no evidence confirms: one of the two may be forged.
    if _has_unaffected_clients(node, daemon, incident) or daemon.claimed(ClaimKind.FAULT, incident.server):
        return True
    last, leftover = daemon.log.doubted_at, incident.clues.leftover
    first_at = incident.detected_at if leftover is None else leftover.at
    if last is not None and first_at - last <= LOG_UNRELIABLE_SECONDS:
        return True
    disconnects = daemon.connections.disconnects
    if any(client.logged_twice and client.server == incident.server for client in disconnects.values()):
        return True
    gone = [pid for pid in incident.affected if pid not in daemon.clients]
    return 0 < sum(pid in disconnects for pid in gone) < len(gone)


def _may_be_forged(node: Node, daemon: Daemon, incident: Incident) -> bool:
    """Return whether there is no Xid, or all may be of a process without MPS that only the log shows as a client.

    A user can cause such an Xid. Then a client that the log names as affected may run, or have exited by itself. In a
    real fault, the daemon reports FAULT while an affected client runs (measured, R580).
    """
    server = daemon.servers.get(incident.server)
    reported_at = None if server is None else server.fault_reported_at
    if reported_at is not None and reported_at >= incident.started_at:
        return False
    if any(_names_client(node, daemon, incident, xid) for xid in incident.xids):
        return False
    runs = any(pid in daemon.clients and pid not in node.deaths for pid in incident.affected)
    others = (*incident.affected, *(each.pid for each in incident.clues.early_disconnects))
    named = any(xid.pid is not None for xid in incident.xids)
    return runs or (named and any(_was_listed(node, daemon, pid, incident.detected_at) for pid in others))


def _names_client(node: Node, daemon: Daemon, incident: Incident, xid: IncidentXid) -> bool:
    """Return whether an Xid names the server, or a client that NVML or the daemon has listed since it connected."""
    if xid.pid is None or xid.pid == incident.server:
        return xid.pid is not None
    client = last_known(daemon, xid.pid)
    if client is None or daemon.connections.disconnected_at.get(xid.pid, xid.at) < xid.at:
        return False
    times = (client.listed_at, shown_at(node, xid.pid), *(gpu.mps_left.get(xid.pid) for gpu in node.gpus.values()))
    return any(at is not None and at >= client.connected_at for at in times)


def _has_unaffected_clients(node: Node, daemon: Daemon, incident: Incident) -> bool:
    """Return whether a client of the server still runs on the fault's GPUs although the log does not name it.

    A fault affects all clients on its GPU (measured, R580), without core dumps. NVML shows which clients those are.
    """
    lists = (node.gpus[uuid].mps_since for uuid in incident.gpus if uuid in node.gpus)
    before = {pid for listed in lists for pid, since in listed.items() if since < incident.detected_at}
    elsewhere = set().union(*(devices.listed_without_context(node, uuid) for uuid in incident.gpus))
    others = (daemon.clients.get(pid) for pid in before.difference(incident.affected, elsewhere))
    return not incident.core_dumps and any(each is not None and each.server == incident.server for each in others)
