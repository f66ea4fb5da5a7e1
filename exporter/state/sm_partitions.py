"""Static SM partitions and their clients."""

from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.observation import GpuUuid
from exporter.model.server import Client, SmPartition
from exporter.parse.sm_partitions import is_same_device, partition_of_variable
from exporter.state.gpus import major_version

PARTIAL_ISOLATION = 610
"""From this driver on, clients in other partitions survive some faults (guide, release 615)."""


def partition_of(node: Node, daemon: Daemon, client: Client) -> SmPartition | None:
    """Return the partition that a client's environment names; None if it names none, or is unknown."""
    process, found = node.processes.get(client.pid), daemon.runtime.partitions
    if process is None or process.environment is None or found is None:
        return None
    return partition_of_variable(found.partitions, process.environment)


def partitions_with_clients(node: Node, daemon: Daemon) -> frozenset[SmPartition] | None:
    """Return the partitions with clients; None if it is unknown for one of them.

    Protocol 2 lists whether a partition has clients. With protocol 3, only the clients' environments show it.
    """
    found = daemon.runtime.partitions
    if found is None:
        return None
    named = [partition_of(node, daemon, client) for client in daemon.clients.values()]
    if None in named and any(each.has_clients is None for each in found.partitions):
        return None
    return frozenset(each for each in found.partitions if each.has_clients or each in named)


def gpu_of(node: Node, partition_gpu: str) -> GpuUuid | None:
    """Return the UUID of a GPU that a daemon may shorten; None if it fits none, or several."""
    uuids = [uuid for uuid in node.gpus if is_same_device(uuid, partition_gpu)]
    return uuids[0] if len(uuids) == 1 else None


def has_partial_isolation(node: Node, daemon: Daemon) -> bool:
    """Return whether clients in other partitions may survive a fault: its failure domain is then an upper bound.

    An unknown driver counts as a new one.
    """
    if not daemon.has_static_partitions:
        return False
    versions = (major_version(gpu.reading.driver_version) for gpu in node.gpus.values())
    return any(each is None or each >= PARTIAL_ISOLATION for each in versions)
