"""A family of metrics: its name, type, labels, meaning, and how its samples come out of a view of the node."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from exporter.view import View, printable

Labels = tuple[str, ...]
Samples = Iterable[tuple[Labels, float]]
Metric = GaugeMetricFamily | CounterMetricFamily


@dataclass(frozen=True, slots=True)
class Family:
    """One entry of the catalogue. Samples come with a value for every label, in order."""

    name: str
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily]
    labels: Labels
    help: str
    samples: Callable[[View], Samples]

    def metric(self, view: View) -> Metric:
        """The family with its samples."""
        metric = self.kind(self.name, self.help, labels=self.labels)
        for labels, value in self.samples(view):
            metric.add_metric([printable(label) for label in labels], value)
        return metric


def gauge(name: str, labels: Labels, meaning: str, samples: Callable[[View], Samples]) -> Family:
    """A family whose values go up and down."""
    return Family(name, GaugeMetricFamily, labels, meaning, samples)


def counter(name: str, labels: Labels, meaning: str, samples: Callable[[View], Samples]) -> Family:
    """A family whose values only grow."""
    return Family(name, CounterMetricFamily, labels, meaning, samples)
