"""How busy the GPUs are, and how clients share them."""

from collections.abc import Mapping
from typing import NamedTuple

from exporter.model.values import frozen


class NodeGpus(NamedTuple):
    """The SMs of the largest GPU (None: unknown), how many GPUs the node has, and the bandwidth of the fastest memory.

    The bandwidth is in bytes a second, as GPM counts it; 0: unknown.
    """

    sms: int | None
    number: int = 1
    bandwidth: int = 0


@frozen
class GpuUse:
    """How busy a GPU was in the last `seconds`, by GPM: its SMs, and its memory's bandwidth, each 0 to 1.

    Read far more often than a `GpuReading`.
    """

    at: float
    gpu: str
    seconds: float
    sm_utilization: float
    dram_bandwidth: float | None = None


@frozen
class HeadroomStatus:
    """How many more such clients fit: by the resource that limits them, and by each resource."""

    clients: int | None
    resource: str | None
    by_resource: Mapping[str, int]


@frozen
class SharingStatus:
    """How the MPS clients share a GPU in the last `seconds`.

    `departed_sm_ratio` is what processes used that have exited. The committed ratios are the sums of the clients'
    limits if all are certain. `reserved` has these sums as text, even if uncertain. `sms` is how many SMs the GPU
    has. `idle` and `over_limit` are PIDs of clients.
    """

    seconds: float | None
    sm_utilization_ratio: float | None
    dram_bandwidth_ratio: float | None
    clients_sm_ratio: float | None
    clients_sm_error_ratio: float | None
    unattributed_ratio: float | None
    departed_sm_ratio: float | None
    methods: tuple[str, ...]
    clients_memory_bytes: int | None
    memory_total_bytes: int | None
    sms: int | None
    threads_committed_ratio: float | None
    memory_committed_ratio: float | None
    reserved: tuple[str, ...]
    headroom: HeadroomStatus
    idle: tuple[int, ...]
    over_limit: tuple[int, ...]
    sharing_gain_ratio: float | None
