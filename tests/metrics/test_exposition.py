"""The writer's output equals that of prometheus_client. It renders only changed families."""

from collections.abc import Iterable, Sequence

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from exporter.metrics.exposition import OPENMETRICS, TEXT, TEXT_1, Writer, _format

every_format = pytest.mark.parametrize("accept", [TEXT, TEXT_1, OPENMETRICS])


class Families(Collector):
    """A collector that creates new metrics at each call, as the catalogue does."""

    def __init__(self, *values: float, names: Sequence[str] = ("first", "second")) -> None:
        self.values = values
        self.names = names

    def collect(self) -> Iterable[Metric]:
        """Yield gauges, a counter and a histogram."""
        for name in self.names:
            gauge = GaugeMetricFamily(name, 'what "it" is \\ in\none line', labels=["who"])
            for number, value in enumerate(self.values):
                gauge.add_metric([f'é"\\\n{number}'], value)
            yield gauge
        yield CounterMetricFamily("times", "how often", value=sum(self.values))
        yield HistogramMetricFamily("spans", "how long", buckets=[("1", 1), ("+Inf", 2)], sum_value=3)


@every_format
def test_the_output_equals_that_of_the_library(accept: str) -> None:
    write, content_type = choose_encoder(accept)
    writer = Writer(accept)
    snapshots = [Families(1), Families(1), Families(2), Families(2, 3), Families(3, names=["second"]), Families(3)]

    assert [writer.write(each.collect()) for each in snapshots] == [write(each) for each in snapshots]
    assert writer.content_type == content_type


@every_format
def test_unchanged_families_are_not_rendered_again(accept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(accept)
    writer.write(Families(1).collect())
    written: list[Metric] = []
    write = writer._text
    monkeypatch.setattr(writer, "_text", lambda metric: (written.append(metric), write(metric))[1])
    writer.write(Families(1).collect())
    assert written == []

    writer.write(Families(1, names=("first", "third")).collect())

    assert [metric.name for metric in written] == ["third"]


def test_chooses_the_format_with_the_highest_quality() -> None:
    text, openmetrics = "text/plain", "application/openmetrics-text"
    wanted = {
        f"{openmetrics};q=0.5,{text};version=0.0.4;q=0.6": TEXT,
        f"{text};q=0.5, {openmetrics}; q = 0.6": OPENMETRICS,
        f"{openmetrics},{text}": OPENMETRICS,
        f"{openmetrics};q=0": TEXT,
        f"{openmetrics};q=2,{text};version=1.0.0;q=0.1": TEXT_1,
        f"{openmetrics};q=nan": TEXT,
        "*/*;q=0.1": TEXT,
    }
    assert {accept: _format(accept) for accept in wanted} == wanted
