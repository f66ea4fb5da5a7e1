"""Details of an incident: affected clients, GPUs, Xids."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, count

from exporter.incidents import clues
from exporter.model.daemon import Daemon
from exporter.model.gpu import IncidentXid
from exporter.model.incident import ClientDetails, Incident
from exporter.model.node import Node
from exporter.model.observation import GpuUuid, ProcessReading
from exporter.model.server import Client, FaultLogBlock, Server
from exporter.model.values import replace
from exporter.state import discovery, failure_domains
from exporter.state import gpus as state_gpus
from exporter.state.clients import MOST_CLIENTS
from exporter.state.processes import belonging_of, pod_of, workload_of
from exporter.state.transition import client_id, used_bytes
from exporter.state.xids import CLAIM_SECONDS


def client_details(before: Node, node: Node, daemon: Daemon, incident: Incident) -> Mapping[int, ClientDetails]:
    """Who they all are, by PID: once that is known of one, it stays so. Who has gone since, `before` may still know."""
    named = (incident.clues.named, *(xid.pid for xid in incident.xids))
    clients = (pid for pid in named if pid is not None and pid in daemon.clients)
    early_disconnects = (each.pid for each in incident.clues.early_disconnects)
    found: dict[int, ClientDetails] = {}
    used: Mapping[GpuUuid, Mapping[int, int]] | None = None
    for pid in (*incident.affected, *early_disconnects, *clients):
        already, process = incident.client_details.get(pid), _process(before, node, pid)
        if already is not None and (already.uid is not None or process is None):
            continue
        used = used or {uuid: used_bytes(gpu.reading) for uuid, gpu in node.gpus.items()}
        client = daemon.clients.get(pid) or Client(pid=pid, server=0, connected_at=node.at)
        found[pid] = replace(
            _tenant(node, client, process),
            memory_bytes={uuid: amounts[pid] for uuid, amounts in used.items() if pid in amounts},
        )
    return {**incident.client_details, **found} if found else incident.client_details


def _process(before: Node, node: Node, pid: int) -> ProcessReading | None:
    death = node.deaths.get(pid)
    return node.processes.get(pid) or before.processes.get(pid) or (None if death is None else death.process)


def _tenant(node: Node, client: Client, process: ProcessReading | None) -> ClientDetails:
    owners, pod = belonging_of(process), pod_of(node, process)
    return ClientDetails(
        pid=client.pid,
        client=client_id(client, process),
        uid=None if process is None else process.uid,
        user=None if process is None else process.user,
        command=None if process is None else process.command,
        workload=workload_of(process),
        unit=owners.unit,
        container=owners.container,
        pod_uid=owners.pod_uid,
        pod=None if pod is None else pod.name,
        namespace=None if pod is None else pod.namespace,
        slurm_job_id=owners.slurm_job_id,
    )


UNTOLD_SECONDS = 0.5
"""After this long without the log's list, whom a fault hit is inferred."""

MOST_XIDS = 64


def opened(node: Node, daemon: Daemon, server: Server) -> Incident:
    """A fault of this server has just been found; its block may have been read before another source confirmed it."""
    process = node.processes.get(server.pid)
    at = node.at if server.fault_block is None else server.fault_block.at
    return Incident(
        id=_new_id(node, server),
        daemon=daemon.name,
        server=server.pid,
        server_start_ticks=None if process is None else process.start_ticks,
        block_timestamp=None if server.fault_block is None else server.fault_block.stamp,
        started_at=at,
        detected_at=at,
    )


def _new_id(node: Node, server: Server) -> str:
    """Two faults of one server may be read in one look, and have one time."""
    first = f"{abs(server.pid)}-{int(node.at * 1000):x}"
    return next(
        each for each in chain((first,), (f"{first}-{place}" for place in count(2))) if each not in node.incidents
    )


def gathered(before: Node, node: Node, incident: Incident) -> Incident:
    """The incident, with all that is known now. What has gone since, `before` may still know."""
    daemon = node.daemons.get(incident.daemon)
    if daemon is None:
        return incident
    block = _block_of(daemon, incident)
    incident = _hit(node, daemon, incident, block)
    incident = replace(incident, gpus=_gpus(node, daemon, incident, block))
    incident = _joined(node, daemon, incident)
    if not incident.gpus and (block is None or node.at - incident.detected_at >= UNTOLD_SECONDS):
        incident = replace(incident, gpus=_sorted(node, {xid.gpu for xid in incident.xids if xid.gpu is not None}))
    incident = replace(incident, clues=clues.gathered_clues(node, daemon, incident, block))
    incident = _of_its_user(node, daemon, incident)
    return replace(incident, client_details=client_details(before, node, daemon, incident))


def _block_of(daemon: Daemon, incident: Incident) -> FaultLogBlock | None:
    """What the log told of this very fault; of its server it may have told of a later one since."""
    server = daemon.servers.get(incident.server)
    block = None if server is None else server.fault_block
    return block if block is not None and block.stamp == incident.block_timestamp else None


def _hit(node: Node, daemon: Daemon, incident: Incident, block: FaultLogBlock | None) -> Incident:
    """Those with the sticky error: as the log told, else whoever shares the GPUs of which an Xid told."""
    told = () if block is None else (*block.sticky_error, *sorted(block.torn_down - set(block.sticky_error)))
    if told:
        known = tuple(pid for pid in incident.affected if pid not in told) if incident.affected_confirmed else ()
        return _limited(replace(incident, affected=(*known, *told)[:MOST_CLIENTS], affected_confirmed=True))
    if incident.affected_confirmed or incident.settled:
        return incident
    if block is not None and node.at - incident.detected_at < UNTOLD_SECONDS:
        return incident
    inferred = (pid for pid in _inferred(node, daemon, incident) if pid not in incident.affected)
    return replace(incident, affected=(*incident.affected, *inferred))


def _limited(incident: Incident) -> Incident:
    """What is told of those whom it hit, without those who were taken for such by mistake."""
    return replace(
        incident,
        blocking={pid: stay for pid, stay in incident.blocking.items() if pid in incident.affected},
        disconnected=tuple(pid for pid in incident.disconnected if pid in incident.affected),
    )


def _inferred(node: Node, daemon: Daemon, incident: Incident) -> Sequence[int]:
    """Those of the failure domains that an Xid struck; without one, of the only domain there is."""
    struck = {xid.gpu for xid in incident.xids if xid.gpu is not None}
    here = failure_domains.failure_domains(node, daemon).get(incident.server, ())
    if not struck and len(here) != 1:
        return ()
    return sorted(pid for each in here for pid in each.clients if not struck or each.gpus & struck)


def _joined(node: Node, daemon: Daemon, incident: Incident) -> Incident:
    """The Xids about it: those of its GPUs and its time that are nobody else's."""
    recent = {(each.number, each.at) for each in node.xids.recent}
    kept = [each for each in incident.xids if (each.number, each.at) not in recent]
    others = [each for each in node.incidents.values() if _is_near(each, incident)]
    joined = [
        each
        for each in node.xids.recent
        if _belongs(node, daemon, incident, each) and not any(_is_nearer(each, other, incident) for other in others)
    ]
    xids = (*kept, *joined)[:MOST_XIDS]
    started_at = min((incident.detected_at, *(each.at for each in xids)))
    return replace(incident, xids=xids, started_at=started_at)


def _belongs(node: Node, daemon: Daemon, incident: Incident, xid: IncidentXid) -> bool:
    if abs(xid.at - incident.detected_at) > CLAIM_SECONDS:
        return False
    if xid.gpu is not None and incident.gpus and xid.gpu not in incident.gpus:
        return False
    if xid.gpu in node.gpus and not state_gpus.served(daemon, node.gpus[xid.gpu or ""].reading):
        return False
    return xid.pid is None or not _is_somebody_elses(node, daemon, xid.pid)


def _is_near(other: Incident, incident: Incident) -> bool:
    """Whether there is another fault that an Xid of this one may belong to."""
    return other.id != incident.id and abs(other.detected_at - incident.detected_at) <= 2 * CLAIM_SECONDS


def _is_nearer(xid: IncidentXid, other: Incident, incident: Incident) -> bool:
    """Whether it is rather another fault's of this GPU: of two in a row, each has its own."""
    if xid.gpu is not None and xid.gpu not in other.gpus:
        return False
    return abs(xid.at - other.detected_at) < abs(xid.at - incident.detected_at)


def _is_somebody_elses(node: Node, daemon: Daemon, pid: int) -> bool:
    """Whether a process is known to have nothing to do with this daemon: it is beside MPS, or another daemon's."""
    if (
        pid in daemon.servers
        or pid in daemon.clients
        or pid in daemon.connections.disconnected_at
        or pid in daemon.connections.disconnects
    ):
        return False
    others = (each for name, each in node.daemons.items() if name != daemon.name)
    return any(pid in gpu.bypassing_processes for gpu in node.gpus.values()) or any(
        pid in each.servers or pid in each.clients or pid in each.connections.disconnected_at for each in others
    )


def _gpus(node: Node, daemon: Daemon, incident: Incident, block: FaultLogBlock | None) -> tuple[GpuUuid, ...]:
    """The GPUs that it hit: as the log has them where its ordinals are known, else those of whom it hit.

    Those of its Xids are the last resort: another fault's may have come at the same time.
    """
    ordinals = state_gpus.by_its_ordinals(node, daemon)
    found = set(incident.gpus)
    if block is not None and block.devices and block.devices <= ordinals.keys():
        found = {ordinals[device] for device in block.devices}
    found.update(*failure_domains.places(node, daemon, incident.affected).values())
    if not found and len(ordinals) == 1:
        found = set(ordinals.values())
    return _sorted(node, found)


def _sorted(node: Node, gpus: Iterable[GpuUuid]) -> tuple[GpuUuid, ...]:
    return tuple(sorted(gpus, key=lambda uuid: (_index(node, uuid), uuid)))


def _index(node: Node, gpu: GpuUuid) -> int:
    known = node.gpus.get(gpu)
    return 0 if known is None or known.reading.index is None else known.reading.index


def _of_its_user(node: Node, daemon: Daemon, incident: Incident) -> Incident:
    """An ordinary user's daemon may name anybody: once it is known whose they are, it has to do with its own alone."""
    others = discovery.of_others(daemon, {*incident.affected, *clues.pids(incident.clues)}, node.processes)
    if not others:
        return incident
    return _limited(
        replace(
            incident,
            clues=clues.without(incident.clues, others),
            affected=tuple(pid for pid in incident.affected if pid not in others),
            client_details={pid: client for pid, client in incident.client_details.items() if pid not in others},
        )
    )
