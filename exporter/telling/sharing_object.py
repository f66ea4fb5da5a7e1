"""How well a GPU is shared, as an object for a program."""

from typing import Any

from exporter.core.fitness.fitness import Fitness
from exporter.core.fitness.holding import Holding
from exporter.core.fitness.starving import Starving
from exporter.core.identity import client_id
from exporter.core.workloads import workload_of
from exporter.model.node import Node
from exporter.model.split import Share


def sharing_object(node: Node, found: Fitness | None) -> dict[str, Any] | None:
    """All that is known; null where the GPU has no MPS clients. Parts of the whole are 0 to 1."""
    if found is None:
        return None
    return {
        "seconds": found.use.seconds,
        "sm_utilization_ratio": found.use.sm,
        "dram_bandwidth_ratio": found.use.dram,
        "clients_sm_ratio": found.sm_used,
        "clients_sm_error_ratio": None if found.sm_used is None else found.sm_error,
        "unattributed_ratio": found.use.unattributed if found.use.shares else None,
        "gone_ratio": found.gone if found.use.shares else None,
        "methods": list(found.methods),
        "clients_memory_bytes": found.memory_held,
        "memory_total_bytes": found.memory_total_bytes,
        "threads_committed_ratio": found.threads_committed,
        "memory_committed_ratio": found.memory_committed,
        "fit": {"clients": found.room.fits, "bound": found.room.binds, "by": dict(found.room.by)},
        "idle": [each.client.pid for each in found.idle],
        "at_limit": [each.client.pid for each in found.at_limit],
        "bandwidth": _starving_object(found.starving),
        "beside": [{"pid": pid, **_share_object(share)} for pid, share in found.beside.items()],
        "clients": [_client_object(node, each) for each in found.holdings],
    }


def _starving_object(found: Starving | None) -> dict[str, Any] | None:
    """Null where the bandwidth is not used up; without a PID where nobody stands out."""
    return None if found is None else {"used_ratio": found.dram, "largest_user_of_sm_time": found.pid}


def _client_object(node: Node, holding: Holding) -> dict[str, Any]:
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
        **_share_object(holding.used),
        "watched": holding.watched,
        "connected_at": holding.client.connected_at,
    }


def _share_object(share: Share | None) -> dict[str, Any]:
    if share is None:
        return {"sm_ratio": None, "sm_error_ratio": None, "method": None}
    return {"sm_ratio": share.sm, "sm_error_ratio": share.error, "method": share.method}
