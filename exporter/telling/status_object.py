"""The status of a node as one object for a program."""

from typing import Any

from exporter.core.domains import Domain
from exporter.core.gpus import NVML
from exporter.core.identity import client_id
from exporter.core.workloads import belonging_of, pod_of, workload_of
from exporter.model.node import Node
from exporter.model.observation import ProcessReading
from exporter.model.server import Client
from exporter.model.usage import Share
from exporter.report.finding import Finding
from exporter.report.status_view import ClientView, DaemonView, GpuView, ServerView, StatusView
from exporter.telling.incident_object import incident_object
from exporter.telling.problem_text import problem_object, problem_text
from exporter.telling.remedy import address_of
from exporter.telling.watchdog_object import watchdog_object
from exporter.usage.capacity import BandwidthContention, ClientUsage, GpuSharing


def sharing_object(node: Node, found: GpuSharing | None) -> dict[str, Any] | None:
    """All that is known; null where the GPU has no MPS clients. Parts of the whole are 0 to 1."""
    if found is None:
        return None
    return {
        "seconds": found.recent.seconds,
        "sm_utilization_ratio": found.recent.sm,
        "dram_bandwidth_ratio": found.recent.dram,
        "clients_sm_ratio": found.sm_used,
        "clients_sm_error_ratio": None if found.sm_used is None else found.sm_error,
        "unattributed_ratio": found.recent.unattributed if found.recent.shares else None,
        "gone_ratio": found.departed_sm if found.recent.shares else None,
        "methods": list(found.methods),
        "clients_memory_bytes": found.memory_held,
        "memory_total_bytes": found.memory_total_bytes,
        "threads_committed_ratio": found.threads_committed,
        "memory_committed_ratio": found.memory_committed,
        "fit": {"clients": found.headroom.fits, "bound": found.headroom.binding, "by": dict(found.headroom.by_bound)},
        "idle": [each.client.pid for each in found.idle],
        "at_limit": [each.client.pid for each in found.at_limit],
        "bandwidth": _starving_object(found.contention),
        "beside": [{"pid": pid, **_share_object(share)} for pid, share in found.bypassing.items()],
        "clients": [_holding_object(node, each) for each in found.clients],
    }


def _starving_object(found: BandwidthContention | None) -> dict[str, Any] | None:
    """Null where the bandwidth is not used up; without a PID where nobody stands out."""
    return None if found is None else {"used_ratio": found.dram, "largest_user_of_sm_time": found.pid}


def _holding_object(node: Node, holding: ClientUsage) -> dict[str, Any]:
    process = node.processes.get(holding.client.pid)
    workload = workload_of(process)
    return {
        "client": client_id(holding.client, process),
        "daemon": holding.daemon,
        "server": holding.client.server,
        "pid": holding.client.pid,
        "workload": None if workload is None else {"kind": workload.kind, "name": workload.name},
        "active_thread_ratio": holding.threads,
        "memory_limit_bytes": holding.memory_limit,
        "memory_used_bytes": holding.memory,
        **_share_object(holding.share),
        "watched": holding.watched,
        "connected_at": holding.client.connected_at,
    }


def _share_object(share: Share | None) -> dict[str, Any]:
    if share is None:
        return {"sm_ratio": None, "sm_error_ratio": None, "method": None}
    return {"sm_ratio": share.sm, "sm_error_ratio": share.error, "method": share.method}


def node_object(view: StatusView) -> dict[str, Any]:
    """Return all that is known. Times are seconds since the epoch."""
    node = view.node
    return {
        "at": node.at,
        "findings": [_finding_object(each) for each in view.findings],
        "daemons": [_daemon_object(node, each) for each in view.daemons],
        "gpus": [_gpu_object(node, each) for each in view.gpus],
        "incidents": [
            incident_object(each, now=node.at, address=address_of(node, each.daemon, view.orders))
            for each in view.incidents
        ],
        "sources": {each.name: {"problem": problem_object(each.problem, each.text)} for each in view.collectors},
    }


def _finding_object(found: Finding) -> dict[str, Any]:
    """Return a problem and what to do about it; `fails` says that `status` exits with code 1."""
    return {
        "code": found.code,
        "severity": found.severity,
        "daemon": found.daemon,
        "server": found.server,
        "gpu": found.gpu,
        "client": found.client,
        "since": found.since,
        "text": found.text,
        "meaning": found.definition.meaning,
        "remedy": found.remedy,
        "runbook": found.definition.page,
        "commands": list(found.commands),
        "steps": [{"text": each.text, "commands": list(each.commands)} for each in found.steps],
        "fails": found.fails,
    }


def _daemon_object(node: Node, shown: DaemonView) -> dict[str, Any]:
    daemon = shown.daemon
    return {
        "name": daemon.name,
        "state": daemon.state,
        "severity": shown.severity,
        "expected": daemon.declared.expected,
        "pid": None if daemon.runtime.process is None else daemon.runtime.process.pid,
        "foreign_uid": daemon.runtime.foreign_owner,
        "version": daemon.runtime.version,
        "waiting": list(shown.waiting),
        "watchdog": watchdog_object(shown.watch, shown.mode),
        "servers": [_server_object(node, each) for each in shown.servers],
    }


def _server_object(node: Node, shown: ServerView) -> dict[str, Any]:
    share = shown.server.active_thread_percentage
    return {
        "pid": shown.server.pid,
        "uid": shown.server.uid,
        "state": shown.server.state,
        "active_thread_ratio": None if share is None else share / 100,
        "pinned_memory_limit_bytes": dict(shown.memory_limits.values()),
        "clients": [_client_object(node, each) for each in shown.clients],
    }


def _client_object(node: Node, shown: ClientView) -> dict[str, Any]:
    process = shown.process
    return {
        "client": shown.id,
        "pid": shown.client.pid,
        "user": None if process is None else process.user,
        "command": None if process is None else process.command,
        **_owners_object(node, process),
        "memory_used_bytes": dict(shown.memory),
        "failure_domain": _domain_object(shown.client, shown.domain),
    }


def _domain_object(client: Client, domain: Domain | None) -> dict[str, Any] | None:
    """Whom a fatal fault of this client would take along, and on which GPUs; null where that cannot be told."""
    if domain is None:
        return None
    return {"others": sorted(domain.clients - {client.pid}), "gpus": sorted(domain.gpus)}


def _owners_object(node: Node, process: ProcessReading | None) -> dict[str, Any]:
    owners, pod, workload = belonging_of(process), pod_of(node, process), workload_of(process)
    return {
        "unit": owners.unit,
        "container": owners.container,
        "pod_uid": owners.pod_uid,
        "pod": None if pod is None else pod.name,
        "namespace": None if pod is None else pod.namespace,
        "slurm_job_id": owners.slurm_job_id,
        "slurm_job_sluid": owners.slurm_job_sluid,
        "workload": None if workload is None else {"kind": workload.kind, "name": workload.name},
    }


def _gpu_object(node: Node, shown: GpuView) -> dict[str, Any]:
    reading, problem = shown.gpu.reading, shown.gpu.reading.problem
    return {
        "uuid": shown.uuid,
        "index": reading.index,
        "name": reading.name,
        "problem": None if problem is None else problem_object(problem, problem_text(problem, NVML)),
        "memory_used_bytes": reading.memory_used_bytes,
        "memory_total_bytes": reading.memory_total_bytes,
        "bypassing": list(shown.gpu.bypassing),
        "sharing": sharing_object(node, shown.fitness),
    }
