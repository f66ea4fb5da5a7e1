"""Limits of a client: threads and memory that it may use, by its server and by its own environment."""

from collections.abc import Mapping

from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.observation import GpuUuid, ProcessReading
from exporter.model.server import Client
from exporter.model.settings import VISIBLE_DEVICES, Limits
from exporter.parse.cgroup import CgroupMembership as Membership
from exporter.parse.mps_variables import client_memory_limits, client_thread_percentage
from exporter.parse.protocol3 import PROTOCOL
from exporter.state.processes import cgroup_of

WHOLE = 100.0
"""The active thread percentage without a limit."""


def thread_ratio(node: Node, daemon: Daemon, client: Client) -> float | None:
    """Return the fraction of a GPU's threads that a client may use; None if it is unknown, or the GPU is divided."""
    limits, process = _limits_and_process(node, daemon, client)
    limit = limits.active_thread_percentage
    if daemon.has_static_partitions or daemon.has_mlopart_devices or limit is None:
        return None
    if process is None or process.environment is None:
        return None
    own = client_thread_percentage(process.environment)
    if own is not None and daemon.runtime.protocol == PROTOCOL:
        # The percentage of a namespace replaces the client's own (guide, release 615). 100 may mean that none is set.
        own = limit if limit < WHOLE or own == WHOLE else None
    return None if own is None else min(limit, own) / WHOLE


def _limits_and_process(node: Node, daemon: Daemon, client: Client) -> tuple[Limits, ProcessReading | None]:
    server = daemon.servers.get(client.server)
    return Limits() if server is None else server.limits_of(client), node.processes.get(client.pid)


def memory_limit(
    node: Node,
    daemon: Daemon,
    client: Client,
    uuid: GpuUuid,
    gpus: frozenset[GpuUuid],
    ordinals: Mapping[int, GpuUuid],
) -> tuple[bool, int | None]:
    """Return the fields `memory_limit_known` and `memory_limit` of a client on a GPU."""
    limits, process = _limits_and_process(node, daemon, client)
    if limits.active_thread_percentage is None or process is None or process.environment is None:
        return False, None
    own = client_memory_limits(process.environment)
    if own is None or (limits.pinned_memory and not ordinals):
        return False, None
    devices = {str(ordinal): gpu for ordinal, gpu in ordinals.items()}
    here = [limit for ordinal, limit in limits.pinned_memory.items() if ordinals.get(ordinal) == uuid]
    member = cgroup_of(process)
    if own.keys() == {"0"} and len(gpus) == 1 and member.pod_uid is not None:
        # GKE gives a pod with MPS one GPU, which is device 0 there, and sets `0=SIZE` (container-engine-accelerators,
        # pkg/gpu/nvidia/manager.go).
        own, devices = {uuid: own["0"]}, {}
    # A client that names a GPU that it does not see has no limit at all (driver 615.71, NVIDIA's "Per-GPU Compute and
    # Memory Limits with MPS"). One that has some of several GPUs, as a container may, counts them in its own way.
    elif not own.keys() <= gpus and (
        not {devices.get(device, device) for device in own} <= set(ordinals.values())
        or (len(ordinals) > 1 and (VISIBLE_DEVICES in process.environment or member != Membership(unit=member.unit)))
    ):
        return False, None
    here += [limit for device, limit in own.items() if devices.get(device, device) == uuid]
    return True, min(here, default=None)
