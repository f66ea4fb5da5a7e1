"""The output equals that of prometheus_client, is rendered once, and has units and exemplars in OpenMetrics alone."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from exporter.clock import SystemClock
from exporter.metrics.catalogue import CATALOGUE, NodeCollector
from exporter.metrics.exposition import OPENMETRICS, TEXT, TEXT_1, Exposition, Writer, _format
from exporter.view import View
from tests.builders import blocked_recovery
from tests.incidents.values import blocked

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


MOST_OFFERS = 64
"""The test states the program's constant. Each offer of an Accept header delays other scrapes."""


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
        f"{'text/html,' * (MOST_OFFERS - 1)}{openmetrics}": OPENMETRICS,
        f"{'text/html,' * MOST_OFFERS}{openmetrics}": TEXT,
    }
    assert {accept: _format(accept) for accept in wanted} == wanted


def exposed(accept: str) -> str:
    """Return the metrics of a node with an open fault."""
    incident = blocked()
    exposition = Exposition(SystemClock())
    node = replace(blocked_recovery(), incidents={incident.id: incident})
    exposition.publish(NodeCollector(View(node, clock_step=5.0)))
    encoded = exposition.get(accept, gzipped=False)
    assert encoded is not None
    return encoded.body.decode()


def test_openmetrics_has_the_unit_of_each_family_that_ends_in_one() -> None:
    families = {each.name: each.unit for each in text_string_to_metric_families(exposed(OPENMETRICS))}

    assert families["cuda_mps_gpu_memory_total_bytes"] == "bytes"
    assert families["cuda_mps_daemon_start_time_seconds"] == "seconds"
    assert families["cuda_mps_faults"] == ""
    assert all(name.endswith(unit) for name, unit in families.items())


def test_no_family_has_its_unit_elsewhere_in_its_name() -> None:
    units = {each.unit for each in CATALOGUE}
    for each in CATALOGUE:
        others = set(each.name.removesuffix("_total").split("_")[:-1])
        assert each.unit or not others & {"bytes", "celsius", "joules", "watts"} & units


def test_openmetrics_has_the_last_incident_as_an_exemplar_of_fault_counters() -> None:
    exemplars = {
        each.name: each.samples[0].exemplar
        for each in text_string_to_metric_families(exposed(OPENMETRICS))
        if each.samples
    }

    for name in ("cuda_mps_faults", "cuda_mps_fault_affected_clients"):
        exemplar = exemplars[name]
        assert exemplar is not None
        assert exemplar.labels == {"incident": blocked().id}
        assert float(exemplar.timestamp or 0) == blocked().detected_at + 5.0


@pytest.mark.parametrize("accept", [TEXT, TEXT_1])
def test_text_has_neither(accept: str) -> None:
    text = exposed(accept)
    assert "cuda_mps_faults_total{" in text
    assert "# UNIT" not in text
    assert " # {" not in text
