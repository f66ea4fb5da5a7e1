"""What a metric family is: its name, type, labels and help, and how its samples are read from a view of the node."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar, cast

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.samples import Sample

from exporter.model.values import frozen_positional
from exporter.parse.printable import metric_label, printable
from exporter.view import View

T = TypeVar("T")
U = TypeVar("U")
K = TypeVar("K", bound=str)
Labels = tuple[str, ...]
Samples = Iterable[tuple[Labels, float]]
Items = Iterable[tuple[Labels, T]]
Rows = Iterable[tuple[str | int | None, ...]]
Metric = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily

_UNITS = ("bytes", "celsius", "joules", "ratio", "seconds", "watts")


class Choice(NamedTuple):
    """A label with a closed set of values."""

    label: str
    values: Iterable[str]


@frozen_positional
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
    help: str
    more_labels: bool = False  # Whether the labels of a sample end with a mapping: the labels of a pod.

    @property
    def unit(self) -> str:
        """The base unit at the end of the name; empty if there is none. Only OpenMetrics shows it."""
        unit = self.name.removesuffix("_total").rpartition("_")[2]
        return unit if unit in _UNITS else ""

    def metric(self, samples: tuple[tuple[Any, ...], ...]) -> Metric:
        """Return the family with these samples."""
        metric = self.kind(self.name, self.help, labels=self.labels, unit=self.unit)
        metric.samples = cast("list[Sample]", _Samples(self, samples))
        return metric


@frozen_positional
class _Samples:
    """The samples of a family, made whenever they are written. If they were kept, they would take much memory."""

    family: Family
    read: tuple[tuple[Any, ...], ...]

    def __bool__(self) -> bool:
        return bool(self.read)

    def __len__(self) -> int:
        return len(self._made())

    def __getitem__(self, index: int) -> Sample:
        return self._made()[index]

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._made())

    def _made(self) -> list[Sample]:
        family = self.family
        metric = family.kind(family.name, family.help, labels=family.labels)
        for labels, *value in self.read:
            values = labels[:-1] if family.more_labels else labels
            metric.add_metric([printable(label) for label in values], *value)
            if family.more_labels:
                metric.samples[-1].labels.update(
                    (metric_label(key), printable(label)) for key, label in labels[-1].items()
                )
        return metric.samples


class Series(NamedTuple):
    """The series of a family without its help. `help` makes the family, so that no family lacks one."""

    name: str
    labels: tuple[str | Choice, ...]
    samples: Callable[[View], Iterable[tuple[Any, ...]]]
    histogram: bool = False
    more_labels: bool = False

    def help(self, text: str) -> Family:
        """Return the family with this help. It is a counter if its name ends in `_total`."""
        total = self.name.endswith("_total")
        kind = CounterMetricFamily if total else HistogramMetricFamily if self.histogram else GaugeMetricFamily
        choices = {each.label: tuple(each.values) for each in self.labels if isinstance(each, Choice)}
        labels = tuple(each.label if isinstance(each, Choice) else each for each in self.labels)
        return Family(self.name, kind, labels, self.samples, choices, text, self.more_labels)


def info(name: str, labels: tuple[str | Choice, ...], rows: Callable[[View], Rows]) -> Series:
    """Return a family that has 1 for each row of label values. None is an empty value."""
    return Series(
        name, labels, lambda view: ((tuple("" if each is None else str(each) for each in row), 1) for row in rows(view))
    )


class Group:
    """Families of one subject: a section of docs/METRICS.md. `query` is an example in PromQL, `purpose` its result."""

    def __init__(self, title: str, purpose: str, query: str, *families: Family) -> None:
        self.title, self.purpose, self.query, self.families = title, purpose, query, families


@frozen_positional
class Scope(Generic[T]):
    """What families have samples of, such as all daemons: its labels, and how it is read from a view."""

    labels: tuple[str | Choice, ...]
    items: Callable[[View], Items[T]]

    def of(self, part: Callable[[View, T], U | None]) -> "Scope[U]":
        """Return the scope of what `part` returns for each item, without None."""

        def items(view: View) -> Items[U]:
            for labels, item in self.items(view):
                found = part(view, item)
                if found is not None:
                    yield labels, found

        return Scope(self.labels, items)

    def value(self, name: str, value: Callable[[T], float | None]) -> Series:
        """Return a family with one sample of each item, or none if `value` returns None."""
        return Series(name, self.labels, self.of(lambda _, item: value(item)).items)

    def time(self, name: str, time: Callable[[T], float | None]) -> Series:
        """Return a family of times. They are corrected if the wall clock was set since the exporter started."""
        times = self.of(lambda _, item: time(item))
        return Series(name, self.labels, times.of(lambda view, at: at + view.clock_step).items)

    def values(self, name: str, label: str | Choice, values: Callable[[T], Mapping[K, float]]) -> Series:
        """Return a family with several samples of each item, by the values of one more label."""

        def samples(view: View) -> Samples:
            for labels, item in self.items(view):
                for key, value in sorted(values(item).items()):
                    yield (*labels, key), value

        return Series(name, (*self.labels, label), samples)

    def state(self, name: str, label: Choice, state: Callable[[T], str | None]) -> Series:
        """Return a family with one sample for each state of each item: 1 for the present state. None if unknown."""
        states, present = tuple(label.values), self.of(lambda _, item: state(item))

        def samples(view: View) -> Samples:
            for labels, now in present.items(view):
                yield from (((*labels, each), each == now) for each in states)

        return Series(name, (*self.labels, label), samples)


NODE: Scope[View] = Scope((), lambda view: [((), view)])  # the whole node, for families without labels


def summed(amounts: Iterable[tuple[Labels, int]], parts: int = 1) -> Samples:
    """Add up amounts, as exact integers, with labels that print alike; the family's unit has `parts` of them."""
    totals: Counter[Labels] = Counter()
    for labels, amount in amounts:
        totals[tuple(map(printable, labels))] += amount
    return ((labels, amount / parts) for labels, amount in totals.items())
