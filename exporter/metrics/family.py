"""What a metric family is: its name, type, labels and help, and how its samples are read from a view of the node."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from exporter.parse.printable import printable
from exporter.view import View

T = TypeVar("T")
K = TypeVar("K", bound=str)
Labels = tuple[str, ...]
Samples = Iterable[tuple[Labels, float]]
Items = Iterable[tuple[Labels, T]]
Rows = Iterable[tuple[str | int | None, ...]]
Buckets = Sequence[tuple[str, float]]
Metric = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily


_UNITS = ("bytes", "celsius", "joules", "ratio", "seconds", "watts")


class Choice(NamedTuple):
    """A label with a closed set of values."""

    label: str
    values: Iterable[str]


@dataclass(frozen=True, slots=True)
class Family:
    """One entry of the catalogue.

    A sample has a value for every label, in order. Then follows its number, or the buckets of a histogram and their
    sum. A counter's number can be followed by None, None and an exemplar. `choices` has all values of the labels that
    have a closed set of them.
    """

    name: str
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily] | type[HistogramMetricFamily]
    labels: Labels
    samples: Callable[[View], Iterable[tuple[Any, ...]]]
    choices: Mapping[str, tuple[str, ...]]
    help: str = ""

    @property
    def unit(self) -> str:
        """The base unit at the end of the name; empty if there is none. Only OpenMetrics shows it."""
        unit = self.name.removesuffix("_total").rpartition("_")[2]
        return unit if unit in _UNITS else ""

    def metric(self, samples: Iterable[tuple[Any, ...]]) -> Metric:
        """Return the family with these samples."""
        metric = self.kind(self.name, self.help, labels=self.labels, unit=self.unit)
        for labels, *value in samples:
            metric.add_metric([printable(label) for label in labels], *value)
        return metric


class Group(NamedTuple):
    """Families of one subject: a section of docs/METRICS.md. `query` is an example in PromQL, `purpose` its result."""

    title: str
    purpose: str
    query: str
    families: tuple[Family, ...]


def group(title: str, purpose: str, query: str, *entries: Family | str) -> Group:
    """Return a group of families. Each family is followed by its help."""
    pairs = zip(entries[::2], entries[1::2], strict=True)
    return Group(title, purpose, query, tuple(_explained(each, text) for each, text in pairs))


def _explained(entry: Family | str, text: Family | str) -> Family:
    if isinstance(entry, str) or not isinstance(text, str):
        raise TypeError(f"expected a family and its help, not {entry} and {text}")
    return replace(entry, help=text)


def family(
    name: str,
    labels: Iterable[str | Choice],
    samples: Callable[[View], Iterable[tuple[Any, ...]]],
    *,
    histogram: bool = False,
) -> Family:
    """Return a family. It is a counter if its name ends in `_total`."""
    kind = CounterMetricFamily if name.endswith("_total") else HistogramMetricFamily if histogram else GaugeMetricFamily
    names = tuple(each.label if isinstance(each, Choice) else each for each in labels)
    choices = {each.label: tuple(each.values) for each in labels if isinstance(each, Choice)}
    return Family(name, kind, names, samples, choices)


def info(name: str, labels: Iterable[str | Choice], rows: Callable[[View], Rows]) -> Family:
    """Return a family that has 1 for each row of label values. None is an empty value."""

    def samples(view: View) -> Samples:
        return ((tuple(["" if each is None else str(each) for each in row]), 1) for row in rows(view))

    return family(name, labels, samples)


@dataclass(frozen=True, slots=True)
class Scope(Generic[T]):
    """What families have samples of, such as all daemons: its labels, and how it is read from a view."""

    labels: tuple[str | Choice, ...]
    items: Callable[[View], Items[T]]

    def value(self, name: str, value: Callable[[T], float | None]) -> Family:
        """Return a family with one sample of each item, or none if `value` returns None."""

        def samples(view: View) -> Samples:
            for labels, item in self.items(view):
                found = value(item)
                if found is not None:
                    yield labels, found

        return family(name, self.labels, samples)

    def time(self, name: str, time: Callable[[T], float | None]) -> Family:
        """Return a family of times. They are corrected if the wall clock was set since the exporter started."""

        def samples(view: View) -> Samples:
            for labels, item in self.items(view):
                found = time(item)
                if found is not None:
                    yield labels, found + view.clock_step

        return family(name, self.labels, samples)

    def values(self, name: str, label: str | Choice, values: Callable[[T], Mapping[K, float]]) -> Family:
        """Return a family with several samples of each item, by the values of one more label."""

        def samples(view: View) -> Samples:
            for labels, item in self.items(view):
                for key, value in sorted(values(item).items()):
                    yield (*labels, key), value

        return family(name, (*self.labels, label), samples)

    def state(self, name: str, label: Choice, state: Callable[[T], str | None]) -> Family:
        """Return a family with one sample for each state of each item: 1 for the present state. None if unknown."""
        states = tuple(label.values)

        def samples(view: View) -> Samples:
            for labels, item in self.items(view):
                present = state(item)
                if present is not None:
                    yield from (((*labels, each), each == present) for each in states)

        return family(name, (*self.labels, label), samples)


NODE: Scope[View] = Scope((), lambda view: [((), view)])
"""The whole node, for families without labels."""


def buckets(bounds: Iterable[float], within: Iterable[int], count: int) -> Buckets:
    """Return the buckets of a histogram: the number of values up to each bound, and of all values."""
    return [*zip(map(floatToGoString, bounds), within, strict=True), ("+Inf", count)]
