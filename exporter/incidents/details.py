"""Details of an incident: affected clients, GPUs, Xids."""

from collections.abc import Iterable, Mapping
from itertools import chain, count

from exporter.incidents import clues
from exporter.model.daemon import Daemon
from exporter.model.incident import ClientDetails, Incident, IncidentXid
from exporter.model.node import Node
from exporter.model.observation import GpuUuid, ProcessReading
from exporter.model.server import Client, FaultLogBlock, Server
from exporter.model.values import replace
from exporter.state import known_daemons
from exporter.state.devices import failure_domains, gpus_by_ordinal, gpus_of_clients, is_same_or_parent, uses_gpu
from exporter.state.gpus import used_bytes
from exporter.state.processes import cgroup_of, client_id, pod_of, workload_of
from exporter.state.servers import MOST_CLIENTS
from exporter.state.xids import CLAIM_SECONDS

INFER_AFTER_SECONDS = 0.5
"""If the log lists no affected clients in this time, they are inferred."""

MOST_XIDS = 64


def new_incident(node: Node, daemon: Daemon, server: Server) -> Incident:
    """Return the incident of a fault that was just found. It began with its block, which may have been read earlier."""
    process, block = node.processes.get(server.pid), server.fault_block
    at = node.at if block is None else block.at
    # Two faults of one server can be found at the same time.
    first = f"{abs(server.pid)}-{int(node.at * 1000):x}"
    ids = chain((first,), (f"{first}-{number}" for number in count(2)))
    return Incident(
        id=next(each for each in ids if each not in node.incidents),
        daemon=daemon.name,
        server=server.pid,
        server_start_ticks=None if process is None else process.start_ticks,
        block_timestamp=None if block is None else block.stamp,
        started_at=at,
        detected_at=at,
    )


def add_details(before: Node, node: Node, incident: Incident) -> Incident:
    """Return the incident with all that is known now. `before` may still know processes that have exited."""
    daemon = node.daemons.get(incident.daemon)
    if daemon is None:
        return incident
    server = daemon.servers.get(incident.server)
    block = None if server is None else server.fault_block
    if block is not None and block.stamp != incident.block_timestamp:
        block = None  # Of a later fault of the same server.
    incident = _add_affected(node, daemon, incident, block)
    incident = replace(incident, gpus=_gpus(node, daemon, incident, block))
    incident = _add_xids(node, daemon, incident)
    if not incident.gpus and (block is None or node.at - incident.detected_at >= INFER_AFTER_SECONDS):
        incident = replace(incident, gpus=_sorted(node, _gpus_of_xids(incident)))
    incident = replace(incident, clues=clues.gather_clues(node, daemon, incident, block))
    incident = _remove_other_users(node, daemon, incident)
    return replace(incident, client_details=_client_details(before, node, daemon, incident))


def _add_affected(node: Node, daemon: Daemon, incident: Incident, block: FaultLogBlock | None) -> Incident:
    """Add the clients that got the sticky error: those in the log, else all that share a GPU with an Xid."""
    logged = () if block is None else (*block.sticky_error, *sorted(block.torn_down.difference(block.sticky_error)))
    if logged:
        known = tuple(pid for pid in incident.affected if pid not in logged) if incident.affected_confirmed else ()
        return _limit_to_affected(replace(incident, affected=(*known, *logged)[:MOST_CLIENTS], affected_confirmed=True))
    if incident.affected_confirmed or incident.settled:
        return incident
    if block is not None and node.at - incident.detected_at < INFER_AFTER_SECONDS:
        return incident
    # All clients in the failure domains of the GPUs with an Xid; without an Xid, those of the only domain.
    gpus = _gpus_of_xids(incident)
    found = failure_domains(node, daemon).get(incident.server, ())
    domains = [each for each in found if not each.upper_bound]
    if gpus or len(domains) == 1:
        inferred = {pid for each in domains for pid in each.clients if not gpus or each.gpus & gpus}
        incident = replace(incident, affected=(*incident.affected, *sorted(inferred.difference(incident.affected))))
    return incident


def _limit_to_affected(incident: Incident) -> Incident:
    """Remove what is known of clients that were taken for affected by mistake."""
    return replace(
        incident,
        blocking={pid: delay for pid, delay in incident.blocking.items() if pid in incident.affected},
        disconnected=tuple(pid for pid in incident.disconnected if pid in incident.affected),
    )


def _gpus_of_xids(incident: Incident) -> set[GpuUuid]:
    return {xid.gpu for xid in incident.xids if xid.gpu is not None}


def _add_xids(node: Node, daemon: Daemon, incident: Incident) -> Incident:
    """Add the recent Xids of the incident's GPUs and time that belong to no other process or fault."""
    recent = {(each.number, each.at) for each in node.xids.recent}
    known = [each for each in incident.xids if (each.number, each.at) not in recent]
    others = [
        each
        for each in node.incidents.values()
        if each.id != incident.id and abs(each.detected_at - incident.detected_at) <= 2 * CLAIM_SECONDS
    ]
    found = [
        each
        for each in node.xids.recent
        if _may_belong(node, daemon, incident, each)
        and not any(_is_nearer(node, each, other, incident) for other in others)
    ]
    xids = (*known, *found)[:MOST_XIDS]
    started_at = min((incident.detected_at, *(each.at for each in xids)))
    return replace(incident, xids=xids, started_at=started_at)


def _may_belong(node: Node, daemon: Daemon, incident: Incident, xid: IncidentXid) -> bool:
    if abs(xid.at - incident.detected_at) > CLAIM_SECONDS:
        return False
    if xid.gpu is not None and incident.gpus and not is_same_or_parent(node, xid.gpu, incident.gpus):
        return False
    if xid.gpu in node.gpus and not uses_gpu(node, daemon, xid.gpu or ""):
        return False
    return xid.pid is None or not _is_of_others(node, daemon, xid.pid)


def _is_nearer(node: Node, xid: IncidentXid, other: Incident, incident: Incident) -> bool:
    """Return whether an Xid belongs to another fault of its GPU, because that fault is closer in time."""
    if xid.gpu is not None and not is_same_or_parent(node, xid.gpu, other.gpus):
        return False
    return abs(xid.at - other.detected_at) < abs(xid.at - incident.detected_at)


def _is_of_others(node: Node, daemon: Daemon, pid: int) -> bool:
    """Return whether a process bypasses MPS or belongs to another daemon, as far as that is known."""
    connections = daemon.connections
    if any(
        pid in each for each in (daemon.servers, daemon.clients, connections.disconnected_at, connections.disconnects)
    ):
        return False
    others = (each for name, each in node.daemons.items() if name != daemon.name)
    return any(pid in gpu.bypassing_processes for gpu in node.gpus.values()) or any(
        pid in each.servers or pid in each.clients or pid in each.connections.disconnected_at for each in others
    )


def _gpus(node: Node, daemon: Daemon, incident: Incident, block: FaultLogBlock | None) -> tuple[GpuUuid, ...]:
    """Return the affected GPUs: those in the log if its ordinals are known, and those of the affected clients.

    The GPUs of the Xids are the last resort, because an Xid may be of another fault at the same time.
    """
    ordinals = gpus_by_ordinal(node, daemon)
    found = set(incident.gpus)
    if block is not None and block.devices and block.devices <= ordinals.keys():
        found = {ordinals[device] for device in block.devices}
    found.update(*gpus_of_clients(node, daemon, incident.affected).values())
    if not found and len(ordinals) == 1:
        found = set(ordinals.values())
    return _sorted(node, found)


def _sorted(node: Node, gpus: Iterable[GpuUuid]) -> tuple[GpuUuid, ...]:
    """Return GPUs by index, then by UUID."""
    indices = {uuid: gpu.reading.index or 0 for uuid, gpu in node.gpus.items()}
    return tuple(sorted(gpus, key=lambda uuid: (indices.get(uuid, 0), uuid)))


def _remove_other_users(node: Node, daemon: Daemon, incident: Incident) -> Incident:
    """Remove processes of other users. An ordinary user's daemon may name any PID, but serves only its own user."""
    named = {*incident.affected, *clues.suspected_pids(incident.clues)}
    others = known_daemons.of_other_users(daemon, named, node.processes)
    if not others:
        return incident
    return _limit_to_affected(
        replace(
            incident,
            clues=clues.without(incident.clues, others),
            affected=tuple(pid for pid in incident.affected if pid not in others),
            client_details={pid: each for pid, each in incident.client_details.items() if pid not in others},
        )
    )


def _client_details(before: Node, node: Node, daemon: Daemon, incident: Incident) -> Mapping[int, ClientDetails]:
    """Return the details of all affected and suspected clients. Once its user is known, an entry does not change."""
    named = (incident.clues.named, *(xid.pid for xid in incident.xids))
    clients = (pid for pid in named if pid is not None and pid in daemon.clients)
    early = (each.pid for each in incident.clues.early_disconnects)
    found: dict[int, ClientDetails] = {}
    used: Mapping[GpuUuid, Mapping[int, int]] | None = None
    for pid in (*incident.affected, *early, *clients):
        known, death = incident.client_details.get(pid), node.deaths.get(pid)
        process = node.processes.get(pid) or before.processes.get(pid) or (None if death is None else death.process)
        if known is not None and (known.uid is not None or process is None):
            continue
        used = used or {uuid: used_bytes(gpu.reading) for uuid, gpu in node.gpus.items()}
        memory = {uuid: amounts[pid] for uuid, amounts in used.items() if pid in amounts}
        client = daemon.clients.get(pid) or Client(pid=pid, server=0, connected_at=node.at)
        found[pid] = _details(node, client, process, memory)
    return {**incident.client_details, **found} if found else incident.client_details


def _details(
    node: Node, client: Client, process: ProcessReading | None, memory_bytes: Mapping[GpuUuid, int]
) -> ClientDetails:
    cgroup, pod = cgroup_of(process), pod_of(node, process)
    return ClientDetails(
        pid=client.pid,
        client=client_id(client, process),
        uid=None if process is None else process.uid,
        user=None if process is None else process.user,
        command=None if process is None else process.command,
        workload=workload_of(process),
        unit=cgroup.unit,
        container=cgroup.container,
        pod_uid=cgroup.pod_uid,
        pod=None if pod is None else pod.name,
        namespace=None if pod is None else pod.namespace,
        slurm_job_id=cgroup.slurm_job_id,
        memory_bytes=memory_bytes,
    )
