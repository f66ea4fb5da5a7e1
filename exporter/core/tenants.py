"""Who they are that a fault has to do with: whom it hit, who left just before, and whom log and Xids name."""

from collections.abc import Mapping

from exporter.core.identity import client_id, used_bytes
from exporter.core.workloads import belonging_of, pod_of, workload_of
from exporter.model.daemon import Daemon
from exporter.model.incident import Incident, Tenant
from exporter.model.node import Node
from exporter.model.server import Client


def known(before: Node, node: Node, daemon: Daemon, incident: Incident) -> Mapping[int, Tenant]:
    """Who they all are, by PID: once that is known of one, it stays so. Who has gone since, `before` may still know."""
    tenants = dict(incident.tenants)
    named = (incident.clues.named, *(xid.pid for xid in incident.xids))
    clients = (pid for pid in named if pid is not None and pid in daemon.clients)
    for pid in (*incident.affected, *(each.pid for each in incident.clues.vanished), *clients):
        already = tenants.get(pid)
        if already is None or already.uid is None:
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
