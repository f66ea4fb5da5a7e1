"""The catalogue: all metric families, and the collector that reads them from a view of the node."""

from collections.abc import Iterable
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from exporter.metrics import clients, daemons, exporter_health, gpus
from exporter.metrics.family import Family, Group
from exporter.view import View

GROUPS: tuple[Group, ...] = (
    *(daemons.DAEMONS, daemons.SERVERS, daemons.LIMITS, daemons.PROTOCOL3),
    *(clients.CLIENTS, clients.LAUNCHES, clients.WORKLOADS),
    *(gpus.USAGE, gpus.CAPACITY, gpus.ALLOCATION),
    clients.FAULTS,
    daemons.WATCHDOG,
    *(gpus.GPUS, gpus.XIDS),
    exporter_health.EXPORTER,
)
CATALOGUE: tuple[Family, ...] = tuple(family for group in GROUPS for family in group.families)

NAMESPACE = "cuda_mps_"
"""The prefix of all family names, except for those of the exporter's own process."""

Made = dict[str, tuple[tuple[Any, ...], Metric]]
"""The families of the last snapshot by name: the samples of each, and the metric that was made of them."""


class NodeCollector(Collector):
    """The metrics of one view of the node. A family without samples is left out.

    The metrics of the collector `beside` follow: those of the exporter's own process. Successive collectors share
    `made`: a family with unchanged samples is not made again.
    """

    def __init__(self, view: View, beside: Collector | None = None, made: Made | None = None) -> None:
        self._view = view
        self._beside = beside
        self._made: Made = {} if made is None else made

    def collect(self) -> Iterable[Metric]:
        """Return the families that have samples."""
        metrics = map(self._metric, CATALOGUE)
        others = () if self._beside is None else self._beside.collect()
        return [*(metric for metric in metrics if metric.samples), *others]

    def _metric(self, family: Family) -> Metric:
        samples, before = tuple(family.samples(self._view)), self._made.get(family.name)
        metric = before[1] if before is not None and before[0] == samples else family.metric(samples)
        self._made[family.name] = samples, metric
        return metric
