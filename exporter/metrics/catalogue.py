"""The one catalogue: every family there is."""

from collections.abc import Iterable

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


class NodeCollector(Collector):
    """One view of the node, for prometheus_client to write out. A family without samples is left out.

    `beside` is another collector, whose metrics follow: those of the exporter's own process.
    """

    def __init__(self, view: View, beside: Collector | None = None) -> None:
        self._view = view
        self._beside = beside

    def collect(self) -> Iterable[Metric]:
        """The families that have samples."""
        metrics = (family.metric(self._view) for family in CATALOGUE)
        others = () if self._beside is None else self._beside.collect()
        return [*(metric for metric in metrics if metric.samples), *others]
