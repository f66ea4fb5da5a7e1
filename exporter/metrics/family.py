"""A family of metrics: its name, type, labels, meaning, and how its samples come out of a view of the node."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from exporter.parse.printable import printable
from exporter.view import View

Labels = tuple[str, ...]
Samples = Iterable[tuple[Labels, float]]
Buckets = Sequence[tuple[str, float]]
Spreads = Iterable[tuple[Labels, Buckets, float]]
Metric = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily


@dataclass(frozen=True, slots=True)
class Family:
    """One entry of the catalogue. Samples come with a value for every label, in order, and with what their kind adds.

    That is a value, or a histogram's buckets and the sum of all that is in them.
    """

    name: str
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily] | type[HistogramMetricFamily]
    labels: Labels
    help: str
    samples: Callable[[View], Iterable[tuple[Any, ...]]]

    def metric(self, samples: Iterable[tuple[Any, ...]]) -> Metric:
        """Return the family with these samples."""
        metric = self.kind(self.name, self.help, labels=self.labels)
        for labels, *value in samples:
            metric.add_metric([printable(label) for label in labels], *value)
        return metric


def gauge(name: str, labels: Labels, meaning: str, samples: Callable[[View], Samples]) -> Family:
    """A family whose values go up and down."""
    return Family(name, GaugeMetricFamily, labels, meaning, samples)


def counter(name: str, labels: Labels, meaning: str, samples: Callable[[View], Samples]) -> Family:
    """A family whose values only grow."""
    return Family(name, CounterMetricFamily, labels, meaning, samples)


def histogram(name: str, labels: Labels, meaning: str, spreads: Callable[[View], Spreads]) -> Family:
    """A family that counts values by their size."""
    return Family(name, HistogramMetricFamily, labels, meaning, spreads)


def buckets(bounds: Iterable[float], within: Iterable[int], count: int) -> Buckets:
    """How many values are at most each bound, and how many there are in all."""
    return [*zip(map(floatToGoString, bounds), within, strict=True), ("+Inf", count)]
