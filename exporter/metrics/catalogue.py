"""The one catalogue: every family there is."""

from collections.abc import Iterable
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from exporter.metrics import (
    accounting,
    clients,
    configuration,
    daemons,
    eyes,
    faults,
    fitness,
    gpus,
    limit_drift,
    limits,
    servers,
    watchdog,
    work,
    workloads,
    xids,
)
from exporter.metrics.family import Family
from exporter.view import View

CATALOGUE: tuple[Family, ...] = (
    *daemons.FAMILIES,
    *servers.FAMILIES,
    *limits.FAMILIES,
    *limit_drift.FAMILIES,
    *clients.FAMILIES,
    *work.FAMILIES,
    *faults.FAMILIES,
    *watchdog.FAMILIES,
    *workloads.FAMILIES,
    *accounting.FAMILIES,
    *gpus.FAMILIES,
    *fitness.FAMILIES,
    *xids.FAMILIES,
    *eyes.FAMILIES,
    *configuration.FAMILIES,
)


Made = dict[str, tuple[tuple[Any, ...], Metric]]
"""The families that were made last, by name: the samples of each, and the metric that was made of them."""


class NodeCollector(Collector):
    """One view of the node, for prometheus_client to write out. A family without samples is left out.

    `beside` is another collector, whose metrics follow: those of the exporter's own process. `made` is given by
    collectors that follow one another: a family whose samples are those of the collector before is not made again.
    """

    def __init__(self, view: View, beside: Collector | None = None, made: Made | None = None) -> None:
        self._view = view
        self._beside = beside
        self._made: Made = {} if made is None else made

    def collect(self) -> Iterable[Metric]:
        """The families that have samples."""
        metrics = map(self._metric, CATALOGUE)
        others = () if self._beside is None else self._beside.collect()
        return [*(metric for metric in metrics if metric.samples), *others]

    def _metric(self, family: Family) -> Metric:
        samples, before = tuple(family.samples(self._view)), self._made.get(family.name)
        metric = before[1] if before is not None and before[0] == samples else family.metric(samples)
        self._made[family.name] = samples, metric
        return metric
