"""How busy a GPU was lately, and whose that was as far as it is known."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from exporter.core.attribution.minute import fresh_splits
from exporter.model.node import Node
from exporter.model.observation import GpuUuid
from exporter.model.split import Share


@dataclass(frozen=True, slots=True, kw_only=True)
class Lately:
    """The parts of its SMs that were busy, and of its memory's bandwidth, each 0 to 1; None where it cannot tell.

    By PID, `shares` are those that are known; `unattributed` is what nobody is known to have used.
    """

    seconds: float | None = None
    sm: float | None = None
    dram: float | None = None
    shares: Mapping[int, Share] = field(default_factory=dict)
    unattributed: float = 0.0


def lately(node: Node, gpu: GpuUuid) -> Lately:
    """By its last split, as long as that is fresh; else as NVML last read it, and then it is nobody's."""
    split = fresh_splits(node).get(gpu)
    if split is not None:
        return Lately(
            seconds=split.seconds,
            sm=split.sm,
            dram=split.dram,
            shares=split.shares,
            unattributed=split.unattributed,
        )
    reading = node.gpus[gpu].reading
    return Lately(seconds=reading.gpm_seconds, sm=reading.sm_utilization, dram=reading.dram_bandwidth)
