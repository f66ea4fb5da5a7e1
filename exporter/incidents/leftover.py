"""Kernels that clients left behind: each fails once more, and so harms the next client of its GPU.

If a client ends while its kernel runs, and no other client uses its GPU, the kernel log has an Xid 31, and no client
gets an error. The next client of the GPU gets a fatal error as soon as it connects, at the same address (H200, R580: 5
of 5, 2 to 6 s later). Ranks of an NCCL job end so when they do not return from an all-reduce.
"""

from exporter.incidents.evidence import client_details, is_of
from exporter.incidents.fault_address import is_elsewhere
from exporter.incidents.log_reliability import existed
from exporter.model.daemon import Daemon
from exporter.model.incident import EarlyDisconnect, Incident, IncidentXid, Leftover
from exporter.model.node import Node
from exporter.model.observation import GpuUuid
from exporter.model.values import made_of, replace, without
from exporter.state import devices, known_daemons
from exporter.state.servers import last_known
from exporter.state.xids import is_claimed

READ_SECONDS = 1.0
"""By this time after an Xid, the lines of the log are read that show which clients ended, and a fault has its Xids."""

EXIT_SECONDS = (-0.1, 0.2)
"""How long before the Xid the end of the client is read. It ends 95 to 154 ms before, and its line is read later."""

AGAIN_SECONDS = 0.3
"""Accesses that fail at one address in this time are of one fault."""


def remember(before: Node, node: Node) -> Node:
    """Return the node with the leftover kernel of each GPU whose instructions could not be fetched without a fault.

    After a fault there is none: it fails only once more. Clients that were forked may use its address again.
    """
    found = dict(node.xids.leftovers)
    newest = {each.gpu: each for each in node.xids.recent if each.access is not None and each.access.is_fetch}
    for gpu, xid in newest.items():
        if xid.access is None or gpu is None or node.at - xid.at < READ_SECONDS:
            continue
        known = found.get(gpu)
        if is_claimed(node, xid):
            found.pop(gpu, None)
        elif (known is None or known.at < xid.at) and _is_of_mps(node, xid):
            found[gpu] = _leftover(before, node, xid, gpu, xid.access.address)
    return node if found == node.xids.leftovers else replace(node, xids=replace(node.xids, leftovers=found))


def _is_of_mps(node: Node, xid: IncidentXid) -> bool:
    """Return whether it may be of a client. Any process without MPS can cause one when a client ends."""
    return xid.pid is None or any(is_of(daemon, xid.pid) for daemon in node.daemons.values())


def _leftover(before: Node, node: Node, xid: IncidentXid, gpu: GpuUuid, address: int) -> Leftover:
    exits: dict[int, EarlyDisconnect] = {}
    found = Leftover(at=xid.at, address=address)
    for daemon in node.daemons.values():
        if devices.uses_gpu(node, daemon, gpu) is False:
            continue
        own: dict[int, EarlyDisconnect] = {}
        for each in daemon.connections.disconnects.values():
            seconds, doubtful = xid.at - each.at, each.logged_twice or each.terminated
            is_then = EXIT_SECONDS[0] <= seconds <= EXIT_SECONDS[1]
            if is_then and not doubtful and existed(node, daemon, each.pid) and not is_elsewhere(node, gpu, each.pid):
                death, seconds = node.deaths.get(each.pid), max(0.0, seconds)
                own[each.pid] = made_of(EarlyDisconnect, each, death, seconds_before=seconds)
        for pid in known_daemons.of_other_users(daemon, own.keys(), node.processes):
            del own[pid]
        exits.update(own)
        found = replace(found, details=client_details(before, node, daemon, own, found.details))
    return replace(found, exits=tuple(exits.values()))


def with_leftover(before: Node, node: Node, incident: Incident) -> Incident:
    """Return the incident with the leftover kernel that caused it, if its access had failed before."""
    daemon = node.daemons.get(incident.daemon)
    if daemon is None or incident.settled:
        return incident
    found = incident.clues.leftover or _earlier(before, node, incident)
    if found is None:
        return incident
    # An affected client may have the PID of one that ended.
    exits = tuple(each for each in found.exits if each.pid not in incident.affected)
    found = replace(found, exits=exits, newcomers=_newcomers(daemon, incident, found.at))
    details = {each.pid: found.details[each.pid] for each in exits if each.pid in found.details}
    clues = replace(incident.clues, leftover=found)
    return replace(incident, clues=clues, client_details={**incident.client_details, **details})


def _earlier(before: Node, node: Node, incident: Incident) -> Leftover | None:
    """Return the kernel of which an access failed earlier on the same GPU, at the same address."""
    others = replace(node, incidents=without(node.incidents, incident.id))
    for xid in incident.xids:
        if xid.access is None or not xid.access.is_fetch or xid.gpu is None:
            continue
        address, latest = xid.access.address, min(xid.at, incident.detected_at) - AGAIN_SECONDS
        known = node.xids.leftovers.get(xid.gpu)
        if known is not None and known.address == address and known.at <= latest:
            return known
        for other in node.xids.recent:
            is_same = (other.gpu, other.access) == (xid.gpu, xid.access)
            if is_same and other.at <= latest and _is_of_mps(node, other) and not is_claimed(others, other):
                return _leftover(before, node, other, xid.gpu, address)
    return None


def _newcomers(daemon: Daemon, incident: Incident, at: float) -> tuple[int, ...]:
    clients = ((pid, last_known(daemon, pid)) for pid in incident.affected)
    return tuple(pid for pid, client in clients if client is not None and client.connected_at > at)
