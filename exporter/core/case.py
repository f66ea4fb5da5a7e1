"""What is known of a fault: whom it hit, on which GPUs, with which Xids, and what its culprit can be told by."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from exporter.core import devices, domains
from exporter.core.identity import client_id, used_bytes
from exporter.core.workloads import belonging_of, pod_of, workload_of
from exporter.model.clues import Clues, Vanished
from exporter.model.daemon import Daemon
from exporter.model.incident import Incident, Tenant
from exporter.model.node import Node
from exporter.model.observation import GpuUuid
from exporter.model.server import Client, FaultBlock, Leaving, Server
from exporter.model.xids import XidSighting
from exporter.parse.log_line import seconds_between

JOINED_SECONDS = 2.0
"""An Xid that is no further from a fault, on its GPU, belongs to it."""

UNTOLD_SECONDS = 0.5
"""After this long without the log's list, whom a fault hit is inferred."""

VANISHED_SECONDS = 0.5
"""Whoever left earlier than this before a fault has nothing to do with it."""

MOST_XIDS = 64


def opened(node: Node, daemon: Daemon, server: Server) -> Incident:
    """A fault of this server has just been found."""
    process = node.processes.get(server.pid)
    return Incident(
        id=_new_id(node, server.pid),
        daemon=daemon.name,
        server=server.pid,
        server_start_ticks=None if process is None else process.start_ticks,
        block_stamp=None if server.block is None else server.block.stamp,
        started_at=node.at,
        detected_at=node.at,
    )


def _new_id(node: Node, server: int) -> str:
    """Two faults may be read at once: of a client that was killed on two GPUs, the log tells twice."""
    milliseconds = int(node.at * 1000)
    while (name := f"{server}-{milliseconds:x}") in node.incidents:
        milliseconds += 1
    return name


def gathered(before: Node, node: Node, incident: Incident) -> Incident:
    """The incident, with all that is known now. What has gone since, `before` may still know."""
    daemon = node.daemons.get(incident.daemon)
    if daemon is None:
        return incident
    server = daemon.servers.get(incident.server)
    block = (
        None if server is None or server.block is None or server.block.stamp != incident.block_stamp else server.block
    )
    incident = _hit(node, daemon, incident, block)
    told = _told_gpus(node, daemon, incident, block)
    incident = replace(incident, gpus=_in_order(node, told)) if told else incident
    incident = _joined(node, daemon, incident)
    incident = incident if told else replace(incident, gpus=_in_order(node, _inferred_gpus(node, daemon, incident)))
    incident = replace(incident, clues=_clues(node, daemon, incident, block))
    return replace(incident, tenants=_tenants(before, node, daemon, incident))


def _hit(node: Node, daemon: Daemon, incident: Incident, block: FaultBlock | None) -> Incident:
    """Those with the sticky error: as the log told, else whoever shares the GPUs of which an Xid told."""
    told = () if block is None else (*block.victims, *sorted(block.torn - set(block.victims)))
    if told:
        known = tuple(pid for pid in incident.affected if pid not in told) if incident.affected_told else ()
        return replace(incident, affected=(*known, *told), affected_told=True)
    if incident.affected_told or incident.settled:
        return incident
    if block is not None and node.at - incident.detected_at < UNTOLD_SECONDS:
        return incident
    inferred = (pid for pid in _inferred(node, daemon, incident) if pid not in incident.affected)
    return replace(incident, affected=(*incident.affected, *inferred))


def _inferred(node: Node, daemon: Daemon, incident: Incident) -> Iterable[int]:
    struck = {xid.gpu for xid in incident.xids if xid.gpu is not None}
    here = domains.domains(node, daemon).get(incident.server, ())
    hit = [each for each in here if each.gpus & struck] if struck else list(here)
    return sorted(hit[0].clients) if len(hit) == 1 else sorted(pid for each in hit for pid in each.clients if struck)


def _joined(node: Node, daemon: Daemon, incident: Incident) -> Incident:
    """The Xids about it: those of its GPUs and its time that are nobody else's.

    One of another GPU, which joined before the log told of its GPUs, leaves it again.
    """
    recent = {(each.number, each.at) for each in node.xids.recent}
    kept = [each for each in incident.xids if (each.number, each.at) not in recent and _is_there(incident, each)]
    joined = [each for each in node.xids.recent if _belongs(node, daemon, incident, each)]
    xids = (*kept, *joined)[:MOST_XIDS]
    started_at = min((incident.started_at, *(each.at for each in xids)))
    return replace(incident, xids=xids, started_at=started_at)


def _belongs(node: Node, daemon: Daemon, incident: Incident, xid: XidSighting) -> bool:
    if abs(xid.at - incident.detected_at) > JOINED_SECONDS:
        return False
    if not _is_there(incident, xid):
        return False
    if xid.gpu in node.gpus and not devices.served(daemon, node.gpus[xid.gpu or ""].reading):
        return False
    return xid.pid is None or not _is_somebody_elses(node, daemon, xid.pid)


def _is_there(incident: Incident, xid: XidSighting) -> bool:
    return xid.gpu is None or not incident.gpus or xid.gpu in incident.gpus


def _is_somebody_elses(node: Node, daemon: Daemon, pid: int) -> bool:
    """Whether a process is known to have nothing to do with this daemon: it is beside MPS, or another daemon's."""
    if pid in daemon.servers or pid in daemon.clients or pid in daemon.departed or pid in daemon.leavings:
        return False
    others = (each for name, each in node.daemons.items() if name != daemon.name)
    return any(pid in gpu.strangers for gpu in node.gpus.values()) or any(
        pid in each.servers or pid in each.clients or pid in each.departed for each in others
    )


def _told_gpus(node: Node, daemon: Daemon, incident: Incident, block: FaultBlock | None) -> set[GpuUuid]:
    """The GPUs that it hit, as the log has them, where its ordinals are known; none where they are not."""
    ordinals = devices.by_its_ordinals(node, daemon)
    if block is None or not block.devices or not block.devices <= ordinals.keys():
        return set()
    told = {ordinals[device] for device in block.devices}
    return told.union(*domains.places(node, daemon, incident.affected).values())


def _inferred_gpus(node: Node, daemon: Daemon, incident: Incident) -> set[GpuUuid]:
    """Those of whom it hit, and of its Xids."""
    found = set(incident.gpus).union(*domains.places(node, daemon, incident.affected).values())
    found |= {xid.gpu for xid in incident.xids if xid.gpu is not None}
    ordinals = devices.by_its_ordinals(node, daemon)
    return set(ordinals.values()) if not found and len(ordinals) == 1 else found


def _in_order(node: Node, gpus: Iterable[GpuUuid]) -> tuple[GpuUuid, ...]:
    return tuple(sorted(gpus, key=lambda uuid: (_index(node, uuid), uuid)))


def _index(node: Node, gpu: GpuUuid) -> int:
    known = node.gpus.get(gpu)
    return 0 if known is None or known.reading.index is None else known.reading.index


def _clues(node: Node, daemon: Daemon, incident: Incident, block: FaultBlock | None) -> Clues:
    """Who left just before is looked for while that can be; who leaves in reset, until the end."""
    clues = incident.clues
    left = [each for each in daemon.leavings.values() if each.server == incident.server]
    in_reset = [each.pid for each in left if each.in_reset and each.at >= incident.detected_at]
    clues = replace(
        clues,
        named=clues.named if block is None or block.named is None else block.named,
        in_reset=tuple(dict.fromkeys((*clues.in_reset, *in_reset))),
    )
    if incident.settled:
        return clues
    vanished = {each.pid: each for each in clues.vanished}
    for leaving in left:
        before = _lead(leaving, incident)
        if leaving.pid not in incident.affected and 0 <= before <= VANISHED_SECONDS:
            vanished[leaving.pid] = _vanished(node, leaving, before)
    return replace(clues, vanished=tuple(vanished.values()))


def _lead(leaving: Leaving, incident: Incident) -> float:
    """How many seconds before the fault a client left: by the log's own time, else by ours."""
    if incident.block_stamp is None or not leaving.stamp:
        return incident.detected_at - leaving.at
    return seconds_between(leaving.stamp, incident.block_stamp)


def _vanished(node: Node, leaving: Leaving, before: float) -> Vanished:
    death = node.deaths.get(leaving.pid)
    return Vanished(
        pid=leaving.pid,
        seconds_before=before,
        terminated=leaving.terminated,
        wait_status=None if death is None else death.wait_status,
        out_of_memory=death is not None and death.out_of_memory,
    )


def _tenants(before: Node, node: Node, daemon: Daemon, incident: Incident) -> Mapping[int, Tenant]:
    """Who they all are. Once that is known of one, it stays so."""
    tenants = dict(incident.tenants)
    named = (incident.clues.named, *(xid.pid for xid in incident.xids))
    clients = (pid for pid in named if pid is not None and pid in daemon.clients)
    for pid in (*incident.affected, *(each.pid for each in incident.clues.vanished), *clients):
        known = tenants.get(pid)
        if known is None or known.uid is None:
            tenants[pid] = _tenant(before, node, daemon, pid)
    return tenants


def _tenant(before: Node, node: Node, daemon: Daemon, pid: int) -> Tenant:
    death = node.deaths.get(pid)
    process = node.processes.get(pid) or before.processes.get(pid) or (None if death is None else death.process)
    client = daemon.clients.get(pid) or Client(pid=pid, server=0, connected_at=node.at)
    owners, pod = belonging_of(process), pod_of(node, process)
    used = {uuid: used_bytes(gpu.reading).get(pid) for uuid, gpu in node.gpus.items()}
    return Tenant(
        pid=pid,
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
        memory_bytes={uuid: amount for uuid, amount in used.items() if amount is not None},
    )
