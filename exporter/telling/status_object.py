"""The node as `status` shows it, as one object for a program."""

from collections.abc import Iterable
from typing import Any

from exporter.core.devices import by_its_ordinals
from exporter.core.domains import Domain, domains
from exporter.core.fitness.fitness import Fitness, fitness
from exporter.core.gpus import NVML
from exporter.core.identity import client_id
from exporter.core.watchdog.orders import Orders
from exporter.core.workloads import belonging_of, pod_of, workload_of
from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.observation import ProcessReading
from exporter.model.server import Client, Server
from exporter.telling.incident_object import incident_object
from exporter.telling.problem_text import problem_object, problem_text, source_text
from exporter.telling.remedy import address_of
from exporter.telling.sharing_object import sharing_object
from exporter.telling.troubles import Trouble, standing, troubles
from exporter.telling.watchdog_object import watchdog_object
from exporter.view import Memory, View, clients_of, memory


def node_object(node: Node, orders: Orders | None = None) -> dict[str, Any]:
    """All that is known. Times are seconds since the epoch. `orders` are the watchdog's, None where there is none."""
    used, shared, found = memory(node), fitness(node), troubles(node, node.at, orders)
    return {
        "at": node.at,
        "findings": [_finding_object(each) for each in found],
        "daemons": [_daemon_object(node, daemon, used, orders, found) for daemon in View(node).daemons()],
        "gpus": [_gpu_object(node, uuid, shared.get(uuid)) for uuid in node.gpus],
        "incidents": [
            incident_object(each, now=node.at, address=address_of(node, each.daemon, orders))
            for each in node.incidents.values()
        ],
        "sources": {
            name: {"problem": problem_object(source.last.problem, source_text(name, source))}
            for name, source in node.sources.items()
        },
    }


def _finding_object(found: Trouble) -> dict[str, Any]:
    """What is the matter, gravest first, and what to do about it; `fails` says that `status` ends with exit code 1."""
    return {
        "level": found.level,
        "daemon": found.daemon,
        "gpu": found.gpu,
        "text": found.what,
        "next": found.next,
        "commands": list(found.commands),
        "steps": [{"text": each.text, "commands": list(each.commands)} for each in found.steps],
        "fails": found.fails,
    }


def _daemon_object(
    node: Node, daemon: Daemon, used: Memory, orders: Orders | None, found: Iterable[Trouble]
) -> dict[str, Any]:
    here = domains(node, daemon)
    level, _ = standing(daemon, found)
    return {
        "name": daemon.name,
        "state": daemon.state,
        "level": level,
        "expected": daemon.expected,
        "pid": None if daemon.process is None else daemon.process.pid,
        "foreign_uid": daemon.foreign,
        "version": daemon.version,
        "waiting": sorted(daemon.waiting),
        "watchdog": watchdog_object(node.watches.get(daemon.name), None if orders is None else orders.mode_of(daemon)),
        "servers": [
            _server_object(node, daemon, server, used, here.get(server.pid, ())) for server in daemon.servers.values()
        ],
    }


def _server_object(node: Node, daemon: Daemon, server: Server, used: Memory, here: Iterable[Domain]) -> dict[str, Any]:
    falls_with = {pid: domain for domain in here for pid in domain.clients}
    share, limits, gpus = server.active_thread_percentage, server.pinned_memory_limits, by_its_ordinals(node, daemon)
    return {
        "pid": server.pid,
        "uid": server.uid,
        "state": server.state,
        "active_thread_ratio": None if share is None else share / 100,
        "pinned_memory_limit_bytes": {gpus[device]: limit for device, limit in limits.items() if device in gpus},
        "clients": [
            _client_object(node, client, used, falls_with.get(client.pid)) for client in clients_of(daemon, server)
        ],
    }


def _client_object(node: Node, client: Client, used: Memory, domain: Domain | None) -> dict[str, Any]:
    process = node.processes.get(client.pid)
    return {
        "client": client_id(client, process),
        "pid": client.pid,
        "user": None if process is None else process.user,
        "command": None if process is None else process.command,
        **_owners_object(node, process),
        "memory_used_bytes": dict(used.get(client.pid, {})),
        "failure_domain": _domain_object(client, domain),
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


def _gpu_object(node: Node, uuid: str, shared: Fitness | None) -> dict[str, Any]:
    gpu = node.gpus[uuid]
    problem = gpu.reading.problem
    return {
        "uuid": uuid,
        "index": gpu.reading.index,
        "name": gpu.reading.name,
        "problem": None if problem is None else problem_object(problem, problem_text(problem, NVML)),
        "memory_used_bytes": gpu.reading.memory_used_bytes,
        "memory_total_bytes": gpu.reading.memory_total_bytes,
        "bypassing": list(gpu.bypassing),
        "sharing": sharing_object(node, shared),
    }
