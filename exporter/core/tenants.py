"""Who they are that a fault has to do with: whom it hit, who left just before, and whom log and Xids name."""

from collections.abc import Mapping

from exporter.core.identity import client_id, used_bytes
from exporter.core.workloads import belonging_of, pod_of, workload_of
from exporter.model.daemon import Daemon
from exporter.model.incident import Incident, Tenant
from exporter.model.node import Node
from exporter.model.observation import GpuUuid, ProcessReading
from exporter.model.replace import replace
from exporter.model.server import Client


def known(before: Node, node: Node, daemon: Daemon, incident: Incident) -> Mapping[int, Tenant]:
    """Who they all are, by PID: once that is known of one, it stays so. Who has gone since, `before` may still know."""
    named = (incident.clues.named, *(xid.pid for xid in incident.xids))
    clients = (pid for pid in named if pid is not None and pid in daemon.clients)
    vanished = (each.pid for each in incident.clues.vanished)
    found: dict[int, Tenant] = {}
    used: Mapping[GpuUuid, Mapping[int, int]] | None = None
    for pid in (*incident.affected, *vanished, *clients):
        already, process = incident.tenants.get(pid), _process(before, node, pid)
        if already is not None and (already.uid is not None or process is None):
            continue
        used = used or {uuid: used_bytes(gpu.reading) for uuid, gpu in node.gpus.items()}
        client = daemon.clients.get(pid) or Client(pid=pid, server=0, connected_at=node.at)
        found[pid] = replace(
            _tenant(node, client, process),
            memory_bytes={uuid: amounts[pid] for uuid, amounts in used.items() if pid in amounts},
        )
    return {**incident.tenants, **found} if found else incident.tenants


def _process(before: Node, node: Node, pid: int) -> ProcessReading | None:
    death = node.deaths.get(pid)
    return node.processes.get(pid) or before.processes.get(pid) or (None if death is None else death.process)


def _tenant(node: Node, client: Client, process: ProcessReading | None) -> Tenant:
    owners, pod = belonging_of(process), pod_of(node, process)
    return Tenant(
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
