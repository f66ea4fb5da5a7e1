"""What is remembered of each GPU in order to split its SM time."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from exporter.model.beliefs import Beliefs
from exporter.model.observation import GpuUuid
from exporter.model.split import Split
from exporter.model.work import WorkReading


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitting:
    """The last windows of a GPU, the eldest first, and what is believed of its clients.

    `clients` were there at the end of the last window. `work` is the reading up to which their work is accounted for.
    `watched` has the last two windows in which the probes were attached, the latest last. `followed_at` is when GPM was
    last read for this alone.
    """

    windows: tuple[Split, ...] = ()
    beliefs: Beliefs = field(default_factory=Beliefs)
    clients: frozenset[int] = frozenset()
    work: WorkReading | None = None
    watched: tuple[Split, ...] = ()
    followed_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Of all GPUs; and whether clients of whom nothing better is known have equal parts."""

    equal: bool = False
    gpus: Mapping[GpuUuid, Splitting] = field(default_factory=dict)
